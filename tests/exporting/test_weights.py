"""A model folder translates as its source does, carries nothing of training, and is written whole or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from dragoman.config import load_config, to_toml
from dragoman.config.schema import Subwords
from dragoman.data.subwords import learn
from dragoman.errors import DragomanError, RunError
from dragoman.exporting import export
from dragoman.runs import damage, write_manifest
from dragoman.translate import Translator
from dragoman.translate.models import find_model


@pytest.fixture
def copied(checkpoint, tmp_path):
    """A checkpoint to be maltreated."""
    return Path(shutil.copytree(checkpoint, tmp_path / "source" / "step-00000400"))


def test_model_folder(checkpoint, sentences, tmp_path):
    out = export(checkpoint, tmp_path / "models" / "first")
    assert {path.name for path in out.iterdir()} == {
        "model.safetensors",
        "model.toml",
        "vocabulary.model",
        "manifest.json",
        "README.md",
    }
    assert damage(out) is None
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["step"], manifest["scores"]["bleu"], manifest["kind"]) == (400, 43.2, "dragoman")
    translations = Translator.load(out, "cpu").translate(sentences)
    assert translations == Translator.load(checkpoint, "cpu").translate(sentences)
    again = export(out, tmp_path / "models" / "second")
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_a_run_exports_its_best_checkpoint(checkpoint, tmp_path):
    run = tmp_path / "run"
    for step, bleu in ((100, 10.0), (200, 30.0), (300, 20.0)):
        shutil.copytree(checkpoint, run / "checkpoints" / f"step-{step:08d}")
        (run / "checkpoints" / f"step-{step:08d}" / "manifest.json").unlink()
        write_manifest(run / "checkpoints" / f"step-{step:08d}", {"step": step, "scores": {"bleu": bleu}})
    (run / "run.toml").write_text(to_toml(load_config()))
    out = export(run, tmp_path / "model", licence="cc-by-4.0")
    assert json.loads((out / "manifest.json").read_text())["step"] == 200
    card = (out / "README.md").read_text()
    assert "license: cc-by-4.0" in card
    assert "step 200 of 300,000" in card
    assert "| validation | bleu | 30.00 |" in card
    again = (export(out, tmp_path / "again") / "README.md").read_text()  # its run is no longer at hand
    assert "| validation | bleu | 30.00 |" in again
    assert "license: cc-by-4.0" in again
    assert "license: mit" in (export(out, tmp_path / "other", licence="mit") / "README.md").read_text()


@pytest.mark.parametrize(
    ("run_file", "words"),
    [
        ('[data]\nmax_ratio = 4.0\ncorpus = "reversal"\n[checkpoint]\nmetric = "loss"\n', "corpora: reversal"),
        ("torn = ", "Its run was not at hand"),
    ],
)
def test_a_run_file_of_another_time_does_not_keep_a_sound_checkpoint_back(copied, tmp_path, run_file, words):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.toml").write_text(run_file)
    checkpoint = run / "checkpoints" / copied.name
    shutil.move(copied, checkpoint)
    card = (export(checkpoint, tmp_path / "model") / "README.md").read_text()
    assert words in card
    assert "| validation | bleu | 43.20 |" in card
    if "torn" not in run_file:
        assert find_model(run) == checkpoint


def test_scores_of_a_manifest_are_told_without_a_run(checkpoint, tmp_path):
    assert "| validation | bleu | 43.20 |" in (export(checkpoint, tmp_path / "model") / "README.md").read_text()


def test_a_card_says_who_reads_it_and_what_its_scores_are_of(checkpoint, tmp_path):
    """Scores are of the model as it was trained; rounded weights were not evaluated."""
    for kind, quantization, library, said in (
        ("dragoman", None, "dragoman", "while training |"),
        ("huggingface", None, "transformers", "while training |"),
        ("ctranslate2", "float32", "dragoman", "while training |"),
        ("ctranslate2", "int8", "dragoman", "while training, before quantisation |"),
    ):
        if kind == "ctranslate2":
            pytest.importorskip("ctranslate2")
        out = export(checkpoint, tmp_path / f"{kind}-{quantization}", kind=kind, quantization=quantization)
        card = (out / "README.md").read_text()
        assert f"\nlibrary_name: {library}\n" in card
        assert f"| validation | bleu | 43.20 | {said}\n" in card


def test_scores_of_a_model_without_a_run_reach_the_next_card(checkpoint, tmp_path):
    """Evaluated after its card was written, by a path that is no longer its own."""
    out = export(checkpoint, tmp_path / "model")
    score = {"score": 41.5, "signature": "refs:1|case:mixed"}
    entry = {"model": "models/old-name", "test_set": "newstest", "sentences": 3003, "scores": {"bleu": score}}
    (out / "scores.json").write_text(json.dumps([entry]))
    again = export(out, tmp_path / "again")
    third = export(again, tmp_path / "third")  # which has no scores.json of its own
    for card in ((folder / "README.md").read_text() for folder in (again, third)):
        assert card.count("| newstest (3,003) | bleu | 41.50 | refs:1\\|case:mixed |\n") == 1
        assert card.count("| validation | bleu | 43.20 |") == card.count("## Scores") == card.count("## Origin") == 1


def test_an_empty_folder_is_filled_and_anything_else_is_left_alone(checkpoint, tmp_path):
    empty, full, file = tmp_path / "empty", tmp_path / "full", tmp_path / "file"
    empty.mkdir()
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    file.write_text("")
    assert (export(checkpoint, empty) / "model.toml").is_file()
    for out in (full, file, checkpoint):
        with pytest.raises(RunError, match="exists and is not an empty folder"):
            export(checkpoint, out)
    assert (full / "thesis.tex").read_text() == "years of work"
    with pytest.raises(RunError, match="could not be written"):
        export(checkpoint, file / "below")


@pytest.mark.parametrize("kind", ["dragoman", "ctranslate2"])
def test_a_damaged_source_is_refused_and_leaves_nothing(copied, tmp_path, kind):
    weights = copied / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # one flipped bit
    weights.write_bytes(content)
    with pytest.raises(RunError, match=r"damaged, model\.safetensors is not as it was written"):
        export(copied, tmp_path / "out", kind=kind)
    (copied / "manifest.json").unlink()
    weights.write_bytes(content[:1000])
    with pytest.raises(RunError, match=r"model\.safetensors: missing or damaged"):
        export(copied, tmp_path / "out", kind=kind)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_parts_that_do_not_belong_together_are_refused(copied, tmp_path, vocabulary):
    (copied / "manifest.json").unlink()
    learn([pa.array(["a b c d", "e f g h"])], Subwords(vocab_size=10, kind="char"), copied / "vocabulary.model")
    with pytest.raises(RunError, match=rf"the vocabulary has \d+ pieces, the model {len(vocabulary)}"):
        export(copied, tmp_path / "out")
    description = copied / "model.toml"
    description.write_text(description.read_text().replace(f"vocab_size = {len(vocabulary)}", "vocab_size = 77"))
    with pytest.raises(RunError, match="do not fit the model"):
        export(copied, tmp_path / "out")


def test_arguments_are_checked_first(tmp_path):
    with pytest.raises(
        DragomanError, match="kind 'tflite' is not known; choose one of dragoman, ctranslate2, huggingface, onnx"
    ):
        export("nowhere", tmp_path / "out", kind="tflite")
    with pytest.raises(DragomanError, match="only for kind ctranslate2"):
        export("nowhere", tmp_path / "out", quantization="int8")
    with pytest.raises(RunError, match="nowhere: no such folder"):
        export("nowhere", tmp_path / "out")
