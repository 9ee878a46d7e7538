"""The words of the embedded English-German corpus with all their forms; `grammar.py` builds sentences of them.

Nouns, verbs and adjectives have kinds (person, food, vehicle, ...), so that people read books and repair cars, and not
the other way round. German is a function of English: no noun is its own plural (fish, sheep), 'you' is always 'du',
and two German verbs share an English one only where their objects differ in kind (put: 'legen' a key, 'stellen' a cup).
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


def _pairs(rows: str) -> tuple[Pair, ...]:
    """From 'yesterday/gestern, Berlin/=', where '=' is a word like the English one."""
    split = [row.strip().split("/") for row in rows.split(",")]
    return tuple(Pair(english, english if german == "=" else german) for english, german in split)


def a_or_an(word: str) -> str:
    return "an" if word.startswith(("a", "e", "i", "o", "u", "hon")) and not word.startswith(("uni", "use")) else "a"


def with_s(word: str) -> str:
    """The regular plural of a noun, which is also the regular third person of a verb."""
    if word.endswith("y") and word[-2] not in "aeou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) or word == "go" else "s")


# -- determiners -------------------------------------------------------------------------------------------------------


def _declension(*rows: str) -> Declension:
    return tuple(tuple(ending.replace("-", "") for ending in row.split()) for row in rows)


def _joined(stem: str, endings: Declension) -> Declension:
    return tuple(tuple(stem + ending for ending in row) for row in endings)


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


def _fixed(word: str) -> Declension:
    return ((word,) * 4,) * 3


def _counting(english: str, german: Declension) -> Determiner:
    return Determiner(english, german, _STRONG, plural=True, definite=False)


THE = Determiner("the", _declension("der die das die", "den die das die", "dem der dem den"), _WEAK)
THIS = Determiner("this", _joined("dies", _STRONG), _WEAK, english_plural="these")
EVERY = Determiner("every", _joined("jed", _STRONG), _WEAK)
WHICH = Determiner("which", _joined("welch", _STRONG), _WEAK)
A = Determiner("a", _joined("ein", _EIN), _MIXED, definite=False)
BARE = Determiner("", _fixed(""), _STRONG, definite=False)
NOT_A = Determiner("a", _joined("kein", _EIN), _MIXED, definite=False, negates=True)
NOT_ANY = replace(NOT_A, english="")
ALL = Determiner("all", _joined("all", _STRONG), _WEAK, plural=True)
MANY = _counting("many", _joined("viel", _STRONG))
SOME = _counting("some", _joined("einig", _STRONG))
HOW_MANY = _counting("how many", _joined("wie viel", _STRONG))
NUMBER_WORDS = _pairs("two/zwei, three/drei, four/vier, five/fünf, six/sechs, eight/acht, ten/zehn, twelve/zwölf")
NUMBERS = tuple(_counting(word.english, _fixed(word.german)) for word in NUMBER_WORDS)
DIGITS = tuple(_counting(str(number), _fixed(str(number))) for number in range(13, 100))


# -- pronouns and names ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pronoun:
    english: str
    english_object: str
    german: tuple[str, ...]  # by case
    person: int
    possessive: Determiner


def _pronoun(english: str, german: str, person: int, my: str, mein: str) -> Pronoun:
    subject, other = english.split()
    return Pronoun(subject, other, tuple(german.split()), person, Determiner(my, _joined(mein, _EIN), _MIXED))


ME = _pronoun("I me", "ich mich mir", ICH, "my", "mein")
YOU = _pronoun("you you", "du dich dir", DU, "your", "dein")
HIM = _pronoun("he him", "er ihn ihm", ER, "his", "sein")
HER = _pronoun("she her", "sie sie ihr", ER, "her", "ihr")
US = _pronoun("we us", "wir uns uns", WIR, "our", "unser")
THEM = _pronoun("they them", "sie sie ihnen", SIE, "their", "ihr")
PRONOUNS = (ME, YOU, HIM, HER, US, THEM)
POSSESSIVES = tuple(pronoun.possessive for pronoun in PRONOUNS)
REFLEXIVE = ("mich", "dich", "sich", "uns", "sich")  # by person


def _words(row: str) -> tuple[str, ...]:
    return tuple(row.split())


WOMEN = _words("Anna Maria Julia Laura Lena Sarah Emma Clara Sophie Eva Nina Martha Lisa Paula")
MEN = _words("Peter Paul Martin Daniel Jan Felix David Simon Karl Oliver Tim Robert Erik Stefan")
# A name before a noun acts as its determiner: Annas alter Hund. (Felix would need an apostrophe, so he owns nothing.)
OWNERS = tuple(Determiner(f"{name}'s", _fixed(f"{name}s"), _STRONG) for name in WOMEN + MEN if name != "Felix")
TOWNS = _pairs(
    "Berlin/=, Hamburg/=, Munich/München, Cologne/Köln, Vienna/Wien, Zurich/Zürich, Paris/=, London/=, Rome/Rom, "
    "Prague/Prag, Warsaw/Warschau, Leipzig/=, Bremen/=, Athens/Athen, Lisbon/Lissabon, Copenhagen/Kopenhagen, "
    "Italy/Italien, Spain/Spanien, France/Frankreich, Austria/Österreich, Norway/Norwegen, Japan/=, Poland/Polen"
)


# -- nouns -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Noun:
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
        tourist m Tourist Touristen weak, farmer m Bauer Bauern weak, lawyer m Anwalt Anwälte,
        policeman/policemen m Polizist Polizisten weak, nurse f Krankenschwester Krankenschwestern,
        customer m Kunde Kunden weak, cook m Koch Köche""",
    "kin": """brother m Bruder Brüder, sister f Schwester Schwestern, friend m Freund Freunde, son m Sohn Söhne,
        neighbor m Nachbar Nachbarn weak, daughter f Tochter Töchter, uncle m Onkel =, aunt f Tante Tanten,
        colleague m Kollege Kollegen weak""",
    "parent": """mother f Mutter Mütter, father m Vater Väter, grandmother f Großmutter Großmütter,
        grandfather m Großvater Großväter, boss m Chef Chefs""",
    "animal": """dog m Hund Hunde, cat f Katze Katzen, horse n Pferd Pferde, bird m Vogel Vögel, cow f Kuh Kühe,
        mouse/mice f Maus Mäuse, duck f Ente Enten, pig n Schwein Schweine, bear m Bär Bären weak,
        lion m Löwe Löwen weak""",
    "food": """apple m Apfel Äpfel, pear f Birne Birnen, egg n Ei Eier, tomato/tomatoes f Tomate Tomaten,
        potato/potatoes f Kartoffel Kartoffeln, banana f Banane Bananen, onion f Zwiebel Zwiebeln""",
    "pastry": "cake m Kuchen =, cookie m Keks Kekse, pizza f Pizza Pizzas, roll n Brötchen =",
    "mass": "bread n Brot Brote, cheese m Käse =, butter f Butter =, chocolate f Schokolade Schokoladen",
    "dish": "meat n Fleisch =, rice m Reis =, soup f Suppe Suppen",
    "drink": "milk f Milch =, water n Wasser =, coffee m Kaffee Kaffees, tea m Tee Tees, juice m Saft Säfte",
    "text": """book n Buch Bücher, letter m Brief Briefe, poem n Gedicht Gedichte, story f Geschichte Geschichten,
        report m Bericht Berichte, postcard f Postkarte Postkarten, novel m Roman Romane""",
    "press": "newspaper f Zeitung Zeitungen, magazine f Zeitschrift Zeitschriften",
    "flat": """key m Schlüssel =, pen m Stift Stifte, knife/knives n Messer =, towel n Handtuch Handtücher,
        photo n Foto Fotos, coin f Münze Münzen, watch f Uhr Uhren, blanket f Decke Decken""",
    "upright": """bottle f Flasche Flaschen, glass n Glas Gläser, cup f Tasse Tassen, plate m Teller =,
        vase f Vase Vasen, suitcase m Koffer =, basket m Korb Körbe""",
    "clothes": """coat m Mantel Mäntel, dress n Kleid Kleider, shirt n Hemd Hemden, hat m Hut Hüte,
        jacket f Jacke Jacken, scarf/scarves m Schal Schals""",
    "device": "computer m Computer =, radio n Radio Radios, camera f Kamera Kameras, lamp f Lampe Lampen",
    "instrument": "piano n Klavier Klaviere, guitar f Gitarre Gitarren, violin f Geige Geigen",
    "vehicle": "car n Auto Autos, bicycle n Fahrrad Fahrräder, boat n Boot Boote, truck m Lastwagen =",
    "transit": "bus m Bus Busse, train m Zug Züge",
    "furniture": "table m Tisch Tische, bed n Bett Betten, sofa n Sofa Sofas, chair m Stuhl Stühle",
    "opening": "door f Tür Türen, window n Fenster =",
    "building": """house n Haus Häuser, school f Schule Schulen, church f Kirche Kirchen, hotel n Hotel Hotels,
        museum n Museum Museen, hospital n Krankenhaus Krankenhäuser, factory f Fabrik Fabriken, office n Büro Büros,
        library f Bibliothek Bibliotheken, castle n Schloss Schlösser, restaurant n Restaurant Restaurants""",
    "event": """party f Party Partys, concert n Konzert Konzerte, meeting f Besprechung Besprechungen,
        wedding f Hochzeit Hochzeiten, exhibition f Ausstellung Ausstellungen, game n Spiel Spiele""",
    "art": "movie m Film Filme, song n Lied Lieder, picture n Bild Bilder, idea f Idee Ideen",
}
NOUNS = {kind: tuple(_noun(row, kind) for row in rows.split(",")) for kind, rows in _NOUN_ROWS.items()}
PEOPLE_KINDS = ("person", "kin", "parent")
UNCOUNTED_KINDS = ("mass", "dish", "drink")
_THINGS = "flat upright clothes device instrument vehicle furniture"
_GROUPS = {
    "people": "person kin parent",
    "carried": "flat upright clothes text press",
    "things": _THINGS,
    "goods": f"{_THINGS} text press food pastry mass dish drink",
}


def _kinds(names: str) -> list[str]:
    return " ".join(_GROUPS.get(name, name) for name in names.split()).split()


def nouns(names: str) -> tuple[Noun, ...]:
    """The nouns of some kinds or groups of kinds."""
    return tuple(noun for kind in _kinds(names) for noun in NOUNS[kind])


_PROFESSION_ROWS = """doctor Arzt Ärztin, teacher Lehrer Lehrerin, student Student Studentin, lawyer Anwalt Anwältin,
    engineer Ingenieur Ingenieurin, actor Schauspieler Schauspielerin, pilot Pilot Pilotin, singer Sänger Sängerin,
    artist Künstler Künstlerin, cook Koch Köchin"""
PROFESSIONS = tuple(_words(row) for row in _PROFESSION_ROWS.split(","))


# -- adjectives --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Adjective:
    english: str
    german: str
    stem: str  # what the endings join: teuer, ein teures Auto
    comparative: Pair  # empty where it would sound odd


def _adjective(row: str) -> Adjective:
    """From 'english german [comparative, german comparative [stem]]'; 'more' is put before the adjective."""
    english, german, *rest = row.split()
    stem = rest[2] if len(rest) == 3 else german
    if not rest:
        return Adjective(english, german, stem, NOTHING)
    return Adjective(english, german, stem, Pair(f"more {english}" if rest[0] == "more" else rest[0], rest[1]))


_ADJECTIVE_ROWS = {  # kinds of nouns that they suit: adjectives
    "things text press building opening": "old alt older älter",
    "things text building art": "new neu newer neuer",
    "things": "expensive teuer more teurer teur, cheap billig cheaper billiger",
    "things building art": "beautiful schön more schöner",
    "upright furniture device building animal vehicle opening": "big groß bigger größer, small klein smaller kleiner",
    "upright furniture device opening": "heavy schwer heavier schwerer",
    "flat upright clothes vehicle": "red rot, blue blau, green grün, white weiß, black schwarz, yellow gelb",
    "upright clothes vehicle": "dirty schmutzig dirtier schmutziger, clean sauber cleaner sauberer",
    "device building furniture vehicle": "modern modern more moderner",
    "vehicle transit": "fast schnell faster schneller, slow langsam slower langsamer",
    "person kin animal": "young jung younger jünger, clever klug cleverer klüger, lazy faul lazier fauler, "
    "brave mutig braver mutiger, strong stark stronger stärker",
    "person kin": "tall groß taller größer, rich reich richer reicher, poor arm poorer ärmer, "
    "famous berühmt more berühmter, polite höflich more höflicher, honest ehrlich more ehrlicher",
    "people": "friendly freundlich friendlier freundlicher, nice nett nicer netter, "
    "happy glücklich happier glücklicher, sad traurig sadder trauriger, angry wütend angrier wütender",
    "people animal": "tired müde more müder müd, hungry hungrig hungrier hungriger, sick krank sicker kränker",
    "animal": "dangerous gefährlich more gefährlicher",
    "food pastry mass dish": "fresh frisch fresher frischer, good gut better besser",
    "food pastry": "sweet süß sweeter süßer, small klein smaller kleiner",
    "drink": "hot heiß hotter heißer, cold kalt colder kälter, good gut better besser",
    "text event": "long lang longer länger, short kurz shorter kürzer, important wichtig more wichtiger",
    "text press art event": "interesting interessant more interessanter, boring langweilig more langweiliger",
}
_ADJECTIVES = [(_kinds(kinds), _adjective(row)) for kinds, rows in _ADJECTIVE_ROWS.items() for row in rows.split(",")]
ADJECTIVES = {kind: tuple(adjective for kinds, adjective in _ADJECTIVES if kind in kinds) for kind in NOUNS}
DEGREES = (NOTHING, NOTHING, *_pairs("very/sehr, too/zu, quite/ziemlich"))


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
    preterite: tuple[str, ...]  # by person; empty where an English simple past becomes a German perfect
    german_participle: str
    by_sein: bool = False
    reflexive: bool = False
    objects: tuple[Noun, ...] = ()
    case: int = ACCUSATIVE
    preposition: str = ""
    receiver: bool = False  # takes a dative person too: gives the child an apple
    goal: str = ""  # the kind of place that belongs to it: in, place, to, town, from, arrival, onto
    manners: tuple[Pair, ...] = ()
    stative: bool = False  # no progressive, no perfect, no 'often', no place
    willed: bool = True  # makes sense after 'wants to'
    by_animals: bool = False
    benefits: bool = False  # takes 'for my mother'
    company: bool = False  # takes 'with my mother'

    @property
    def to_infinitive(self) -> str:
        return f"{self.prefix}zu{self.infinitive.removeprefix(self.prefix)}" if self.prefix else f"zu {self.infinitive}"


def _present(bare: str, irregular: list[str]) -> tuple[str, ...]:
    """The present of an infinitive without prefix; the irregular forms, if any, are (du, er) or (ich, du, er)."""
    stem = bare[:-2] if bare.endswith("en") else bare[:-1]
    link = "e" if stem[-1] in "dt" else ""
    regular = [f"{stem}e", stem + ("t" if stem[-1] in "sßzx" else f"{link}st"), f"{stem}{link}t"]
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
        past = base[:-1] + "ied" if base.endswith("y") and base[-2] not in "aeou" else cut + "ed"
        rest = [cut + "ing", past, past]
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
        base, third, ing, past, participle, prefix + bare, prefix, _present(bare, irregular),
        preterite=_preterite(values["past"]) if "past" in values else (), german_participle=german_participle,
        by_sein="sein" in values, reflexive="sich" in values, objects=nouns(objects),
        case=DATIVE if "dative" in values else ACCUSATIVE, preposition=values.get("by", ""),
        receiver="receiver" in values, goal=values.get("goal", ""),
        manners=tuple(manner for manner in _MANNERS if manner.english in values.get("how", "").split(",")),
        stative="stative" in values, willed="unwilled" not in values, by_animals="animals" in values,
        benefits="benefits" in values, company="company" in values,
    )  # fmt: skip


def _verbs(table: str) -> tuple[Verb, ...]:
    return tuple(_verb(row) for row in table.strip().splitlines())


_MANNERS = _pairs(
    "well/gut, badly/schlecht, loudly/laut, quietly/leise, alone/allein, hard/hart, quickly/schnell, slowly/langsam, "
    "early/früh, late/spät"
)
# Features: sein (in the perfect), sich, dative (case of the object), by=PREPOSITION, past=PRETERITE, goal=KIND,
# how=MANNERS, and the flags of Verb: receiver, stative, unwilled, animals, benefits, company.
VERBS = _verbs("""
sleep sleeping slept slept   | schlafen geschlafen schläfst schläft | | animals how=well,badly
work                         | arbeiten gearbeitet                | | how=hard,alone,slowly company
laugh                        | lachen gelacht                     | | how=loudly,quietly
dance                        | tanzen getanzt                     | | how=well,badly,alone company
sing singing sang sung       | singen gesungen                    | | how=well,badly,loudly company
swim swimming swam swum      | schwimmen geschwommen              | | sein animals how=slowly
run running ran run          | laufen gelaufen läufst läuft       | | sein animals how=quickly
watch + TV                   | fern/sehen ferngesehen siehst sieht | | how=alone company
go going went gone + shopping | ein/kaufen eingekauft              | | how=alone company
clean + up                   | auf/räumen aufgeräumt              | | how=quickly,slowly company
rest                         | aus/ruhen ausgeruht                | | sich company
get getting got gotten + up  | auf/stehen aufgestanden            | | sein how=early,late
wake waking woke woken + up  | auf/wachen aufgewacht              | | sein animals unwilled how=early
fall falling fell fallen + asleep | ein/schlafen eingeschlafen schläfst schläft | | sein animals unwilled how=late
come coming came come + back | zurück/kommen zurückgekommen       | | sein goal=from how=early,late company
arrive                       | an/kommen angekommen               | | sein goal=arrival how=early,late company
sit sitting sat sat          | sitzen gesessen                    | | animals goal=in
stay                         | bleiben geblieben                  | | sein goal=in past=blieb
live                         | wohnen gewohnt                     | | goal=in stative past=wohnte
go going went gone           | gehen gegangen                     | | sein goal=place past=ging company
drive driving drove driven   | fahren gefahren fährst fährt       | | sein goal=to company
travel                       | reisen gereist                     | | sein goal=town company
fly flying flew flown        | fliegen geflogen                   | | sein goal=town company
move                         | um/ziehen umgezogen                | | sein goal=town company
come coming came come        | kommen gekommen                    | | goal=from stative unwilled past=kam
buy buying bought bought     | kaufen gekauft                     | goods | benefits
sell selling sold sold       | verkaufen verkauft                 | goods |
order                        | bestellen bestellt                 | food pastry dish drink | benefits
see seeing saw seen          | sehen gesehen siehst sieht         | people animal building vehicle | stative past=sah
read reading read read       | lesen gelesen liest liest          | text press |
write writing wrote written  | schreiben geschrieben              | text |
eat eating ate eaten         | essen gegessen isst isst           | food pastry mass dish |
drink drinking drank drunk   | trinken getrunken                  | drink |
know knowing knew known      | kennen gekannt                     | people building | stative unwilled past=kannte
love                         | lieben geliebt                     | people animal | stative unwilled past=liebte
like                         | mögen gemocht mag magst mag | people animal food dish art | unwilled stative past=mochte
have having had had          | haben gehabt habe hast hat         | animal device vehicle flat | stative past=hatte
need                         | brauchen gebraucht                 | goods | stative unwilled past=brauchte
understand understanding understood understood | verstehen verstanden | people text art | stative past=verstand
visit                        | besuchen besucht                   | people building |
open                         | öffnen geöffnet öffnest öffnet     | opening |
close                        | schließen geschlossen              | opening |
find finding found found     | finden gefunden                    | carried animal |
lose losing lost lost        | verlieren verloren                 | carried | unwilled
forget forgetting forgot forgotten | vergessen vergessen vergisst vergisst | carried | unwilled
look + for                   | suchen gesucht                     | carried people animal |
throw throwing threw thrown + away | weg/werfen weggeworfen wirfst wirft | carried food |
bring bringing brought brought + along | mit/bringen mitgebracht            | carried food pastry drink |
repair                       | reparieren repariert               | device vehicle instrument |
wash                         | waschen gewaschen wäschst wäscht   | clothes vehicle |
wear wearing wore worn       | tragen getragen trägst trägt       | clothes |
turn + on                    | ein/schalten eingeschaltet         | device |
turn + off                   | aus/schalten ausgeschaltet         | device |
invite                       | ein/laden eingeladen lädst lädt    | people |
call                         | an/rufen angerufen                 | people |
meet meeting met met         | treffen getroffen triffst trifft   | people |
watch                        | beobachten beobachtet              | people animal |
feed feeding fed fed         | füttern gefüttert                  | animal |
build building built built   | bauen gebaut                       | building furniture |
bake                         | backen gebacken                    | pastry | benefits
cook                         | kochen gekocht                     | dish | benefits
prepare                      | vor/bereiten vorbereitet           | event | benefits
miss                         | verpassen verpasst                 | transit event | unwilled
help                         | helfen geholfen hilfst hilft       | people | dative
thank                        | danken gedankt                     | people | dative
follow                       | folgen gefolgt                     | people animal | dative sein
listen + to                  | zu/hören zugehört                  | people | dative
give giving gave given       | geben gegeben gibst gibt           | carried food pastry | receiver
show showing showed shown    | zeigen gezeigt                     | carried animal building | receiver
send sending sent sent       | schicken geschickt                 | text clothes flat | receiver
lend lending lent lent       | leihen geliehen                    | carried device vehicle | receiver
offer                        | an/bieten angeboten                | food pastry dish drink | receiver
wait + for                   | warten gewartet                    | people transit | by=auf
talk + about                 | sprechen gesprochen sprichst spricht | people event art text | by=über
talk + to                    | sprechen gesprochen sprichst spricht | people | by=mit dative
think thinking thought thought + of | denken gedacht                     | people event | by=an
dream + of                   | träumen geträumt                   | people event vehicle | by=von dative
play + with                  | spielen gespielt                   | person kin animal | by=mit dative animals
take taking took taken + part in | teil/nehmen teilgenommen nimmst nimmt | event | by=an dative
look + forward to            | freuen gefreut                     | event | sich by=auf
remember                     | erinnern erinnert                  | people event | sich by=an stative past=erinnerte
take taking took taken + care of | kümmern gekümmert                  | people animal | sich by=um
complain + about             | beschweren beschwert               | people text event | sich by=über
put putting put put          | legen gelegt                       | flat text press | goal=onto
put putting put put          | stellen gestellt                   | upright | goal=onto
""")
REPORTING_VERBS = _verbs("""
say saying said said         | sagen gesagt                       | | past=sagte
think thinking thought thought | denken gedacht                     | | past=dachte
believe                      | glauben geglaubt                   | | past=glaubte
hope                         | hoffen gehofft                     | | past=hoffte
know knowing knew known      | wissen gewusst weiß weißt weiß     | | past=wusste
""")
KNOW = REPORTING_VERBS[-1]
ASKING_VERBS = _verbs("""
ask                          | fragen gefragt                     | | past=fragte
wonder                       | fragen gefragt                     | | sich past=fragte
""")
EVENT_VERBS = _verbs("""
begin beginning began begun  | beginnen begonnen                  | | unwilled past=begann
take taking took taken + place | statt/finden stattgefunden         | | unwilled past=fand
end                          | enden geendet                      | | unwilled past=endete
""")
WEATHER_VERBS = _verbs("""
rain                         | regnen geregnet regnest regnet     | | past=regnete
snow                         | schneien geschneit                 | | past=schneite
""")
BECOME = _verb("become becoming became become | werden geworden wirst wird | | sein stative past=wurde")
COST = _verb("cost costing cost cost | kosten gekostet | | stative unwilled")
_BE = ("be", "is", "being", "was", "been")
_SEIN = ("bin", "bist", "ist", "sind", "sind")
BE = Verb(*_BE, "sein", "", _SEIN, _preterite("war"), "gewesen", by_sein=True)
THERE_IS = Verb(*_BE, "geben", "", ("gibt",) * 5, ("gab",) * 5, "gegeben")
HABEN = ("habe", "hast", "hat", "haben", "haben")
WERDEN = ("werde", "wirst", "wird", "werden", "werden")
WURDE = _preterite("wurde")


@dataclass(frozen=True, slots=True)
class Modal:
    """English inflects `lexical` (base, third, past) as a verb, or sets `auxiliary` and `link` before the infinitive"""

    german: tuple[str, ...]  # by person; empty for 'like to', which is an adverb in German
    german_past: tuple[str, ...] = ()
    lexical: tuple[str, ...] = ()
    auxiliary: str = ""
    past_auxiliary: str = ""
    link: str = ""


def _modal(ich: str, du: str, plural: str) -> tuple[str, ...]:
    return ich, du, ich, plural, plural


_MUSS = _modal("muss", "musst", "müssen")
_DARF = _modal("darf", "darfst", "dürfen")
LIKE_TO = Modal((), lexical=("like to", "likes to", "liked to"))
MUST = Modal(_MUSS, auxiliary="must")  # never negated: 'must not' would be 'nicht dürfen'
MODALS = (
    Modal(_modal("kann", "kannst", "können"), _preterite("konnte"), auxiliary="can", past_auxiliary="could"),
    Modal(_modal("will", "willst", "wollen"), _preterite("wollte"), lexical=("want to", "wants to", "wanted to")),
    Modal(_MUSS, _preterite("musste"), lexical=("have to", "has to", "had to")),
    Modal(_DARF, _preterite("durfte"), auxiliary="be", past_auxiliary="be", link="allowed to"),
    Modal(_preterite("sollte"), auxiliary="should"),
    Modal(_preterite("möchte"), auxiliary="would", link="like to"),
)


# -- times and places --------------------------------------------------------------------------------------------------

_DAYS = _pairs(
    "on Monday/am Montag, on Tuesday/am Dienstag, on Wednesday/am Mittwoch, on Thursday/am Donnerstag, "
    "on Friday/am Freitag, on Saturday/am Samstag, on Sunday/am Sonntag"
)
_HOURS = tuple(Pair(f"at {hour} o'clock", f"um {hour} Uhr") for hour in range(5, 13))
_SEASONS = _pairs(
    "in summer/im Sommer, in winter/im Winter, in spring/im Frühling, in fall/im Herbst, in January/im Januar, "
    "in March/im März, in May/im Mai, in August/im August, in October/im Oktober, in December/im Dezember"
)
_YEARS = tuple(Pair(f"in {year}", f"im Jahr {year}") for year in range(1980, 2025))
_HABITS = _pairs(
    "in the morning/am Morgen, in the afternoon/am Nachmittag, in the evening/am Abend, on weekends/am Wochenende, "
    "every day/jeden Tag, every evening/jeden Abend, every week/jede Woche, today/heute"
)
_BEFORE = _pairs(
    "yesterday/gestern, last week/letzte Woche, last month/letzten Monat, last year/letztes Jahr, "
    "this morning/heute Morgen, yesterday evening/gestern Abend"
)
_LATER = _pairs(
    "tomorrow/morgen, next week/nächste Woche, next month/nächsten Monat, next year/nächstes Jahr, "
    "tonight/heute Abend, soon/bald, the day after tomorrow/übermorgen, later/später"
)
_SPANS = _pairs("days/Tagen, weeks/Wochen, months/Monaten, years/Jahren")
_AGO = tuple(Pair(f"{n.english} {s.english} ago", f"vor {n.german} {s.german}") for n in NUMBER_WORDS for s in _SPANS)
_AHEAD = tuple(Pair(f"in {n.english} {s.english}", f"in {n.german} {s.german}") for n in NUMBER_WORDS for s in _SPANS)


def _at_hours(*days: Pair) -> tuple[Pair, ...]:
    return tuple(Pair(f"{d.english} {h.english}", f"{d.german} {h.german}") for d in days for h in _HOURS)


# Each a choice of lists, so that 45 years do not crowd out 'yesterday'.
PRESENT_TIMES = (_HABITS, _HABITS, _DAYS, _HOURS, _SEASONS, _at_hours(*_DAYS))
HABIT_TIMES = (_HABITS[:4], _SEASONS[:4])
PAST_TIMES = (_BEFORE, _BEFORE, _DAYS, _SEASONS, _YEARS, _AGO, _at_hours(*_DAYS, _BEFORE[0]))
FUTURE_TIMES = (_LATER, _LATER, _DAYS, _AHEAD, _at_hours(*_DAYS, _LATER[0]))
OFTEN = _pairs("often/oft, always/immer, never/nie, sometimes/manchmal, usually/meistens, rarely/selten")
ALREADY = _pairs("already/schon, just/gerade")

# Idioms: where somebody is, and where somebody goes.
_PLACE_ROWS = """
    at home/zu Hause, home/nach Hause; at school/in der Schule, to school/in die Schule;
    in the garden/im Garten, into the garden/in den Garten; in the kitchen/in der Küche, into the kitchen/in die Küche;
    in the park/im Park, to the park/in den Park; in the forest/im Wald, into the forest/in den Wald;
    in the city/in der Stadt, into the city/in die Stadt; in the village/im Dorf, to the village/ins Dorf;
    in the mountains/in den Bergen, to the mountains/in die Berge; in the office/im Büro, to the office/ins Büro;
    in the library/in der Bibliothek, to the library/in die Bibliothek; in the hotel/im Hotel, to the hotel/ins Hotel;
    in the museum/im Museum, to the museum/ins Museum; at the theater/im Theater, to the theater/ins Theater;
    in the restaurant/im Restaurant, to the restaurant/ins Restaurant; at the movies/im Kino, to the movies/ins Kino;
    at the beach/am Strand, to the beach/an den Strand; at the lake/am See, to the lake/an den See;
    at the station/am Bahnhof, to the station/zum Bahnhof; at the airport/am Flughafen, to the airport/zum Flughafen;
    at the market/auf dem Markt, to the market/auf den Markt;
    on the farm/auf dem Bauernhof, to the farm/auf den Bauernhof"""
_PLACES = [_pairs(row) for row in _PLACE_ROWS.split(";")]
PLACES = tuple(at for at, _ in _PLACES)
DIRECTIONS = tuple(to for _, to in _PLACES)
