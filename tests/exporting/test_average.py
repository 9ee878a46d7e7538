"""The mean of checkpoints is their mean, and translates."""

import pytest
import torch
from safetensors.torch import load_file
from support import dragoman, tiny_config

from dragoman.cli.stages import train
from dragoman.exporting import export
from dragoman.runs import read_json
from dragoman.translate import Translator


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("average") / "run"
    train(tiny_config(prepared.folder, folder, "checkpoint.every=2", "validation.every=2", "checkpoint.keep_last=3"))
    return folder


@pytest.mark.parametrize("which", [["--last", "2"], ["--best", "2"], []])
def test_the_mean_of_checkpoints(run, tmp_path, which):
    out = tmp_path / "mean"
    dragoman("checkpoint", "average", str(run), str(out), *which)
    steps = read_json(out / "manifest.json")["averaged_steps"]
    assert len(steps) == (2 if which else 3)
    each = [load_file(run / "checkpoints" / f"step-{step:08d}" / "model.safetensors") for step in steps]
    found = load_file(out / "model.safetensors")
    for name, tensor in found.items():
        expected = sum(weights[name].double() for weights in each) / len(each)
        torch.testing.assert_close(tensor, expected.float(), rtol=1e-6, atol=1e-9)
    assert len(Translator.load(out, "cpu").translate(["a cat"])) == 1
    card, again = (path / "README.md" for path in (out, export(out, tmp_path / "again")))
    for text in (card.read_text(), again.read_text()):
        assert f"- mean of steps {steps}, " in text
        assert "\n- train: " in text


def test_what_cannot_be_averaged_is_refused(run, tmp_path):
    for arguments, words in (
        ([str(run), str(tmp_path / "x"), "--last", "9"], "has 3 checkpoints"),
        ([str(tmp_path / "nothing"), str(tmp_path / "x")], "holds no run"),
        ([str(run), str(run)], "exists"),
    ):
        result = dragoman("checkpoint", "average", *arguments, check=False)
        assert result.returncode == 2
        assert words in result.stderr
    assert not (tmp_path / "x").exists()
