"""Ranks of one host end together: those that hang at once, those that write a checkpoint when it is written."""

import signal
import socket
import time

import pytest
from parallel import pretend

from dragoman.parallel import ranks


@pytest.fixture
def outcome(monkeypatch, tmp_path):
    """Of ranks that each do one thing."""
    monkeypatch.setattr(ranks, "be_rank", pretend.rank)

    def run(*doing):
        crew = ranks.Crew(ranks.Place(0, len(doing), len(doing), "127.0.0.1", 1), [*doing, str(tmp_path)], 0)
        try:
            while (found := crew.look()) is None:
                time.sleep(ranks.LOOK_SECONDS)
            return found
        finally:
            crew.end()

    return run


def test_ranks_that_hang_do_not_hold_up_the_end(outcome):
    found = outcome("fail", "wait")
    assert (found.code, found.rank) == (3, 0)


@pytest.mark.parametrize("how", ["fail", "die"])
def test_a_rank_that_writes_a_checkpoint_finishes_it(outcome, tmp_path, monkeypatch, how):
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 0.5)
    assert outcome(how, "save", "wait").rank == 0
    assert (tmp_path / "whole").exists()


def test_ranks_say_where_they_stand_before_they_are_ended_because_another_hung(outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "HUNG", 3)
    monkeypatch.setattr(ranks, "STACKS_SECONDS", 5.0)
    found = outcome("fail", "answer")
    assert (found.rank, found.kind) == (0, "hung")
    assert "pretend.py" in (tmp_path / "stacks").read_text(encoding="utf-8")
    fault = found.event(1)
    assert (fault["kind"], fault["rank"], fault["host"]) == ("hung", 0, socket.gethostname())


def test_nobody_waits_for_last_words_when_the_reason_is_known(outcome, monkeypatch):
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 1e9)
    found = outcome("die", "wait")
    assert found.rank == 0
    assert "rank 0 was killed" in found.line
    assert found.kind == "killed"


def test_a_rank_that_was_ended_because_another_host_failed_is_no_kill(monkeypatch, tmp_path):
    monkeypatch.setattr(ranks, "be_rank", pretend.rank)
    crew = ranks.Crew(ranks.Place(0, 1, 2, "127.0.0.1", 1), ["wait", str(tmp_path)], 0)
    crew.reason_known, crew.failed_at = True, time.monotonic()
    try:
        while (found := crew.look()) is None:
            time.sleep(ranks.LOOK_SECONDS)
    finally:
        crew.end()
    assert (found.code, found.kind) == (1, "failed")


def test_a_stopped_rank_is_ended_and_named(outcome):
    found = outcome("wait", "stop")
    assert (found.code, found.rank) == (1, 1)
    assert "rank 1 was stopped by a signal (SIGSTOP) and held up the others" in found.line
    assert found.kind == "stopped"


def test_who_was_killed_is_named_not_who_noticed(outcome):
    """Both have ended before anybody looks."""
    ranks.LOOK_SECONDS, before = 1.5, ranks.LOOK_SECONDS
    try:
        found = outcome("fail", "die")
    finally:
        ranks.LOOK_SECONDS = before
    assert (found.rank, "was killed" in found.line) == (1, True)


def test_a_rank_that_ends_between_two_looks_is_not_taken_for_a_good_end(monkeypatch):
    class Dying:
        """Alive when it is asked first, dead when it is asked again."""

        pid, codes = 1, [None, -9, -9, -9, -9]

        @property
        def exitcode(self):
            return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

        def join(self, seconds=0.0):
            pass

        kill = join

    monkeypatch.setattr(ranks.Crew, "start", lambda *_: Dying())
    crew = ranks.Crew(ranks.Place(0, 1, 1, "127.0.0.1", 1), [], 0)
    while (found := crew.look()) is None:
        pass
    assert found.code == 1


def test_ranks_that_all_end_well(outcome):
    assert outcome("save", "save").code == 0


def test_a_rank_that_was_told_to_stop_before_it_listens_has_stopped(monkeypatch, tmp_path):
    monkeypatch.setattr(ranks, "be_rank", pretend.rank)
    crew = ranks.Crew(ranks.Place(0, 1, 1, "127.0.0.1", 1), ["wait", str(tmp_path)], 0)
    try:
        crew.hand_on(signal.SIGTERM)
        while (found := crew.look()) is None:
            time.sleep(ranks.LOOK_SECONDS)
    finally:
        crew.end()
    assert found.code == 128 + signal.SIGTERM


def test_ranks_that_began_before_another_could_not_are_ended(monkeypatch, tmp_path):
    begun, start = [], ranks.Crew.start

    def no_room_for_a_third(crew, local, *rest):
        if local == 2:
            raise BlockingIOError("Resource temporarily unavailable")
        begun.append(start(crew, local, *rest))
        return begun[-1]

    monkeypatch.setattr(ranks, "be_rank", pretend.rank)
    monkeypatch.setattr(ranks.Crew, "start", no_room_for_a_third)
    with pytest.raises(BlockingIOError):
        ranks.Crew(ranks.Place(0, 3, 3, "127.0.0.1", 1), ["wait", "wait", "wait", str(tmp_path)], 0)
    codes = [process.exitcode for process in begun]
    for process in begun:
        process.kill()
    assert codes == [-signal.SIGKILL] * 2


def test_last_words_of_all_ranks_together_are_waited_for_so_long(monkeypatch, tmp_path):
    """Where each has left a child behind that keeps its output open."""
    now = [0.0]

    class Endless:
        def join(self, seconds):
            now[0] += seconds

    monkeypatch.setattr(ranks, "be_rank", pretend.rank)
    crew = ranks.Crew(ranks.Place(0, 1, 1, "127.0.0.1", 1), ["nothing", str(tmp_path)], 0)
    crew.processes[0].join()
    crew.readers = [Endless() for _ in range(4)]
    monkeypatch.setattr(ranks.time, "monotonic", lambda: now[0])
    assert crew.look().code == 0
    assert now[0] == ranks.LAST_WORDS_SECONDS
