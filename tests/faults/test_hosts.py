"""Hosts and the network between them, made of network namespaces. The launcher runs on a third host."""

import shutil
import threading
import time
from pathlib import Path

import pytest
from fault_runs import equal, final_weights

import dragoman

pytestmark = pytest.mark.faults

STEPS = ["train.max_steps=150", "checkpoint.every=10", "train.log_every=1", "train.timeout_seconds=20"]
LIMIT = 20  # seconds, of train.timeout_seconds
RESTARTS = ("--restarts", "6")
SAME_END = "everything starts again from the newest checkpoint; same end to the bit"


@pytest.mark.parametrize(("host", "row"), [("b", "whole host lost"), ("a", "loss of the first host")])
def test_a_host_is_lost_and_comes_back(lab, launch_watched, undisturbed, note, host, row):
    try:
        with launch_watched(*STEPS, options=RESTARTS) as watched:
            watched.wait_for_step(25)
            since = time.time()
            lab.kill(host)
            time.sleep(3.0)
            lab.mend(host)
            assert watched.finish() == 0, watched.said
    finally:
        lab.mend(host)
    assert lab.left_behind() == []
    assert f"host {host}: the connection was lost" in watched.said
    (fault,), (resumed,) = watched.events("fault"), watched.events("resume")
    assert (fault["kind"], fault["host"], fault["rank"]) == ("lost", host, None)
    assert resumed["after"].startswith(f"lost: host {host}")
    assert equal(final_weights(watched.run.path), undisturbed(*STEPS))
    lost = watched.lost_steps(since)
    assert watched.went_on_from_newest(since)
    spent = watched.detected(since), watched.trained_again(since), lost
    note(row, f"named; {SAME_END}", "back after 3 s; same end to the bit", *spent)


@pytest.mark.parametrize("seconds", [1, 8, 30, 120])
def test_a_link_is_cut_and_mended(lab, launch_watched, undisturbed, note, seconds):
    try:
        with launch_watched(*STEPS, options=RESTARTS) as watched:
            watched.wait_for_step(25)
            since = time.time()
            lab.cut("b")
            mending = threading.Timer(seconds, lab.mend, ["b"])
            mending.start()
            assert watched.finish(seconds + 300) == 0, watched.said
            mending.join()
    finally:
        lab.mend("b")
    assert lab.left_behind() == []
    assert equal(final_weights(watched.run.path), undisturbed(*STEPS))
    restarts = watched.said.count("starting again")
    row = f"link down for {seconds:3d} s"
    if not restarts:
        assert seconds < LIMIT
        note(row, "the run waits and goes on", "same end to the bit", (), watched.stood_still(since), 0)
        return
    begun = f"{restarts} start{'s' * (restarts > 1)}; same end to the bit"
    spent = watched.detected(since), watched.trained_again(since), watched.lost_steps(since)
    note(row, f"noticed after train.timeout_seconds = {LIMIT}; {SAME_END}", begun, *spent)


def test_packets_get_lost(lab, launch_watched, undisturbed, note):
    try:
        for host in "ab":
            lab.lose(2, host)
        with launch_watched(*STEPS, options=RESTARTS) as watched:
            assert watched.finish() == 0, watched.said
    finally:
        for host in "ab":
            lab.lose(0, host)
    assert equal(final_weights(watched.run.path), undisturbed(*STEPS))
    restarts = watched.said.count("starting again")
    note("2 % packet loss", "slower, no restart", f"{restarts} restarts; same end to the bit", lost=0)


def test_different_versions_on_two_hosts(lab, launch_watched, note, tmp_path):
    package = Path(dragoman.__file__).parent
    shutil.copytree(package, tmp_path / "old" / "dragoman", ignore=shutil.ignore_patterns("__pycache__"))
    about = tmp_path / "old" / "dragoman" / "__init__.py"
    about.write_text(about.read_text(encoding="utf-8").replace(dragoman.__version__, "0.0.9"), encoding="utf-8")
    mixed = tmp_path / "mixed"
    mixed.write_text(
        f'#!/bin/sh\ntest "$1" = b && export PYTHONPATH={tmp_path}/old\nexec {lab.rsh} "$@"\n', encoding="utf-8"
    )
    mixed.chmod(0o755)
    since = time.time()
    with launch_watched(*STEPS, options=RESTARTS, rsh=mixed) as watched:
        assert watched.finish() == 2
    assert f"host b: has dragoman 0.0.9, host a has {dragoman.__version__}; install the same on both" in watched.said
    assert not watched.run.path.exists()
    note(
        "different versions on two hosts",
        "one line that names host and versions, before a rank starts",
        "exit code 2, nothing written",
        watched.detected(since, "install the same on both"),
    )
