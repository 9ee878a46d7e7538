"""Addresses: who listens where, and which interface leads to a name."""

from __future__ import annotations

import socket

import pytest

from dragoman.errors import TrainingError
from dragoman.parallel import network
from dragoman.parallel.launch import free_port, loopback


def test_a_listener_is_heard_at_its_own_address_and_nowhere_else():
    listener = network.Listener(["127.0.0.1"])
    try:
        found = network.reach(["127.0.0.1", "127.0.0.2"], listener.port, listener.token)
        assert found["127.0.0.1"] == ""
        assert found["127.0.0.2"] == "Connection refused"
        assert network.reach(["127.0.0.1"], listener.port, "another word") == {
            "127.0.0.1": "another machine answered there"
        }
    finally:
        listener.close()


def test_a_listener_that_finds_its_port_busy_keeps_no_other():
    port = free_port("")
    with socket.create_server(("127.0.0.2", port)):
        with pytest.raises(TrainingError, match=f"port {port} is in use by another program; leave --port out"):
            network.Listener(["127.0.0.1", "127.0.0.2"], port)
        socket.create_server(("127.0.0.1", port)).close()


def test_the_interface_that_leads_to_a_name():
    assert network.leading_to("127.0.0.1", outside=False) == loopback()
    assert network.leading_to("no.such.name.invalid", outside=False) == ""
    assert network.leading_to("127.0.0.1", outside=True) != loopback(), "no other host is behind it"
