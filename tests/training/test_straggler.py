"""The rank that the others wait for is named while the run goes on."""

import os

import pytest
from support import as_overrides, dragoman, tiny_config

from dragoman import runs
from dragoman.training.straggler import WINDOWS, Lookout, slowest
from dragoman.training.window import SPANS

SLOW_RANK_1 = """
import os, time
from dragoman.training import optim
usual = optim.set_rate
def slowly(*arguments):
    time.sleep(0.3 if os.environ["RANK"] == "1" else 0.0)
    return usual(*arguments)
optim.set_rate = slowly
"""


def spans(ranks, **given):
    """Seconds of every span and rank; what is not given is the same for all."""
    return {span: given.get(span, [0.1] * ranks) for span in SPANS}


def test_the_rank_that_waits_least_is_the_slow_one():
    found = slowest(spans(4, forward=[0.1, 0.1, 0.4, 0.1], exposed=[0.35, 0.33, 0.02, 0.34]))
    assert found
    assert (found.rank, found.where) == (2, "forward")
    assert found.own_seconds == pytest.approx(0.8)
    assert found.others_seconds == pytest.approx(0.5)


def test_a_slow_network_is_nobodys_fault():
    assert slowest(spans(4, exposed=[2.0, 2.1, 2.0, 2.1])) is None
    assert slowest(spans(1)) is None


def test_a_hiccup_is_no_straggler_and_one_good_window_no_recovery():
    slow, usual = spans(2, forward=[0.1, 0.4], exposed=[0.3, 0.0]), spans(2)
    lookout = Lookout()
    assert [lookout.look(each) for each in (slow, slow, usual, slow, slow)] == [None] * 5
    named = lookout.look(slow)
    assert named
    assert named.rank == 1
    assert lookout.look(usual) == named
    assert [lookout.look(usual) for _ in range(WINDOWS - 1)][-1] is None


def test_a_run_names_its_slow_rank(prepared, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SLOW_RANK_1, encoding="utf-8")
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=40", "train.log_every=5")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    result = dragoman("train", "tiny", *as_overrides(config), "--nproc", "2", env=environment)
    (event,) = [row for row in runs.read_rows(tmp_path / "run" / "events.jsonl") if row["event"] == "straggler"]
    assert event["rank"] == 1
    assert event["host"] in result.stderr
    assert "straggler rank 1 on host" in result.stderr
