"""Ranks of one host end together: those that hang at once, those that write a checkpoint when it is written."""

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


def test_nobody_waits_for_last_words_when_the_reason_is_known(outcome, monkeypatch):
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 1e9)
    found = outcome("die", "wait")
    assert found.rank == 0
    assert "rank 0 was killed" in found.line


def test_a_stopped_rank_is_ended_and_named(outcome):
    found = outcome("wait", "stop")
    assert (found.code, found.rank) == (1, 1)
    assert "rank 1 was stopped by a signal (SIGSTOP) and held up the others" in found.line


def test_ranks_that_all_end_well(outcome):
    assert outcome("save", "save").code == 0
