"""The embedded corpus: correct German, one German per English, and parts that can never meet."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from statistics import mean

import pytest

from dragoman.data import lexicon as lex
from dragoman.data.grammar import (
    Clause,
    Subject,
    Tense,
    english_question,
    english_statement,
    german_final,
    german_question,
    german_statement,
    grammar_pairs,
    noun_phrase,
    part_of,
    prepositional,
    reversal_pairs,
)
from dragoman.data.lexicon import ACCUSATIVE, DATIVE, NOMINATIVE, Pair
from dragoman.errors import DataError

NOUN = {noun.english[0]: noun for nouns in lex.NOUNS.values() for noun in nouns}
ADJECTIVE = {adjective.english: adjective for adjectives in lex.ADJECTIVES.values() for adjective in adjectives}
VERB = {verb.infinitive: verb for verb in lex.VERBS}
CAN, WANT, HAVE_TO, MAY, _, WOULD_LIKE = lex.MODALS
ANNA = Subject("Anna", "Anna", lex.ER, lex.HER)
ICH = Subject("I", "ich", lex.ICH, lex.ME)
CHILDREN = Subject("the children", "die Kinder", lex.SIE, lex.THEM)
YESTERDAY = Pair("yesterday", "gestern")
OLD, TIRED, EXPENSIVE = ADJECTIVE["old"], ADJECTIVE["tired"], ADJECTIVE["expensive"]


@pytest.fixture(scope="module")
def pairs():
    return list(grammar_pairs(20_000, seed=5))


# -- building blocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("determiner", "noun", "case", "adjective", "english", "german"),
    [
        (lex.THE, "dog", NOMINATIVE, OLD, "the old dog", "der alte Hund"),
        (lex.THE, "dog", ACCUSATIVE, OLD, "the old dog", "den alten Hund"),
        (lex.THE, "dog", DATIVE, OLD, "the old dog", "dem alten Hund"),
        (lex.THE, "cat", NOMINATIVE, OLD, "the old cat", "die alte Katze"),
        (lex.THE, "cat", DATIVE, OLD, "the old cat", "der alten Katze"),
        (lex.THE, "house", ACCUSATIVE, OLD, "the old house", "das alte Haus"),
        (lex.THE.of_many(), "child", NOMINATIVE, OLD, "the old children", "die alten Kinder"),
        (lex.THE.of_many(), "child", DATIVE, OLD, "the old children", "den alten Kindern"),
        (lex.A, "apple", ACCUSATIVE, None, "an apple", "einen Apfel"),
        (lex.A, "dog", NOMINATIVE, OLD, "an old dog", "ein alter Hund"),
        (lex.A, "cat", ACCUSATIVE, TIRED, "a tired cat", "eine müde Katze"),
        (lex.A, "house", NOMINATIVE, OLD, "an old house", "ein altes Haus"),
        (lex.A, "car", DATIVE, EXPENSIVE, "an expensive car", "einem teuren Auto"),
        (lex.BARE, "bread", ACCUSATIVE, ADJECTIVE["fresh"], "fresh bread", "frisches Brot"),
        (lex.BARE, "milk", DATIVE, ADJECTIVE["cold"], "cold milk", "kalter Milch"),
        (lex.BARE.of_many(), "book", NOMINATIVE, OLD, "old books", "alte Bücher"),
        (lex.BARE.of_many(), "book", DATIVE, OLD, "old books", "alten Büchern"),
        (lex.NUMBERS[1], "book", ACCUSATIVE, OLD, "three old books", "drei alte Bücher"),
        (lex.MANY, "car", DATIVE, OLD, "many old cars", "vielen alten Autos"),
        (lex.ALL, "cup", NOMINATIVE, OLD, "all old cups", "alle alten Tassen"),
        (lex.THIS.of_many(), "knife", NOMINATIVE, None, "these knives", "diese Messer"),
        (lex.EVERY, "student", NOMINATIVE, OLD, "every old student", "jeder alte Student"),
        (lex.ME.possessive, "brother", NOMINATIVE, TIRED, "my tired brother", "mein müder Bruder"),
        (lex.US.possessive, "brother", ACCUSATIVE, None, "our brother", "unseren Bruder"),
        (lex.HER.possessive.of_many(), "sister", DATIVE, OLD, "her old sisters", "ihren alten Schwestern"),
        (lex.NOT_A, "watch", ACCUSATIVE, OLD, "an old watch", "keine alte Uhr"),
        (lex.NOT_ANY.of_many(), "hat", ACCUSATIVE, OLD, "old hats", "keine alten Hüte"),
        (lex.OWNERS[0], "dog", NOMINATIVE, OLD, "Anna's old dog", "Annas alter Hund"),
        (lex.OWNERS[0], "dog", DATIVE, OLD, "Anna's old dog", "Annas altem Hund"),
        (lex.WHICH, "boy", ACCUSATIVE, None, "which boy", "welchen Jungen"),
        (lex.THE, "boy", NOMINATIVE, None, "the boy", "der Junge"),
        (lex.THE, "student", DATIVE, None, "the student", "dem Studenten"),
        (lex.A, "neighbor", ACCUSATIVE, ADJECTIVE["honest"], "an honest neighbor", "einen ehrlichen Nachbarn"),
    ],
)
def test_noun_phrases(determiner, noun, case, adjective, english, german):
    assert noun_phrase(determiner, NOUN[noun], case, adjective) == (english, german)


@pytest.mark.parametrize(
    ("preposition", "noun", "case", "german"),
    [
        (Pair("in", "in"), "house", DATIVE, "im Haus"),
        (Pair("into", "in"), "house", ACCUSATIVE, "ins Haus"),
        (Pair("in", "in"), "school", DATIVE, "in der Schule"),
        (Pair("to", "zu"), "castle", DATIVE, "zum Schloss"),
        (Pair("to", "zu"), "church", DATIVE, "zur Kirche"),
        (Pair("by", "von"), "cook", DATIVE, "vom Koch"),
        (Pair("on", "auf"), "table", DATIVE, "auf dem Tisch"),
        (Pair("on", "auf"), "table", ACCUSATIVE, "auf den Tisch"),
    ],
)
def test_prepositions_contract(preposition, noun, case, german):
    assert prepositional(*preposition, noun_phrase(lex.THE, NOUN[noun], case)).german == german


def calling(**features):
    return Clause(ANNA, VERB["anrufen"], complement="the man", known="den Mann", **features)


def getting_up(**features):
    return Clause(ICH, VERB["aufstehen"], **features)


@pytest.mark.parametrize(
    ("clause", "english", "german"),
    [
        (calling(), "Anna calls the man", "Anna ruft den Mann an"),
        (calling(negated=True), "Anna doesn't call the man", "Anna ruft den Mann nicht an"),
        (calling(tense=Tense.PROGRESSIVE), "Anna is calling the man", "Anna ruft gerade den Mann an"),
        (calling(tense=Tense.PAST), "Anna called the man", "Anna hat den Mann angerufen"),
        (calling(tense=Tense.FUTURE), "Anna will call the man", "Anna wird den Mann anrufen"),
        (calling(modal=WANT), "Anna wants to call the man", "Anna will den Mann anrufen"),
        (calling(modal=CAN, negated=True), "Anna can't call the man", "Anna kann den Mann nicht anrufen"),
        (calling(modal=HAVE_TO, tense=Tense.PAST), "Anna had to call the man", "Anna musste den Mann anrufen"),
        (calling(modal=MAY, negated=True), "Anna may not call the man", "Anna darf den Mann nicht anrufen"),
        (calling(modal=WOULD_LIKE), "Anna would like to call the man", "Anna möchte den Mann anrufen"),
        (getting_up(tense=Tense.PERFECT), "I have gotten up", "ich bin aufgestanden"),
        (
            calling(tense=Tense.PAST, time=YESTERDAY, front=YESTERDAY),
            "yesterday Anna called the man",
            "gestern hat Anna den Mann angerufen",
        ),
        (
            Clause(ANNA, VERB["kaufen"], negated=True, kein=True, complement="a book", new="kein Buch"),
            "Anna doesn't buy a book",
            "Anna kauft kein Buch",
        ),
        (
            Clause(ANNA, VERB["warten"], complement="the bus", after="auf den Bus", time=YESTERDAY, tense=Tense.PAST),
            "Anna waited for the bus yesterday",
            "Anna hat gestern auf den Bus gewartet",
        ),
        (
            Clause(ICH, VERB["geben"], Tense.FUTURE, complement="the child an egg", early="dem Kind", new="ein Ei"),
            "I will give the child an egg",
            "ich werde dem Kind ein Ei geben",
        ),
        (
            Clause(CHILDREN, VERB["bleiben"], Tense.PAST, negated=True, complement="at home", after="zu Hause"),
            "the children didn't stay at home",
            "die Kinder blieben nicht zu Hause",
        ),
        (Clause(ICH, lex.BE, negated=True, complement="tired", after="müde"), "I am not tired", "ich bin nicht müde"),
        (
            Clause(CHILDREN, VERB["lesen"], adverb=Pair("often", "oft"), complement="books", new="Bücher"),
            "the children often read books",
            "die Kinder lesen oft Bücher",
        ),
    ],
)
def test_statements(clause, english, german):
    assert (english_statement(clause), german_statement(clause)) == (english, german)


@pytest.mark.parametrize(
    ("clause", "word", "english", "german"),
    [
        (calling(), Pair("", ""), "does Anna call the man", "ruft Anna den Mann an"),
        (
            calling(tense=Tense.PAST),
            Pair("when", "wann"),
            "when did Anna call the man",
            "wann hat Anna den Mann angerufen",
        ),
        (getting_up(tense=Tense.FUTURE), Pair("why", "warum"), "why will I get up", "warum werde ich aufstehen"),
    ],
)
def test_questions(clause, word, english, german):
    assert (english_question(clause, word.english), german_question(clause, word.german)) == (english, german)


@pytest.mark.parametrize(
    ("clause", "german"),
    [
        (calling(), "weil Anna den Mann anruft"),
        (calling(tense=Tense.PAST), "weil Anna den Mann angerufen hat"),
        (calling(modal=WANT), "weil Anna den Mann anrufen will"),
        (getting_up(tense=Tense.PERFECT), "weil ich aufgestanden bin"),
        (getting_up(manner=Pair("early", "früh")), "weil ich früh aufstehe"),
        (Clause(ANNA, lex.BE, Tense.PAST, complement="sick", after="krank"), "weil Anna krank war"),
        (calling(tail=Pair("who is sick", ", der krank ist")), "weil Anna den Mann anruft, der krank ist"),
    ],
)
def test_subordinate_clauses_end_in_their_verb(clause, german):
    assert german_final(clause, "weil") == german


@pytest.mark.parametrize(
    ("infinitive", "present"),
    [
        ("arbeiten", "arbeite arbeitest arbeitet arbeiten arbeiten"),
        ("lesen", "lese liest liest lesen lesen"),
        ("reisen", "reise reist reist reisen reisen"),
        ("schließen", "schließe schließt schließt schließen schließen"),
        ("füttern", "füttere fütterst füttert füttern füttern"),
        ("öffnen", "öffne öffnest öffnet öffnen öffnen"),
        ("einladen", "lade lädst lädt laden laden"),
        ("mögen", "mag magst mag mögen mögen"),
    ],
)
def test_present_tense(infinitive, present):
    assert " ".join(VERB[infinitive].present) == present


# -- the corpus --------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_pairs_in_any_process(pairs):
    code = "from dragoman.data.grammar import *; print(list(grammar_pairs(50, 5)) + list(reversal_pairs(5, 5)))"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONIOENCODING": "utf-8"}
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, check=True
    ).stdout.decode()
    expected = [*pairs[:50], *reversal_pairs(5, 5)]
    assert shown.strip() == str(expected)
    assert pairs[:50] != list(grammar_pairs(50, seed=6))


def test_one_english_sentence_has_one_german_sentence(pairs):
    german = {}
    for english, translation in pairs:
        assert german.setdefault(english, translation) == translation


@pytest.mark.parametrize("corpus", [grammar_pairs, reversal_pairs])
def test_parts_never_meet(corpus):
    sources = {part: [source for source, _ in corpus(1000, 1, part=part)] for part in ("train", "valid", "test")}
    for part, sentences in sources.items():
        assert {part_of(sentence) for sentence in sentences} == {part}
    assert len(set(sources["valid"])) == len(set(sources["test"])) == 1000
    again = {source for seed in (2, 3) for source, _ in corpus(2000, seed)}
    assert not again & {*sources["valid"], *sources["test"]}


def test_train_rarely_repeats_itself(pairs):
    assert len({english for english, _ in pairs}) > 0.99 * len(pairs)


def test_lengths_are_spread(pairs):
    lengths = [len(english.split()) for english, _ in pairs]
    assert (min(lengths), max(lengths)) == (4, 25)
    assert 9 < mean(lengths) < 11
    assert all(count > 50 for length, count in Counter(lengths).items() if 4 <= length <= 20)


def test_sentences_are_written_properly(pairs):
    for english, german in pairs:
        for text in (english, german):
            assert re.fullmatch(r"[\"„]?[A-Z0-9ÄÖÜ].*[.?]", text)
            assert not re.search(r"  | [,.?]|,,|,[.?]", text), text
        assert not re.search(r"\b[Aa] [aeio]|\b[Aa]n (?!honest)[^aeiou]", english), english
        assert english.count("?") == german.count("?")


def test_dative_prepositions_govern_the_dative(pairs):
    declined = re.compile(r"(der|die|das|dem|den|denen|(?:ein|mein|dein|sein|unser|dies|kein|viel)(?:e|er|es|em|en)?)")
    after = {word for _, german in pairs for word in re.findall(r"\b(?:mit|von|aus|zu) (\w+)", german)}
    articles = {word for word in after if declined.fullmatch(word)}
    assert {"dem", "der", "den", "einem", "meiner"} <= articles
    assert all(word.endswith(("em", "er", "en")) for word in articles)


def test_for_governs_the_accusative(pairs):
    after = {word for _, german in pairs for word in re.findall(r"\bfür (\w+) \w", german)}
    assert {"den", "die", "das", "meinen"} <= after
    assert not after & {"der", "dem", "einem", "meinem", "meiner", "ihrem"}


def finite_verbs(joined):
    """Every finite form, with its separable prefix joined or without."""
    verbs = (*lex.VERBS, *lex.REPORTING_VERBS, lex.BE)
    forms = {verb.prefix * joined + form for verb in verbs for form in (*verb.present, *verb.preterite)}
    modals = (tense for modal in lex.MODALS for tense in (modal.german, modal.german_past))
    return forms | {form for tense in (lex.HABEN, lex.WERDEN, *modals) for form in tense}


@pytest.mark.parametrize("conjunction", ["weil", "obwohl", "wenn", "dass", "bevor", "während"])
def test_subordinate_clauses_of_the_corpus_end_in_a_finite_verb(pairs, conjunction):
    finite = finite_verbs(joined=True)
    clauses = [match[1] for _, german in pairs if (match := re.search(rf", {conjunction} ([^,„“]+)\.$", german))]
    assert len(clauses) > 50
    for clause in clauses:
        assert clause.split()[-1] in finite, clause


def test_relative_clauses_of_the_corpus_end_in_a_finite_verb(pairs):
    finite = finite_verbs(joined=True)
    pronoun = "(?:(?:auf|mit|von|über) )?(der|die|das|den|dem|denen)"
    clauses = [match.groups() for _, german in pairs for match in re.finditer(rf", {pronoun} ([^,]+)[,.?]", german)]
    assert {pronoun for pronoun, _ in clauses} == {"der", "die", "das", "den", "dem", "denen"}
    for _, clause in clauses:
        assert clause.split()[-1] in finite, clause


def test_helping_and_giving_take_the_dative(pairs):
    verbs = rf"(?:Ich|Er|Wir|{'|'.join(lex.WOMEN + lex.MEN)}) (?:[hg][ie][lb]\w+|danke?\w|folg\w+|zeig\w+)(?: gerade)?"
    object_ = re.compile(rf"{verbs} (der|die|das|dem|den|ein\w*|ihn|ihm|mich|mir)\b")
    after = {match[1] for _, german in pairs if (match := object_.match(german))}
    assert {"dem", "den", "ihm"} <= after
    assert not after & {"die", "das", "ein", "eine", "einen", "ihn", "mich"}


def test_a_fronted_time_comes_before_the_verb(pairs):
    finite = finite_verbs(joined=False)
    fronted = [
        german.split() for _, german in pairs if re.match(r"(Gestern|Morgen|Heute|Bald) (?!Abend|Morgen|um)", german)
    ]
    assert len(fronted) > 20
    for words in fronted:
        assert words[1] in finite, words


def test_it_is_lazy():
    assert len(list(islice(grammar_pairs(10**12, 1), 3))) == 3
    assert list(grammar_pairs(0, 1)) == []


# -- the toy task ------------------------------------------------------------------------------------------------------


def test_reversal_is_reversed():
    rows = [(source.split(), target.split()) for source, target in reversal_pairs(2000, 3)]
    assert all(source == target[::-1] for source, target in rows)
    lengths = [len(source) for source, _ in rows]
    assert (min(lengths), max(lengths)) == (5, 50)
    assert 10 <= len({symbol for source, _ in rows for symbol in source}) <= 20


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_more_rows_than_there_are_are_refused(monkeypatch):
    monkeypatch.setattr("dragoman.data.grammar.ROW_LENGTHS", (1, 1))
    with pytest.raises(DataError, match="no more distinct"):
        list(reversal_pairs(100, 1, part="test"))
