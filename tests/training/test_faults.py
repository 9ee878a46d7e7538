"""What is started again and what is not; how long a section may take. The faults themselves are in tests/faults."""

import os
from contextlib import contextmanager

import pytest
from support import as_overrides, dragoman, tiny_config, wait_until

from dragoman import runs
from dragoman.cli import stages
from dragoman.errors import DragomanError, RunError
from dragoman.parallel.ranks import HUNG, STACKS_SIGNAL
from dragoman.training import checkpoint, facts, fault
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
