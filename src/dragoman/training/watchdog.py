"""A hang is noticed: a thread watches for signs of life, and when there are none for too long it writes down where every
thread of this rank stands and ends the process, so that whoever supervises it can start again. The other ranks write where they
stand when the supervisor asks them (SIGUSR1) before it ends them.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from dragoman.parallel.ranks import HUNG, STACKS_SIGNAL, started_again
from dragoman.runs import Row

log = logging.getLogger(__name__)

START = "start"  # all before the first step is done: meeting, reading, compiling, finding out what fits
END = "end"  # all after the last: writing the last checkpoint
# Sections, by the event that ends one.
LEARNT = {"first_step": START, "validation": "validation", "checkpoint": "checkpoint"}
STARTING_SECONDS = 1800.0  # for what was never seen before
SHORTEST_START = 300.0  # seconds; the second start of a run may find no cache where the first did
TIMES_LONGER = 20.0  # than usual: a step that takes this long hangs
HISTORY = 50
LAST_SECONDS = 10.0  # to write down where everybody stands


class Watchdog:
    """`beat` after every step; `section` around what takes longer than a step. `tell`: the section, and seconds without life."""

    def __init__(self, stacks: Path, least_seconds: float, tell: Callable[[str, float], None] = lambda *_: None):
        self.stacks, self.least, self.tell = stacks, least_seconds, tell
        self.history: dict[str, list[float]] = {}
        self.where, self.since = START, time.monotonic()
        self.file: TextIO | None = None  # for stacks, while there is one

    def limit(self) -> float:
        """Seconds that are allowed where we are: many times what it took before, never less than the least."""
        before = self.history.get(self.where)
        if not before:
            return max(STARTING_SECONDS, self.least)
        least = max(self.least, SHORTEST_START) if self.where == START else self.least
        return max(least, TIMES_LONGER * statistics.median(before))

    def learn(self, events: list[Row]) -> None:
        """How long sections took in earlier starts of the run."""
        for event, section in LEARNT.items():
            known = [row.get("seconds") for row in events if row.get("event") == event]
            self.history[section] = [each for each in known if isinstance(each, int | float)][-HISTORY:]

    def alive(self) -> None:
        self.since = time.monotonic()

    def beat(self) -> None:
        self.enter("step")

    def enter(self, where: str) -> None:
        """Another section begins; what the last one took is remembered, but for the first step, which compiles."""
        now = time.monotonic()
        if self.where != START:
            self.history[self.where] = [*self.history.get(self.where, [])[1 - HISTORY :], now - self.since]
        self.where, self.since = where, now

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        before, self.where = self.where, name
        self.alive()
        try:
            yield
        finally:
            self.enter(before)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.alive()
        stopped = threading.Event()
        thread = threading.Thread(target=self.watch, args=(stopped,), name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(LAST_SECONDS)  # it may be about to end this process

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A signal makes this process write where its threads stand, whatever they do; it goes on afterwards. A file that nobody
        wrote into is taken away, unless another process made it."""
        folders = [self.stacks.parent, *self.stacks.parent.parents]
        made = [folder for folder in folders if not folder.exists()]
        own = started_again() or not self.stacks.exists()
        try:
            folders[0].mkdir(parents=True, exist_ok=True)
            file = self.stacks.open("a", encoding="utf-8")
        except OSError:  # a full disk ends no run, and a folder that cannot be made is told later
            yield
            return
        self.file = file
        faulthandler.register(STACKS_SIGNAL, file, all_threads=True)
        try:
            yield
        except RuntimeError:  # it waited for another rank until torch gave up: this is where
            traceback.print_exc(file=file)
            raise
        finally:
            self.file = None
            faulthandler.unregister(STACKS_SIGNAL)
            with suppress(OSError):
                file.close()
                if own and not self.stacks.stat().st_size:
                    self.stacks.unlink()
                    for folder in made:
                        folder.rmdir()

    def watch(self, stopped: threading.Event) -> None:
        """Should something hold on to Python itself, this thread stands still as well; then faulthandler, which needs no Python,
        ends the process a little later."""
        try:
            while not stopped.wait(min(1.0, self.least / 4)):
                silent = time.monotonic() - self.since
                if silent > self.limit():
                    self.give_up(silent)
                if self.file:
                    faulthandler.dump_traceback_later(self.limit() + LAST_SECONDS, exit=True, file=self.file)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def give_up(self, silent: float) -> None:
        last = threading.Timer(LAST_SECONDS, os._exit, (HUNG,))  # should the file system be what hangs
        last.daemon = True
        last.start()
        log.error("no sign of life for %.0f s in section %r; stacks are in %s", silent, self.where, self.stacks)
        with suppress(OSError):
            self.tell(self.where, silent)
        self.stacks.parent.mkdir(parents=True, exist_ok=True)
        with self.stacks.open("a", encoding="utf-8") as file:
            file.write(f"no sign of life for {silent:.0f} s in section {self.where!r}\n")
            faulthandler.dump_traceback(file, all_threads=True)
        os._exit(HUNG)
