"""Only one generation of a run may write."""

import subprocess
import sys

import pytest
from support import as_overrides, tiny_config

from dragoman import runs
from dragoman.cli.stages import check_ready, train
from dragoman.errors import RunError
from dragoman.training import checkpoint, owner


def test_a_run_that_is_alive_is_not_resumed(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=100000", "train.log_every=1")
    command = [sys.executable, "-m", "dragoman", "train", "tiny", *as_overrides(config), "--nproc", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as alive:
        assert alive.stdout
        for line in alive.stdout:
            if "loss" in line:
                break
        with pytest.raises(RunError, match="being trained right now by process"):
            check_ready(config, resume=True)
        alive.kill()
    check_ready(config, resume=True)  # a dead one is no obstacle


def test_a_generation_that_was_overtaken_stops_and_commits_nothing(prepared, tmp_path, monkeypatch):
    config = tiny_config(prepared.folder, tmp_path / "run", "checkpoint.every=2", "train.max_steps=8")
    run = runs.RunFolder(tmp_path / "run")
    written = checkpoint.write

    def overtaken(folder, taken, *arguments):
        if taken.step == 4:  # meanwhile somebody else, believing us dead, has begun to train here
            owner.claim(run)
        return written(folder, taken, *arguments)

    monkeypatch.setattr(checkpoint, "write", overtaken)
    with pytest.raises(owner.FencedError, match="generation 2 of this run has begun"):
        train(config)
    assert [runs.step_of(path) for path in runs.checkpoint_folders(run)] == [2]
    assert not list(run.checkpoints.glob("*.partial"))


def test_every_start_is_a_generation_and_the_end_is_written_down(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    train(tiny_config(prepared.folder, run.path, "train.max_steps=2"))
    assert owner.read(run) == {"generation": 1}
    train(tiny_config(prepared.folder, run.path, "train.max_steps=4"), resume=True)
    assert owner.read(run) == {"generation": 2}
    assert runs.read_json(run.checkpoint(4) / "manifest.json")["generation"] == 2


def test_of_two_that_claim_a_run_at_the_same_moment_one_commits(prepared, tmp_path, monkeypatch):
    run = runs.RunFolder(tmp_path / "run")
    train(tiny_config(prepared.folder, run.path, "train.max_steps=2"))
    before = owner.read(run)
    first = owner.claim(run)
    monkeypatch.setattr(owner, "read", lambda _: before)  # the other one has read before the first one wrote
    second = owner.claim(run)
    monkeypatch.undo()
    assert first.generation == second.generation
    owner.require(run, second)
    with pytest.raises(owner.FencedError, match="generation 2"):
        owner.require(run, first)


def test_a_clock_that_is_set_does_not_hide_a_living_process(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as alive:
        born = owner.birth(alive.pid)
        monkeypatch.setattr("psutil.Process.create_time", lambda process: 0.0)
        assert owner.is_alive(alive.pid, born)
        assert not owner.is_alive(alive.pid, born + 1), "another process with its number"
        alive.kill()
    assert not owner.is_alive(alive.pid, born)
