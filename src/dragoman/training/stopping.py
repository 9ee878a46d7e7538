"""Reasons to stop that come from outside: Ctrl-C, SIGTERM (preemption), the time limit. One rank learns of it, all stop at the same
step, with a checkpoint.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import sum_over_ranks
from dragoman.training.data_check import DataCheck

log = logging.getLogger(__name__)

MOST_STEPS, MOST_SECONDS = 10, 1.0  # between two questions; whatever comes first, but a step at least
SAME_SECONDS = 1.0  # a stop that reaches a rank by two ways (the launcher, and a scheduler that tells everybody) is one
STOPS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}  # and the reason that is given
STOP_CODES = {reason: 128 + number for number, reason in STOPS.items()}  # as a shell and schedulers count
TIME_LIMIT = "max_hours"
REASONS = (*STOPS.values(), TIME_LIMIT)


class Stopping:
    """`wanted`: what this rank was told. `asked` is what all ranks know together."""

    def __init__(self, mesh: Mesh, data_check: DataCheck):
        self.mesh, self.data_check = mesh, data_check
        self.wanted = ""
        self.forget()

    def forget(self) -> None:
        """Steps are counted anew from here on; the next one is asked after."""
        self.next_step, self.last_step, self.last_time = 0, -1, time.perf_counter()

    def asked(self, step: int, *, time_is_up: bool) -> str:
        """The reason to stop when some rank has one; every rank must reach this line at the same steps. The exchange waits for the
        device, so it is made every few steps, and at every one where a step takes a second: when, follows from the times of all
        ranks, so that all know it. It also tells whether all hosts have found their data sound."""
        reason = self.wanted or (TIME_LIMIT if time_is_up else "")
        if self.mesh.world == 1:
            return reason
        if step < self.next_step:
            return ""
        now = time.perf_counter()
        spent = (now - self.last_time) / (step - self.last_step) if self.last_step >= 0 else MOST_SECONDS
        own = [float(reason == each) for each in REASONS]
        *votes, unsure, seconds = sum_over_ranks(self.mesh, [*own, float(self.data_check.unsure), spent])
        if not unsure:
            self.data_check.confirm()
        steps = int(MOST_SECONDS * self.mesh.world / seconds)
        self.next_step, self.last_step = step + min(MOST_STEPS, max(1, steps)), step
        self.last_time = time.perf_counter()
        return next((each for each, ranks in zip(REASONS, votes, strict=True) if ranks), "")

    @contextmanager
    def listening(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask for a stop, with a checkpoint, within a second or a step; a second one stops at once."""
        since = float("inf")

        def ask(number: int, frame: FrameType | None) -> None:
            nonlocal since
            if self.wanted:
                if time.monotonic() - since > SAME_SECONDS:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)
                return
            since = time.monotonic()
            self.wanted = STOPS[signal.Signals(number)]
            with suppress(RuntimeError):  # it came in the middle of another line that is being printed
                tell("with a checkpoint; once more: at once")
            log.warning("signal %d: stopping at the next step that all ranks can agree on", number)

        previous = {}
        try:
            for name in STOPS:
                previous[name] = signal.signal(name, ask)
        except ValueError:  # not the main thread: whoever called us owns the signals
            pass
        try:
            yield
        finally:
            for name, handler in previous.items():
                signal.signal(name, handler)
