"""English-German sentence pairs from a synchronous grammar: an endless, exact corpus that needs no download.

    lexicon -> noun_phrase, prepositional -> Clause -> english_*, german_* -> the sentences of Writer -> grammar_pairs

A Clause holds what is said, once for both languages; english_statement, german_final and their siblings put it in
order. German gets its verb second, first or last, its split prefixes, cases and endings; English its do-support.
The German is a function of the English: 'you' is 'du', a progressive adds 'gerade', a simple past becomes a perfect
unless the lexicon gives the verb a preterite. So BLEU on unseen sentences tells what was learned, not what was guessed.

The part of a sentence (train, valid, test) is decided by a hash of its English. A test sentence can therefore not occur
in training, whatever the seeds and counts, and nothing must be remembered to make sure. Sentences of valid and test are
distinct; of 100,000 in train, 0.7 % repeat an earlier one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeVar

from dragoman.data import lexicon as lex
from dragoman.data.lexicon import ACCUSATIVE, DATIVE, ER, NOTHING, Determiner, Modal, Noun, Pair, Pronoun, Verb
from dragoman.errors import DataError

T = TypeVar("T")

# -- phrases -----------------------------------------------------------------------------------------------------------

_CONTRACTED = {
    "in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom",
    "bei dem": "beim",
}  # fmt: skip


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
        article = lex.a_or_an(english)
    return Pair(f"{article} {english}".lstrip(), f"{determiner.german[case][column]} {german}".lstrip())


def prepositional(english: str, german: str, phrase: Pair) -> Pair:
    """A preposition before a phrase, which has its case already; in dem Haus becomes im Haus."""
    article, _, rest = phrase.german.partition(" ")
    contracted = _CONTRACTED.get(f"{german} {article}")
    return Pair(f"{english} {phrase.english}", f"{contracted} {rest}" if contracted else f"{german} {phrase.german}")


# -- clauses -----------------------------------------------------------------------------------------------------------


class Tense(Enum):
    PRESENT = 0
    PROGRESSIVE = 1
    PAST = 2
    PERFECT = 3
    FUTURE = 4
    PASSIVE = 5  # of the past only: was built, wurde gebaut


@dataclass(frozen=True, slots=True)
class Subject:
    english: str
    german: str
    person: int
    pronoun: Pronoun | None = None  # what stands for it later on: 'Anna ..., because she ...'

    @property
    def is_pronoun(self) -> bool:
        return self.pronoun is not None and self.pronoun.english == self.english


@dataclass(slots=True)
class Clause:
    """What is said. A German middle field runs: pronoun, time, known, adverb, new, nicht, manner, place, after."""

    subject: Subject
    verb: Verb
    tense: Tense = Tense.PRESENT
    modal: Modal | None = None
    negated: bool = False
    kein: bool = False  # an object carries the negation, so there is no 'nicht'
    complement: str = ""  # English objects, predicates and goals
    pronoun: str = ""  # German object that is a pronoun or a name
    known: str = ""  # German definite objects
    new: str = ""  # German indefinite objects
    after: str = ""  # German predicates, goals and objects with a preposition
    adverb: Pair = NOTHING
    manner: Pair = NOTHING
    place: Pair = NOTHING
    time: Pair = NOTHING
    front: Pair = NOTHING  # the time or place above, moved before everything else
    tail: Pair = NOTHING  # a relative clause about the last object; German puts it behind the verb


_BE_NOW = ("am", "are", "is", "are", "are")
_BE_PAST = ("was", "were", "was", "were", "were")
_NOT = {"am": "am not", "will": "won't", "can": "can't"}  # all others just add n't


def _english_verbs(clause: Clause, split: bool) -> tuple[str, str]:
    """The auxiliary and the rest of the verb; `split` demands an auxiliary, so plain tenses fall back on 'do'."""
    verb, tense, person = clause.verb, clause.tense, clause.subject.person
    if tense is Tense.PROGRESSIVE:
        return _BE_NOW[person], verb.ing
    if tense is Tense.PERFECT:
        return "has" if person == ER else "have", verb.participle
    if tense is Tense.FUTURE:
        return "will", verb.base
    if tense is Tense.PASSIVE:
        return _BE_PAST[person], verb.participle
    past = tense is Tense.PAST
    if clause.modal:
        if clause.modal.auxiliary:
            return _english_modal(clause.modal, past, person), join(clause.modal.link, verb.base)
        base, third, before = (f"{form} {verb.base}" for form in clause.modal.lexical)
    elif verb.base == "be":
        return (_BE_PAST if past else _BE_NOW)[person], ""
    else:
        base, third, before = verb.base, verb.third, verb.past
    if split:
        return "did" if past else "does" if person == ER else "do", base
    return "", before if past else third if person == ER else base


def _english_modal(modal: Modal, past: bool, person: int) -> str:
    word = modal.past_auxiliary if past else modal.auxiliary
    return (_BE_PAST if past else _BE_NOW)[person] if word == "be" else word


def english_statement(clause: Clause) -> str:
    helper, main = _english_verbs(clause, clause.negated)
    if clause.negated:
        helper = _NOT.get(helper, f"{helper}n't")
    front, adverb = clause.front.english, clause.adverb.english
    return join(front, clause.subject.english, helper, adverb, main, _english_rest(clause))


def english_question(clause: Clause, asking: str = "") -> str:
    assert not clause.negated, "a negated question would need the place of 'not'"
    helper, main = _english_verbs(clause, True)
    return join(asking, helper, clause.subject.english, clause.adverb.english, main, _english_rest(clause))


def english_infinitive(clause: Clause) -> str:
    return join(clause.verb.base, _english_rest(clause))


def _english_rest(clause: Clause) -> str:
    place = "" if clause.front is clause.place else clause.place.english
    time = "" if clause.front is clause.time else clause.time.english
    return join(clause.complement, clause.manner.english, place, time, clause.tail.english)


def _german_verbs(clause: Clause) -> tuple[str, str]:
    """The finite verb and what closes the clause: a participle, an infinitive or a separable prefix."""
    verb, tense, modal = clause.verb, clause.tense, clause.modal
    person = ER if verb is lex.THERE_IS else clause.subject.person  # es gibt drei Hunde
    past = tense is Tense.PAST
    if modal and modal.german:
        return (modal.german_past if past else modal.german)[person], verb.infinitive
    if tense is Tense.FUTURE:
        return lex.WERDEN[person], verb.infinitive
    if tense is Tense.PASSIVE:
        return lex.WURDE[person], verb.german_participle
    if tense is Tense.PERFECT or (past and not verb.preterite):
        return (lex.BE.present if verb.by_sein else lex.HABEN)[person], verb.german_participle
    return (verb.preterite if past else verb.present)[person], verb.prefix


def _reflexive(clause: Clause) -> str:
    return lex.REFLEXIVE[clause.subject.person] if clause.verb.reflexive else ""


def _middle_field(clause: Clause) -> str:
    return join(
        clause.pronoun,
        "" if clause.front is clause.time else clause.time.german,
        "gerade" if clause.tense is Tense.PROGRESSIVE else "",
        clause.known,
        clause.adverb.german,
        "gern" if clause.modal is lex.LIKE_TO else "",
        clause.new,
        "nicht" if clause.negated and not clause.kein else "",
        clause.manner.german,
        "" if clause.front is clause.place else clause.place.german,
        clause.after,
    )


def german_statement(clause: Clause) -> str:
    """Verb second: after the subject, or after whatever else stands in front."""
    if clause.front.german:
        return german_question(clause, clause.front.german)
    finite, closing = _german_verbs(clause)
    parts = clause.subject.german, finite, _reflexive(clause), _middle_field(clause), closing
    return join(*parts) + clause.tail.german


def german_question(clause: Clause, asking: str = "") -> str:
    """Verb before the subject: a question, or a statement with something else in front. 'Sich' overtakes a noun."""
    finite, closing = _german_verbs(clause)
    subject = (clause.subject.german, _reflexive(clause))
    if not clause.subject.is_pronoun:
        subject = subject[::-1]
    return join(asking, finite, *subject, _middle_field(clause), closing) + clause.tail.german


def german_final(clause: Clause, opening: str = "") -> str:
    """Verb last, where a separable prefix joins it again: weil er früh aufsteht."""
    finite, closing = _german_verbs(clause)
    end = closing + finite if closing == clause.verb.prefix else f"{closing} {finite}"
    return join(opening, clause.subject.german, _reflexive(clause), _middle_field(clause), end) + clause.tail.german


def german_infinitive(clause: Clause, opening: str, infinitive: str) -> str:
    """No subject, no finite verb: um ihn anzurufen; lass uns gehen."""
    return join(opening, _reflexive(clause), _middle_field(clause), infinitive) + clause.tail.german


# -- what there is to choose from --------------------------------------------------------------------------------------

Pool = tuple[tuple[Determiner, ...], ...]  # draw a list, then one of it: 27 owners do not crowd out 'the'

_OWN = Determiner("own", lex.A.german, lex.A.endings)  # stands for the possessive of the subject: her, his
_OWN_MANY = _OWN.of_many()
_DETERMINERS: dict[str, tuple[Determiner, ...]] = {
    "the": (lex.THE,), "the_many": (lex.THE.of_many(),), "this": (lex.THIS,), "these": (lex.THIS.of_many(),),
    "a": (lex.A,), "bare": (lex.BARE,), "bare_many": (lex.BARE.of_many(),), "every": (lex.EVERY,), "all": (lex.ALL,),
    "not_a": (lex.NOT_A,), "not_any": (lex.NOT_ANY,), "not_any_many": (lex.NOT_ANY.of_many(),),
    "own": (_OWN,), "own_many": (_OWN_MANY,), "my": lex.POSSESSIVES, "owner": lex.OWNERS,
    "my_many": tuple(possessive.of_many() for possessive in lex.POSSESSIVES),
    "counted": (*lex.NUMBERS, lex.MANY, lex.MANY, lex.SOME, lex.SOME), "digits": lex.DIGITS,
}  # fmt: skip


def _pool(**weights: int) -> Pool:
    return tuple(_DETERMINERS[name] for name, weight in weights.items() for _ in range(weight))


_SUBJECTS = {
    "person": _pool(the=8, a=2, this=1, every=1, the_many=4, these=1, all=1, counted=3, digits=1),
    "kin": _pool(my=6, owner=2, my_many=2),
    "parent": _pool(my=4, owner=1),
    "uncounted": _pool(the=4, my=1),
    "thing": _pool(the=6, a=1, this=2, my=3, owner=1, the_many=3, these=1, my_many=1, counted=2, digits=1),
}
_OBJECTS = {
    "person": _pool(the=6, a=4, this=1, the_many=3, bare_many=1, counted=2, digits=1),
    "kin": _pool(own=6, my=2, owner=2, own_many=2),
    "parent": _pool(own=5, my=2, owner=1),
    "uncounted": _pool(bare=6, the=2, own=1),
    "thing": _pool(the=6, a=6, this=1, own=3, owner=1, the_many=3, bare_many=3, own_many=1, counted=3, digits=1),
}
_DEFINITE = {
    "person": _pool(the=3, this=1, the_many=2),
    "kin": _pool(own=3, my=1, owner=1, own_many=1),
    "parent": _pool(own=3, my=1, owner=1),
    "uncounted": _pool(the=1),
    "thing": _pool(the=3, own=1, the_many=1),
}
_NEGATED = _DEFINITE | {"uncounted": _pool(not_any=3, the=1), "thing": _pool(the=2, not_a=3, own=1, not_any_many=2)}
_ONE = _pool(the=3, a=3, this=1)
_THERE = _pool(a=4, bare_many=1, counted=3, digits=1)
_NOT_THERE = _pool(not_a=1, not_any_many=1)
_ASKED = (lex.WHICH, lex.WHICH.of_many(), lex.HOW_MANY)

_PEOPLE = lex.nouns("people")
_BEINGS = lex.nouns("person kin animal animal")
_BELONGINGS = lex.nouns("clothes device vehicle instrument furniture upright")
_CARRIED = lex.nouns("carried")
_FOUND = lex.nouns("building person animal")

_OBJECT_VERBS = tuple(verb for verb in lex.VERBS if verb.objects)
_VERBS_TAKING = {kind: tuple(v for v in _OBJECT_VERBS if any(n.kind == kind for n in v.objects)) for kind in lex.NOUNS}
_PASSIVE_VERBS = tuple(
    v for v in _OBJECT_VERBS if v.case == ACCUSATIVE and not (v.preposition or v.receiver or v.stative or v.goal)
)
_PLACED_VERBS = tuple(verb for verb in lex.VERBS if verb.goal in ("", "in", "place", "to", "town") and not verb.stative)
_TRAVEL_VERBS = tuple(verb for verb in lex.VERBS if verb.goal in ("place", "to", "town"))
_AIMS = tuple(v for v in lex.VERBS if v.willed and not (v.stative or v.reflexive) and v.goal in ("", "onto"))
_PAST_MODALS = tuple(modal for modal in lex.MODALS if modal.german_past)
_PRESENT_MODALS = (*lex.MODALS, lex.MUST, lex.LIKE_TO)

_PRESENT, _PROGRESSIVE, _PAST, _PERFECT, _FUTURE, _PASSIVE = Tense
_PLAIN_TENSE = {"plain": _PRESENT, "present": _PRESENT, "past": _PAST, "future": _FUTURE}
_TENSES = {  # of an era, each with the share of modal verbs in it
    "plain": ((_PRESENT, 0.0),),
    "present": ((_PRESENT, 0.0), (_PRESENT, 0.0), (_PRESENT, 1.0), (_PROGRESSIVE, 0.0), (_PERFECT, 0.0)),
    "past": ((_PAST, 0.15),),
    "future": ((_FUTURE, 0.0),),
}
_LINKS = (  # a conjunction, and eras that may meet in the main and in the subordinate clause
    (Pair("because", "weil"), (("past", "past"), ("present", "present"), ("present", "past"), ("future", "plain"))),
    (Pair("although", "obwohl"), (("past", "past"), ("present", "present"), ("future", "plain"))),
    (Pair("if", "wenn"), (("future", "plain"), ("plain", "plain"))),
    (Pair("before", "bevor"), (("past", "past"), ("future", "plain"), ("plain", "plain"))),
    (Pair("while", "während"), (("plain", "plain"),)),
    (Pair("as soon as", "sobald"), (("future", "plain"),)),
)
_TEMPORAL = ("before", "while", "as soon as")
_COORDINATED = (Pair("but", "aber"), Pair("and", "und"))
_QUESTION_WORDS = (Pair("why", "warum"), Pair("when", "wann"), Pair("how often", "wie oft"), Pair("where", "wo"))
_CONDITIONS = (Pair("cold", "kalt"), Pair("warm", "warm"), Pair("dark", "dunkel"), Pair("late", "spät"))
_FEELINGS = (Pair("sure", "sicher"), Pair("glad", "froh"), Pair("sad", "traurig"))
_NEAR = (Pair("in front of", "vor"), Pair("behind", "hinter"), Pair("next to", "neben"))
_BY_FURNITURE = (Pair("on", "auf"), Pair("on", "auf"), Pair("under", "unter"), Pair("next to", "neben"))
_TOWARDS = {"from": ("from", "aus"), "arrival": ("in", "in")}


def _by_pronoun(pronoun: Pronoun) -> Subject:
    return Subject(pronoun.english, pronoun.german[lex.NOMINATIVE], pronoun.person, pronoun)


def _pronoun_for(noun: Noun, plural: bool) -> Pronoun | None:
    """None where the languages would not agree: it or she, es or sie."""
    if plural:
        return lex.THEM
    return (lex.HIM, lex.HER, None)[noun.gender] if noun.kind in lex.PEOPLE_KINDS else None


def _can_be_told_of(determiner: Determiner) -> bool:
    """By a relative clause, which says which one is meant: with 'my' or 'Anna's' we know already."""
    return determiner.english == "the" or not determiner.definite


def _could_be_object(pronoun: Pronoun, person: int) -> bool:
    """Not of itself: 'I see me' is no sentence."""
    first = (lex.ICH, lex.WIR)
    return not (pronoun.person == person == lex.DU or (pronoun.person in first and person in first))


_PRONOUN_SUBJECTS = tuple(_by_pronoun(pronoun) for pronoun in lex.PRONOUNS)
_OTHERS = tuple(tuple(p for p in lex.PRONOUNS if _could_be_object(p, person)) for person in range(5))
_IT = Subject("it", "es", ER)
_WHO = Subject("who", "wer", ER)


def _determiners_of(pools: dict[str, Pool], kind: str) -> Pool:
    return pools[kind if kind in pools else "uncounted" if kind in lex.UNCOUNTED_KINDS else "thing"]


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

    def era(self) -> str:
        return self.pick(("present", "present", "past", "past", "future"))

    # phrases

    def phrase(self, noun: Noun, pool: Pool, case: int, owner: Pronoun | None = None) -> tuple[Pair, Determiner]:
        determiner = self.pick(self.pick(pool))
        if determiner is _OWN or determiner is _OWN_MANY:
            possessive = owner.possessive if owner else self.pick(lex.POSSESSIVES)
            determiner = possessive.of_many() if determiner is _OWN_MANY else possessive
        adjective = self.pick(lex.ADJECTIVES[noun.kind]) if self.chance(0.3) else None
        return noun_phrase(determiner, noun, case, adjective), determiner

    def companion(self, case: int, owner: Pronoun | None = None) -> Pair:
        noun = self.pick(_PEOPLE)
        return self.phrase(noun, _DEFINITE[noun.kind], case, owner)[0]

    def place(self) -> Pair:
        kind = self.random()
        if kind < 0.5:
            return self.pick(lex.PLACES)
        if kind < 0.75:
            return self.town("in", "in")
        if kind < 0.87:
            return prepositional("in", "in", self.described_building())
        near, building = self.pick(_NEAR), self.pick(lex.NOUNS["building"])
        return prepositional(near.english, near.german, self.phrase(building, _ONE, DATIVE)[0])

    def described_building(self) -> Pair:
        """Always with an adjective, because plain 'to the library' is an idiom with a preposition of its own."""
        building = self.pick(lex.NOUNS["building"])
        return noun_phrase(self.pick(self.pick(_ONE)), building, DATIVE, self.pick(lex.ADJECTIVES["building"]))

    def town(self, english: str, german: str) -> Pair:
        town = self.pick(lex.TOWNS)
        return Pair(f"{english} {town.english}", f"{german} {town.german}")

    def by_furniture(self, case: int) -> Pair:
        """On the table: dative for where something is, accusative for where it goes."""
        by, furniture = self.pick(_BY_FURNITURE), self.pick(lex.NOUNS["furniture"])
        return prepositional(by.english, by.german, self.phrase(furniture, _ONE, case)[0])

    def goal(self, kind: str) -> Pair:
        if kind == "in":
            return self.place()
        if kind == "onto":
            return self.by_furniture(ACCUSATIVE)
        if kind == "place" or (kind == "to" and self.chance(0.6)):
            idiom = self.chance(0.75)
            return self.pick(lex.DIRECTIONS) if idiom else prepositional("to", "zu", self.described_building())
        if kind == "arrival" and self.chance(0.4):
            return NOTHING
        return self.town(*_TOWARDS.get(kind, ("to", "nach")))

    # subjects

    def subject(self, nouns: tuple[Noun, ...] = _PEOPLE, simple: bool = False) -> Subject:
        kind = self.random()
        if nouns is _PEOPLE and kind < 0.55:
            return self.pick(_PRONOUN_SUBJECTS) if kind < 0.25 else self.named() if kind < 0.5 else self.couple()
        noun = self.pick(nouns)
        phrase, determiner = self.phrase(noun, _determiners_of(_SUBJECTS, noun.kind), lex.NOMINATIVE)
        person, pronoun = lex.SIE if determiner.plural else ER, _pronoun_for(noun, determiner.plural)
        if simple or not _can_be_told_of(determiner) or not self.chance(0.15):
            return Subject(phrase.english, phrase.german, person, pronoun)
        about = self.relative(noun, determiner.plural)
        return Subject(f"{phrase.english} {about.english}", f"{phrase.german}{about.german},", person, pronoun)

    def thing(self, noun: Noun) -> Subject:
        """Without an adjective, for the predicate brings one: the black truck is not green."""
        determiner = self.pick(self.pick(_SUBJECTS["thing"]))
        phrase = noun_phrase(determiner, noun, lex.NOMINATIVE)
        return Subject(phrase.english, phrase.german, lex.SIE if determiner.plural else ER)

    def named(self) -> Subject:
        woman = self.chance(0.5)
        name = self.pick(lex.WOMEN if woman else lex.MEN)
        return Subject(name, name, ER, lex.HER if woman else lex.HIM)

    def couple(self) -> Subject:
        woman, man = self.pick(lex.WOMEN), self.pick(lex.MEN)
        if self.chance(0.3):
            return Subject(f"{man} and I", f"{man} und ich", lex.WIR, lex.US)
        return Subject(f"{woman} and {man}", f"{woman} und {man}", lex.SIE, lex.THEM)

    def relative(self, noun: Noun, plural: bool) -> Pair:
        """A clause about a noun: as its subject, for people, or as an object of somebody else."""
        column = lex.PLURAL if plural else noun.gender
        era = self.pick(("past", "present"))
        who = "who" if noun.kind in lex.PEOPLE_KINDS else "that"
        if who == "who" and self.chance(0.6):
            der = lex.RELATIVE[lex.NOMINATIVE][column]
            subject = Subject(who, der, lex.SIE if plural else ER, _pronoun_for(noun, plural))
            clause = self.clause(era, subject, simple=True)
            return Pair(english_statement(clause), f", {german_final(clause)}")
        verb = self.pick(_VERBS_TAKING[noun.kind])
        clause = self.clause(era, self.subject(simple=True), verb, simple=True, gap=True)
        opening = join(verb.preposition, lex.RELATIVE[verb.case][column])
        return Pair(f"{who} {english_statement(clause)}", f", {german_final(clause, opening)}")

    # clauses

    def clause(
        self, era: str, by: Subject | None = None, verb: Verb | None = None, simple: bool = False, gap: bool = False
    ) -> Clause:
        """Somebody does something. `simple`: without a relative clause; `gap`: without the object, which is outside."""
        verb = verb or self.pick(lex.VERBS)
        subject = by or self.subject(_BEINGS if verb.by_animals and self.chance(0.4) else _PEOPLE, simple)
        clause = Clause(subject, verb, *self.tense(era, verb))
        clause.negated = clause.modal is not lex.MUST and clause.modal is not lex.LIKE_TO and self.chance(0.12)
        if verb.receiver:
            self.add_receiver(clause)
        if verb.objects and not gap:
            self.add_object(clause, simple)
        if verb.goal:
            goal = self.goal(verb.goal)
            clause.complement, clause.after = join(clause.complement, goal.english), goal.german
        if not clause.tail.english:
            self.add_adverbials(clause)
        return clause

    def tense(self, era: str, verb: Verb) -> tuple[Tense, Modal | None]:
        tense, modal_share = self.pick(_TENSES[era])
        if verb.stative and (tense is _PROGRESSIVE or tense is _PERFECT):
            tense = _PRESENT
        if tense is _PAST and verb.past == verb.base:  # 'they put' could be either tense
            tense = _PERFECT
        if verb.willed and tense is not _PERFECT and self.chance(modal_share):
            return tense, self.pick(_PAST_MODALS if tense is _PAST else _PRESENT_MODALS)
        return tense, None

    def add_receiver(self, clause: Clause) -> None:
        if self.chance(0.25):
            pronoun = self.pick(_OTHERS[clause.subject.person])
            clause.complement, clause.pronoun = pronoun.english_object, pronoun.german[DATIVE]
        else:
            clause.complement, clause.known = self.companion(DATIVE, clause.subject.pronoun)

    def add_object(self, clause: Clause, simple: bool) -> None:
        verb, noun = clause.verb, self.pick(clause.verb.objects)
        if noun.kind in lex.PEOPLE_KINDS and self.chance(0.35):
            self.add_short_object(clause)
            return
        plain = verb.case == ACCUSATIVE and not verb.preposition
        pools = _OBJECTS if not clause.negated else _NEGATED if plain else _DEFINITE
        pool, owner = _determiners_of(pools, noun.kind), clause.subject.pronoun
        phrase, determiner = self.phrase(noun, pool, verb.case, owner)
        clause.complement = join(clause.complement, phrase.english)
        clause.kein = determiner.negates
        if verb.preposition:
            clause.after = prepositional("", verb.preposition, phrase).german
        elif determiner.definite:
            clause.known = join(clause.known, phrase.german)
        else:
            clause.new = phrase.german
        if not simple and not verb.goal and _can_be_told_of(determiner) and self.chance(0.15):
            clause.tail = self.relative(noun, determiner.plural)
            if verb.preposition:  # von dem Hund, den ...: a relative clause keeps 'dem' apart
                clause.after = f"{verb.preposition} {phrase.german}"

    def add_short_object(self, clause: Clause) -> None:
        """A name or a pronoun."""
        verb, name = clause.verb, self.pick(lex.WOMEN + lex.MEN)
        pronoun = self.pick(_OTHERS[clause.subject.person])
        if name not in clause.subject.english and self.chance(0.5):
            clause.complement = german = name
        else:
            clause.complement, german = pronoun.english_object, pronoun.german[verb.case]
        if verb.preposition:
            clause.after = f"{verb.preposition} {german}"
        else:
            clause.pronoun = german

    def add_adverbials(self, clause: Clause) -> None:
        verb, owner = clause.verb, clause.subject.pronoun
        if verb.manners and self.chance(0.2):
            clause.manner = self.pick(verb.manners)
        elif verb.company and self.chance(0.2):
            clause.manner = prepositional("with", "mit", self.companion(DATIVE, owner))
        elif verb.benefits and self.chance(0.2):
            clause.manner = prepositional("for", "für", self.companion(ACCUSATIVE, owner))
        if not verb.goal and not verb.stative and self.chance(0.2):
            clause.place = self.place()
        if self.chance(0.4):
            clause.time = self.time(clause)
        elif not clause.negated and self.chance(0.25):
            clause.adverb = self.adverb(clause)

    def time(self, clause: Clause) -> Pair:
        tense, modal = clause.tense, clause.modal
        if tense is _PROGRESSIVE or tense is _PERFECT or clause.verb.stative:
            return NOTHING
        if tense is _PAST or tense is _PASSIVE:
            return self.pick(self.pick(lex.PAST_TIMES))
        if tense is _FUTURE or (modal and modal is not lex.LIKE_TO):
            return self.pick(self.pick(lex.FUTURE_TIMES))
        return self.pick(self.pick(lex.HABIT_TIMES if modal else lex.PRESENT_TIMES))

    def adverb(self, clause: Clause) -> Pair:
        if clause.tense is _PERFECT:
            return self.pick(lex.ALREADY)
        repeated = (clause.tense is _PRESENT or clause.tense is _PAST) and not clause.modal and not clause.verb.stative
        return self.pick(lex.OFTEN) if repeated else NOTHING

    def any_clause(self, era: str) -> Clause:
        return self.pick(_CLAUSES)(self, era)

    def being(self, era: str, subject: Subject, predicate: Pair) -> Clause:
        clause = Clause(subject, lex.BE, _PLAIN_TENSE[era], negated=self.chance(0.12))
        clause.complement, clause.after = predicate
        return clause

    def state(self, era: str, subject: Subject | None = None) -> Clause:
        """Somebody is tired, or something is expensive."""
        noun = self.pick(_PEOPLE if self.chance(0.5) else _BELONGINGS)
        kind = "parent" if subject else noun.kind  # whose adjectives suit everybody, and pass
        subject = subject or (self.subject() if kind in lex.PEOPLE_KINDS else self.thing(noun))
        adjective = self.pick(lex.ADJECTIVES[kind])
        degree = self.pick(lex.DEGREES) if adjective.comparative.english else NOTHING
        predicate = Pair(join(degree.english, adjective.english), join(degree.german, adjective.german))
        return self.being(era, subject, predicate)

    def comparison(self, era: str) -> Clause:
        noun = self.pick(_BELONGINGS)
        if self.chance(0.5):
            kind, subject, other = "person", self.subject(), self.named()
        else:
            kind, subject, other = noun.kind, self.thing(noun), self.thing(self.pick(lex.NOUNS[noun.kind]))
        adjective = self.pick(lex.ADJECTIVES[kind])
        more = adjective.comparative
        if more.english and self.chance(0.7):
            predicate = Pair(f"{more.english} than {other.english}", f"{more.german} als {other.german}")
        else:
            predicate = Pair(f"as {adjective.english} as {other.english}", f"so {adjective.german} wie {other.german}")
        return self.being(era, subject, predicate)

    def whereabouts(self, era: str) -> Clause:
        """Something is on the table, somebody is in Berlin."""
        if self.chance(0.4):
            return self.being(era, self.subject((self.pick(_CARRIED),)), self.by_furniture(DATIVE))
        clause = self.being(era, self.subject(), self.place())
        clause.time = self.time(clause) if self.chance(0.4) else NOTHING
        return clause

    def measure(self, era: str) -> Clause:
        """Somebody is 25 years old, something costs 300 euros."""
        if self.chance(0.5):
            years = 2 + int(self.random() * 97)
            return self.being(era, self.subject(simple=True), Pair(f"{years} years old", f"{years} Jahre alt"))
        euros = 2 + int(self.random() * 997)
        return Clause(self.subject(_BELONGINGS), lex.COST, complement=f"{euros} euros", new=f"{euros} Euro")

    def profession(self, era: str) -> Clause:
        english, masculine, feminine = self.pick(lex.PROFESSIONS)
        subject, verb, negated = self.named(), self.pick((lex.BE, lex.BECOME)), self.chance(0.12)
        tense, modal = self.tense(era, verb) if verb is lex.BECOME else (_PLAIN_TENSE[era], None)
        if modal is lex.LIKE_TO or modal is lex.MUST:
            modal = None
        clause = Clause(subject, verb, tense, modal, negated, kein=negated)
        female = subject.pronoun is lex.HER
        kein = "" if not negated else "keine" if female else "kein"
        clause.complement = f"{lex.a_or_an(english)} {english}"
        clause.new = join(kein, feminine if female else masculine)
        return clause

    def existence(self, era: str) -> Clause:
        """There is a castle in Prague. English agrees with what there is, German always says 'es gibt'."""
        noun, negated = self.pick(_FOUND), self.chance(0.12)
        phrase, determiner = self.phrase(noun, _NOT_THERE if negated else _THERE, ACCUSATIVE)
        subject = Subject("there", "es", lex.SIE if determiner.plural else ER)
        clause = Clause(subject, lex.THERE_IS, _PLAIN_TENSE[era], negated=negated, kein=negated)
        clause.complement, clause.new = phrase
        clause.place = self.town("in", "in") if noun.kind == "building" else self.place()
        return clause

    def event(self, era: str) -> Clause:
        verb = self.pick(lex.EVENT_VERBS)
        clause = Clause(self.subject(lex.NOUNS["event"]), verb, *self.tense(era, verb), negated=self.chance(0.12))
        clause.place = self.place() if self.chance(0.4) else NOTHING
        clause.time = self.time(clause) if self.chance(0.7) else NOTHING
        return clause

    def passive(self, era: str) -> Clause:
        if era != "past":
            return self.clause(era)
        verb = self.pick(_PASSIVE_VERBS)
        clause = Clause(self.subject((self.pick(verb.objects),)), verb, _PASSIVE, negated=self.chance(0.12))
        clause.manner = prepositional("by", "von", self.companion(DATIVE)) if self.chance(0.4) else NOTHING
        clause.time = self.time(clause) if self.chance(0.5) else NOTHING
        return clause

    def weather(self, era: str) -> Clause:
        if self.chance(0.5):
            tense = _PROGRESSIVE if era == "present" else _PLAIN_TENSE[era]
            return Clause(_IT, self.pick(lex.WEATHER_VERBS), tense)
        condition, degree = self.pick(_CONDITIONS), self.pick(lex.DEGREES)
        predicate = Pair(join(degree.english, condition.english), join(degree.german, condition.german))
        return self.being(era, _IT, predicate)

    def circumstance(self, era: str, main: Clause) -> Clause:
        """What a subordinate clause tells: often something about the subject of the main clause."""
        kind = self.random()
        if kind < 0.15:
            return self.weather(era)
        pronoun = main.subject.pronoun
        subject = _by_pronoun(pronoun) if pronoun and self.chance(0.6) else self.subject(simple=True)
        return self.state(era, subject) if kind < 0.4 else self.clause(era, subject)

    # sentences

    def statement(self) -> Pair:
        clause = self.any_clause(self.era())
        if clause.tail.english:  # a time behind it would seem to belong to the relative clause
            clause.front = clause.time = self.time(clause) if self.chance(0.3) else NOTHING
        elif self.chance(0.4):
            clause.front = clause.time
        elif self.chance(0.2):
            clause.front = clause.place
        return _sentence(english_statement(clause), german_statement(clause))

    def affirmative(self, draw: Callable[[], Clause]) -> Clause:
        while (clause := draw()).negated:
            pass
        return clause

    def question(self) -> Pair:
        clause = self.affirmative(lambda: self.any_clause(self.era()))
        return _sentence(english_question(clause), german_question(clause), "?")

    def asking(self, era: str) -> tuple[Pair, Clause]:
        """A question word, and a clause without what it asks for."""
        word = self.pick(_QUESTION_WORDS)
        where = word.english == "where"
        verb = self.pick(_PLACED_VERBS if where else lex.VERBS)
        clause = self.affirmative(lambda: self.clause(era, self.subject(simple=True), verb, simple=True))
        clause.time = clause.adverb = NOTHING
        if where:
            clause.place = NOTHING
        if where and verb.goal:
            clause.complement = clause.after = ""
            word = Pair("where", "wo" if verb.goal == "in" else "wohin")
        return word, clause

    def adverbial_question(self) -> Pair:
        word, clause = self.asking(self.pick(("plain", "past", "future")))
        return _sentence(english_question(clause, word.english), german_question(clause, word.german), "?")

    def object_question(self) -> Pair:
        """Which bus is Anna waiting for? The question takes case and preposition from the object it stands for."""
        verb = self.pick(_OBJECT_VERBS)
        clause = self.clause(self.era(), self.subject(simple=True), verb, simple=True, gap=True)
        clause.negated = False
        noun = self.pick(verb.objects)
        counted = noun.kind not in lex.UNCOUNTED_KINDS and noun.kind != "parent"
        asked = noun_phrase(self.pick(_ASKED) if counted else lex.WHICH, noun, verb.case)
        german = join(verb.preposition, asked.german)
        return _sentence(english_question(clause, asked.english), german_question(clause, german), "?")

    def subject_question(self) -> Pair:
        clause = self.clause(self.era(), _WHO, simple=True)
        return _sentence(english_statement(clause), german_statement(clause), "?")

    def with_circumstance(self) -> Pair:
        """A subordinate clause behind the main clause, or before it, when German turns the main clause round."""
        link, eras = self.pick(_LINKS)
        era, other_era = self.pick(eras)
        main = self.state(era) if self.chance(0.15) else self.clause(era, simple=True)
        other = self.circumstance(other_era, main)
        if link.english in _TEMPORAL:  # what happens then does happen, and does not happen often
            other = self.affirmative(lambda: self.circumstance(other_era, main))
            other.adverb = NOTHING
        english, german = f"{link.english} {english_statement(other)}", german_final(other, link.german)
        if self.chance(0.6):
            return _sentence(f"{english_statement(main)} {english}", f"{german_statement(main)}, {german}")
        return _sentence(f"{english}, {english_statement(main)}", german_question(main, f"{german},"))

    def report(self) -> Pair:
        era = self.pick(("plain", "past"))
        subject = self.subject(simple=True)
        if self.chance(0.25):
            main = self.being(era, subject, self.pick(_FEELINGS))
        else:
            verb = self.pick(lex.REPORTING_VERBS)
            main = Clause(subject, verb, _PLAIN_TENSE[era], negated=self.chance(0.12))
        said = self.any_clause("past" if era == "past" else self.era())
        english = f"{english_statement(main)} that {english_statement(said)}"
        return _sentence(english, f"{german_statement(main)}, {german_final(said, 'dass')}")

    def indirect_question(self) -> Pair:
        verb, era = self.pick((*lex.ASKING_VERBS, lex.KNOW)), self.pick(("plain", "past"))
        main = Clause(self.subject(simple=True), verb, _PLAIN_TENSE[era], negated=verb is lex.KNOW)
        if self.chance(0.4):
            word, asked = Pair("whether", "ob"), self.any_clause("past" if era == "past" else self.era())
        else:
            word, asked = self.asking(era)
        english = f"{english_statement(main)} {word.english} {english_statement(asked)}"
        return _sentence(english, f"{german_statement(main)}, {german_final(asked, word.german)}")

    def two_statements(self) -> Pair:
        era, link = self.era(), self.pick(_COORDINATED)
        first, second = self.clause(era, simple=True), self.clause(era, simple=True)
        english, german = english_statement(first), german_statement(first)
        if self.chance(0.3):
            german = f"{german}, {german_question(second, 'deshalb')}"
            return _sentence(f"{english}, so {english_statement(second)}", german)
        german = f"{german}, {link.german} {german_statement(second)}"
        return _sentence(f"{english}, {link.english} {english_statement(second)}", german)

    def purpose(self) -> Pair:
        main = self.clause(self.era(), verb=self.pick(_TRAVEL_VERBS), simple=True)
        aim = self.affirmative(lambda: self.clause("plain", main.subject, self.pick(_AIMS)))
        aim.time = aim.adverb = NOTHING
        german = german_infinitive(aim, "um", aim.verb.to_infinitive)
        english = f"{english_statement(main)} to {english_infinitive(aim)}"
        return _sentence(english, f"{german_statement(main)}, {german}")

    def proposal(self) -> Pair:
        clause = self.affirmative(lambda: self.clause("plain", _by_pronoun(lex.US), self.pick(_AIMS)))
        clause.adverb = NOTHING
        later = not clause.tail.english and self.chance(0.4)
        clause.time = self.pick(self.pick(lex.FUTURE_TIMES)) if later else NOTHING
        german = german_infinitive(clause, "lass uns", clause.verb.infinitive)
        return _sentence(f"let us {english_infinitive(clause)}", german)

    def speech(self) -> Pair:
        speaker = self.named().english
        if self.chance(0.3):
            asked = self.question()
            return Pair(f'"{asked.english}" asked {speaker}.', f"„{asked.german}“, fragte {speaker}.")
        told = self.statement()
        return Pair(f'"{told.english[:-1]}," said {speaker}.', f"„{told.german[:-1]}“, sagte {speaker}.")


def _sentence(english: str, german: str, end: str = ".") -> Pair:
    """Capitals and the full stop; the comma that closes a relative clause merges with what follows it."""
    german = f"{german}{end}"
    if "," in german:
        german = german.replace(",,", ",").replace(f",{end}", end)
    return Pair(f"{english[0].upper()}{english[1:]}{end}", german[0].upper() + german[1:])


def _weighted(*choices: tuple[int, T]) -> tuple[T, ...]:
    return tuple(choice for weight, choice in choices for _ in range(weight))


_CLAUSES: tuple[Callable[[Writer, str], Clause], ...] = _weighted(
    (17, Writer.clause), (3, Writer.state), (2, Writer.event), (2, Writer.existence), (2, Writer.whereabouts),
    (2, Writer.passive), (1, Writer.measure), (1, Writer.comparison), (1, Writer.profession),
)  # fmt: skip
_SENTENCES: tuple[Callable[[Writer], Pair], ...] = _weighted(
    (36, Writer.statement), (18, Writer.with_circumstance), (10, Writer.report), (7, Writer.two_statements),
    (7, Writer.question), (5, Writer.adverbial_question), (4, Writer.object_question), (4, Writer.indirect_question),
    (4, Writer.purpose), (3, Writer.speech), (2, Writer.subject_question), (2, Writer.proposal),
)  # fmt: skip


# -- corpora -----------------------------------------------------------------------------------------------------------

_SYMBOLS = tuple("abcdefghijklmnop")


def grammar_pairs(count: int, seed: int, *, part: str = "train") -> Iterator[tuple[str, str]]:
    """`count` pairs (English, German) of the part train, valid or test; the same for the same seed, everywhere."""
    return _of_part(Writer(_random(seed, part)).sentence, count, part)


def reversal_pairs(
    count: int, seed: int, *, part: str = "train", shortest: int = 5, longest: int = 50
) -> Iterator[tuple[str, str]]:
    """The toy task: rows of `shortest` to `longest` symbols, and the same rows backwards."""
    if not 1 <= shortest <= longest:
        raise DataError(f"cannot draw rows of {shortest} to {longest} symbols: 1 <= shortest <= longest must hold")
    random = _random(seed, part)

    def draw() -> Pair:
        length = random.randint(shortest, longest)
        row = random.choices(_SYMBOLS, k=length)
        return Pair(" ".join(row), " ".join(reversed(row)))

    return _of_part(draw, count, part)


def part_of(source: str) -> str:
    """The part that a source sentence belongs to, whatever the seed: 5 % of all are valid, 5 % test."""
    bucket = zlib.crc32(source.encode()) % 1000
    return "valid" if bucket < 50 else "test" if bucket < 100 else "train"


def _random(seed: int, part: str) -> Random:
    if part not in ("train", "valid", "test"):
        raise DataError(f"unknown part {part!r} of a generated corpus: it is 'train', 'valid' or 'test'")
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
