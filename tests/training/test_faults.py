"""What is started again and what is not; how long a section may take. The faults themselves are in tests/faults."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from support import as_overrides, dragoman, tiny_config, wait_until

from dragoman import runs
from dragoman.cli import stages
from dragoman.errors import DragomanError, RunError
from dragoman.model import folder as model_folder
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.ranks import HUNG, STACKS_SIGNAL
from dragoman.training import checkpoint, facts, fault, owner
from dragoman.training.trainer import Trainer
from dragoman.training.watchdog import END, Watchdog


def nobody(section, seconds):
    """Is told."""


def test_a_user_error_is_not_tried_again(tmp_path):
    config = tiny_config(tmp_path / "nothing", tmp_path / "run")
    result = dragoman("train", "tiny", *as_overrides(config), "--restarts", "5", check=False)
    assert result.returncode == 2
    assert "starting again" not in result.stderr


@pytest.mark.parametrize("text", ["kill", "kill:rank=1", "melt:rank=0,step=1", "kill:rank=x,step=1"])
def test_a_fault_that_is_none_is_refused(text):
    with pytest.raises(DragomanError, match="KIND:rank=R,step=S"):
        fault.parse(text)


def test_limits_follow_from_what_was_usual(tmp_path):
    dog = Watchdog(tmp_path / "stacks", 2.0, nobody)
    assert dog.limit() == 1800, "the first step may compile"
    dog.beat()
    assert dog.limit() == 1800
    dog.history["step"] = [0.01] * 10
    assert dog.limit() == 2.0
    dog.history["step"] = [1.0] * 10
    assert dog.limit() == 20.0
    with dog.section("validation"):
        assert dog.limit() == 1800, "never seen before"
    with dog.section("validation"):
        assert dog.limit() == 2.0
    assert dog.where == "step"


def test_the_time_for_set_up_is_learnt_from_earlier_starts(tmp_path):
    dog = Watchdog(tmp_path / "stacks", 2.0, nobody)
    dog.learn([{"event": "first_step", "seconds": 60.0}, {"event": "stop", "seconds": 1e6}])
    assert dog.limit() == 1200
    dog.learn([{"event": "first_step", "seconds": 1.0}, {"event": "validation", "seconds": 7.0}])
    assert dog.limit() == 300, "a cold cache is no hang"
    with dog.section("validation"):
        assert dog.limit() == 140


def failing_to_join(monkeypatch, meanwhile):
    @contextmanager
    def joined(device, seconds):
        meanwhile()
        raise RunError("nobody is there")
        yield

    monkeypatch.setattr(stages, "joined", joined)


def test_a_rank_answers_before_it_has_met_the_others(prepared, tmp_path, monkeypatch):
    run = runs.RunFolder(tmp_path / "runs" / "first")
    config = tiny_config(prepared.folder, run.path)
    failing_to_join(monkeypatch, lambda: None)
    with pytest.raises(RunError, match="nobody is there"):
        stages.train(config)
    assert not (tmp_path / "runs").exists(), "nobody asked, nothing is left"
    failing_to_join(monkeypatch, lambda: os.kill(os.getpid(), STACKS_SIGNAL))
    with pytest.raises(RunError, match="nobody is there"):
        stages.train(config)
    assert "in joined" in run.stacks(0).read_text(encoding="utf-8")
    facts.check_folder(run, resume=False)  # stacks are no run, and nobody else's files
    (run.path / f".{run.config.name}.12ab34cd").touch()
    facts.check_folder(run, resume=True)
    (run.path / "log" / "thesis.tex").touch()
    with pytest.raises(RunError, match="left alone"):
        facts.check_folder(run, resume=True)


def test_a_file_of_stacks_that_another_process_has_open_stays(tmp_path):
    """A start that is refused, because the run is alive."""
    alive, refused = (Watchdog(tmp_path / "log" / "stacks", 2.0) for _ in range(2))
    with alive.answering():
        with refused.answering():
            pass
        assert alive.stacks.exists()
    assert not (tmp_path / "log").exists()


def test_ranks_that_do_not_meet_are_noticed(prepared, tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr("dragoman.training.watchdog.STARTING_SECONDS", 0.1)
    monkeypatch.setattr("os._exit", ended.append)
    failing_to_join(monkeypatch, lambda: wait_until(lambda: ended))
    with pytest.raises(RunError, match="nobody is there"):
        stages.train(tiny_config(prepared.folder, tmp_path / "run", "train.timeout_seconds=1"))
    assert ended[0] == HUNG


def test_a_last_checkpoint_that_hangs_is_noticed(prepared, tmp_path, monkeypatch):
    usual, where = checkpoint.write, []
    monkeypatch.setattr(Watchdog, "limit", lambda dog: 0.1 if dog.where == END else 1e9)
    monkeypatch.setattr(Watchdog, "give_up", lambda dog, silent: where.append(dog.where))

    def hangs(*arguments):
        wait_until(lambda: where)
        return usual(*arguments)

    monkeypatch.setattr(checkpoint, "write", hangs)
    stages.train(tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=1", "train.timeout_seconds=1"))
    assert where[0] == END


def test_set_up_that_hangs_is_noticed(tmp_path, monkeypatch):
    ended, told = [], []
    monkeypatch.setattr("dragoman.training.watchdog.STARTING_SECONDS", 0.1)
    monkeypatch.setattr("os._exit", ended.append)
    dog = Watchdog(tmp_path / "log" / "stacks", 0.1, lambda section, seconds: told.append(section))
    with dog.watching():
        wait_until(lambda: ended)
    assert ended[0] == HUNG
    assert told[0] == "start"
    assert "in section 'start'" in dog.stacks.read_text(encoding="utf-8")
    assert "test_set_up_that_hangs" in dog.stacks.read_text(encoding="utf-8"), "where it stood"


def test_a_rank_that_is_asked_writes_where_it_stands_and_goes_on(tmp_path):
    dog = Watchdog(tmp_path / "log" / "stacks", 2.0, nobody)
    with dog.answering():
        os.kill(os.getpid(), STACKS_SIGNAL)
    assert "test_a_rank_that_is_asked" in dog.stacks.read_text(encoding="utf-8")
    quiet = Watchdog(tmp_path / "log" / "quiet", 2.0, nobody)
    with quiet.answering():
        assert quiet.stacks.exists()
    assert not quiet.stacks.exists(), "nobody asked"


HOLDS_PYTHON = """
import ctypes, sys
from pathlib import Path
from dragoman.training import watchdog
watchdog.STARTING_SECONDS, watchdog.LAST_SECONDS = 0.5, 0.5
dog = watchdog.Watchdog(Path(sys.argv[1]), 0.5)
with dog.answering(), dog.watching():
    ctypes.CDLL(None).usleep(300_000)  # the watchdog looks around meanwhile
    ctypes.PyDLL(None).sleep(1000)  # and never again
"""


def test_a_hang_that_lets_no_other_thread_run_is_noticed(tmp_path):
    stacks = tmp_path / "log" / "stacks"
    result = subprocess.run([sys.executable, "-c", HOLDS_PYTHON, str(stacks)], check=False, timeout=300)
    assert result.returncode in (1, HUNG), "what --restarts starts again after"
    assert 'File "<string>"' in stacks.read_text(encoding="utf-8"), "where it stood"


def test_steps_are_lost_between_two_rows_too(prepared, tmp_path):
    config = tiny_config(
        prepared.folder, tmp_path / "run", "train.log_every=100", "checkpoint.every=5", "train.max_steps=10"
    )
    words = ["train", "tiny", *as_overrides(config), "--restarts", "1", "--simulate-fault", "kill:rank=0,step=8"]
    dragoman(*words)
    events = runs.read_rows(tmp_path / "run" / "events.jsonl")
    assert [row["lost_steps"] for row in events if row["event"] == "resume"] in ([3], [8]), "[8]: none was written yet"
    assert [row["step"] for row in events if row["event"] == "fault"] == [8]


def test_rows_with_a_flipped_bit_keep_no_run_from_going_on(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    stages.train(tiny_config(prepared.folder, run.path, "train.max_steps=4"))
    for file in (run.metrics, run.events):
        text = file.read_text(encoding="utf-8")
        for key in ("kind", "step", "loss", "event", "seconds", "largest_grad_norm"):
            file.write_text(text + text.replace(f'"{key}"', '"k{y"').splitlines()[-1] + "\n", encoding="utf-8")
            text = file.read_text(encoding="utf-8")
    stages.train(tiny_config(prepared.folder, run.path, "train.max_steps=6"), resume=True)
    assert run.checkpoint(6).is_dir()


def test_a_checkpoint_that_was_being_replaced_is_put_back(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    stages.train(tiny_config(prepared.folder, run.path, "train.max_steps=4"))
    run.checkpoint(4).rename(run.checkpoints / "step-00000004.1234abcd.old")  # killed between two renames
    assert checkpoint.newest_sound(run).source == run.checkpoint(4)


@pytest.mark.parametrize(("strategy", "ranks", "alike"), [("local", 2, [0, 1]), ("hybrid", 4, [1, 3])])
def test_ranks_that_drift_apart_are_found_among_those_that_hold_the_same(prepared, tmp_path, strategy, ranks, alike):
    """The ranks of an island, with hybrid those of all islands that have the same piece."""
    island = [f"parallel.strategy={strategy}", "parallel.ranks_per_island=2", "parallel.compare_every=1"]
    config = tiny_config(prepared.folder, tmp_path / "run", *island, "train.max_steps=9")
    fault = f"drift:rank={ranks - 1},step=3"
    words = ["train", "tiny", *as_overrides(config), "--nproc", str(ranks), "--simulate-fault", fault]
    result = dragoman(*words, check=False)
    assert result.returncode == 1
    [drift] = [row for row in runs.read_rows(tmp_path / "run" / "events.jsonl") if row["event"] == "drift"]
    assert (drift["step"], drift["ranks"]) == (3, alike)


def test_a_resume_says_once_who_was_lost():
    events = [{"event": "start"}, {"event": "fault", "kind": "lost", "host": "b", "error": "host b: the line was cut"}]
    assert facts.ended_by(events) == "lost: host b: the line was cut"
    events.append({"event": "fault", "kind": "killed", "host": "b", "rank": 3, "error": "host b, rank 3: was killed"})
    assert facts.ended_by(events) == "killed: rank 3 on host b: was killed"


def test_a_disk_that_is_away_when_a_checkpoint_is_opened_is_no_damage(tmp_path, monkeypatch):
    """safetensors says of every error that there is no such file, and forgets its number."""
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2)}, path)

    def stale(self, *_, **__):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "open", stale)
    with pytest.raises(OSError, match="Stale"):
        model_folder.read_tensors(path)
    with pytest.raises(OSError, match="Stale"), model_folder.opened(path):
        pass
    monkeypatch.undo()
    with pytest.raises(RunError, match="missing or damaged"):
        model_folder.read_tensors(tmp_path / "other.safetensors")


def test_a_disk_that_is_full_at_the_very_end_ends_no_run_badly(prepared, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner, "release", full)
    run = runs.RunFolder(tmp_path / "run")
    assert stages.train(tiny_config(prepared.folder, run.path, "train.max_steps=2")) == "max_steps"
    assert run.checkpoint(2).is_dir()


def test_a_checkpoint_that_another_host_reads_wrongly_is_refused(prepared, tmp_path, monkeypatch):
    run = runs.RunFolder(tmp_path / "run")
    stages.train(tiny_config(prepared.folder, run.path, "train.max_steps=2"))
    monkeypatch.setattr("dragoman.training.trainer.gather", lambda mesh, own: ["", own])
    first_of_another = SimpleNamespace(mesh=Mesh(1, 2, 0, torch.device("cpu")))
    Trainer.check_copies(first_of_another, run.checkpoint(2))
    weights = run.checkpoint(2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(RunError, match=r"sound where rank 0 reads it, but not on host .*: model.safetensors"):
        Trainer.check_copies(first_of_another, run.checkpoint(2))
