"""English-German sentence pairs from a synchronous grammar: an endless, exact corpus that needs no download.

    lexicon -> noun_phrase, prepositional -> Clause -> english_*, german_* -> the sentences of Writer -> grammar_pairs

A Clause holds what is said, once for both languages; english_statement, german_final and their siblings put it in
order. German gets its verb second, first or last, its split prefixes, cases and endings; English its do-support.
The German is a function of the English: 'you' is 'du', a progressive adds 'gerade', a simple past becomes a perfect
unless the lexicon gives the verb a preterite. So BLEU on unseen sentences tells what was learned, not what was guessed.

The part of a sentence (train, valid, test) is decided by a hash of its English. A test sentence can therefore not occur
in training, whatever the seeds and counts, and nothing must be remembered to make sure.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import TypeVar

from dragoman.data import lexicon as lex
from dragoman.data.lexicon import ACCUSATIVE, DATIVE, ER, NOTHING, Determiner, Modal, Noun, Pair, Pronoun, Verb
from dragoman.errors import DataError

T = TypeVar("T")
Phrase = tuple[Pair, Determiner]

# -- phrases -----------------------------------------------------------------------------------------------------------

_CONTRACTED = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}


def join(*parts: str) -> str:
    return " ".join([part for part in parts if part])


def noun_phrase(determiner: Determiner, noun: Noun, case: int, adjective: lex.Adjective | None = None) -> Pair:
    """'the old dogs' in both languages, in German with the endings of the case."""
    plural = determiner.plural
    column = lex.PLURAL if plural else noun.gender
    article, english, german = determiner.english, noun.english[plural], noun.german[case][plural]
    if adjective:
        english = f"{adjective.english} {english}"
        german = f"{adjective.stem}{determiner.endings[case][column]} {german}"
    if article == "a":
        article = "an" if english.startswith(("a", "e", "i", "o", "u", "honest")) else "a"
    return Pair(f"{article} {english}".lstrip(), f"{determiner.german[case][column]} {german}".lstrip())


def prepositional(english: str, german: str, phrase: Pair) -> Pair:
    """A preposition before a phrase, which has its case already; in dem Haus becomes im Haus."""
    article, _, rest = phrase.german.partition(" ")
    contracted = _CONTRACTED.get(f"{german} {article}")
    return Pair(f"{english} {phrase.english}", f"{contracted} {rest}" if contracted else f"{german} {phrase.german}")


# -- clauses -----------------------------------------------------------------------------------------------------------


Tense = Enum("Tense", "PRESENT PROGRESSIVE PAST PERFECT FUTURE")


@dataclass(frozen=True, slots=True)
class Subject:
    english: str
    german: str
    person: int
    pronoun: Pronoun | None = None  # what stands for it later on: 'Anna ..., because she ...'


@dataclass(slots=True)
class Clause:
    """What is said. A German middle field runs: early, time, known, adverb, new, nicht, manner, after."""

    subject: Subject
    verb: Verb
    tense: Tense = Tense.PRESENT
    modal: Modal | None = None
    negated: bool = False
    kein: bool = False  # an object carries the negation, so there is no 'nicht'
    complement: str = ""  # English objects, predicates and goals
    early: str = ""  # German receiver, or object that is a pronoun or a name
    known: str = ""  # German definite objects
    new: str = ""  # German indefinite objects
    after: str = ""  # German predicates, goals and objects with a preposition
    adverb: Pair = NOTHING
    manner: Pair = NOTHING
    time: Pair = NOTHING
    front: Pair = NOTHING  # the time above, moved before everything else
    tail: Pair = NOTHING  # a relative clause about the last object; German puts it behind the verb


_BE_NOW = ("am", "are", "is", "are", "are")
_BE_PAST = ("was", "were", "was", "were", "were")
_NOT = {"am": "am not", "will": "won't", "can": "can't", "may": "may not"}  # all others just add n't


def _english_verbs(clause: Clause, split: bool) -> tuple[str, str]:
    """The auxiliary and the rest of the verb; `split` demands an auxiliary, so plain tenses fall back on 'do'."""
    verb, tense, modal, person = clause.verb, clause.tense, clause.modal, clause.subject.person
    past = tense is Tense.PAST
    if tense is Tense.PROGRESSIVE:
        return _BE_NOW[person], verb.ing
    if tense is Tense.PERFECT:
        return "has" if person == ER else "have", verb.participle
    if tense is Tense.FUTURE:
        return "will", verb.base
    if modal and modal.auxiliary:
        helper, _, link = modal.english[2 if past else 0].partition(" ")
        return helper, join(link, verb.base)
    if verb is lex.BE:
        return (_BE_PAST if past else _BE_NOW)[person], ""
    base, third, before = verb.base, verb.third, verb.past
    if modal:
        base, third, before = (f"{form} {verb.base}" for form in modal.english)
    if split:
        return "did" if past else "does" if person == ER else "do", base
    return "", before if past else third if person == ER else base


def english_statement(clause: Clause) -> str:
    helper, main = _english_verbs(clause, clause.negated)
    if clause.negated:
        helper = _NOT.get(helper, f"{helper}n't")
    subject, adverb = clause.subject.english, clause.adverb.english
    return join(clause.front.english, subject, helper, adverb, main, _english_rest(clause))


def english_question(clause: Clause, asking: str = "") -> str:
    assert not clause.negated, "a negated question would need the place of 'not'"
    helper, main = _english_verbs(clause, True)
    return join(asking, helper, clause.subject.english, clause.adverb.english, main, _english_rest(clause))


def _english_rest(clause: Clause) -> str:
    time = "" if clause.front is clause.time else clause.time.english
    return join(clause.complement, clause.manner.english, time, clause.tail.english)


def _german_verbs(clause: Clause) -> tuple[str, str]:
    """The finite verb and what closes the clause: a participle, an infinitive or a separable prefix."""
    verb, tense, modal, person = clause.verb, clause.tense, clause.modal, clause.subject.person
    past = tense is Tense.PAST
    if modal:
        return (modal.german_past if past else modal.german)[person], verb.infinitive
    if tense is Tense.FUTURE:
        return lex.WERDEN[person], verb.infinitive
    if tense is Tense.PERFECT or (past and not verb.preterite):
        return (lex.BE.present if verb.by_sein else lex.HABEN)[person], verb.german_participle
    return (verb.preterite if past else verb.present)[person], verb.prefix


def _middle_field(clause: Clause) -> str:
    time = "" if clause.front is clause.time else clause.time.german
    now = "gerade" if clause.tense is Tense.PROGRESSIVE else ""
    negation = "nicht" if clause.negated and not clause.kein else ""
    objects = clause.known, clause.adverb.german, clause.new
    return join(clause.early, time, now, *objects, negation, clause.manner.german, clause.after)


def german_statement(clause: Clause) -> str:
    """Verb second: after the subject, or after whatever else stands in front."""
    if clause.front.german:
        return german_question(clause, clause.front.german)
    finite, closing = _german_verbs(clause)
    return join(clause.subject.german, finite, _middle_field(clause), closing) + clause.tail.german


def german_question(clause: Clause, asking: str = "") -> str:
    """Verb before the subject: a question, or a statement with something else in front."""
    finite, closing = _german_verbs(clause)
    return join(asking, finite, clause.subject.german, _middle_field(clause), closing) + clause.tail.german


def german_final(clause: Clause, opening: str = "") -> str:
    """Verb last, where a separable prefix joins it again: weil er früh aufsteht."""
    finite, closing = _german_verbs(clause)
    end = closing + finite if closing == clause.verb.prefix else f"{closing} {finite}"
    return join(opening, clause.subject.german, _middle_field(clause), end) + clause.tail.german


# -- what there is to choose from --------------------------------------------------------------------------------------

_DETERMINERS: dict[str, tuple[Determiner, ...]] = {
    "the": (lex.THE,), "the_many": (lex.THE.of_many(),), "this": (lex.THIS,), "these": (lex.THIS.of_many(),),
    "a": (lex.A,), "bare": (lex.BARE,), "bare_many": (lex.BARE.of_many(),), "every": (lex.EVERY,), "all": (lex.ALL,),
    "not_a": (lex.NOT_A,), "not_any": (lex.NOT_ANY,), "not_any_many": (lex.NOT_ANY.of_many(),),
    "my": lex.POSSESSIVES, "my_many": tuple(mine.of_many() for mine in lex.POSSESSIVES), "owner": lex.OWNERS,
    "counted": (*lex.NUMBERS, lex.MANY, lex.MANY, lex.SOME, lex.SOME), "digits": lex.DIGITS,
}  # fmt: skip
_POOLS = {  # draw a list of determiners, then one of it: 24 owners do not crowd out 'the'
    kind: tuple(tuple(_DETERMINERS[name] for name in row.split()) for row in rows)
    for kinds, rows in lex.WORDS["determiners"].items()
    for kind in kinds.split()
}

_PEOPLE = lex.nouns("person kin")
_VERBS = lex.VERBS + (lex.BE,) * 8
_ACTIONS = tuple(verb for verb in lex.VERBS if not verb.stative)
_ASKED_FOR = tuple(noun for verb in lex.VERBS for noun in verb.objects if noun.kind != "kin")
_VERBS_TAKING = {  # without their objects, because these stand outside of the clause
    kind: tuple(replace(verb, objects=()) for verb in lex.VERBS if any(noun.kind == kind for noun in verb.objects))
    for kind in lex.NOUNS
}
_NAMES = tuple((name, lex.HER) for name in lex.WOMEN) + tuple((name, lex.HIM) for name in lex.MEN)
_OBJECT_PRONOUNS = {  # by the person of the subject: 'I see me' is no sentence
    lex.ICH: (lex.YOU, lex.HIM, lex.HER, lex.THEM), lex.DU: (lex.ME, lex.HIM, lex.HER, lex.US, lex.THEM),
    lex.WIR: (lex.YOU, lex.HIM, lex.HER, lex.THEM), ER: lex.PRONOUNS, lex.SIE: lex.PRONOUNS,
}  # fmt: skip

_PRESENT, _PROGRESSIVE, _PAST, _PERFECT, _FUTURE = Tense
_TENSES = (_PRESENT, _PRESENT, _PRESENT, _PROGRESSIVE, _PERFECT, _PAST, _PAST, _PAST, _FUTURE, _FUTURE)
_TIMES = {_PRESENT: lex.PRESENT_TIMES, _PAST: lex.PAST_TIMES, _FUTURE: lex.FUTURE_TIMES}
_ADVERBS = {_PRESENT: lex.OFTEN, _PAST: lex.OFTEN, _PERFECT: lex.ALREADY}
_MODALS = {_PRESENT: lex.MODALS, _PAST: tuple(modal for modal in lex.MODALS if modal.german_past)}
_LINKS = lex.pairs("links")
_IF_TENSES = ((_PRESENT, _PRESENT), (_FUTURE, _PRESENT))  # of the main and the subordinate clause
_LINKED_TENSES = (*_IF_TENSES, (_PAST, _PAST))
_QUESTION_WORDS = lex.pairs("question_words")


def _by_pronoun(pronoun: Pronoun) -> Subject:
    return Subject(pronoun.english, pronoun.german[lex.NOMINATIVE], pronoun.person, pronoun)


def _by_noun(noun: Noun, plural: bool, english: str, german: str) -> Subject:
    """No pronoun stands for it where the languages would not agree: it or she, es or sie."""
    if plural:
        return Subject(english, german, lex.SIE, lex.THEM)
    pronoun = (lex.HIM, lex.HER, None)[noun.gender] if noun.kind in lex.PEOPLE_KINDS else None
    return Subject(english, german, ER, pronoun)


# -- drawing sentences -------------------------------------------------------------------------------------------------


class Writer:
    """Draws one sentence pair after the other; all its randomness comes from the generator it is given."""

    def __init__(self, random: Random) -> None:
        self.random = random.random

    def sentence(self) -> Pair:
        while True:
            pair = self.pick(_SENTENCES)(self)
            if 3 <= pair.english.count(" ") < 25:  # 4 to 25 words: shorter ones would be drawn again and again
                return pair

    def pick(self, items: tuple[T, ...]) -> T:
        return items[int(self.random() * len(items))]

    def chance(self, share: float) -> bool:
        return self.random() < share

    def phrase(self, noun: Noun, case: int, owner: Pronoun | None = None, kein: bool = False) -> Phrase:
        """A noun with a determiner, often the possessive of the owner, and sometimes an adjective; `kein`: negated."""
        choices = self.pick(_POOLS[noun.kind][kein])
        determiner = self.pick(choices)
        if choices is lex.POSSESSIVES and owner and self.chance(0.7):
            determiner = owner.possessive
        adjectives = lex.ADJECTIVES[noun.kind]
        adjective = self.pick(adjectives) if adjectives and self.chance(0.3) else None
        return noun_phrase(determiner, noun, case, adjective), determiner

    def adverbial(self, name: str, subject: Subject) -> Pair:
        """Well, in this old house, with her brother."""
        if name in lex.MANNERS:
            return lex.MANNERS[name]
        english, german, kind = self.pick(lex.PREPOSITIONS[name])
        case = ACCUSATIVE if name in ("on", "for") else DATIVE  # 'on' is where something is put
        return prepositional(english, german, self.phrase(self.pick(lex.NOUNS[kind]), case, subject.pronoun)[0])

    def short(self, subject: Subject, case: int) -> Pair:
        """Another person, by a name or a pronoun."""
        name, _ = self.pick(_NAMES)
        if name != subject.english and self.chance(0.5):
            return Pair(name, name)
        pronoun = self.pick(_OBJECT_PRONOUNS[subject.person])
        return Pair(pronoun.english_object, pronoun.german[case])

    def subject(self, simple: bool = False) -> Subject:
        kind = self.random()
        if kind < 0.25:
            return _by_pronoun(self.pick(lex.PRONOUNS))
        if kind < 0.5:
            name, pronoun = self.pick(_NAMES)
            return Subject(name, name, ER, pronoun)
        noun = self.pick(_PEOPLE)
        (english, german), determiner = self.phrase(noun, lex.NOMINATIVE)
        about = NOTHING if simple else self.relative(noun, determiner)
        german = f"{german}{about.german}," if about.german else german
        return _by_noun(noun, determiner.plural, join(english, about.english), german)

    def relative(self, noun: Noun, determiner: Determiner) -> Pair:
        """Sometimes a clause that says which one is meant, for which 'this' and 'my' leave no doubt."""
        if (determiner.definite and determiner.english != "the") or self.chance(0.85):
            return NOTHING
        tense, column = self.pick((_PRESENT, _PAST)), lex.PLURAL if determiner.plural else noun.gender
        who = "who" if noun.kind in lex.PEOPLE_KINDS else "that"
        if who == "who" and self.chance(0.6):
            subject = _by_noun(noun, determiner.plural, who, lex.RELATIVE[lex.NOMINATIVE][column])
            clause = self.clause(subject, tense, simple=True)
            return Pair(english_statement(clause), f", {german_final(clause)}")
        verb = self.pick(_VERBS_TAKING[noun.kind])
        clause = self.clause(self.subject(simple=True), tense, verb)
        opening = join(verb.preposition, lex.RELATIVE[verb.case][column])
        return Pair(f"{who} {english_statement(clause)}", f", {german_final(clause, opening)}")

    def clause(
        self, subject: Subject, tense: Tense, verb: Verb | None = None, simple: bool = False, negated: bool = False
    ) -> Clause:
        """Somebody does something, if `simple` to an object without a relative clause."""
        verb = verb or self.pick(_VERBS)
        negated = negated and not subject.english.startswith(("every", "all"))  # whose negation is 'not every'
        clause = Clause(subject, verb, *self.tense(verb, tense), negated=negated)
        if verb.receiver:
            person = self.phrase(self.pick(_PEOPLE), DATIVE, subject.pronoun)[0]
            clause.complement, clause.early = self.short(subject, DATIVE) if self.chance(0.3) else person
        if verb.objects:
            self.add_object(clause, simple)
        if verb is lex.BE and self.chance(0.7):
            clause.complement, clause.after, _ = self.pick(lex.ADJECTIVES["person"])
        elif verb.goal:
            goal = self.adverbial(verb.goal, subject)
            clause.complement, clause.after = join(clause.complement, goal.english), goal.german
        if not clause.tail.english:  # an adverbial behind it would seem to belong to the relative clause
            self.add_adverbials(clause)
        return clause

    def tense(self, verb: Verb, tense: Tense) -> tuple[Tense, Modal | None]:
        """The nearest tense that the verb can have, and perhaps a modal verb."""
        if verb.stative:
            return _PRESENT if tense is _PROGRESSIVE or tense is _PERFECT else tense, None
        unclear = tense is _PAST and verb.past == verb.base  # 'they put' could be present, 'they had to put' could not
        has_modal = unclear or (tense in _MODALS and self.chance(0.2))
        return tense, self.pick(_MODALS[tense]) if has_modal else None

    def add_object(self, clause: Clause, simple: bool) -> None:
        verb, noun = clause.verb, self.pick(clause.verb.objects)
        if noun.kind in lex.PEOPLE_KINDS and self.chance(0.35):
            clause.complement, german = self.short(clause.subject, verb.case)
            if verb.preposition:
                clause.after = f"{verb.preposition} {german}"
            else:
                clause.early = german
            return
        phrase, determiner = self.phrase(noun, verb.case, clause.subject.pronoun, clause.negated)
        clause.complement = join(clause.complement, phrase.english)
        clause.kein = determiner.negates
        if not simple and not verb.goal:
            clause.tail = self.relative(noun, determiner)
        if verb.preposition and clause.tail.german:  # von dem Hund, den ...: a relative clause keeps 'dem' apart
            clause.after = f"{verb.preposition} {phrase.german}"
        elif verb.preposition:
            clause.after = prepositional("", verb.preposition, phrase).german
        elif determiner.definite:
            clause.known = phrase.german
        else:
            clause.new = phrase.german

    def add_adverbials(self, clause: Clause) -> None:
        verb, tense = clause.verb, clause.tense
        if verb.how and self.chance(0.35):
            clause.manner = self.adverbial(self.pick(verb.how), clause.subject)
        if verb.stative:
            return
        if tense in _TIMES and self.chance(0.4):
            clause.time = self.pick(self.pick(_TIMES[tense]))
        elif tense in _ADVERBS and not clause.negated and self.chance(0.25):
            clause.adverb = self.pick(_ADVERBS[tense])

    def statement(self) -> Pair:
        clause = self.clause(self.subject(), self.pick(_TENSES), negated=self.chance(0.15))
        clause.front = clause.time if self.chance(0.5) else NOTHING
        return _sentence(english_statement(clause), german_statement(clause))

    def question(self) -> Pair:
        clause = self.clause(self.subject(), self.pick(_TENSES))
        return _sentence(english_question(clause), german_question(clause), "?")

    def adverbial_question(self) -> Pair:
        word, tense = self.pick(_QUESTION_WORDS), self.pick((_PRESENT, _PAST, _FUTURE))
        clause = self.clause(self.subject(simple=True), tense, self.pick(_ACTIONS), simple=True)
        clause.time = clause.adverb = NOTHING
        return _sentence(english_question(clause, word.english), german_question(clause, word.german), "?")

    def object_question(self) -> Pair:
        """Which bus is Anna waiting for? The question takes case and preposition from the object it stands for."""
        noun = self.pick(_ASKED_FOR)
        verb = self.pick(_VERBS_TAKING[noun.kind])
        clause = self.clause(self.subject(simple=True), self.pick(_TENSES), verb)
        asked = noun_phrase(lex.WHICH, noun, verb.case)
        german = join(verb.preposition, asked.german)
        return _sentence(english_question(clause, asked.english), german_question(clause, german), "?")

    def with_circumstance(self) -> Pair:
        """A subordinate clause, often on the same subject; if it comes first, German turns the main clause round."""
        link = self.pick(_LINKS)
        main_tense, tense = self.pick(_IF_TENSES if link.english == "if" else _LINKED_TENSES)
        main = self.clause(self.subject(), main_tense, simple=True, negated=self.chance(0.15))
        pronoun = main.subject.pronoun
        subject = _by_pronoun(pronoun) if pronoun and self.chance(0.6) else self.subject(simple=True)
        other = self.clause(subject, tense)
        other.adverb = NOTHING  # 'before he often slept' means nothing
        english, german = f"{link.english} {english_statement(other)}", german_final(other, link.german)
        if self.chance(0.6):
            return _sentence(f"{english_statement(main)} {english}", f"{german_statement(main)}, {german}")
        return _sentence(f"{english}, {english_statement(main)}", german_question(main, f"{german},"))

    def report(self) -> Pair:
        tense, verb = self.pick((_PRESENT, _PAST)), self.pick(lex.REPORTING_VERBS)
        main = Clause(self.subject(simple=True), verb, tense)
        said = self.clause(self.subject(), _PAST if tense is _PAST else self.pick(_TENSES), negated=self.chance(0.15))
        english = f"{english_statement(main)} that {english_statement(said)}"
        return _sentence(english, f"{german_statement(main)}, {german_final(said, 'dass')}")


def _sentence(english: str, german: str, end: str = ".") -> Pair:
    """Capitals and the full stop; the comma that closes a relative clause merges with what follows it."""
    german = f"{german}{end}"
    if "," in german:
        german = german.replace(",,", ",").replace(f",{end}", end)
    return Pair(f"{english[0].upper()}{english[1:]}{end}", german[0].upper() + german[1:])


_SENTENCES: tuple[Callable[[Writer], Pair], ...] = (
    *[Writer.statement] * 9, *[Writer.with_circumstance] * 5, *[Writer.report] * 3, *[Writer.question] * 2,
    Writer.adverbial_question, Writer.object_question,
)  # fmt: skip


# -- corpora -----------------------------------------------------------------------------------------------------------
_SYMBOLS = tuple("abcdefghijklmnop")
ROW_LENGTHS = (5, 50)  # shortest and longest row of symbols


def grammar_pairs(count: int, seed: int, *, part: str = "train") -> Iterator[tuple[str, str]]:
    """`count` pairs (English, German) of the part train, valid or test; the same for the same seed, everywhere."""
    return _of_part(Writer(_random(seed, part)).sentence, count, part)


def reversal_pairs(count: int, seed: int, *, part: str = "train") -> Iterator[tuple[str, str]]:
    """The toy task: rows of symbols, and the same rows backwards."""
    random = _random(seed, part)

    def draw() -> Pair:
        row = random.choices(_SYMBOLS, k=random.randint(*ROW_LENGTHS))
        return Pair(" ".join(row), " ".join(reversed(row)))

    return _of_part(draw, count, part)


def part_of(source: str) -> str:
    """The part that a source sentence belongs to, whatever the seed: 5 % of all are valid, 5 % test."""
    bucket = zlib.crc32(source.encode()) % 1000
    return "valid" if bucket < 50 else "test" if bucket < 100 else "train"


def _random(seed: int, part: str) -> Random:
    return Random(f"{seed}-{part}")  # a text seeds alike on every platform


def _of_part(draw: Callable[[], Pair], count: int, part: str) -> Iterator[tuple[str, str]]:
    """The first `count` pairs of a part; distinct ones, except in train, which may be too long to remember."""
    seen: set[str] = set()
    missed = 0
    while count > 0:
        pair = draw()
        if part_of(pair.english) == part and pair.english not in seen:
            yield pair
            count, missed = count - 1, 0
            if part != "train":
                seen.add(pair.english)
        elif (missed := missed + 1) > 100_000:
            raise DataError(f"{part!r} has no more distinct sentences, {count} are missing: ask for fewer or longer")
