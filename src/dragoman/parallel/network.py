"""Addresses, and whether and how fast another host is reached over them: plain sockets, no torch."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from typing import Any

import psutil

from dragoman.errors import TrainingError
from dragoman.parallel.launch import free_port

REACH_SECONDS = 4.0
RESOLVE_SECONDS = 10.0  # for all names together: a name server that is gone is waited for much longer
DRAIN_SECONDS = 30.0  # for a slow link to take a piece, and once more for what lies in buffers
ELSEWHERE = "192.0.2.1"  # set aside for documents: whatever leads there leads out of this host
TOKEN_BYTES = 16
PIECE = b"\0" * 2**18
PINGS = 10
MOST_AT_ONCE = 512  # connections that are tried
UNKNOWN_MBIT = 65535  # what some virtual interfaces say that have no speed
LAST_CHOICE = ("docker", "br-", "virbr", "cni", "flannel", "cali", "veth", "podman")  # no other machine is behind them


def address_of(interface: str) -> str | None:
    """Its IPv4 address, where it has one and is up."""
    status = psutil.net_if_stats().get(interface)
    found = [entry.address for entry in psutil.net_if_addrs().get(interface, []) if entry.family == socket.AF_INET]
    return found[0] if found and status and status.isup else None


def own_addresses() -> dict[str, str]:
    """Of interfaces that are up, the fastest first; those that do not say how fast they are come last."""
    names = sorted(psutil.net_if_addrs(), key=lambda name: -(link_mbit(name) or 0))
    return {name: address for name in names if (address := address_of(name))}


def candidates(addresses: dict[str, str]) -> list[str]:
    """Interfaces that may lead to other hosts, the likeliest first, else in the order given. Loopback never does."""
    names = [name for name, address in addresses.items() if not is_loopback(address)]
    return sorted(names, key=lambda name: name.startswith(LAST_CHOICE))


def leading_to(name: str, *, outside: bool) -> str:
    """The interface by which this host reaches a name; "" where none is found. `outside`: other hosts are there too, so that it cannot
    be loopback, which a host's own name often stands for."""
    own = source_address(name)
    if outside and (own is None or is_loopback(own)):
        own = source_address(ELSEWHERE)
    interfaces = psutil.net_if_addrs()
    found = [name for name, addresses in interfaces.items() if any(each.address == own for each in addresses)]
    if outside:
        found += candidates(own_addresses())
    return found[0] if found else ""


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def source_address(name: str) -> str | None:
    """The address that packets to a name would come from; none is sent."""
    try:
        family, _, _, _, place = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def resolved(names: list[str]) -> dict[str, list[str]]:
    """Addresses by which this host knows names; none where it knows a name not, or not in time."""
    found: dict[str, list[str]] = {}

    def look_up(name: str) -> None:
        with suppress(OSError, UnicodeError):
            found[name] = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})

    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in names]
    deadline = time.monotonic() + RESOLVE_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: found.get(name, []) for name in names}


def link_mbit(interface: str) -> int | None:
    """What the interface says about itself; virtual ones say nothing or nonsense."""
    status = psutil.net_if_stats().get(interface)
    return status.speed if status and 0 < status.speed < 2**20 and status.speed != UNKNOWN_MBIT else None


class Listener:
    """Tells whoever connects who it is (other machines may have the same private address), then answers what is asked: `p`
    is sent back at once, and `b` starts a stream of bytes that is counted until it ends."""

    def __init__(self, addresses: list[str], port: int | None = None):
        """At these addresses of the host and at no other: at a port that the system chooses, as ranks do among themselves, and before
        that, where rank 0 will be, at its port; 0: a free one."""
        self.sockets: list[socket.socket] = []
        self.ports = [*([] if port is None else [port or free_port("")]), system_port()]
        for number, address in product(self.ports, dict.fromkeys(addresses)):  # two interfaces may share one
            try:
                self.sockets.append(socket.create_server((address, number), backlog=64))
            except OSError as error:
                self.close()
                busy = "in use" in str(error)
                reason = "is in use by another program" if busy else f"cannot be used ({error.strerror})"
                raise TrainingError(f"port {number} {reason}; leave --port out, or name one that is free") from None
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        for each in self.sockets:
            threading.Thread(target=self.run, args=(each,), daemon=True).start()

    def run(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(self.token.encode())
                while kind := connection.recv(1):
                    if kind == b"b":
                        count_bytes(connection)
                        return
                    connection.sendall(kind)
        except OSError:
            return

    def close(self) -> None:
        for each in self.sockets:
            each.shutdown(socket.SHUT_RDWR)
            each.close()


def count_bytes(connection: socket.socket) -> None:
    """Receive to the end, then say how many bytes came in how many seconds."""
    buffer = bytearray(len(PIECE))
    total, start = 0, time.perf_counter()
    while count := connection.recv_into(buffer):
        total += count
    connection.sendall(struct.pack("!Qd", total, time.perf_counter() - start))


def system_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


def connected(address: str, port: int) -> tuple[socket.socket, str]:
    """A connection and the token of whoever answered."""
    connection = socket.create_connection((address, port), timeout=REACH_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection, read_exactly(connection, TOKEN_BYTES).decode(errors="replace")


def read_exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise OSError("the connection was closed")
        found += piece
    return found


def reach(targets: dict[str, dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Of every host its addresses, and for each of its ports "" where it answered, or why not. All are tried at once: a network that
    drops packets lets every attempt wait."""

    def attempt(place: tuple[str, str, int]) -> str:
        name, address, port = place
        try:
            connection, answer = connected(address, port)
            connection.close()
            return "" if answer == targets[name]["token"] else "another machine answered there"
        except TimeoutError:
            return f"no answer within {REACH_SECONDS:.0f} s"
        except OSError as error:
            return error.strerror or str(error)

    places = [
        (name, *place) for name, target in targets.items() for place in product(target["addresses"], target["ports"])
    ]
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(places)) or 1) as pool:
        found = dict(zip(places, pool.map(attempt, places), strict=True))
    return {
        name: {address: [found[name, address, port] for port in target["ports"]] for address in target["addresses"]}
        for name, target in targets.items()
    }


def measure(address: str, port: int, seconds: float) -> dict[str, Any]:
    """Round trips and bytes per second to a listener of another host, one stream."""
    connection, _ = connected(address, port)
    with connection:
        try:
            trips = [trip(connection) for _ in range(PINGS)]
            total, spent = stream(connection, seconds)
        except TimeoutError:
            raise TrainingError(
                f"what it sends to {address} does not arrive in time; check cable, port and limits of both hosts"
            ) from None
    return {"round_trip_seconds": min(trips), "bytes_per_s": total / spent}


def stream(connection: socket.socket, seconds: float) -> tuple[int, float]:
    """Send for so long; returns how many bytes arrived in how many seconds."""
    connection.settimeout(DRAIN_SECONDS)
    connection.sendall(b"b")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection.sendall(PIECE)
    connection.shutdown(socket.SHUT_WR)
    total, spent = struct.unpack("!Qd", read_exactly(connection, 16))
    return total, spent


def trip(connection: socket.socket) -> float:
    start = time.perf_counter()
    connection.sendall(b"p")
    read_exactly(connection, 1)
    return time.perf_counter() - start
