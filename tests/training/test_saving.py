"""Checkpoints are written while training goes on: what is written is the state of its step, and a failure loses nothing."""

import errno
import time

import pytest
from support import tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.errors import RunError
from dragoman.training import checkpoint
from dragoman.training.trainer import Trainer
from dragoman.training.watchdog import Watchdog

EVERY = ("checkpoint.every=2", "checkpoint.keep_last=9", "train.max_steps=6")


def files(run):
    found = runs.RunFolder(run)
    names = ("model.safetensors", "optimizer.safetensors")
    return [(folder / name).read_bytes() for folder in runs.checkpoint_folders(found) for name in names]


def test_a_slow_disk_changes_nothing(prepared, tmp_path, monkeypatch):
    train(tiny_config(prepared.folder, tmp_path / "quick", *EVERY))
    written = checkpoint.write

    def slowly(*arguments):
        time.sleep(0.5)  # several steps are done meanwhile
        return written(*arguments)

    monkeypatch.setattr(checkpoint, "write", slowly)
    train(tiny_config(prepared.folder, tmp_path / "slow", *EVERY))
    assert files(tmp_path / "slow") == files(tmp_path / "quick")
    assert len(files(tmp_path / "slow")) == 6


def test_a_disk_that_is_far_too_slow_costs_checkpoints_not_the_run(prepared, tmp_path, monkeypatch):
    """Ranks would give up on one that waits for its disk; the last checkpoint is waited for all the same."""
    written, hung = checkpoint.write, []
    monkeypatch.setattr(Watchdog, "give_up", lambda dog, silent: hung.append(silent))

    def slowly(*arguments):
        time.sleep(4.0)
        return written(*arguments)

    monkeypatch.setattr(checkpoint, "write", slowly)
    config = tiny_config(prepared.folder, tmp_path / "run", *EVERY, "train.timeout_seconds=2")
    assert train(config) == "max_steps"
    run = runs.RunFolder(tmp_path / "run")
    assert [runs.step_of(folder) for folder in runs.checkpoint_folders(run)] == [2, 6]
    (failure,) = [row for row in runs.read_rows(run.events) if row["event"] == "checkpoint_failed"]
    assert (failure["step"], "raise checkpoint.every" in failure["error"]) == (4, True)
    assert not hung


def test_a_validation_may_take_longer_than_a_step(prepared, tmp_path, monkeypatch):
    """However many rows of metrics came before it: these are no validations of no length."""
    usual, hung = Trainer.validate, []
    monkeypatch.setattr(Watchdog, "give_up", lambda dog, silent: hung.append(silent))

    def slowly(trainer):
        time.sleep(4.0)
        return usual(trainer)

    monkeypatch.setattr(Trainer, "validate", slowly)
    steps = ("train.max_steps=5", "train.log_every=1", "validation.every=5", "train.timeout_seconds=2")
    assert train(tiny_config(prepared.folder, tmp_path / "run", *steps)) == "max_steps"
    assert not hung


def test_probes_on_a_full_disk_end_no_run(prepared, tmp_path, monkeypatch):
    usual = runs.write_text

    def full(path, text):
        if path.parent.name == "translations":
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(path, text)

    monkeypatch.setattr(runs, "write_text", full)
    steps = ("train.max_steps=2", "validation.every=1", "validation.probes=2", "validation.bleu_sentences=4")
    assert train(tiny_config(prepared.folder, tmp_path / "run", *steps)) == "max_steps"


def failing(monkeypatch, steps):
    written = checkpoint.write

    def full_at(run, taken, *arguments):
        if taken.step in steps:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(run, taken, *arguments)

    monkeypatch.setattr(checkpoint, "write", full_at)


def test_a_full_disk_is_told_and_training_goes_on(prepared, tmp_path, monkeypatch):
    failing(monkeypatch, {4})
    said = []
    config = tiny_config(prepared.folder, tmp_path / "run", *EVERY)
    assert train(config, progress=lambda *words: said.append(words)) == "max_steps"
    run = runs.RunFolder(tmp_path / "run")
    assert [runs.step_of(folder) for folder in runs.checkpoint_folders(run)] == [2, 6]
    (failure,) = [row for row in runs.read_rows(run.events) if row["event"] == "checkpoint_failed"]
    assert failure["step"] == 4
    assert "No space left" in failure["error"]
    assert any("step 4 could not be written" in words[3] for words in said)


def test_when_the_last_one_fails_the_run_says_so_and_keeps_the_others(prepared, tmp_path, monkeypatch):
    failing(monkeypatch, {6})
    with pytest.raises(RunError, match="last checkpoint could not be written"):
        train(tiny_config(prepared.folder, tmp_path / "run", *EVERY))
    run = runs.RunFolder(tmp_path / "run")
    assert [runs.step_of(folder) for folder in runs.checkpoint_folders(run)] == [2, 4]
    assert not list(run.checkpoints.glob("*.partial"))
