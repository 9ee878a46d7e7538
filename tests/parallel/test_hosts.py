"""What the launcher and the doctor make of what hosts say: hosts here are words, no process is started."""

from __future__ import annotations

import pytest

from dragoman.config import load_config
from dragoman.errors import TrainingError
from dragoman.parallel import doctor, hosts


class Spoken(hosts.Host):
    """Answers as it was told to; where it was not, as a host with which all is well."""

    asked = 0

    def ask(self, do, seconds=0.0, **details):
        answer = {**ALL_IS_WELL, **self.says}[do]
        answer = answer(details) if callable(answer) else answer
        if isinstance(answer, str):
            raise self.error(answer)
        return answer

    def send(self, message):
        pass


FACTS = {
    "versions": {"dragoman": "1"},
    "addresses": {"eth0": "10.0.0.1"},
    "problem": "",
    "data_digest": "d" * 12,
    "gpus": [],
    "cores": 8,
    "disk": {"folder": "/disk", "free_bytes": 10**12, "bytes_per_s": 1e9},
}
ALL_IS_WELL = {
    "look": lambda _: dict(FACTS),
    "mark": {"path": "/disk/mark"},
    "sees": {"seen": True},
    "unmark": {},
    "clock": {"time": 0.0},
    "listen": {"port": 20001, "token": "t"},
    "reach": lambda details: {"found": dict.fromkeys(details["addresses"], "")},
    "deaf": {},
    "speed": {"mbit": 1000},
    "measure": {"bytes_per_s": 1e8, "round_trip_seconds": 1e-4},
}
APART = {"sees": {"seen": False}}


@pytest.fixture
def told(monkeypatch):
    """What each host says beside that all is well; then a fleet of them."""
    says = {}

    def connected(fleet, name, ranks):
        host = Spoken(name, ranks)
        host.says = says.get(name, {})
        return host

    monkeypatch.setattr(hosts.Fleet, "connected", connected)
    monkeypatch.setattr(hosts.Host, "leave", lambda host: None)
    return says


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
