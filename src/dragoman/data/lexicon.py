"""The words of the embedded English-German corpus with all their forms; `grammar.py` builds sentences of them. The words
themselves are rows of `lexicon.toml`.

Nouns, verbs and adjectives have kinds (person, food, vehicle, ...), so that people read books and repair cars, and not
the other way round. German is a function of English: no noun is its own plural (fish, sheep), 'you' is always 'du',
and two German verbs share an English one only where what follows differs (know: 'kennen' a boy, 'wissen' that ...).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)  # the columns of a German declension
ICH, DU, ER, WIR, SIE = range(5)  # persons of a verb; ER is any third person singular, SIE any third person plural

Declension = tuple[tuple[str, ...], ...]  # [case][column]


class Pair(NamedTuple):
    """The same thing in both languages."""

    english: str
    german: str


NOTHING = Pair("", "")


def pairs(name: str) -> tuple[Pair, ...]:
    """From 'yesterday/gestern, Berlin/=', where '=' is a word like the English one."""
    split = [row.strip().split("/") for row in WORDS[name].split(",")]
    return tuple(Pair(english, english if german == "=" else german) for english, german in split)


def with_s(word: str) -> str:
    """The regular plural of a noun, which is also the regular third person of a verb."""
    if word.endswith("y") and word[-2] not in "aeou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) or word == "go" else "s")


# -- determiners, pronouns and names -----------------------------------------------------------------------------------


def _declension(*rows: str) -> Declension:
    return tuple(tuple(ending.replace("-", "") for ending in row.split()) for row in rows)


def _joined(stem: str, endings: Declension) -> Declension:
    return tuple(tuple(stem + ending for ending in row) for row in endings)


def _fixed(word: str) -> Declension:
    return ((word,) * 4,) * 3


_WEAK = _declension("e e e en", "en e e en", "en en en en")  # adjectives after der, dieser, jeder, alle
_MIXED = _declension("er e es en", "en e es en", "en en en en")  # after ein, kein, mein
_STRONG = _declension("er e es e", "en e es e", "em er em en")  # after nothing, numbers, viele, Annas
_EIN = _declension("- e - e", "en e - e", "em er em en")
RELATIVE = _declension("der die das die", "den die das die", "dem der dem denen")


@dataclass(frozen=True, slots=True)
class Determiner:
    english: str
    german: Declension
    endings: Declension  # of an adjective that follows
    plural: bool = False
    definite: bool = True  # indefinite objects stand late in a German clause
    negates: bool = False  # kein carries the negation of the whole clause
    english_plural: str = ""

    def of_many(self) -> Determiner:
        return replace(self, english=self.english_plural or self.english, plural=True)


THE = Determiner("the", _declension("der die das die", "den die das die", "dem der dem den"), _WEAK)
THIS = Determiner("this", _joined("dies", _STRONG), _WEAK, english_plural="these")
EVERY = Determiner("every", _joined("jed", _STRONG), _WEAK)
WHICH = Determiner("which", _joined("welch", _STRONG), _WEAK)
ALL = Determiner("all", _joined("all", _STRONG), _WEAK, plural=True)
A = Determiner("a", _joined("ein", _EIN), _MIXED, definite=False)
NOT_A = Determiner("a", _joined("kein", _EIN), _MIXED, definite=False, negates=True)
NOT_ANY = replace(NOT_A, english="")
BARE = Determiner("", _fixed(""), _STRONG, definite=False)
_SEVERAL = BARE.of_many()
MANY = replace(_SEVERAL, english="many", german=_joined("viel", _STRONG))
SOME = replace(_SEVERAL, english="some", german=_joined("einig", _STRONG))
NUMBER_WORDS = pairs("numbers")
NUMBERS = tuple(replace(_SEVERAL, english=word.english, german=_fixed(word.german)) for word in NUMBER_WORDS)
DIGITS = tuple(replace(_SEVERAL, english=str(number), german=_fixed(str(number))) for number in range(13, 100))


class Pronoun(NamedTuple):
    english: str
    english_object: str
    german: tuple[str, ...]  # by case
    person: int
    possessive: Determiner


def _pronoun(row: str, person: int) -> Pronoun:
    english, english_object, my, ich, mich, mir, mein = row.split()
    return Pronoun(english, english_object, (ich, mich, mir), person, Determiner(my, _joined(mein, _EIN), _MIXED))


ME = _pronoun("I me my ich mich mir mein", ICH)
YOU = _pronoun("you you your du dich dir dein", DU)
HIM = _pronoun("he him his er ihn ihm sein", ER)
HER = _pronoun("she her her sie sie ihr ihr", ER)
US = _pronoun("we us our wir uns uns unser", WIR)
THEM = _pronoun("they them their sie sie ihnen ihr", SIE)
PRONOUNS = (ME, YOU, HIM, HER, US, THEM)
POSSESSIVES = tuple(pronoun.possessive for pronoun in PRONOUNS)

WOMEN, MEN = WORDS["women"].split(), WORDS["men"].split()
OWNERS = tuple(Determiner(f"{name}'s", _fixed(f"{name}s"), _STRONG) for name in WOMEN + MEN)  # Annas alter Hund


# -- nouns and adjectives ----------------------------------------------------------------------------------------------


class Noun(NamedTuple):
    english: tuple[str, str]  # singular, plural
    german: tuple[tuple[str, str], ...]  # [case][plural]
    gender: int
    kind: str


def _noun(row: str, kind: str) -> Noun:
    """From 'english[/plural] m|f|n German Plural [weak]'; '=' is a plural like the singular."""
    english, gender, singular, plural, *weak = row.split()
    one, _, several = english.partition("/")
    plural = singular if plural == "=" else plural
    oblique = plural if weak else singular  # der Junge, den Jungen
    dative_plural = plural if plural[-1] in "ns" else plural + "n"
    german = ((singular, plural), (oblique, plural), (oblique, dative_plural))
    return Noun((one, several or with_s(one)), german, "mfn".index(gender), kind)


NOUNS = {kind: tuple(_noun(row, kind) for row in rows.split(",")) for kind, rows in WORDS["nouns"].items()}
NOUNS["town"] = tuple(_noun(f"{town.english} n {town.german} =", "town") for town in pairs("towns"))
PEOPLE_KINDS = ("person", "kin")


def nouns(kinds: str) -> tuple[Noun, ...]:
    return tuple(noun for kind in kinds.split() for noun in NOUNS[kind])


class Adjective(NamedTuple):
    english: str
    german: str
    stem: str  # what the endings join: teuer, ein teures Auto


def _adjective(row: str) -> Adjective:
    """From 'english german [stem]'."""
    english, german, *stem = row.split()
    return Adjective(english, german, stem[0] if stem else german)


_ADJECTIVES = [
    (kinds.split(), _adjective(row)) for kinds, rows in WORDS["adjectives"].items() for row in rows.split(",")
]
ADJECTIVES = {kind: tuple(adjective for kinds, adjective in _ADJECTIVES if kind in kinds) for kind in NOUNS}


# -- verbs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verb:
    base: str
    third: str
    ing: str
    past: str
    participle: str
    infinitive: str  # joined: anrufen
    prefix: str  # separable: an
    present: tuple[str, ...]  # by person, without the prefix
    german_participle: str
    preterite: tuple[str, ...] = ()  # by person; empty where an English simple past becomes a German perfect
    by_sein: bool = False
    objects: tuple[Noun, ...] = ()
    case: int = ACCUSATIVE
    preposition: str = ""
    receiver: bool = False  # takes a dative person too: gives the child an apple
    goal: str = ""  # the key in PREPOSITIONS of a place that belongs to it
    how: tuple[str, ...] = ()  # keys in MANNERS and PREPOSITIONS of what may follow
    stative: bool = False  # no progressive, no perfect, no modal verb, no time, no 'often'


def _present(bare: str, irregular: list[str]) -> tuple[str, ...]:
    """The present of an infinitive without prefix; the irregular forms, if any, are (du, er) or (ich, du, er)."""
    stem = bare[:-2] if bare.endswith("en") else bare[:-1]
    link = "e" if stem[-1] in "dt" else ""
    regular = [f"{stem}e", stem + ("t" if stem[-1] in "sßz" else f"{link}st"), f"{stem}{link}t"]
    ich, du, er = regular[: 3 - len(irregular)] + irregular
    return ich, du, er, bare, bare


def _preterite(ich: str) -> tuple[str, ...]:
    plural = ich + ("n" if ich.endswith("e") else "en")
    return ich, ich + ("est" if ich[-1] in "dt" else "st"), ich, plural, plural


def _english_forms(row: str) -> list[str]:
    """Base, third person, -ing, past and participle, from 'base ing past participle + particle' or a regular 'base'."""
    forms, _, particle = row.partition("+")
    base, *rest = forms.split()
    if not rest:
        cut = base.removesuffix("e")
        rest = [f"{cut}ing", f"{cut}ed", f"{cut}ed"]
    third = "has" if base == "have" else with_s(base)
    return [f"{form} {particle.strip()}".strip() for form in (base, third, *rest)]


def _verb(row: str) -> Verb:
    """From 'english | [prefix/]infinitive participle [irregular present] | kinds of objects | features'."""
    english, german, objects, features = row.split("|")
    base, third, ing, past, participle = _english_forms(english)
    marked, german_participle, *irregular = german.split()
    prefix, _, bare = marked.rpartition("/")
    values = {name: value for name, _, value in (feature.partition("=") for feature in features.split())}
    return Verb(
        base, third, ing, past, participle, prefix + bare, prefix, _present(bare, irregular), german_participle,
        preterite=_preterite(values["past"]) if "past" in values else (), by_sein="sein" in values,
        objects=nouns(objects), case=DATIVE if "dative" in values else ACCUSATIVE, preposition=values.get("by", ""),
        receiver="receiver" in values, goal=values.get("goal", ""), stative="stative" in values,
        how=tuple(values["how"].split(",")) if "how" in values else (),
    )  # fmt: skip


VERBS, REPORTING_VERBS = (
    tuple(_verb(row) for row in WORDS[name].strip().splitlines()) for name in ("verbs", "reporting_verbs")
)
_BE_FORMS = ("be", "is", "being", "was", "been", "sein", "", ("bin", "bist", "ist", "sind", "sind"), "gewesen")
BE = Verb(*_BE_FORMS, preterite=_preterite("war"), by_sein=True, goal="in", stative=True)
HABEN = ("habe", "hast", "hat", "haben", "haben")
WERDEN = ("werde", "wirst", "wird", "werden", "werden")


class Modal(NamedTuple):
    english: tuple[str, str, str]  # base, third person, past
    german: tuple[str, ...]  # by person
    german_past: tuple[str, ...] = ()  # empty where English has no past tense
    auxiliary: bool = False  # no 'do': can't, don't want to


def _modal(row: str) -> Modal:
    english, german, past, auxiliary = (part.strip() for part in row.split("|"))
    base, third, before = (form.strip() for form in english.split(","))
    return Modal((base, third, before), tuple(german.split()), _preterite(past) if past else (), bool(auxiliary))


MODALS = tuple(_modal(row) for row in WORDS["modals"].strip().splitlines())


# -- adverbials --------------------------------------------------------------------------------------------------------

_HOURS = tuple(Pair(f"at {hour} o'clock", f"um {hour} Uhr") for hour in range(5, 13))
_YEARS = tuple(Pair(f"in {year}", f"im Jahr {year}") for year in range(1980, 2025))
_DAYS, _SEASONS, _HABITS, _BEFORE, _LATER, _SPANS, OFTEN, ALREADY = map(
    pairs, ("days", "seasons", "habits", "before", "later", "spans", "often", "already")
)
_AGO = tuple(Pair(f"{n.english} {s.english} ago", f"vor {n.german} {s.german}") for n in NUMBER_WORDS for s in _SPANS)
_DAYS_AT = tuple(Pair(f"{d.english} {h.english}", f"{d.german} {h.german}") for d in _DAYS for h in _HOURS)
# Each a choice of lists, so that 45 years do not crowd out 'yesterday'.
PRESENT_TIMES = (_HABITS, _HABITS, _DAYS, _HOURS, _SEASONS, _DAYS_AT)
PAST_TIMES = (_BEFORE, _BEFORE, _DAYS, _SEASONS, _YEARS, _AGO, _DAYS_AT)
FUTURE_TIMES = (_LATER, _LATER, _DAYS, _DAYS_AT)
MANNERS = {manner.english: manner for manner in pairs("manners")}
PREPOSITIONS = {
    name: tuple(tuple(row.split()) for row in rows.split(",")) for name, rows in WORDS["prepositions"].items()
}
