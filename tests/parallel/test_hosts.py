"""What the launcher and the doctor make of what hosts say: hosts here are words, or a command of this machine."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support import tiny_config

from dragoman.cli.hosts import inspect
from dragoman.config import load_config, to_toml
from dragoman.config.schema import Parallel
from dragoman.errors import TrainingError
from dragoman.parallel import doctor, hosts, network
from dragoman.parallel.doctor import own_bytes


class Spoken(hosts.Host):
    """Answers as it was told to; where it was not, as a host with which all is well."""

    asked = beats = 0

    def ask(self, do, seconds=hosts.ANSWER_SECONDS, **details):
        self.says.setdefault("patience", {})[do] = seconds
        if do == "start":
            self.inbox.put((self, {"rank": 0, "line": f"device {self.says.get('device', 'cpu')}"}))
            for message in self.says.get("probed", [{"rank": 0, "line": "seconds 0.5"}, {"ended": 0, "attempt": 0}]):
                self.inbox.put((self, message))
            return {}
        answer = {**ALL_IS_WELL, **self.says}[do]
        answer = answer(details) if callable(answer) else answer
        if isinstance(answer, str):
            raise self.error(answer)
        return answer

    def send(self, message):
        self.beats += message["do"] == "beat"


FACTS = {
    "versions": {"dragoman": "1"},
    "addresses": {"eth0": "10.0.0.1"},
    "problem": "",
    "data_digest": "d" * 12,
    "gpus": [],
    "cores": 64,
    "usable_cores": 8,
    "disk": {"folder": "/disk", "free_bytes": 10**12, "bytes_per_s": 1e9},
}
ALL_IS_WELL = {
    "look": lambda _: dict(FACTS),
    "mark": {"path": "/disk/mark"},
    "sees": {"seen": True},
    "unmark": {},
    "resolve": lambda details: {"found": {name: ["10.0.0.9"] for name in details["names"]}},
    "clock": {"time": 0.0},
    "listen": lambda details: {
        "ports": [40000] if details["port"] is None else [details["port"] or 20001, 40001],
        "token": "t",
    },
    "reach": lambda details: {
        "found": {
            name: {address: [""] * len(target["ports"]) for address in target["addresses"]}
            for name, target in details["targets"].items()
        }
    },
    "deaf": {},
    "speed": {"mbit": 1000},
    "measure": {"bytes_per_s": 1e8, "round_trip_seconds": 1e-4},
}
GPUS = {"gpus": [{"name": "H100", "driver": "570"}] * 2}
APART = {"sees": {"seen": False}}


@pytest.fixture
def told(monkeypatch):
    """What each host says beside that all is well; then a fleet of them."""
    says = {}

    def connected(fleet, name, ranks):
        host = Spoken(name, ranks)
        host.says, host.inbox = says.setdefault(name, {}), fleet.inbox
        return host

    monkeypatch.setattr(hosts.Fleet, "connected", connected)
    monkeypatch.setattr(hosts.Host, "leave", lambda host: None)
    return says


@pytest.fixture
def told_hosts(told):
    """The outcome of a run whose hosts end in these words, in this order."""

    def watch(*messages):
        fleet = fleet_of(names=",".join("abc"[: len(messages)]))
        for host, message in zip(fleet.hosts, messages, strict=True):
            host.heard, host.words, host.answers = time.monotonic(), [], {}
            fleet.inbox.put((host, message))
        return fleet.watch()

    return watch


def fleet_of(*overrides, names="a:2,b:2", resumes=False, **said):
    config = load_config("tiny", ["train.device=cpu", *overrides])
    return hosts.Fleet(hosts.Cluster(hosts.parse_hosts(names), **said), config, [], resumes=resumes)


def findings(*overrides, names="a:2,b:2"):
    config = load_config("tiny", ["train.device=cpu", *overrides])
    return list(doctor.examine(hosts.Cluster(hosts.parse_hosts(names)), config, 0, 0))


@pytest.mark.parametrize("chosen", ["strategy=fsdp", "strategy=hybrid"])
def test_pieces_of_checkpoints_that_the_first_host_would_wait_for_in_vain(told, chosen):
    told["b"] = APART
    crosses = ["parallel.ranks_per_island=4"] if "hybrid" in chosen else []
    overrides = [f"parallel.{chosen}", *crosses, "train.tokens_per_gpu=1024"]
    with pytest.raises(TrainingError, match=r"host b: does not see what host a writes .*put run.folder on a disk"):
        fleet_of(*overrides).take_up()
    assert [found.verdict for found in findings(*overrides) if "does not see" in found.text] == ["stop"]


def test_a_folder_that_is_not_shared_is_no_harm_where_the_first_host_saves_all(told, capsys):
    told["b"] = APART
    for chosen in ("ddp", "hybrid"):
        fleet_of(f"parallel.strategy={chosen}", "train.tokens_per_gpu=1024").take_up()
        assert "--resume and --restarts will not work" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("closed", "named", "line"),
    [
        (range(20000, 32000), 0, "at port 20001 .*at ports 20000 to 31999, of which rank 0 takes one"),
        (range(29500, 29501), 29500, r"at port 29500 .*at port 29500 \(--port\)"),
        (range(32768, 61000), 0, r"at port 40001 .*at the ports that the system chooses \(sysctl"),
        (range(20000, 32000), 29600, ""),
    ],
)
def test_a_firewall_is_told_by_the_range_that_it_closes(told, closed, named, line):
    """--port alone beside the ports of the system is enough where a firewall opens that one."""
    told["b"] = {
        "reach": lambda details: {
            "found": {
                name: {
                    address: ["no answer" if port in closed and port != 29600 else "" for port in target["ports"]]
                    for address in target["addresses"]
                }
                for name, target in details["targets"].items()
            }
        }
    }
    fleet = fleet_of(port=named)
    if not line:
        fleet.take_up()
        assert fleet.port == named
        return
    with pytest.raises(TrainingError, match=f"host b: cannot connect to host a {line}"):
        fleet.take_up()


def two_networks(reaches):
    """A host with a fast network and a slow one; `reaches`: why it does not come to an address."""

    def reach(details):
        found = {
            name: {address: [reaches(name, address)] * len(target["ports"]) for address in target["addresses"]}
            for name, target in details["targets"].items()
        }
        return {"found": found}

    return {"look": lambda _: FACTS | {"addresses": {"eth0": "10.0.0.1", "eth1": "10.1.0.1"}}, "reach": reach}


def test_the_first_address_that_all_others_reach_is_taken_host_by_host(told):
    """b's fast network is a bridge that every machine has; a's is cut off from c."""
    trouble = {("a", "b", "10.0.0.1"): "another machine answered there", ("c", "a", "10.0.0.1"): "no answer within 4 s"}
    for name in "abc":
        told[name] = two_networks(lambda other, address, name=name: trouble.get((name, other, address), ""))
    fleet = fleet_of(names="a:1,b:1,c:1")
    fleet.take_up()
    assert [(host.name, host.interface, host.address) for host in fleet.hosts] == [
        ("a", "eth1", "10.1.0.1"),
        ("b", "eth1", "10.1.0.1"),
        ("c", "eth0", "10.0.0.1"),
    ]


def test_hosts_that_meet_nowhere_are_told_with_the_reason_for_every_address(told):
    for name in "ab":
        told[name] = two_networks(lambda other, address: "no answer" if address.startswith("10.0") else "refused")
    why = r"host b: cannot connect to host a at port 20001 \(10\.0\.0\.1: no answer; 10\.1\.0\.1: refused\); open TCP"
    with pytest.raises(TrainingError, match=why):
        fleet_of().take_up()


def test_all_hosts_try_at_once_to_reach_the_others(told):
    """A network that drops packets costs one wait, however many hosts there are."""
    together = threading.Barrier(3)
    for name in "abc":
        told[name] = {"reach": lambda details: (together.wait(timeout=20.0) and None) or ALL_IS_WELL["reach"](details)}
    fleet_of(names="a:1,b:1,c:1").take_up()


def beaten(host, patience=5.0):
    """Whether signs of life come while whoever asks does nothing else."""
    until, before = time.monotonic() + patience, host.beats
    while time.monotonic() < until and host.beats < before + 2:
        time.sleep(0.01)
    return host.beats >= before + 2


def test_a_launcher_that_cannot_print_gives_signs_of_life(told, monkeypatch):
    monkeypatch.setattr(hosts, "BEAT_SECONDS", 0.01)
    alive = []
    with fleet_of(names="a:1") as fleet:
        paused = SimpleNamespace(write=lambda text: alive.append(beaten(fleet.hosts[0])), flush=lambda: None)
        monkeypatch.setattr(sys, "stdout", paused)
        fleet.inbox.put((fleet.hosts[0], {"rank": 0, "line": "one of very many"}))
        fleet.inbox.put((fleet.hosts[0], {"ended": 0, "attempt": 0}))
        fleet.hosts[0].heard = time.monotonic()
        assert fleet.watch().code == 0
    assert alive
    assert all(alive)


def test_a_doctor_whose_findings_nobody_takes_gives_signs_of_life(told, monkeypatch):
    monkeypatch.setattr(hosts, "BEAT_SECONDS", 0.01)
    met = []
    monkeypatch.setattr(doctor, "same", lambda fleet: met.append(fleet) or iter(()))
    examining = doctor.examine(hosts.Cluster(hosts.parse_hosts("a")), load_config("tiny", ["train.device=cpu"]), 0, 0)
    for _ in range(2):
        next(examining)
    assert beaten(met[0].hosts[0])
    examining.close()
    assert met[0].left.wait(1.0)


def test_two_threads_do_not_write_into_each_others_lines():
    written = []

    def write(text):
        for character in text:
            written.append(character)
            time.sleep(1e-5)

    host = hosts.Host("b", 1)
    host.writing = threading.Lock()
    host.process = SimpleNamespace(stdin=SimpleNamespace(write=write, flush=lambda: None))
    threads = [threading.Thread(target=host.send, args=({"do": word * 50},)) for word in ("beat", "look")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted("".join(written).splitlines()) == [f'{{"do": "{word * 50}"}}' for word in ("beat", "look")]


def ended(kind, code=1, rank=0, **more):
    return {"ended": code, "line": kind, "failed_rank": rank, "kind": kind, "attempt": 0, "reason_known": False, **more}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (ended("failed"), ended("killed"), "b"),
        (ended("failed"), ended("stopped"), "b"),
        (ended("failed"), ended("hung", 74), "b"),
        (ended("failed"), {"lost": True}, "b"),
        (ended("killed"), {"lost": True}, "a"),
        (ended("killed"), ended("failed"), "a"),
        (ended("failed"), ended("failed"), "a"),
        (ended("killed"), ended("failed", 2), "b"),
        (ended("failed", 2), ended("killed"), "a"),
    ],
)
def test_who_was_killed_is_named_not_the_host_that_noticed_first(told_hosts, first, second, named):
    assert told_hosts(first, second).host == named


def stops(found):
    return [finding.text for finding in found if finding.verdict == "stop"]


def test_gpus_that_torch_does_not_see_are_no_go(told):
    """NVML counts them; a torch without CUDA, or an old driver, leaves every rank on the processor."""
    for name in ("a", "b"):
        told[name] = {"look": lambda _: FACTS | GPUS, "device": "cuda"}
    assert stops(findings("train.device=auto")) == []
    told["b"]["device"] = "cpu"
    assert stops(findings("train.device=auto")) == ["host b: its torch sees none of its GPUs"]
    told["a"]["device"] = "cpu"
    assert stops(findings("train.device=auto", names="a")) == ["host a: its torch sees none of its GPUs"]


def test_gpus_are_not_counted_where_nobody_wants_them(told):
    told["a"] = {"look": lambda _: FACTS | GPUS}
    fleet = fleet_of(names="a")
    fleet.look()
    assert fleet.hosts[0].ranks == 1
    found = findings(names="a:8")
    assert stops(found) == []
    assert any("host a: no GPU to use, 8 cores, for 8 processes" in each.text for each in found)


@pytest.mark.parametrize(
    ("overrides", "verdict"),
    [
        ([], "stop"),
        (["parallel.wire=int8"], "warning"),
        (["parallel.strategy=streaming"], "warning"),
        (["parallel.strategy=local", "parallel.wire=bf16"], "warning"),
    ],
)
def test_a_network_too_slow_for_ddp_stops_those_who_want_ddp(told, monkeypatch, overrides, verdict):
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.5)
    told["a"] = {"probed": []}
    last = findings(*overrides)[-1]
    assert last.verdict == verdict
    assert "did not end within" in last.text
    assert last.remedy == "the network is too slow for ddp"


@pytest.mark.parametrize("do", ["look", "mark", "sees", "resolve", "clock", "listen", "reach", "speed", "measure"])
def test_a_host_that_fails_anywhere_is_a_verdict(told, do):
    told["b" if do != "mark" else "a"] = {do: "did not answer"}
    assert "did not answer" in findings()[-1].text
    assert findings()[-1].verdict == "stop"


def with_verdict(verdict, found):
    return [(finding.text, finding.remedy) for finding in found if finding.verdict == verdict]


def known_as(**addresses):
    return {"resolve": lambda details: {"found": ALL_IS_WELL["resolve"](details)["found"] | addresses}}


@pytest.mark.parametrize(
    ("told_by_b", "trouble"),
    [
        ({"a": []}, "host b finds no address of a"),
        ({"a": ["127.0.1.1"]}, "host b takes the name a for its own (127.0.1.1)"),
        ({"a": ["10.0.0.1", "::1"]}, "host b takes the name a for its own (::1)"),
        ({"b": ["127.0.1.1"]}, ""),
        ({"b": []}, ""),
    ],
)
def test_a_name_that_leads_nowhere_or_home_is_a_warning(told, told_by_b, trouble):
    """The launcher goes by addresses, others do not. What a host calls itself is its own affair."""
    told["b"] = known_as(**told_by_b)
    found = findings()
    assert with_verdict("warning", found) == ([(trouble, doctor.BY_NAME)] if trouble else [])
    assert ("every host finds all others by name" in [each.text for each in found]) is not bool(trouble)
    assert stops(found) == []


def test_the_user_before_a_name_is_no_part_of_it_and_one_host_needs_none(told):
    told["me@a"] = told["you@b"] = {
        "resolve": lambda details: {"found": {name: ["10.0.0.9"] if name in "ab" else [] for name in details["names"]}}
    }
    assert with_verdict("warning", findings(names="me@a:1,you@b:1")) == []
    told["a"] = {"resolve": "is not asked"}
    assert stops(findings(names="a:1")) == []


@pytest.mark.parametrize(
    ("gpu", "warned"),
    [
        ({"name": "H100", "driver": "570"}, []),
        ({"name": "H100", "driver": "550"}, [("GPU drivers differ: 550, 570", "install the same on all hosts")]),
        (
            {"name": "A100", "driver": "570"},
            [("GPUs differ: A100, H100; the slowest sets the pace", "use hosts of one kind")],
        ),
    ],
)
def test_gpus_and_drivers_of_two_kinds_are_warnings(told, gpu, warned):
    for name, gpus in (("a", GPUS), ("b", {"gpus": [GPUS["gpus"][0], gpu]})):
        told[name] = {"look": lambda _, gpus=gpus: FACTS | gpus, "device": "cuda"}
    found = findings("train.device=auto")
    assert with_verdict("warning", found) == warned
    assert stops(found) == []


def test_a_disk_without_room_for_the_checkpoints_that_are_kept_is_no_go(told):
    """Seven at the end, two that were the best, three whose step is a multiple of 3,000, and the one that is written."""
    keep = [f"checkpoint.{each}" for each in ("every=1500", "keep_last=7", "keep_best=2", "keep_every=1000")]

    def verdict(free_bytes, checkpoint_bytes):
        told["b"] = {"look": lambda _: FACTS | {"disk": FACTS["disk"] | {"free_bytes": free_bytes}}}
        config = load_config("tiny", ["train.device=cpu", "train.max_steps=9999", *keep])
        found = doctor.examine(hosts.Cluster(hosts.parse_hosts("a:2,b:2")), config, checkpoint_bytes, 0)
        return with_verdict("stop", found)

    assert verdict(free_bytes=14 * 10**9, checkpoint_bytes=10**9) == []
    assert verdict(free_bytes=14 * 10**9 - 1, checkpoint_bytes=10**9) == [
        (
            "host b: 14.0 GB free where run.folder is, written at 1000 MB/s",
            "make room: 13 checkpoints and some more need 14.0 GB",
        )
    ]


def test_an_interface_says_its_speed_or_does_not(told):
    told["b"] = {"speed": {"mbit": None}}
    said = [each.text for each in findings() if "interface eth0" in each.text]
    reached = "reached by all others at 10.0.0.1, interface eth0, which"
    assert said == [f"host a: {reached} says 1,000 Mbit/s", f"host b: {reached} does not say its speed"]


def test_a_link_of_less_than_half_of_the_best_is_a_warning_and_trips_are_in_ms(told):
    remedy = "check cable, port and limits of both: the slowest link sets the pace"
    for name in ("a", "b"):
        told[name] = {"speed": {"mbit": None}}
    told["b"]["measure"] = {"bytes_per_s": 0.5e8, "round_trip_seconds": 0.01234}
    found = findings()
    assert [each.text for each in found if "there and back" in each.text] == [
        "a to b: 800 Mbit/s, there and back 0.10 ms",
        "b to a: 400 Mbit/s, there and back 12.34 ms",
    ]
    assert with_verdict("warning", found) == [], "one half is not less"
    told["b"]["measure"]["bytes_per_s"] -= 1
    warned = [("b to a has less than half of the 800 Mbit/s of the best", remedy)]
    assert with_verdict("warning", findings()) == warned


@pytest.mark.parametrize(
    ("says", "mbit", "slow"),
    [(10_000, 20, True), (10_000, 2_600, False), (1_000, 499, True), (1_000, 501, False), (None, 20, False)],
)
def test_a_link_that_is_slower_than_its_interface_says_is_a_warning(told, says, mbit, slow):
    """Beyond 5 Gbit/s one stream of bytes is no measure of a link."""
    for name in ("a", "b"):
        told[name] = {"speed": {"mbit": says}, "measure": {"bytes_per_s": mbit * 1e6 / 8, "round_trip_seconds": 1e-4}}
    told_of = f"{mbit:,} Mbit/s, there and back 0.10 ms, less than half of what both interfaces say"
    expected = [(f"{way}: {told_of}", doctor.SLOW_LINK) for way in ("a to b", "b to a")]
    assert with_verdict("warning", findings()) == (expected if slow else [])


@pytest.mark.parametrize(
    ("seconds", "strategy", "slow"), [(2.5, "ddp", True), (0.9, "ddp", False), (2.5, "streaming", False)]
)
def test_an_exchange_that_takes_long_at_every_step_is_a_warning(told, seconds, strategy, slow):
    for name in ("a", "b"):
        told[name] = {"probed": [{"rank": 0, "line": f"seconds {seconds}"}, {"ended": 0, "attempt": 0}]}
    last = findings(f"parallel.strategy={strategy}")[-1]
    assert f"takes {seconds:.3f} s" in last.text
    assert (last.verdict, last.remedy.startswith(doctor.PLAN)) == (("warning", True) if slow else ("ok", False))


def test_a_link_that_takes_long_is_not_called_an_overloaded_host(told):
    findings()
    trips = (2 + network.PINGS) * network.REACH_SECONDS  # to connect, to learn who answers, there and back
    assert told["a"]["patience"]["measure"] > doctor.MEASURE_SECONDS + trips + 2 * network.DRAIN_SECONDS


def test_all_differences_are_told_at_once(told):
    told["b"] = {"look": lambda _: FACTS | {"versions": {"dragoman": "2"}, "data_digest": "e"}}
    told["c"] = {"look": lambda _: FACTS | {"problem": "no prepared data there"}}
    said = stops(findings(names="a:1,b:1,c:1"))
    assert [line.split(";")[0] for line in said] == [
        "host b: has dragoman 2, host a has 1",
        "host b: its prepared data is not that of host a (digest e, not dddddddddddd)",
        "host c: no prepared data there",
    ]


def test_data_that_was_copied_in_part_is_a_problem_of_the_host(prepared, tmp_path):
    """An interrupted copy has a manifest and a vocabulary too."""
    shutil.copytree(prepared.folder, tmp_path / "data")
    run_file = tmp_path / "run.toml"
    run_file.write_text(to_toml(tiny_config(tmp_path / "data", tmp_path / "run")), encoding="utf-8")
    found = inspect(run_file)
    assert (found["problem"], found["data_digest"]) == ("", prepared.manifest["digest"])
    ids = tmp_path / "data" / "train.target.ids"
    ids.write_bytes(ids.read_bytes()[:-100])
    assert "train.target.ids: not as long as its index says" in inspect(run_file)["problem"]
    ids.unlink()
    problem = inspect(run_file)["problem"]
    assert problem.startswith(f"data.folder {tmp_path}/data cannot be read")
    assert "run.folder" not in problem


def test_what_ranks_say_before_an_all_reduce_fails_is_shown_and_not_their_traceback(told):
    trace = (
        "rank 2 failed: Traceback (most recent call last):\n  File x\nRuntimeError: NCCL error: unhandled system error"
    )
    said = [{"rank": 2, "line": "NCCL WARN Call to ibv_reg_mr failed"}, {"rank": 2, "line": "device cpu"}]
    told["b"] = {"probed": [*said, ended("failed", rank=2) | {"line": trace}]}
    told["a"] = {"probed": []}
    last = findings()[-1]
    assert (last.verdict, last.text) == (
        "stop",
        "an all-reduce failed: host b, rank 2: RuntimeError: NCCL error: unhandled system error",
    )
    assert last.heard == ("[b/2] NCCL WARN Call to ibv_reg_mr failed",)
    assert "--interface" in last.remedy


def test_a_host_that_is_away_at_the_last_restart_is_a_fault_and_no_mistake(told, monkeypatch, capsys):
    """Code 2 would tell whoever started it that starting again does not help."""
    outcomes = [
        hosts.Outcome(1, "host b: the connection was lost", kind="lost", host="b"),
        TrainingError("host b: away"),
    ]
    noted = []

    def attempt(fleet, *_):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(hosts.Fleet, "attempt", attempt)
    monkeypatch.setattr(hosts.Fleet, "note", lambda fleet, *faults: noted.extend(faults))
    monkeypatch.setattr(hosts, "before_another", lambda *_: None)
    config = load_config("tiny", ["train.device=cpu"])
    assert hosts.launch_on_hosts(hosts.Cluster(hosts.parse_hosts("a,b")), config, ["train", "RUN_FILE"], {}, 1) == 1
    assert "host b: away" in capsys.readouterr().err
    assert [fault["error"] for fault in noted] == ["host b: the connection was lost", "host b: away"]


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("ssh: Could not resolve hostname gpu-cd: Name or service not known", r"try: ssh -o BatchMode=yes .* b true"),
        ("Host key verification failed.", r"accept its key once, by hand: ssh -o ConnectTimeout=10 .* b true"),
        ("Permission denied (publickey).", r"try: ssh -o BatchMode=yes .* b true"),
    ],
)
def test_a_remedy_asks_what_the_launcher_may_not_ask(said, remedy):
    """Whether a new key is the right one is for a person to say: with BatchMode ssh would fail again."""
    host = hosts.Host("b", 1)
    host.words = [said]
    host.process = SimpleNamespace(args=[*hosts.SSH.split(), "b", "agent"], poll=lambda: 255)
    assert re.search(remedy + "$", str(host.unreachable()))


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("exec /nowhere/bin/python3 -m dragoman agent", "name a Python that has it with --python"),
        ("exec /etc/hostname -m dragoman agent", "name a Python that has it with --python"),
        ("exec python3-is-not-here -m dragoman agent", "name a Python that has it with --python"),
        ("cd /nowhere && exec python3 -m dragoman agent", "name a folder that it has with --folder"),
        ("echo 'zsh:cd:1: no such file or directory: /x' >&2; exit 1", "name a folder that it has with --folder"),
        ("echo 'pods b not found' >&2; exit 1", "try: SHELL -c true"),
    ],
)
def test_a_remedy_follows_from_how_the_shell_ended_not_from_its_words(shell, line, remedy):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    host = hosts.Host("b", 1)
    host.connect([shell, "-c", line], queue.Queue())
    with pytest.raises(TrainingError, match=re.escape(remedy.replace("SHELL", shell)) + "$"):
        host.ask("look")
    host.leave()


def test_what_a_login_shell_writes_before_an_answer_does_not_hide_it():
    """The title of a window, for one, has no end of line."""
    agent = """printf '\\033]0;gpu1\\007'; read -r request; echo '@dragoman {"ask": 1, "time": 5}'"""
    host = hosts.Host("b", 1)
    host.connect(["sh", "-c", agent], queue.Queue())
    try:
        assert host.ask("clock")["time"] == 5
    finally:
        host.leave()


def test_a_host_whose_driver_shows_no_gpu_is_named_before_ranks_wait_for_each_other(told):
    """One rank would speak NCCL, the other gloo."""
    told["a"] = {"look": lambda _: FACTS | GPUS}
    stops = [each.text for each in findings("train.device=auto") if each.verdict == "stop"]
    assert stops == ["host b: shows no GPU, host a does; mend its driver, or set train.device"]
    assert "stop" not in [each.verdict for each in findings("train.device=cpu")]


@pytest.mark.parametrize(("shell", "why"), [("nosuchcommand -x", "No such file"), ("ssh 'a", "No closing quotation")])
def test_a_shell_that_cannot_be_run_is_a_line(shell, why):
    with pytest.raises(TrainingError, match=rf"host a: .* cannot be run here \(.*{why}.*install ssh, or name another"):
        fleet_of(shell=shell)


def test_what_ranks_save_for_themselves_counts_on_the_disk():
    def needed(ranks, **keys):
        return own_bytes(Parallel(**keys), ranks, 100)

    assert needed([2, 2]) == needed([1], strategy="local", wire="int8") == 0
    assert needed([2, 2], strategy="local") == 2 * 16 * 100
    assert needed([2, 2], strategy="streaming", wire="int8", ranks_per_island=1) == 4 * 20 * 100
    assert needed([2, 2], wire="int8") == 4 * 4 * 100
    assert needed([2, 2], strategy="two_level", wire="int8") == 2 * 4 * 100


def gone(pid):
    """Within some seconds; a process that nobody has buried is gone too."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("first", ["look", "start"])
def test_ctrl_c_is_heard_while_a_host_is_waited_for(monkeypatch, tmp_path, capsys, first):
    """The remote shell takes the first request, somebody presses Ctrl-C, and no answer ever comes."""
    if first == "start":
        monkeypatch.setattr(hosts.Fleet, "gather", lambda fleet, patience: None)
    monkeypatch.setattr(hosts, "LEAVE_SECONDS", 0.2)
    shell = tmp_path / "rsh"
    shell.write_text(
        f"""#!/bin/sh
read -r request
printf '%s' "$request" > {tmp_path}/request
sleep 600 &
echo $! > {tmp_path}/pid
kill -INT {os.getpid()}
wait
""",
        encoding="utf-8",
    )
    shell.chmod(0o755)
    began = time.monotonic()
    config = load_config("tiny", ["train.device=cpu"])
    code = hosts.launch_on_hosts(hosts.Cluster([("a", 1)], shell=str(shell)), config, ["train", "RUN_FILE"], {}, 3)
    assert code == 128 + signal.SIGINT
    assert json.loads((tmp_path / "request").read_text(encoding="utf-8"))["do"] == first
    assert time.monotonic() - began < hosts.ANSWER_SECONDS, "nobody waited for the answer"
    assert capsys.readouterr().err == "", "whoever pressed it knows why it has ended"
    assert gone(int((tmp_path / "pid").read_text(encoding="utf-8"))), "what the remote shell had started"


HANGS = """
import time
from dragoman.parallel import agent
agent.HUNG_SECONDS = 0.5
agent.Agent(lambda run_file: print("hangs", run_file, flush=True) or time.sleep(600)).serve()
"""


def test_an_agent_that_hangs_in_a_request_ends_when_the_launcher_is_gone():
    """As in a network disk that is dead: the end of its input waits behind the request."""
    agent = subprocess.Popen([sys.executable, "-c", HANGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        agent.stdin.write(json.dumps({"ask": 1, "do": "look", "toml": ""}) + "\n")
        agent.stdin.flush()
        word, run_file = agent.stdout.readline().split()
        assert word == "hangs"
        children = psutil.Process(agent.pid).children()
        assert children, "the fork server is there"
        agent.stdin.close()
        assert agent.wait(timeout=60.0) == 1
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
    assert all(gone(child.pid) for child in children)
    assert not Path(run_file).parent.exists()
