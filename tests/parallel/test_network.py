"""Addresses: who listens where, and which interface leads to a name."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.errors import TrainingError
from dragoman.parallel import network
from dragoman.parallel.launch import PORTS, free_port, loopback


def test_a_listener_is_heard_at_its_own_address_and_nowhere_else():
    listener = network.Listener(["127.0.0.1"], 0)
    try:
        meant = {"addresses": ["127.0.0.1", "127.0.0.2"], "ports": listener.ports, "token": listener.token}
        other = {"addresses": ["127.0.0.1"], "ports": listener.ports[:1], "token": "another word"}
        assert network.reach({"b": meant, "c": other}) == {
            "b": {"127.0.0.1": ["", ""], "127.0.0.2": ["Connection refused"] * 2},
            "c": {"127.0.0.1": ["another machine answered there"]},
        }
        assert network.reach({}) == {}
    finally:
        listener.close()


def test_an_address_that_two_interfaces_share_is_listened_at_once():
    listener = network.Listener(["127.0.0.1", "127.0.0.1"], 0)
    listener.close()
    assert len(listener.sockets) == len(listener.ports)


def test_a_listener_that_finds_its_port_busy_keeps_no_other():
    port = free_port("")
    with socket.create_server(("127.0.0.2", port)):
        with pytest.raises(TrainingError, match=f"port {port} is in use by another program; leave --port out"):
            network.Listener(["127.0.0.1", "127.0.0.2"], port)
        socket.create_server(("127.0.0.1", port)).close()


def test_hosts_meet_at_ports_as_ranks_will_use_them():
    """Rank 0 listens where the system puts nobody, all ranks where it puts them: a firewall may know one and not the other."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    first, other = network.Listener(["127.0.0.1"], 0), network.Listener(["127.0.0.1"])
    for listener in (first, other):
        listener.close()
    assert PORTS[0] <= first.ports[0] < PORTS[1]
    assert low <= first.ports[1] <= high
    assert [low <= port <= high for port in other.ports] == [True]


def test_the_fastest_interface_is_tried_first(monkeypatch):
    """What it says of itself; a bridge of containers leads nowhere, however fast it claims to be."""
    speeds = {"lo": 0, "eth0": 1_000, "docker0": 10_000, "tap0": network.UNKNOWN_MBIT, "eth1": 100_000, "tun0": 0}
    interfaces = {
        name: [SimpleNamespace(family=socket.AF_INET, address=f"10.0.{place}.1")] for place, name in enumerate(speeds)
    }
    interfaces["lo"][0].address = "127.0.0.1"
    states = {name: SimpleNamespace(isup=True, speed=speed) for name, speed in speeds.items()}
    monkeypatch.setattr(network.psutil, "net_if_addrs", lambda: interfaces)
    monkeypatch.setattr(network.psutil, "net_if_stats", lambda: states)
    assert network.candidates(network.own_addresses()) == ["eth1", "eth0", "tap0", "tun0", "docker0"]


def test_the_interface_that_leads_to_a_name():
    assert network.leading_to("127.0.0.1", outside=False) == loopback()
    assert network.leading_to("no.such.name.invalid", outside=False) == ""
    assert network.leading_to("127.0.0.1", outside=True) != loopback(), "no other host is behind it"


def test_names_are_found_together_and_none_is_waited_for_too_long(monkeypatch):
    """A name server that is gone holds up no answer about the other names."""
    served = threading.Event()
    look_up = socket.getaddrinfo

    def slow(name, *more, **others):
        if name == "far":
            served.wait()
        return look_up("127.0.0.1" if name == "near" else name, *more, **others)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(network, "RESOLVE_SECONDS", 0.5)
    try:
        found = network.resolved(["far", "198.18.0.1", "near", "a..b"])
    finally:
        served.set()
    assert found == {"far": [], "198.18.0.1": ["198.18.0.1"], "near": ["127.0.0.1"], "a..b": []}


def test_a_link_that_takes_nothing_is_told_with_what_to_look_at(monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(network, "DRAIN_SECONDS", 0.3)
    listener = network.Listener(["127.0.0.1"])
    try:
        assert network.measure("127.0.0.1", listener.ports[0], 0.1)["bytes_per_s"] > 0
        monkeypatch.setattr(network, "count_bytes", lambda connection: done.wait())
        with pytest.raises(TrainingError, match=r"what it sends to .* does not arrive in time; check cable"):
            network.measure("127.0.0.1", listener.ports[0], 10.0)
    finally:
        done.set()
        listener.close()
