"""Runs survive: a rank that is killed, stopped or hangs is noticed, the run starts again and ends as if nothing had been."""

import os
import time

import pytest
from safetensors.torch import load_file
from support import as_overrides, dragoman, tiny_config

from dragoman import runs
from dragoman.errors import DragomanError
from dragoman.training import fault
from dragoman.training.watchdog import Watchdog

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory):
    return trained(prepared, tmp_path_factory.mktemp("undisturbed") / "run")


def trained(prepared, run, *options):
    every = ["checkpoint.every=2", "train.max_steps=8", "train.timeout_seconds=4", "train.log_every=1"]
    config = tiny_config(prepared.folder, run, *every)
    dragoman("train", "tiny", *as_overrides(config), "--nproc", "2", *options, env=ENVIRONMENT)
    return load_file(runs.RunFolder(run).checkpoint(8) / "model.safetensors")


@pytest.mark.parametrize(
    "what",
    ["kill:rank=1,step=5", "kill:rank=0,step=3", "stop:rank=1,step=5", "hang:rank=0,step=5", "drift:rank=1,step=5"],
)
def test_the_run_goes_on_to_the_same_end(prepared, tmp_path, undisturbed, what):
    run = tmp_path / "run"
    weights = trained(prepared, run, "--restarts", "2", "--simulate-fault", what)
    assert all(weights[name].equal(undisturbed[name]) for name in undisturbed)
    events = [row["event"] for row in runs.read_rows(run / "events.jsonl")]
    begun = [
        event for event in events if event in ("start", "resume")
    ]  # killed before its first checkpoint was whole: start
    assert len(begun) == 2
    assert events[-1] == "stop"
    assert ("drift" in events) == what.startswith("drift")


def test_a_user_error_is_not_tried_again(tmp_path):
    config = tiny_config(tmp_path / "nothing", tmp_path / "run")
    start = time.monotonic()
    result = dragoman("train", "tiny", *as_overrides(config), "--restarts", "5", check=False)
    assert result.returncode == 2
    assert "starting again" not in result.stderr
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("text", ["kill", "kill:rank=1", "melt:rank=0,step=1", "kill:rank=x,step=1"])
def test_a_fault_that_is_none_is_refused(text):
    with pytest.raises(DragomanError, match="KIND:rank=R,step=S"):
        fault.parse(text)


def test_limits_follow_from_what_was_usual(tmp_path):
    dog = Watchdog(tmp_path / "stacks", 2.0)
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
