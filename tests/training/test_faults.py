"""What is started again and what is not; how long a section may take. The faults themselves are in tests/faults."""

import os
import time

import pytest
from support import as_overrides, dragoman, tiny_config

from dragoman.errors import DragomanError
from dragoman.parallel.ranks import HUNG, STACKS_SIGNAL
from dragoman.training import fault
from dragoman.training.watchdog import Watchdog


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
    dog.learn_start([{"event": "first_step", "seconds": 60.0}, {"event": "stop", "seconds": 1e6}])
    assert dog.limit() == 1200
    dog.learn_start([{"event": "first_step", "seconds": 1.0}])
    assert dog.limit() == 300, "a cold cache is no hang"


def test_set_up_that_hangs_is_noticed(tmp_path, monkeypatch):
    ended, told = [], []
    monkeypatch.setattr("dragoman.training.watchdog.STARTING_SECONDS", 0.1)
    monkeypatch.setattr("os._exit", ended.append)
    dog = Watchdog(tmp_path / "log" / "stacks", 0.1, lambda section, seconds: told.append(section))
    with dog.watching():
        while not ended:
            time.sleep(0.02)
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
