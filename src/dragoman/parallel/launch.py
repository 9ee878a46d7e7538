"""Start several ranks on this host and bring their first error back as one line."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

from dragoman import runs
from dragoman.parallel.ranks import LOOK_SECONDS, Crew, Outcome, Place

PORTS = (20_000, 32_000)
LONGEST_PAUSE = 60.0  # seconds, between two attempts


def started_by_launcher() -> bool:
    """Whether this process is one rank of several, whoever started them."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def visible_gpus(device: str) -> int:
    import torch

    return torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0


def launch(processes: int, arguments: list[str], run: runs.RunFolder, *, restarts: int = 0) -> int:
    """Run `python -m dragoman ARGUMENTS`, which trains in `run`, in several ranks; returns the exit code. When a rank dies, all
    are started again with --resume, so many times; not when it had something to say to the user, or was asked to stop."""
    failures = 0
    with listening() as received:
        for attempt in range(restarts + 1):
            outcome = launch_once(processes, resumed(arguments, attempt), attempt, received)
            if stopped_well(received, outcome.code):
                return 128 + received[0]
            if outcome.code:
                print(outcome.line, file=sys.stderr)
            if received or not worth_another(outcome.code):
                break
            runs.note_fault(run, outcome.event(attempt))
            failures = failures + 1 if outcome.kind == "failed" else 0
            before_another(attempt, restarts, failures, received)
    return outcome.code


def before_another(attempt: int, restarts: int, failures: int, received: list[int]) -> None:
    if attempt < restarts:
        print(f"dragoman: starting again, {attempt + 1} of at most {restarts} times", file=sys.stderr)
        pause(failures, lambda: received)


def pause(failures: int, received: Callable[[], list[int]]) -> None:
    """A disk or a network that fails time and again is given some time to come back; `received`: signals that ask for a stop."""
    until = time.monotonic() + min(LONGEST_PAUSE, 2.0**failures if failures > 1 else 0.0)
    while time.monotonic() < until and not received():
        time.sleep(LOOK_SECONDS)


def stopped_well(received: list[int], code: int) -> bool:
    """Whether ranks that were asked to stop did so; told twice, they had no time to."""
    return bool(received) and (len(received) > 1 or code == 0 or code >= 128)


def resumed(arguments: list[str], attempt: int) -> list[str]:
    return [*arguments, *(["--resume"] if attempt and "--resume" not in arguments else [])]


def worth_another(code: int) -> bool:
    return code not in (0, 2) and code < 128


def launch_once(processes: int, arguments: list[str], attempt: int, received: list[int]) -> Outcome:
    place = Place(0, processes, processes, "127.0.0.1", free_port("127.0.0.1"), loopback())
    crew = Crew(place, arguments, attempt)
    try:
        while (outcome := crew.look()) is None:
            while crew.handed_on < len(received):
                crew.hand_on(received[crew.handed_on])
            time.sleep(LOOK_SECONDS)
        return outcome
    finally:
        crew.end()


def free_port(address: str) -> int:
    """Not one of those that the system hands out by itself: another program could be given it before rank 0 takes it."""
    while True:
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as listener, suppress(OSError):
            listener.bind((address, port))
            return port


def loopback() -> str:
    """By its name: otherwise gloo asks what the host's own name resolves to, which may lead nowhere."""
    names = [name for name, found in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in found)]
    return names[0] if names else ""


@contextmanager
def listening() -> Iterator[list[int]]:
    """Signals that ask for a stop, as they come."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    previous = {name: signal.signal(name, note) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)
