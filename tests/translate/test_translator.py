"""Texts: cut and joined, in order, whatever they hold; folders that are not what they should be; several processes."""

import json
import os
import pty
import queue
import re
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest
import sentencex
import torch
from support import dragoman
from typer.testing import CliRunner

from dragoman.cli import translating
from dragoman.cli.main import app
from dragoman.config.schema import Model, Subwords, Translate
from dragoman.data.subwords import EOS, learn
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.model.folder import Description, write_model
from dragoman.model.transformer import Transformer
from dragoman.translate import Translator, crew
from dragoman.translate.ct2_engine import CTranslate2Engine
from dragoman.translate.pieces import LONGEST, WINDOW, Part, cut, parts, sentences
from dragoman.translate.request import Hypothesis
from dragoman.translate.translator import aligned


class Echo:
    """An engine that gives back what it gets, and says how it was asked."""

    name = "echo"

    def __init__(self):
        self.asked = []

    def slots(self):
        return 1000

    def cells(self):
        return 10**9

    def search(self, sources, prefixes, request, *, attention=False):
        self.asked += sources
        same = [[[float(i == j) for j in range(len(ids))] for i in range(len(ids) - 1)] for ids in sources]
        return [
            [Hypothesis(ids[:-1], -float(rank), rows if attention else []) for rank in range(request.n_best)]
            for ids, rows in zip(sources, same, strict=True)
        ]


@pytest.fixture
def echo(prepared):
    return Translator(Echo(), prepared.vocabulary, Translate(), ("en", "de"))


@pytest.fixture(scope="module")
def folder(prepared, tmp_path_factory):
    section = Model(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=32)
    model = Transformer(section, len(prepared.vocabulary))
    model.init_weights(1)
    with torch.no_grad():
        model.embedding.weight[EOS].mul_(3.0)
    folder = tmp_path_factory.mktemp("model")
    description = Description(section, len(prepared.vocabulary), "en", "de", Translate(extra_length=5))
    write_model(folder, model.state_dict(), description, prepared.vocabulary.path)
    return folder


def test_sentences_are_translated_alone_and_joined(echo, prepared):
    source = [source for source, _ in prepared.text("valid")[:3]]
    text = " ".join(source)
    assert echo.translate([text, "", source[0]], split=True) == [text, "", source[0]]
    assert echo.engine.asked == [*sorted(prepared.vocabulary.encode([*source, source[0]]), key=len, reverse=True)]
    found = echo.search([text], echo.request(n_best=2), split=True, alignment=True)[0]
    words = len(text.split())
    assert set(found[0].alignment) >= {(word, word) for word in range(words)}
    assert (len(found), found[1].score) == (2, -3.0)


def test_nothing_is_too_long(echo, prepared):
    sentence = prepared.text("valid")[0][0]
    many = " ".join([sentence] * 60)
    assert echo.translate([many]) == [many]
    assert max(map(len, echo.engine.asked)) < LONGEST
    echo.engine.asked.clear()
    endless = " ".join(sentence.rstrip(".?!").split() * 60)
    assert echo.translate([endless]) == [endless], "cut between words, and joined with blanks"
    wordless = "e" * 2000
    assert echo.translate([wordless]) == [wordless], "cut inside a word, and joined without"
    assert max(map(len, echo.engine.asked)) <= LONGEST


ENGLISH = 'Dr. Smith paid 3.50 in the U.S. (No. He did not.) "Did he? Yes." It is so, e.g. here! What now... We wait. '
JAPANESE = "猫が好きです。「犬も。好き。」と言った。本当?はい!"


@pytest.mark.parametrize(
    ("language", "text"), [("en", ENGLISH), ("ja", JAPANESE), ("de", "Am 3. Mai, z.B. um 5 Uhr. ")]
)
@pytest.mark.parametrize("times", [1, 400])
def test_sentences_are_found_in_windows_as_in_the_whole(monkeypatch, language, text, times):
    whole, segment, sizes = sentencex.segment(language, text * times), sentencex.segment, []
    monkeypatch.setattr(sentencex, "segment", lambda code, part: sizes.append(len(part)) or segment(code, part))
    assert list(sentences(text * times, language)) == [sentence.strip() for sentence in whole]
    assert max(sizes) <= WINDOW, "its time grows with the square of what it is given"
    assert sum(sizes) < 4 * len(text * times) + WINDOW


@pytest.mark.parametrize("text", ["e" * 5 * WINDOW, "a word " * WINDOW, " " * 3 * WINDOW + "x", "." * 3 * WINDOW])
def test_a_sentence_longer_than_a_window_stays_one(text):
    assert [sentence for sentence in sentences(text, "en") if sentence] == [text.strip()]


def test_every_piece_of_a_cut_is_kept(prepared):
    ids = [*range(4, 4 + 3 * LONGEST), EOS]
    found = list(cut([number % 300 + 4 for number in ids[:-1]] + [EOS], "x", prepared.vocabulary, " ", ""))
    assert [number for part in found for number in part.ids if number != EOS] == [
        number % 300 + 4 for number in ids[:-1]
    ]
    assert all(part.ids[-1] == EOS and len(part.ids) <= LONGEST for part in found)
    assert parts("", [EOS], prepared.vocabulary, "en", split=True, space=" ") == []


def test_a_language_without_spaces_is_cut_between_words_of_the_other(prepared):
    wordless = "e" * 2000
    ids = prepared.vocabulary.encode([wordless])[0]
    for language, joint in (("ja", " "), ("en", "")):
        found = parts(wordless, ids, prepared.vocabulary, language, split=False, space=" ")
        assert len(found) > 1
        assert {part.joint for part in found[1:]} == {joint}


@pytest.mark.parametrize(
    "text",
    [
        "The cat☃ sleeps. My brother sees ½ a small house. ☃ It is green.",
        "☃ ´ house … the cat",
        "a\u200bb \u200b. The ﬁne house.",
        " ".join(["the", "cat☃"] * 150) + " house",
        "x" * 1000 + " the cat",
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_words_are_those_that_blanks_tell_apart(echo, text, split):
    """Every subword looks at itself, so whatever normalising, unknown letters and cutting do, a word meets itself."""
    (found,) = echo.search([text], echo.request(), split=split, alignment=True)[0]
    source, target = text.split(), found.text.split()
    assert all(pair[0] < len(source) and pair[1] < len(target) for pair in found.alignment)
    known = {word for word in source if word in target and source.count(word) == 1}
    assert {(source.index(word), target.index(word)) for word in known} <= set(found.alignment), found
    assert known
    assert all(number == target.index(source[word]) for word, number in found.alignment if source[word] in known)


def test_the_end_mark_is_no_word():
    rows = [[0.4, 0.0, 0.6], [0.0, 0.4, 0.6]]
    assert aligned([0, 1], [0, 1], [Hypothesis([5, 6], 0.0, rows)], [Part([5, 6, EOS], " ", "a b")]) == [(0, 0), (1, 1)]


def test_a_line_stays_a_line_though_bytes_can_spell_a_line_break(tmp_path):
    section = Subwords(vocab_size=290, byte_fallback=True)
    vocabulary = learn([pa.array(["the cat sees a house"])], section, tmp_path / "vocabulary.model")
    ids = vocabulary.processor.piece_to_id(["▁the", "<0x0A>", "<0x0D>", "▁cat"])
    translator = Translator(Echo(), vocabulary, Translate())
    assert [text for _, text in translator.read_out([[Hypothesis(ids, 0.0)]])[0]] == ["the   cat"]


def test_what_the_vocabulary_does_not_keep_is_nothing(echo):
    assert echo.translate(["\u200b", "\ufeff", "fine"], split=True)[:2] == ["", ""]
    assert len(echo.engine.asked) == 1


STRANGE = [
    "\x00\x07\x1b[31m",
    "שלום עולם",
    "مرحبا",
    "😀👩‍👩‍👧‍👦",
    "Ünïcödé ﬁ ½",
    "a\u2028b\u00a0c\r",
    "中文 English русский",
    "\u202e\u200b",
    "x" * 3000,
]


@pytest.mark.parametrize("text", STRANGE)
def test_whatever_comes_a_translation_goes(folder, text):
    for engine in ("torch", "ctranslate2"):
        if engine == "ctranslate2":
            pytest.importorskip("ctranslate2")
        translator = Translator.load(folder, "cpu", engine=engine)
        found = translator.translate([text, "fine", text], beam=2)
        assert len(found) == 3
        assert "\n" not in "".join(found)
        assert found[0] == found[2]


def test_strange_lines_of_a_file_stay_lines(folder, tmp_path):
    """One line out for one in; what is no UTF-8 is named with its line, before anything is translated."""
    given = tmp_path / "in"
    given.write_bytes("".join(f"{text}\n\n" for text in STRANGE).encode())
    lines = dragoman("translate", str(folder), str(given), "--beam", "1").stdout.split("\n")
    assert len(lines) == 2 * len(STRANGE) + 1
    assert not any(lines[1::2]), "empty lines stay empty"
    given.write_bytes(b"fine\n\xff\xfe broken\n")
    refused = dragoman("translate", str(folder), str(given), check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{given}:2" in refused.stderr or "line 2" in refused.stderr, refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr


def test_a_megabyte_without_a_space(folder):
    texts = ["abcdefgh" * 125_000, "", "fine"]
    assert [bool(text) for text in Translator.load(folder, "cpu").translate(texts, beam=1)] == [True, False, True]


def test_folders_that_are_not_what_they_should_be(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "model")
    description = copied / "model.toml"
    whole = description.read_text()
    for change, words in (
        (whole.replace("format = 2", "format = 99"), "Install a newer dragoman"),
        (whole.replace("heads = 2", 'heads = "two"'), 'model.heads = "two"'),
        (whole.replace("heads = 2", "heads = 3"), "model.heads = 3 does not divide model.d_model = 16"),
        (whole.replace("beam = 4", "beam = 0"), "translate.beam = 0"),
        (whole.replace("beam = 4", "beams = 4"), "translate.beams = 4 is not an option; did you mean translate.beam?"),
        (re.sub("vocab_size = .*", 'vocab_size = "x"', whole), "vocab_size = 'x' is no number of subwords"),
        (re.sub("vocab_size = .*", "vocab_size = -3", whole), "vocab_size = -3 is no number of subwords"),
        (whole.replace("source_lang", "source_long"), "source_lang is missing"),
        (whole.replace('source_lang = "en"', "source_lang = 5"), "damaged (5 is no language)"),
        (whole.replace('target_lang = "de"', 'target_lang = ["de"]'), "damaged (['de'] is no language)"),
        (whole[:40], "damaged"),
        ("\x00", "damaged"),
    ):
        description.write_text(change)
        with pytest.raises(RunError, match=re.escape(words)):
            Translator.load(copied, "cpu")
    description.write_text(whole)
    weights = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(RunError, match="missing or damaged"):
        Translator.load(copied, "cpu")
    with pytest.raises(ConfigError, match="engine 'turbo' is not known"):
        Translator.load(folder, engine="turbo")


@pytest.mark.parametrize(
    "wish", [{"length_penalty": float("nan")}, {"diversity": float("nan")}, {"seed": -1}, {"seed": 2**33}]
)
def test_numbers_that_mean_nothing_are_refused(echo, wish):
    with pytest.raises(ConfigError, match=f"{next(iter(wish))} = "):
        echo.request(**wish)


@pytest.mark.parametrize(
    ("options", "beam"),
    [
        ({}, 6),
        ({"n_best": 3}, 6),
        ({"n_best": 8}, 8),
        ({"groups": 4}, 8),
        ({"n_best": 9, "groups": 2}, 10),
        ({"beam": 2, "n_best": 2}, 2),
        ({"n_best": 8, "sample": True}, 6),
    ],
)
def test_the_beam_of_the_model_is_kept_or_made_wider(prepared, options, beam):
    assert Translator(Echo(), prepared.vocabulary, Translate(beam=6)).request(**options).beam == beam


def test_n_best_from_the_command_line_keeps_the_beam_of_the_model(folder, tmp_path, monkeypatch):
    copied = shutil.copytree(folder, tmp_path / "model")
    (copied / "model.toml").write_text((folder / "model.toml").read_text().replace("beam = 4", "beam = 6"))
    (tmp_path / "in").write_text("the cat\n")
    wide = []
    search = Translator.search
    monkeypatch.setattr(
        Translator, "search", lambda *given, **options: wide.append(given[2].beam) or search(*given, **options)
    )
    assert CliRunner().invoke(app, ["translate", str(copied), str(tmp_path / "in"), "--n-best", "2"]).exit_code == 0
    assert wide == [6]


def test_no_two_batches_draw_alike(folder, monkeypatch):
    seeds = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    translator = Translator.load(folder, "cpu", engine="torch")
    for _ in range(2):
        translator.search(["the cat", "a house"], translator.request(sample=True, seed=3), batch_tokens=1)
    assert seeds[:2] == seeds[2:]
    assert len(set(seeds)) == 2


def test_a_prefix_beyond_the_positions_of_ctranslate2(folder):
    pytest.importorskip("ctranslate2")
    translator = Translator.load(folder, "cpu", engine="ctranslate2")
    piece = translator.vocabulary.encode(["e"])[0][:1]
    search = translator.engine.search
    with pytest.raises(ConfigError, match=r"a prefix of 2,047 subwords; CTranslate2 takes 2,046\. Choose engine torch"):
        search([[*piece, EOS]], [piece * 2047], translator.request(beam=1))
    found = search([[*piece, EOS]], [piece * 2046], translator.request(beam=1))
    assert found[0][0].ids[:2046] == piece * 2046
    endless = search([[*piece, EOS]], [[]], translator.request(beam=1, extra_length=5000))
    assert len(endless[0][0].ids) < 2048


def test_several_processes_give_what_one_gives(folder, prepared, tmp_path):
    (tmp_path / "in").write_text("".join(f"{source}\n" for source, _ in prepared.text("valid")[:12]), encoding="utf-8")
    (tmp_path / "begin").write_text("das\n\n" * 6, encoding="utf-8")
    command = ["translate", str(folder), str(tmp_path / "in"), "--n-best", "2", "--prefixes", str(tmp_path / "begin")]
    one, two = (dragoman(*command, "--processes", number).stdout for number in ("1", "2"))
    lines, others = ([json.loads(line) for line in told.splitlines()] for told in (one, two))
    assert len(lines) == len(others) == 12
    for line, other in zip(lines, others, strict=True):
        assert [each["text"] for each in line["translations"]] == [each["text"] for each in other["translations"]]
        scores = [[each["score"] for each in side["translations"]] for side in (line, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    assert all(each["text"].startswith("das") for line in lines[::2] for each in line["translations"])
    wrong = dragoman(*command, "--beam", "1", check=False)
    assert (wrong.returncode, "n_best = 2 is more than beam = 1" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_prefix_that_cannot_be_spelled_is_refused_by_its_number(folder, tmp_path, processes):
    (tmp_path / "in").write_text("the cat\n" * 12)
    begin = tmp_path / "begin"
    begin.write_text("das\n" * 8 + "das ☃\n" + "\n" * 3, encoding="utf-8")
    command = ["translate", str(folder), str(tmp_path / "in"), "--prefixes", str(begin), "--processes", processes]
    refused = dragoman(*command, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "prefix 9: 'das ☃' holds letters that the vocabulary of the model lacks" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr


def test_a_diverse_beam_takes_the_engine_that_has_it(folder, prepared):
    """Unless CTranslate2 was asked for, or the model is an export to it."""
    pytest.importorskip("ctranslate2")
    texts = [source for source, _ in prepared.text("valid")[:4]]
    wish = {"beam": 4, "groups": 2, "n_best": 4}
    expected = Translator.load(folder, "cpu", engine="torch")
    translator = Translator.load(folder, "cpu")
    assert translator.search(texts, translator.request(**wish)) == expected.search(texts, expected.request(**wish))
    assert translator.engine.name == "ctranslate2", "for all that it can do"
    with pytest.raises(ConfigError, match="choose engine torch"):
        Translator.load(folder, "cpu", engine="ctranslate2").translate(texts, beam=4, groups=2)


def test_files_are_translated_one_after_the_other(folder, tmp_path):
    texts = {"one": "the cat\n\n", "two": "a house", "three": "", "four": "my brother\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "all").write_text("the cat\n\na house\nmy brother\n")
    several, one = tmp_path / "several", tmp_path / "one.out"
    for output, names in ((several, texts), (one, ["all"])):
        command = ["translate", str(folder), *(str(tmp_path / name) for name in names), "-o", str(output)]
        assert CliRunner().invoke(app, command).exit_code == 0
    assert several.read_text(encoding="utf-8") == one.read_text(encoding="utf-8")
    assert one.read_text(encoding="utf-8").count("\n") == 4


@pytest.mark.parametrize("processes", ["1", "2"])
def test_prefixes_are_one_for_each_line(folder, tmp_path, processes):
    (tmp_path / "in").write_text("the cat\n" * 12)
    begin = tmp_path / "begin"
    command = ["translate", str(folder), str(tmp_path / "in"), "--prefixes", str(begin), "--processes", processes]
    for count in (0, 11, 13):
        begin.write_text("das\n" * count)
        refused = CliRunner().invoke(app, command)
        assert isinstance(refused.exception, DataError)
        assert f"{count} prefixes for 12 texts" in str(refused.exception)


def test_one_process_of_ctranslate2_draws_for_all(folder, tmp_path, monkeypatch):
    """As each goes on drawing where it was, the same seed would not draw the same again."""
    pytest.importorskip("ctranslate2")
    (tmp_path / "in").write_text("the cat\n" * 3)
    command = ["translate", str(folder), str(tmp_path / "in"), "--processes", "2", "--device", "cpu", "--engine"]
    shared = []
    monkeypatch.setattr(crew, "search_together", lambda number, *_: shared.append(number) or [])
    monkeypatch.setattr(CTranslate2Engine, "seed", None)
    for engine in ("auto", "ctranslate2"):
        drawn = CliRunner().invoke(app, [*command, engine, "--sample"])
        assert (drawn.exit_code, drawn.stdout.count("\n"), shared) == (0, 3, [])
    for more in (["torch", "--sample"], ["ctranslate2"]):
        assert CliRunner().invoke(app, [*command, *more]).exit_code == 0
    assert shared == [2, 2]


def test_processes_share_the_machine_and_one_folder(folder, tmp_path, monkeypatch):
    """On a host of eight GPUs and sixteen cores."""
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "model.bin").touch()
    monkeypatch.setattr(crew, "gpus", lambda: list("01234567"))
    monkeypatch.setattr(crew, "usable_cores", lambda: 16)
    for path, device, engine, expected in (
        (folder, "auto", "auto", 8),
        (folder, "auto", "ctranslate2", 1),
        (folder, "cpu", "torch", 1),
        (exported, "auto", "auto", 1),
        (exported, "cuda", "auto", 8),
    ):
        assert crew.usual_number(path, device, engine) == expected
    opened, numbers = [], queue.Queue()
    numbers.put(5)
    monkeypatch.setattr(Translator, "read", lambda path, **options: opened.append(path))
    monkeypatch.setattr(os, "environ", {})
    crew.enter(numbers, 4, folder, {"device": "auto"})
    assert os.environ == {"CUDA_VISIBLE_DEVICES": "5", "OMP_NUM_THREADS": "4"}
    assert opened == [folder], "found once, by whoever started the processes"


def test_what_a_process_refuses_is_told_as_it_is(folder, prepared, tmp_path):
    (tmp_path / "in").write_text("one\ntwo\nthree\n", encoding="utf-8")
    command = ["translate", str(folder), str(tmp_path / "in"), "--processes", "2"]
    for wrong, words in (
        (("--groups", "2", "--beam", "4", "--engine", "ctranslate2"), "a diverse beam (groups) is not in CTranslate2"),
        (("--engine", "torch", "--precision", "fp4"), "precision 'fp4' is not known; choose fp32, fp16, bf16 or auto"),
        (("--engine", "ctranslate2", "--device", "cuda"), "engine ctranslate2 converts for the CPU, not for cuda"),
    ):
        answer = dragoman(*command, *wrong, check=False)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert words in answer.stderr
        assert len(answer.stderr.strip().splitlines()) == 1, answer.stderr


def test_every_way_to_search_from_the_command_line(folder, prepared, tmp_path):
    sources = [source for source, _ in prepared.text("valid")[:3]]
    (tmp_path / "in").write_text(f"{sources[0]} {sources[1]}\n{sources[2]}\n", encoding="utf-8")

    def lines(*options):
        told = dragoman("translate", str(folder), str(tmp_path / "in"), *options).stdout
        return [json.loads(line) for line in told.splitlines()]

    scored = lines("--scores", "--alignments")
    assert all(each["score"] < 0 for line in scored for each in line["translations"])
    assert any(each["alignment"] for line in scored for each in line["translations"])
    first, again, other = (
        lines("--sample", "--n-best", "3", "--seed", seed, "--engine", engine)
        for seed, engine in (("5", "torch"), ("5", "torch"), ("6", "torch"))
    )
    assert first == again != other
    drawn = [lines("--sample", "--n-best", "3", "--seed", seed, "--engine", "ctranslate2") for seed in ("5", "5", "6")]
    assert drawn[0] == drawn[1] != drawn[2], "the same seed draws the same in another process"
    diverse = lines("--groups", "2", "--beam", "4", "--n-best", "4", "--engine", "torch")
    assert len({each["text"] for each in diverse[0]["translations"]}) > 1
    split = dragoman("translate", str(folder), str(tmp_path / "in"), "--split", "--engine", "torch").stdout.splitlines()
    alone = Translator.load(folder, "cpu", engine="torch").translate(sources)
    assert split == [f"{alone[0]} {alone[1]}", alone[2]]


def test_where_to_write_is_known_before_the_model_is_read(tmp_path, monkeypatch):
    """From a test no line of a file is read either: what is wrong is said first."""
    (tmp_path / "in").write_text("one\n")
    runner = CliRunner()
    for output in (tmp_path, tmp_path / "in" / "below"):
        found = runner.invoke(app, ["translate", "no/such/model", str(tmp_path / "in"), "-o", str(output)])
        assert isinstance(found.exception, RunError)
        assert str(output) in str(found.exception)
    monkeypatch.setattr(translating, "read", lambda path: None)
    options = ["-o", str(tmp_path / "out"), "--processes", "2", "--prefixes", str(tmp_path / "in")]
    told = str(runner.invoke(app, ["translate", "no/such/model", *options]).exception)
    assert all(f"{name} is for the lines of a file" in told for name in ("--output", "--processes")), told


def test_what_is_written_is_utf_8_whatever_the_locale_says(folder, tmp_path):
    (tmp_path / "in").write_text("☃\n", encoding="utf-8")
    command = [sys.executable, "-m", "dragoman", "translate", str(folder), str(tmp_path / "in"), "--scores"]
    found = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True)
    assert json.loads(found.stdout.decode("utf-8"))["source"] == "☃"


def test_a_conversation(folder):
    """At a terminal every line is answered at once, whatever was typed."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "dragoman", "translate", str(folder), "--engine", "torch"]
    with subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        for typed in (b"the house sleeps\n", b"\xff broken\n", b"\n"):
            os.write(ours, typed)
            assert process.stdout.readline().endswith(b"\n")
        os.write(ours, b"\x04")
        assert process.wait(120) == 0
        assert b"One sentence a line" in process.stderr.read()
    os.close(ours)
