"""Comparing systems, naming sets, and the page about every sentence."""

import json
import re

import pytest
from support import dragoman, tiny_config
from typer.testing import CliRunner

from dragoman.cli import stages
from dragoman.cli.main import app
from dragoman.cli.stages import evaluate, train
from dragoman.config.schema import Model, Translate
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.evaluation import evaluate as evaluation
from dragoman.evaluation.breakdown import Cutting, marked, write_breakdown
from dragoman.evaluation.metrics import compare
from dragoman.evaluation.sets import named_set, pair_of
from dragoman.model.folder import Description, write_model
from dragoman.model.transformer import Transformer
from dragoman.translate import Translator

PAIRS = [(f"source {n} & <b>", f"Das rote Haus {n} steht im Wald.") for n in range(40)]
CUTTING = Cutting()
GOOD = [reference for _, reference in PAIRS]
BAD = [text.replace("rote", "blaue") if number % 2 else text for number, text in enumerate(GOOD)]


def test_a_bootstrap_tells_a_difference_from_chance():
    worse = compare(GOOD, BAD, GOOD, ["bleu", "chrf"], None)
    assert worse["bleu"]["difference"] < -5
    assert worse["bleu"]["p_value"] < 0.01
    same = compare(BAD, BAD[::-1][::-1], GOOD, ["bleu"], None)
    assert (same["bleu"]["difference"], same["bleu"]["p_value"] > 0.05) == (0.0, True)


def test_the_page_marks_differences_and_puts_the_worst_first(tmp_path):
    result = {
        "test_set": "toy", "model": "m", "sentences": 40, "beam": 4, "time": "now",
        "scores": {"bleu": {"score": 50.0, "signature": "a|b"}},
    }  # fmt: skip
    page = write_breakdown(tmp_path / "page.html", result, PAIRS, BAD, None, CUTTING).read_text(encoding="utf-8")
    chrfs = [float(each) for each in re.findall(r"chrF ([\d.]+)<", page)]
    assert (len(chrfs), chrfs) == (40, sorted(chrfs))
    assert "Das <del>rote</del> Haus 1 steht" in page
    assert "Das <ins>blaue</ins> Haus 1 steht" in page
    assert "source 1 &amp; &lt;b&gt;" in page
    assert "http" not in page, "no external resources"
    against = write_breakdown(tmp_path / "page.html", result, PAIRS, BAD, GOOD, CUTTING).read_text(encoding="utf-8")
    assert "Sentences that lost most" in against


def test_marks_are_escaped():
    assert marked("a <b>", "a <i>", CUTTING) == ("a <del>&lt;b&gt;</del>", "a <ins>&lt;i&gt;</ins>")
    assert marked("", "", CUTTING) == ("", "")


def test_languages_without_spaces_are_compared_by_characters_and_cut_as_asked(tmp_path):
    pairs = [
        ("the small house stands in the forest", "小房子在森林里"),
        ("she reads a book in the garden", "她在花园里看书"),
    ]
    found = ["小房子在树林里", "她在花园里看报"]
    assert marked(pairs[0][1], found[0], Cutting("zh", ("en", "zh"))) == (
        "小房子在<del>森</del>林里",
        "小房子在<ins>树</ins>林里",
    )
    result = {"test_set": "toy", "model": "m", "sentences": 2, "beam": 4, "time": "now", "scores": {}}
    rows = []
    for tokenize in ("zh", None):
        cutting = Cutting(tokenize, ("en", "zh_CN"))
        page = write_breakdown(tmp_path / "page.html", result, pairs, found, None, cutting).read_text(encoding="utf-8")
        assert "Characters that only the reference has" in page
        rows.append([float(each) for each in re.findall(r"<td>1 to 10</td><td>2</td><td>([\d.]+)</td>", page)])
    assert rows[0][0] > 30 > rows[1][0], "words of Chinese are counted only when asked for"


def test_named_sets(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="'wmt99' is not known"):
        named_set("wmt99", ("en", "de"))
    with pytest.raises(ConfigError, match=r"wmt14 has no pair 'en-tlh'.*say wmt14:PAIR"):
        named_set("wmt14", ("en", "tlh"))
    import sacrebleu.utils

    for name, text in (("src", "a\nb\n"), ("ref", "x\ny\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sacrebleu.utils, "get_source_file", lambda *_: str(tmp_path / "src"))
    monkeypatch.setattr(sacrebleu.utils, "get_reference_files", lambda *_: [str(tmp_path / "ref")])
    assert named_set("wmt14:de-en", ("en", "de")) == ("wmt14 de-en", [("a", "x"), ("b", "y")])
    monkeypatch.setattr(sacrebleu.utils, "get_source_file", lambda *_: str(tmp_path / "gone"))
    with pytest.raises(DataError, match="sacreBLEU could not get it"):
        named_set("wmt14", ("en", "de"))


def test_checkpoints_side_by_side(prepared, tmp_path):
    run = tmp_path / "run"
    train(tiny_config(prepared.folder, run, "train.max_steps=4", "checkpoint.every=2", "validation.every=2"))
    (tmp_path / "other").write_text("".join(f"{pair[1]}\n" for pair in prepared.text("test")), encoding="utf-8")
    command = ["evaluate", str(run), "--beam", "1", "--every-checkpoint", "--average", "2"]
    told = dragoman(*command, "--against", str(tmp_path / "other")).stdout
    assert "step-00000002" in told
    assert "mean of the best 2" in told
    assert "significant" in told
    results = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    assert [result["step"] for result in results] == [2, 4, None]
    assert all(result["against"]["bleu"]["difference"] < 0 for result in results)
    evaluate(run, beam=1, html=tmp_path / "page.html")
    assert "The other" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    (tmp_path / "other").write_text("one line\n")
    with pytest.raises(DataError, match="1 translations for 30 sentences"):
        evaluate(run, against=tmp_path / "other")
    refused = dragoman(*command, "--html", "x.html", check=False)
    assert (refused.returncode, "a page about one model; 3 were named" in refused.stderr) == (2, True)


def test_what_cannot_be_done_is_refused_before_anything_is_evaluated(tmp_path, monkeypatch):
    evaluated = []
    monkeypatch.setattr(stages, "evaluate", lambda *_, **__: evaluated.append(1))
    found = CliRunner().invoke(app, ["evaluate", str(tmp_path), "--average", "2"])
    assert isinstance(found.exception, RunError)
    page = CliRunner().invoke(app, ["evaluate", str(tmp_path), "--html", str(tmp_path)])
    assert "is a folder; name a file to write" in str(page.exception)
    assert not evaluated


def test_what_was_evaluated_is_told_though_the_next_model_fails(monkeypatch):
    def evaluate(model, **_):
        if model.name == "bad":
            raise RunError("bad: damaged")
        scores = {"bleu": {"score": 12.34, "signature": "s"}}
        return {
            "model": model, "step": None, "sentences": 3, "test_set": "t", "beam": 1, "seconds": 1.0, "scores": scores
        }  # fmt: skip

    monkeypatch.setattr(stages, "evaluate", evaluate)
    found = CliRunner().invoke(app, ["evaluate", "good", "bad"])
    assert "BLEU   12.34" in found.stdout
    assert str(found.exception) == "bad: damaged"


def test_a_model_without_a_run_keeps_its_own_scores(prepared, tmp_path, monkeypatch):
    section = Model(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=32)
    model = Transformer(section, len(prepared.vocabulary))
    model.init_weights(1)
    description = Description(section, len(prepared.vocabulary), "en", "de", Translate(extra_length=5))
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        write_model(folder, model.state_dict(), description, prepared.vocabulary.path)
    for side, name in ((0, "en"), (1, "de")):
        lines = "".join(f"{pair[side]}\n" for pair in prepared.text("test")[:3])
        (tmp_path / name).write_text(lines, encoding="utf-8")
    translated = []
    translate = Translator.translate
    monkeypatch.setattr(
        Translator, "translate", lambda *given, **rest: translated.append(1) or translate(*given, **rest)
    )
    files = {"source": str(tmp_path / "en"), "reference": str(tmp_path / "de")}
    known = {}
    for folder in folders:
        evaluate(folder, **files, metrics=["chrf"], beam=1, against=folders[0], known=known)
    assert len(translated) == 3, "the other model once, whatever it is compared with"
    (kept,) = json.loads((folders[1] / "scores.json").read_text(encoding="utf-8"))
    assert kept["against"]["chrf"]["difference"] == 0.0
    (folders[1] / "scores.json").write_text("torn")
    with pytest.raises(RunError, match=r"scores\.json: not readable"):
        evaluate(folders[1], **files)
    assert len(translated) == 3


def test_bleu_cuts_words_as_the_target_language_of_the_model_asks_for(prepared, tmp_path, monkeypatch):
    section = Model(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=32)
    model = Transformer(section, len(prepared.vocabulary))
    model.init_weights(1)
    (folder := tmp_path / "model").mkdir()
    description = Description(section, len(prepared.vocabulary), "en", "zh-CN", Translate(extra_length=5))
    write_model(folder, model.state_dict(), description, prepared.vocabulary.path)
    for name, lines in (("en", "a\nb\n"), ("zh", "她在花园里看一本书\n小房子在树林里\n")):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: ["她在花园里看一本书", "小房子在森林里"])
    files = {"source": str(tmp_path / "en"), "reference": str(tmp_path / "zh")}
    found = evaluate(folder, **files, html=tmp_path / "page.html")["scores"]["bleu"]
    assert (found["score"] > 50, "tok:zh" in found["signature"]) == (True, True)
    lengths = re.findall(r"<td>1 to 10</td><td>2</td><td>([\d.]+)</td>", (tmp_path / "page.html").read_text())
    assert lengths == [f"{found['score']:.1f}"]
    asked = evaluate(folder, **files, tokenize="char", against=tmp_path / "zh")
    assert "tok:char" in asked["scores"]["bleu"]["signature"], "what is asked for goes first"
    assert (pair_of("wmt20:en-zh"), pair_of("wmt20"), pair_of(None)) == (("en", "zh"), None, None)


def test_a_comparison_of_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(evaluation, "check_names", lambda *_: None)
    with pytest.raises(ConfigError, match="--against compares bleu, chrf or ter"):
        evaluate("model", metrics=["comet"], against="other")
