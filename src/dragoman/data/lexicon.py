"""The words of the embedded English-German corpus with all their forms; `grammar.py` builds sentences of them.

Nouns, verbs and adjectives have kinds (person, food, vehicle, ...), so that people read books and repair cars, and not
the other way round. German is a function of English: no noun is its own plural (fish, sheep), 'you' is always 'du',
and two German verbs share an English one only where what follows differs (know: 'kennen' a boy, 'wissen' that ...).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)  # the columns of a German declension
ICH, DU, ER, WIR, SIE = range(5)  # persons of a verb; ER is any third person singular, SIE any third person plural

Declension = tuple[tuple[str, ...], ...]  # [case][column]


class Pair(NamedTuple):
    """The same thing in both languages."""

    english: str
    german: str


NOTHING = Pair("", "")


def pairs(rows: str) -> tuple[Pair, ...]:
    """From 'yesterday/gestern, Berlin/=', where '=' is a word like the English one."""
    split = [row.strip().split("/") for row in rows.split(",")]
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
NUMBER_WORDS = pairs("two/zwei, three/drei, four/vier, five/fünf, six/sechs, eight/acht, ten/zehn, twelve/zwölf")
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

WOMEN = ("Anna", "Maria", "Julia", "Laura", "Lena", "Sarah", "Emma", "Clara", "Eva", "Nina", "Lisa", "Paula")
MEN = ("Peter", "Paul", "Martin", "Daniel", "Jan", "David", "Simon", "Karl", "Oliver", "Tim", "Robert", "Stefan")
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


_NOUN_ROWS = {
    "person": """man/men m Mann Männer, woman/women f Frau Frauen, child/children n Kind Kinder, girl n Mädchen =,
        boy m Junge Jungen weak, teacher m Lehrer =, doctor m Arzt Ärzte, student m Student Studenten weak,
        tourist m Tourist Touristen weak, farmer m Bauer Bauern weak, cook m Koch Köche, lawyer m Anwalt Anwälte""",
    "kin": """brother m Bruder Brüder, sister f Schwester Schwestern, friend m Freund Freunde, son m Sohn Söhne,
        daughter f Tochter Töchter, uncle m Onkel =, aunt f Tante Tanten, neighbor m Nachbar Nachbarn weak,
        mother f Mutter Mütter, father m Vater Väter, grandmother f Großmutter Großmütter, boss m Chef Chefs""",
    "animal": "dog m Hund Hunde, cat f Katze Katzen, horse n Pferd Pferde, bear m Bär Bären weak",
    "food": "apple m Apfel Äpfel, pear f Birne Birnen, egg n Ei Eier, tomato/tomatoes f Tomate Tomaten",
    "pastry": "cake m Kuchen =, cookie m Keks Kekse, pizza f Pizza Pizzas, roll n Brötchen =",
    "mass": "bread n Brot Brote, cheese m Käse =, butter f Butter =",
    "dish": "meat n Fleisch =, rice m Reis =, soup f Suppe Suppen",
    "drink": "milk f Milch =, water n Wasser =, coffee m Kaffee Kaffees, tea m Tee Tees, juice m Saft Säfte",
    "text": "book n Buch Bücher, letter m Brief Briefe, poem n Gedicht Gedichte, story f Geschichte Geschichten",
    "tool": """key m Schlüssel =, pen m Stift Stifte, knife/knives n Messer =, watch f Uhr Uhren, photo n Foto Fotos,
        bottle f Flasche Flaschen, cup f Tasse Tassen, plate m Teller =, suitcase m Koffer =""",
    "clothes": "coat m Mantel Mäntel, shirt n Hemd Hemden, hat m Hut Hüte, jacket f Jacke Jacken",
    "device": "computer m Computer =, radio n Radio Radios, camera f Kamera Kameras, lamp f Lampe Lampen",
    "vehicle": "car n Auto Autos, bicycle n Fahrrad Fahrräder, boat n Boot Boote, truck m Lastwagen =",
    "transit": "bus m Bus Busse, train m Zug Züge",
    "furniture": "table m Tisch Tische, bed n Bett Betten, sofa n Sofa Sofas, chair m Stuhl Stühle",
    "opening": "door f Tür Türen, window n Fenster =",
    "building": """house n Haus Häuser, school f Schule Schulen, church f Kirche Kirchen, hotel n Hotel Hotels,
        museum n Museum Museen, hospital n Krankenhaus Krankenhäuser, library f Bibliothek Bibliotheken,
        castle n Schloss Schlösser, restaurant n Restaurant Restaurants""",
    "area": "park m Park Parks, garden m Garten Gärten, village n Dorf Dörfer, forest m Wald Wälder",
    "spot": "station m Bahnhof Bahnhöfe, airport m Flughafen Flughäfen, lake m See Seen, bridge f Brücke Brücken",
    "event": "party f Party Partys, concert n Konzert Konzerte, wedding f Hochzeit Hochzeiten, game n Spiel Spiele",
}
_TOWNS = pairs(
    "Berlin/=, Hamburg/=, Munich/München, Cologne/Köln, Vienna/Wien, Zurich/Zürich, Paris/=, London/=, Rome/Rom, "
    "Prague/Prag, Warsaw/Warschau, Italy/Italien, Spain/Spanien, France/Frankreich, Norway/Norwegen, Japan/="
)
NOUNS = {kind: tuple(_noun(row, kind) for row in rows.split(",")) for kind, rows in _NOUN_ROWS.items()}
NOUNS["town"] = tuple(_noun(f"{town.english} n {town.german} =", "town") for town in _TOWNS)
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


_ADJECTIVE_ROWS = {  # kinds of nouns that they suit: adjectives
    "tool clothes device vehicle furniture text building opening kin animal": "old alt",
    "tool clothes device vehicle furniture text building opening transit": "new neu",
    "tool clothes device vehicle furniture": "expensive teuer teur, cheap billig, heavy schwer",
    "tool clothes device vehicle furniture building area spot": "beautiful schön",
    "device furniture vehicle opening building area spot animal": "big groß, small klein",
    "tool clothes vehicle": "red rot, blue blau, green grün, white weiß, black schwarz, dirty schmutzig",
    "device building furniture vehicle": "modern modern",
    "vehicle transit": "fast schnell, slow langsam",
    "person kin animal": "young jung, clever klug, strong stark, tired müde müd, hungry hungrig, sick krank",
    "person kin": """tall groß, rich reich, poor arm, famous berühmt, polite höflich, honest ehrlich, nice nett,
        friendly freundlich, happy glücklich, sad traurig""",
    "food pastry mass dish": "fresh frisch, good gut",
    "drink": "hot heiß, cold kalt, good gut",
    "text event": "long lang, short kurz, important wichtig, interesting interessant, boring langweilig",
}
_ADJECTIVES = [(kinds.split(), _adjective(row)) for kinds, rows in _ADJECTIVE_ROWS.items() for row in rows.split(",")]
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


def _verbs(table: str) -> tuple[Verb, ...]:
    return tuple(_verb(row) for row in table.strip().splitlines())


# Features: sein (in the perfect), dative (case of the object), by=PREPOSITION, past=PRETERITE; the others as in Verb.
VERBS = _verbs("""
sleep sleeping slept slept   | schlafen geschlafen schläfst schläft | | how=well,badly,in
work                         | arbeiten gearbeitet                | | how=hard,alone,with,in
sing singing sang sung       | singen gesungen                    | | how=well,loudly,with,in
watch + TV                   | fern/sehen ferngesehen siehst sieht | | how=alone,with,in
go going went gone + shopping | ein/kaufen eingekauft             | | how=alone,with,in
clean + up                   | auf/räumen aufgeräumt              | | how=quickly,slowly,with
get getting got gotten + up  | auf/stehen aufgestanden            | | sein how=early,late
fall falling fell fallen + asleep | ein/schlafen eingeschlafen schläfst schläft | | sein how=quickly,late,in
come coming came come + back | zurück/kommen zurückgekommen       | | sein goal=from how=early,late,with
arrive                       | an/kommen angekommen               | | sein goal=in how=early,late
stay                         | bleiben geblieben                  | | sein goal=in past=blieb how=with
live                         | wohnen gewohnt                     | | goal=in stative past=wohnte
go going went gone           | gehen gegangen                     | | sein goal=to past=ging how=with
drive driving drove driven   | fahren gefahren fährst fährt       | | sein goal=to how=alone,with
travel                       | reisen gereist                     | | sein goal=town how=alone,with
buy buying bought bought     | kaufen gekauft                     | tool clothes vehicle text food drink | how=for,in
see seeing saw seen          | sehen gesehen siehst sieht         | person kin animal building | stative past=sah
read reading read read       | lesen gelesen liest liest          | text | how=in
write writing wrote written  | schreiben geschrieben              | text | how=for,in
eat eating ate eaten         | essen gegessen isst isst           | food pastry mass dish | how=with,in
drink drinking drank drunk   | trinken getrunken                  | drink | how=with,in
know knowing knew known      | kennen gekannt                     | person kin building | stative past=kannte
love                         | lieben geliebt                     | person kin animal | stative past=liebte
like                         | mögen gemocht mag magst mag        | person kin animal food dish | stative past=mochte
have having had had          | haben gehabt habe hast hat         | animal device vehicle tool | stative past=hatte
need                         | brauchen gebraucht                 | tool clothes furniture mass | stative past=brauchte
visit                        | besuchen besucht                   | person kin building | how=with
open                         | öffnen geöffnet öffnest öffnet     | opening | how=quickly,slowly
close                        | schließen geschlossen              | opening | how=quickly,slowly
find finding found found     | finden gefunden                    | tool clothes text animal | how=in
look + for                   | suchen gesucht                     | tool clothes text person kin animal | how=in
bring bringing brought brought + along | mit/bringen mitgebracht  | tool clothes text food pastry drink | how=for
repair                       | reparieren repariert               | device vehicle furniture | how=quickly,for
turn + on                    | ein/schalten eingeschaltet         | device |
invite                       | ein/laden eingeladen lädst lädt    | person kin |
call                         | an/rufen angerufen                 | person kin |
meet meeting met met         | treffen getroffen triffst trifft   | person kin | how=in
feed feeding fed fed         | füttern gefüttert                  | animal | how=with,in
build building built built   | bauen gebaut                       | building furniture | how=for
bake                         | backen gebacken                    | pastry | how=for,with
cook                         | kochen gekocht                     | dish | how=for,with
help                         | helfen geholfen hilfst hilft       | person kin | dative how=in
thank                        | danken gedankt                     | person kin | dative
follow                       | folgen gefolgt                     | person kin animal | dative sein
listen + to                  | zu/hören zugehört                  | person kin | dative
give giving gave given       | geben gegeben gibst gibt           | tool clothes text food pastry | receiver
show showing showed shown    | zeigen gezeigt                     | tool clothes text animal building | receiver
offer                        | an/bieten angeboten                | food pastry mass dish drink | receiver
wait + for                   | warten gewartet                    | person kin transit | by=auf how=in
talk + about                 | sprechen gesprochen sprichst spricht | person kin event text | by=über how=with
talk + to                    | sprechen gesprochen sprichst spricht | person kin | by=mit dative how=in
dream + of                   | träumen geträumt                   | person kin event vehicle | by=von dative
put putting put put          | legen gelegt                       | clothes text | goal=on
""")
REPORTING_VERBS = _verbs("""
say saying said said         | sagen gesagt                       | | past=sagte
think thinking thought thought | denken gedacht                   | | past=dachte
believe                      | glauben geglaubt                   | | past=glaubte
know knowing knew known      | wissen gewusst weiß weißt weiß     | | past=wusste
""")
_BE_FORMS = ("be", "is", "being", "was", "been", "sein", "", ("bin", "bist", "ist", "sind", "sind"), "gewesen")
BE = Verb(*_BE_FORMS, preterite=_preterite("war"), by_sein=True, goal="in", stative=True)
HABEN = ("habe", "hast", "hat", "haben", "haben")
WERDEN = ("werde", "wirst", "wird", "werden", "werden")


class Modal(NamedTuple):
    english: tuple[str, str, str]  # base, third person, past
    german: tuple[str, ...]  # by person
    german_past: tuple[str, ...] = ()  # empty where English has no past tense
    auxiliary: bool = False  # no 'do': can't, don't want to


MODALS = (
    Modal(("can", "can", "could"), ("kann", "kannst", "kann", "können", "können"), _preterite("konnte"), True),
    Modal(("want to", "wants to", "wanted to"), ("will", "willst", "will", "wollen", "wollen"), _preterite("wollte")),
    Modal(("have to", "has to", "had to"), ("muss", "musst", "muss", "müssen", "müssen"), _preterite("musste")),
    Modal(("may", "may", ""), ("darf", "darfst", "darf", "dürfen", "dürfen"), auxiliary=True),
    Modal(("should", "should", ""), _preterite("sollte"), auxiliary=True),
    Modal(("would like to", "would like to", ""), _preterite("möchte"), auxiliary=True),
)


# -- adverbials --------------------------------------------------------------------------------------------------------

_DAYS = pairs(
    "on Monday/am Montag, on Tuesday/am Dienstag, on Wednesday/am Mittwoch, on Thursday/am Donnerstag, "
    "on Friday/am Freitag, on Saturday/am Samstag, on Sunday/am Sonntag"
)
_HOURS = tuple(Pair(f"at {hour} o'clock", f"um {hour} Uhr") for hour in range(5, 13))
_SEASONS = pairs("in summer/im Sommer, in winter/im Winter, in spring/im Frühling, in May/im Mai, in August/im August")
_YEARS = tuple(Pair(f"in {year}", f"im Jahr {year}") for year in range(1980, 2025))
_HABITS = pairs("in the morning/am Morgen, in the evening/am Abend, every day/jeden Tag, today/heute")
_BEFORE = pairs("yesterday/gestern, last week/letzte Woche, last year/letztes Jahr, yesterday evening/gestern Abend")
_LATER = pairs("tomorrow/morgen, next week/nächste Woche, next year/nächstes Jahr, tonight/heute Abend, soon/bald")
_SPANS = pairs("days/Tagen, weeks/Wochen, months/Monaten, years/Jahren")
_AGO = tuple(Pair(f"{n.english} {s.english} ago", f"vor {n.german} {s.german}") for n in NUMBER_WORDS for s in _SPANS)
_DAYS_AT = tuple(Pair(f"{d.english} {h.english}", f"{d.german} {h.german}") for d in _DAYS for h in _HOURS)
# Each a choice of lists, so that 45 years do not crowd out 'yesterday'.
PRESENT_TIMES = (_HABITS, _HABITS, _DAYS, _HOURS, _SEASONS, _DAYS_AT)
PAST_TIMES = (_BEFORE, _BEFORE, _DAYS, _SEASONS, _YEARS, _AGO, _DAYS_AT)
FUTURE_TIMES = (_LATER, _LATER, _DAYS, _DAYS_AT)
OFTEN = pairs("often/oft, always/immer, never/nie, sometimes/manchmal, usually/meistens, rarely/selten")
ALREADY = pairs("already/schon, just/gerade")
_MANNERS = pairs("well/gut, badly/schlecht, loudly/laut, alone/allein, hard/hart, quickly/schnell, slowly/langsam")
MANNERS = {manner.english: manner for manner in (*_MANNERS, Pair("early", "früh"), Pair("late", "spät"))}
_PREPOSITION_ROWS = {  # both prepositions, and the kind of nouns that they suit
    "in": "in in town, in in building, in in area, at an spot, behind hinter building, beside neben building",
    "to": "to nach town, to zu building, to zu spot",
    "town": "to nach town",
    "from": "from aus town",
    "with": "with mit person, with mit kin",
    "for": "for für person, for für kin",
    "on": "on auf furniture, under unter furniture, beside neben furniture",
}
PREPOSITIONS = {name: tuple(tuple(row.split()) for row in rows.split(",")) for name, rows in _PREPOSITION_ROWS.items()}
