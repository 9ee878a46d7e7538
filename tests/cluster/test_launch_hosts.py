"""`dragoman launch` over hosts: learns what one process learns, ends whole, and says what is wrong before it starts."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import started, wait_until

import dragoman
from dragoman import runs


def weights(run, step):
    return load_file(runs.RunFolder(run).checkpoint(step) / "model.safetensors")


def assert_same(left, right, **tolerance):
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], **tolerance)


@pytest.mark.parametrize(
    "hosts",
    ["a:1,b:1", pytest.param("a:2,b:2", marks=pytest.mark.cluster), pytest.param("a:1,b:3", marks=pytest.mark.cluster)],
)
def test_hosts_learn_what_one_process_learns(start, split, learnt_the_same, tmp_path, hosts):
    result = start(*split, hosts=hosts)
    learnt_the_same(tmp_path / "run")
    assert "[a/0] training 3 of 3" in result.stdout, "lines carry host and rank"


@pytest.mark.cluster
def test_four_hosts_learn_what_one_process_learns(start, four_hosts, split, learnt_the_same, tmp_path):
    start.lab = four_hosts
    start(*split, hosts="a:1,b:1,c:1,d:1")
    learnt_the_same(tmp_path / "run", hosts="abcd")


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["two_level", "fsdp", "hybrid"])
def test_every_exact_strategy_learns_what_one_process_learns(start, split, learnt_the_same, tmp_path, strategy):
    """An island is a host, as it is found, not as it is said."""
    start(*split, f"parallel.strategy={strategy}", hosts="a:2,b:2")
    learnt_the_same(tmp_path / "run")


def one_line(result):
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.strip().splitlines()
    return line


class TestMistakes:
    """Each ends in half a minute, with one line that names the host and the remedy, and leaves no process behind. (On a busy machine they
    take a quarter of that; what waits for something that never comes would take longer.)"""

    @pytest.fixture
    def start(self, start):
        start.limit = 30.0
        return start

    def test_a_host_that_does_not_exist(self, start):
        line = one_line(start(hosts="a:1,nosuch:1", check=False))
        assert "host nosuch: cannot be reached" in line
        assert "Could not resolve hostname nosuch" in line
        assert "try: " in line

    def test_an_interface_that_does_not_exist(self, start):
        line = one_line(start(options=("--interface", "ib0"), check=False))
        assert (
            f"host a: has no interface ib0 that is up; it has eth0 ({start.lab.address('a')}), lo (127.0.0.1)" in line
        )

    def test_an_interface_that_no_other_host_can_reach(self, start):
        line = one_line(start(options=("--interface", "lo"), check=False))
        assert "host b: cannot connect to host a at port " in line
        assert "127.0.0.1: " in line
        assert "or name another network with --interface" in line

    def test_a_closed_port(self, start):
        start.lab.close_port("a", 29555)
        try:
            line = one_line(start(options=("--port", "29555"), check=False))
        finally:
            start.lab.open_ports("a")
        assert "host b: cannot connect to host a at port 29555" in line
        assert "no answer within 4 s" in line
        assert "open TCP between the hosts" in line

    def test_a_busy_port(self, start, lab):
        held = "import socket, time; s = socket.create_server(('', 29556)); print(flush=True); time.sleep(600)"
        with subprocess.Popen(lab.command("a", sys.executable, "-c", held), stdout=subprocess.PIPE) as holder:
            assert holder.stdout.readline()
            result = subprocess.run(
                start.words(options=("--port", "29556")),
                capture_output=True,
                text=True,
                check=False,
                timeout=start.limit,
            )
            holder.kill()
        assert lab.left_behind() == []
        assert "host a: port 29556 is in use by another program; leave --port out" in one_line(result)

    def test_prepared_data_that_is_not_there(self, start, tmp_path):
        line = one_line(start(f"data.folder={tmp_path}/nothing", check=False))
        assert line.startswith("dragoman: host a: ")
        assert "no prepared data there. Run `dragoman prepare`" in line

    def test_prepared_data_that_is_on_one_host_only(self, start, odd_host, prepared):
        empty = odd_host(f"mount -t tmpfs none {prepared.folder}")
        line = one_line(start(options=("--rsh", empty), check=False))
        assert line.startswith("dragoman: host b: ")
        assert "no prepared data there. Run `dragoman prepare`" in line

    def test_going_on_from_checkpoints_that_one_host_does_not_see(self, start, odd_host, tmp_path):
        (tmp_path / "disk").mkdir()
        apart = odd_host(f"mount -t tmpfs none {tmp_path}/disk")
        line = one_line(start(options=("--rsh", apart, "--restarts", "1"), run="disk/run", check=False))
        assert f"host b: does not see what host a writes to run.folder ({tmp_path}/disk)" in line
        assert "put run.folder on a disk that all hosts share" in line
        assert list((tmp_path / "disk").iterdir()) == []

    def test_another_version_on_one_host(self, start, odd_host, tmp_path):
        package = Path(dragoman.__file__).parent
        shutil.copytree(package, tmp_path / "old" / "dragoman", ignore=shutil.ignore_patterns("__pycache__"))
        about = tmp_path / "old" / "dragoman" / "__init__.py"
        text = about.read_text(encoding="utf-8").replace(dragoman.__version__, "0.0.9")
        about.write_text(text, encoding="utf-8")
        mixed = odd_host(f"export PYTHONPATH={tmp_path}/old")
        line = one_line(start(options=("--rsh", mixed), check=False))
        assert f"host b: has dragoman 0.0.9, host a has {dragoman.__version__}; install the same on both" in line

    def test_a_python_without_dragoman(self, start):
        line = one_line(start(options=("--python", "/usr/bin/nosuch"), check=False))
        assert "host a: its Python cannot start dragoman" in line
        assert "--python" in line

    def test_a_mistake_that_only_ranks_see(self, start, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "mine.txt").write_text("not a run", encoding="utf-8")
        line = one_line(start(check=False))
        assert line.startswith("dragoman: host ")
        assert "is not empty and holds no run" in line


def training(start, tmp_path):
    words = start.words("train.max_steps=100000", "train.log_every=100000")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: started(tmp_path / "run"))
    return process


def test_ctrl_c_ends_every_process_with_a_checkpoint(start, tmp_path):
    with training(start, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert start.lab.left_behind() == []
    stop = runs.read_rows(tmp_path / "run" / "events.jsonl")[-1]
    assert (stop["event"], stop["reason"]) == ("stop", "interrupted")
    assert "dragoman launch" in out
    assert "--resume" in out


def test_a_launcher_that_is_killed_leaves_nothing_behind(start, tmp_path):
    with training(start, tmp_path) as process:
        process.kill()
        process.communicate(timeout=300)
    wait_until(lambda: start.lab.left_behind() == [])


@pytest.mark.cluster
@pytest.mark.parametrize("fault", ["kill:rank=1,step=5", "kill:rank=0,step=5", "hang:rank=1,step=5"])
def test_a_lost_rank_starts_all_hosts_again_to_the_same_end(start, tmp_path, fault):
    every = ["checkpoint.every=2", "train.max_steps=8", "train.timeout_seconds=4", "train.log_every=1"]
    start(*every, run="undisturbed")
    words = start.words(*every, options=("--restarts", "2", "--simulate-fault", fault))
    # In the environment of the undisturbed one: with more threads sums are rounded otherwise.
    result = subprocess.run(words, capture_output=True, text=True, env=start.environment, check=False, timeout=180)
    assert result.returncode == 0, result.stderr
    assert "starting again, 1 of at most 2 times" in result.stderr
    told = [row for row in runs.read_rows(tmp_path / "run" / "events.jsonl") if row["event"] in ("fault", "hang")]
    if fault.startswith("kill"):
        assert [(row["kind"], row["rank"]) for row in told] == [("killed", int(fault[len("kill:rank=")]))]
    assert {row["host"] for row in told} <= {"a", "b"}
    assert told
    assert_same(weights(tmp_path / "undisturbed", 8), weights(tmp_path / "run", 8), rtol=0, atol=0)


@pytest.mark.cluster
def test_a_cable_that_is_pulled_for_a_while_costs_a_restart(start, lab, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    words = start.words(
        "train.max_steps=500", "checkpoint.every=50", "train.timeout_seconds=5", options=("--restarts", "3")
    )
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: runs.checkpoint_folders(run))
        lab.cut("b")
        time.sleep(8.0)
        lab.mend("b")
        _, error = process.communicate(timeout=170)
    assert process.returncode == 0, error
    assert "starting again" in error
    assert start.lab.left_behind() == []
    events = [row["event"] for row in runs.read_rows(run.events)]
    assert events.count("resume") >= 1
    assert events[-1] == "stop"
