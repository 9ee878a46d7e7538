"""Only one generation of a run may write."""

import shutil
import subprocess
import sys

import psutil
import pytest
from support import as_overrides, tiny_config, wait_until

from dragoman import runs
from dragoman.cli.stages import check_ready, train
from dragoman.errors import RunError
from dragoman.parallel.mesh import joined
from dragoman.training import checkpoint, owner
from dragoman.training.trainer import Trainer


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


def test_a_process_that_nobody_buries_is_not_alive():
    """In a container whose first process buries nobody the run could never be resumed."""
    child = subprocess.Popen(["sleep", "60"])
    born = owner.birth(child.pid)
    child.kill()
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert not owner.is_alive(child.pid, born)
    child.wait()


def test_a_generation_that_lost_its_run_while_it_validated_adds_no_row(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=4", "validation.every=2")
    run = runs.RunFolder(tmp_path / "run")

    class Overtaken:
        def run(self, moment):
            owner.claim(run)
            return {"bleu": 1.0}

    with joined("cpu", 60) as mesh:
        trainer = Trainer(config, prepared, mesh, [Overtaken()], "test", runs.silent)
        trainer.begin(resume=False)
        with pytest.raises(owner.FencedError):
            trainer.run()
    assert [row for row in runs.read_rows(run.metrics) if row["kind"] == "valid"] == []


def test_nobody_claims_a_run_while_its_checkpoint_takes_its_name(tmp_path, monkeypatch):
    run = runs.RunFolder(tmp_path)
    ours = owner.claim(run)
    monkeypatch.setattr(runs, "LOCK_SECONDS", 0.1)
    with owner.committing(run, ours), pytest.raises(RunError, match="at work there"), runs.locked(tmp_path):
        pass
    theirs = owner.claim(run)
    with pytest.raises(owner.FencedError, match="generation 2"), owner.committing(run, ours):
        pass
    with owner.committing(run, theirs):  # one that was stopped in here holds nobody up for good
        assert owner.claim(run).generation == 3


def test_an_owner_that_cannot_be_read_keeps_nobody_out(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    train(tiny_config(prepared.folder, run.path, "train.max_steps=2"))
    for damaged in (b"{\xff", b"[1, 2]", b'{"generation": "x"}'):
        run.owner.write_bytes(damaged)
        ours = owner.claim(run)
        owner.require(run, ours)
        run.owner.write_bytes(b"{")
        owner.require(run, ours)
        with owner.committing(run, ours):
            pass
    train(tiny_config(prepared.folder, run.path, "train.max_steps=4"), resume=True)
    assert run.checkpoint(4).is_dir()


def test_whoever_had_the_run_before_may_commit_until_it_is_claimed(prepared, tmp_path, monkeypatch):
    run = runs.RunFolder(tmp_path / "run")
    train(tiny_config(prepared.folder, run.path, "train.max_steps=2"))
    claim = owner.claim

    def late(folder):
        """Between our choice of a checkpoint and our claim, the other half commits another one."""
        shutil.copytree(run.checkpoint(2), run.checkpoint(3))
        return claim(folder)

    monkeypatch.setattr(owner, "claim", late)
    with pytest.raises(owner.OvertakenError, match="step-00000003: was written while this start was reading") as found:
        train(tiny_config(prepared.folder, run.path, "train.max_steps=4"), resume=True)
    assert found.value.exit_code == 1, "a supervisor starts it again"
    assert run.checkpoint(3).is_dir(), "a sound checkpoint is not set aside"


def test_a_run_that_is_somebody_elses_is_not_written_into(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")

    def overtaken(stage, done, total, words):
        if stage == "training" and done == 4:
            owner.claim(run)

    with pytest.raises(owner.FencedError, match="generation 2"):
        train(tiny_config(prepared.folder, run.path, "train.max_steps=20"), progress=overtaken)
    assert max(row["step"] for row in runs.read_rows(run.metrics)) == 4, "not a row more"
