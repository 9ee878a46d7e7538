"""A run goes on from a copy of its folder (as from an object store), and says what was changed in between."""

import shutil

import pytest
from safetensors.torch import load_file
from support import tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.errors import RunError
from dragoman.training import owner

EVERY = ("checkpoint.every=2", "checkpoint.keep_last=9")


def same(left, right, step):
    weights = [load_file(runs.RunFolder(run).checkpoint(step) / "model.safetensors") for run in (left, right)]
    return all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_a_copy_of_a_run_goes_on_to_the_same_end(prepared, tmp_path):
    train(tiny_config(prepared.folder, tmp_path / "straight", *EVERY, "train.max_steps=8"))
    train(tiny_config(prepared.folder, tmp_path / "here", *EVERY, "train.max_steps=4"))
    owner.claim(runs.RunFolder(tmp_path / "here"))  # it is alive there, and the copy was taken meanwhile
    shutil.copytree(tmp_path / "here", tmp_path / "store" / "copy")
    there = tmp_path / "store" / "copy"
    (runs.RunFolder(there).checkpoint(4) / "optimizer.safetensors").unlink()  # not there yet when the copy was taken
    said = []
    config = tiny_config(prepared.folder, there, *EVERY, "train.max_steps=8")
    train(config, resume=True, progress=lambda *words: said.append(words))
    assert same(tmp_path / "straight", there, 8)
    resumed = next(row for row in runs.read_rows(there / "events.jsonl") if row["event"] == "resume")
    assert (resumed["step"], resumed["lost_steps"]) == (2, 2)


def test_what_was_changed_is_told_and_written_down(prepared, tmp_path):
    run = tmp_path / "run"
    train(tiny_config(prepared.folder, run, "train.max_steps=2"))
    said = []
    changed = tiny_config(prepared.folder, run, "train.max_steps=4", "train.clip_norm=0.5")
    train(changed, resume=True, progress=lambda *words: said.append(words[3]))
    assert any("changed since: train.max_steps 2 -> 4, train.clip_norm 1.0 -> 0.5" in words for words in said), said
    resumed = next(row for row in runs.read_rows(run / "events.jsonl") if row["event"] == "resume")
    assert resumed["changed"] == ["train.max_steps 2 -> 4", "train.clip_norm 1.0 -> 0.5"]
    with pytest.raises(RunError, match=r"train\.batch_tokens 1024 -> 512"):
        train(tiny_config(prepared.folder, run, "train.batch_tokens=512", "train.max_steps=6"), resume=True)
