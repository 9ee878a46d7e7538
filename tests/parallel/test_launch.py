"""Launching: ranks on a Ray cluster learn what one process learns; a missing extra is answered with its pip line."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest
import torch
from faults import Watched
from safetensors.torch import load_file
from support import as_overrides, dragoman, tiny_config, wait_until

from dragoman import runs
from dragoman.parallel import agent, cluster, hosts
from dragoman.parallel.hosts import Fleet, Host
from dragoman.parallel.ranks import Outcome, kind_of

SPLIT = ["model.dropout=0.0", "train.max_steps=3", "train.tokens_per_gpu=256"]


@pytest.mark.usefixtures("alone_with_ray")
def test_two_ranks_on_ray_learn_what_one_process_learns_though_one_is_lost(prepared, tmp_path):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    fault = ["--restarts", "1", "--simulate-fault", "kill:rank=1,step=2"]
    for name, arguments in (("alone", ["--nproc", "1"]), ("ray", ["--nproc", "2", "--engine", "ray", *fault])):
        config = tiny_config(prepared.folder, tmp_path / name, *SPLIT)
        dragoman("train", "tiny", *as_overrides(config), *arguments)
    alone, ray = (
        load_file(runs.RunFolder(tmp_path / name).checkpoint(3) / "model.safetensors") for name in ("alone", "ray")
    )
    for name, tensor in alone.items():
        torch.testing.assert_close(tensor, ray[name], rtol=1e-4, atol=1e-6)
    events = runs.read_rows(tmp_path / "ray" / "events.jsonl")
    begun = [row for row in events if row["event"] in ("start", "resume")]
    assert [row["ranks"] for row in begun] == [2, 2]
    (fault,) = (row for row in events if row["event"] == "fault")
    assert (fault["kind"], fault["rank"], fault["attempt"]) == ("killed", 1, 0)
    assert begun[1]["after"].startswith(f"killed: rank 1 on host {fault['host']}")
    assert not list(tmp_path.glob(".ray-*")), "Ray's notes are gone"


def test_on_ray_the_fault_is_that_of_the_rank_which_failed_first():
    """Though the worker of one that lost it notices earlier; and a mistake on one rank is not started again."""
    desk = cluster.Desk()
    failed, killed = (Outcome(code, kind=kind_of(code)).weight for code in (1, -signal.SIGKILL))
    for rank in range(3):
        desk.begin(rank)
    desk.fail(0, failed, {"rank": 0})
    assert not desk.reason_known(0)
    desk.fail(0, killed, {"rank": 2})
    assert desk.reason_known(0)
    assert desk.take_fault(0) == {"rank": 2}
    assert desk.take_fault(0) is None, "told once"
    for rank in (1, 0, 2):
        desk.fail(1, failed, {"rank": rank})
    assert desk.reason_known(1)
    assert desk.take_fault(1) == {"rank": 1}, "whoever told first, where nobody has a reason of its own"
    desk.fail(2, failed, {"rank": 0})
    assert not desk.reason_known(2)
    desk.end(1, 2)
    assert desk.reason_known(2)


class Remote:
    """An actor of Ray that lives here: `desk.end.remote(...)`, asked by `ray.get`."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self.real, name))


@pytest.mark.parametrize(
    ("code", "told", "again", "ends"),
    [
        (-signal.SIGINT, [signal.SIGINT], False, 128 + signal.SIGINT),  # before it could listen
        (-signal.SIGTERM, [], True, None),  # by somebody else
        (128 + signal.SIGINT, [signal.SIGINT], False, 128 + signal.SIGINT),
        (1, [signal.SIGINT], False, 1),
        (-signal.SIGKILL, [signal.SIGINT], False, 1),
        (1, [], True, None),
        (2, [], False, 2),
        (0, [], False, 0),
    ],
)
def test_on_ray_ranks_that_were_asked_to_stop_are_not_started_again(tmp_path, code, told, again, ends):
    desk = cluster.Desk()
    desk.begin(0)
    for number in told:
        desk.hand_on(number)
    ray = SimpleNamespace(get=lambda answer: answer)
    with pytest.raises(RuntimeError) if again else nullcontext():
        cluster.tell_end(ray, Remote(desk), 0, 0, code, runs.RunFolder(tmp_path))
    assert desk.codes() == ([] if again else [ends])


class Waiting:
    """A trainer for whose ranks there is no room; with one, a rank asks for signals all the while and ends when there is one."""

    def __init__(self, desk=None):
        self.desk, self.over = desk, threading.Event()

    def fit(self):
        while not self.over.wait(0.01):
            if self.desk and self.desk.received():
                return self.desk.end(0, 128 + self.desk.signals[0])


@pytest.mark.parametrize("runs_already", [True, False])
def test_on_ray_a_stop_is_heard_though_no_rank_has_begun(monkeypatch, capsys, runs_already):
    monkeypatch.setattr(cluster, "ROOM_SECONDS", 1.0)
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.01)
    desk, received = cluster.Desk(), []
    trainer = Waiting(desk if runs_already else None)
    stop = threading.Timer(3.0, received.append, [signal.SIGINT])
    stop.start()
    try:
        code = cluster.run_ranks(SimpleNamespace(get=lambda answer: answer), Remote(desk), trainer, received)
    finally:
        trainer.over.set()
    assert (code, desk.codes()) == (130, [130] if runs_already else [])
    assert ("waits for room" in capsys.readouterr().out) is not runs_already


def test_on_ray_a_moment_without_answers_ends_nothing(monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.01)
    desk, asked = cluster.Desk(), []
    trainer = Waiting()

    def get(answer):
        asked.append(answer)
        if len(asked) < 4:
            raise ConnectionError("the actor is temporarily unavailable")
        trainer.over.set()
        return answer

    desk.end(0, 0)
    assert cluster.run_ranks(SimpleNamespace(get=get), Remote(desk), trainer, []) == 0
    assert len(asked) > 4


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None  # as if it were not installed
sys.argv = ["dragoman", *sys.argv[2:]]
from dragoman.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("ray", "ray", ["train", "tiny", "--engine", "ray"]),
        ("ctranslate2", "export", ["export", "RUN", "OUT", "--to", "ctranslate2"]),
        ("fastapi", "serve", ["serve", "RUN"]),
        ("comet", "comet", ["evaluate", "RUN", "--metric", "comet", "--beam", "1"]),
    ],
)
def test_a_missing_extra_is_answered_with_its_pip_line(module, extra, command, prepared, tmp_path):
    from dragoman.cli.stages import train

    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=1")
    if "RUN" in command:
        train(config)
    names = {"RUN": str(tmp_path / "run"), "OUT": str(tmp_path / "out")}
    command = [names.get(word, word) for word in command] + (as_overrides(config) if command[0] == "train" else [])
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, module, *command], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2, result.stderr
    assert f"pip install '.[{extra}]'" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def runs_on(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_their_launcher(prepared, tmp_path, number):
    """However it goes: killed, it cannot tell them; and a signal for the whole group of processes, as a shell sends it, is for the
    launcher alone, which lets them save."""
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=100000")
    command = [sys.executable, "-m", "dragoman", "train", "tiny", *as_overrides(config), "--nproc", "2"]
    with Watched(command, tmp_path / "run", own_group=True) as watched:
        watched.wait_for_step(10)
        processes = [*watched.children(), *watched.ranks().values()]
        if number == signal.SIGKILL:
            watched.process.kill()
        else:
            os.killpg(watched.process.pid, number)
        assert watched.finish() == (-number if number == signal.SIGKILL else 128 + number), watched.said
        wait_until(lambda: not any(map(runs_on, processes)))
    if number == signal.SIGTERM:
        stop = runs.read_rows(tmp_path / "run" / "events.jsonl")[-1]
        assert (stop["event"], stop["reason"]) == ("stop", "terminated")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_plan_that_is_stopped_while_it_tries_leaves_no_process(number):
    words = ["plan", "tiny", "data.folder=nothing-is-here", "train.device=cpu", "--compute-seconds", "1"]
    plan = subprocess.Popen([sys.executable, "-m", "dragoman", *words], stderr=subprocess.DEVNULL)
    trying = psutil.Process(plan.pid)

    def begun():
        return [each for each in trying.children(recursive=True) if each.ppid() != plan.pid]

    wait_until(lambda: len(begun()) == 2)
    processes = trying.children(recursive=True)
    plan.send_signal(number)
    assert plan.wait(60) == (130 if number == signal.SIGINT else -number)
    wait_until(lambda: not any(map(runs_on, processes)), 20.0)


def test_a_host_that_falls_silent_is_given_up():
    """TCP alone would wait for it for a quarter of an hour."""
    fleet = Fleet.__new__(Fleet)
    fleet.hosts, fleet.inbox = [Host("a", 1), Host("b", 1)], queue.Queue()
    for host, silent in zip(fleet.hosts, (1.0, 60.0), strict=True):
        host.connect(["sleep", "600"], queue.Queue())
        host.heard = time.monotonic() - silent
    fleet.give_up_silent()
    speaks, is_silent = fleet.hosts
    assert is_silent.process.wait(10) == -signal.SIGKILL
    assert "silent for 30 s" in is_silent.words
    assert fleet.inbox.get_nowait() == (is_silent, {"lost": True}), "whatever holds its end of the line open"
    assert fleet.inbox.empty()
    assert speaks.process.poll() is None
    speaks.process.kill()
    speaks.process.wait()
    assert agent.SILENCE_SECONDS < hosts.SILENCE_SECONDS, "its old ranks are gone before there are new ones"
    assert agent.SILENCE_SECONDS > 2 * hosts.BEAT_SECONDS
