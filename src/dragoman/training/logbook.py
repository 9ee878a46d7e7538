"""What a run writes down about itself while it trains, and tells whoever watches: rows of metrics, events, how far it has come."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, BinaryIO

from dragoman import runs
from dragoman.config.schema import Monitor
from dragoman.errors import DragomanError, DriftError
from dragoman.monitor.sinks import Metrics, sinks
from dragoman.parallel.mesh import Mesh
from dragoman.training import facts, owner
from dragoman.training.state import TrainState
from dragoman.training.straggler import Lookout
from dragoman.training.window import Totals

log = logging.getLogger(__name__)

REACHED = "%012d\n"  # always as long: it is written over


class Logbook:
    """One on every rank. The main rank writes for all of them; one that hangs, or stops the run, writes its own last words."""

    def __init__(self, folder: runs.RunFolder, mesh: Mesh, state: TrainState, last_step: int, progress: runs.Progress):
        self.folder, self.mesh, self.state = folder, mesh, state
        self.last_step, self.progress = last_step, progress
        self.started = time.time()
        self.host_of: dict[int, str] = {}  # by rank
        self.lookout = Lookout()
        self.metrics: Metrics | None = None  # on the main rank only
        self.reached: BinaryIO | None = None  # likewise
        self.disk_full = self.stopped = False

    def open(self, monitor: Monitor) -> None:
        if self.mesh.is_main:
            self.metrics = Metrics(self.folder.metrics, sinks(self.folder, monitor))
            self.reached = self.folder.reached.open("r+b")

    def close(self, *, failed: bool = False) -> None:
        """`failed`: servers that show how a run ended are told so."""
        metrics, reached = self.metrics, self.reached
        self.metrics = self.reached = None
        if metrics:
            self.put_down(partial(metrics.close, failed=failed))
        if reached:
            self.put_down(reached.close)

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """Otherwise the last rows would be lost, and servers would show a run that goes on for ever. Where it does go on, by its
        next owner, nothing is ended."""
        try:
            yield
        except owner.FencedError:
            raise
        except BaseException:
            self.close(failed=True)
            raise

    # --- numbers ---

    def steps(self, totals: Totals, rate: float, train_pairs: int) -> None:
        """One row of metrics, from sums that are the same on every rank."""
        row = facts.metrics_row(self.state, totals, rate, train_pairs)
        if self.metrics:
            self.put_down(self.metrics.write, row)
            self.put_down(runs.append_row, self.folder.spans, facts.spans_row(self.state.step, totals))
        detail = f"loss {totals.loss:.3f}, {row['target_tokens_per_s']:,.0f} target tokens/s"
        self.tell("training", detail)
        log.info("step %d: %s, lr %.2e, %.3f s a step", self.state.step, detail, rate, row["step_seconds"])
        self.name_straggler(totals.spans)

    def validation(self, scores: dict[str, Any], seconds: float) -> None:
        seconds = round(seconds, 3)
        if self.metrics:
            row = {"kind": "valid", "step": self.state.step, **scores, "seconds": seconds}
            self.put_down(self.metrics.write, row)
        self.event("validation", seconds=seconds)
        bleu = f", BLEU {scores['bleu']:.1f}" if "bleu" in scores else ""
        self.tell("validation", f"loss {scores['loss']:.3f}{bleu} ({seconds:.1f} s)")

    def note_step(self) -> None:
        """In place, without waiting for the disk: rows of metrics may be far apart, and after a fault it counts what was lost."""
        if self.reached:
            self.put_down(os.pwrite, self.reached.fileno(), (REACHED % self.state.step).encode(), 0)

    def forget_lost_rows(self) -> int:
        """Take the rows of steps out that will be done again; returns how many steps these were."""
        newest = runs.newest_step(self.folder)
        rows = runs.read_rows(self.folder.metrics)
        kept = [row for row in rows if isinstance(row.get("step"), int) and row["step"] <= self.state.step]
        runs.write_rows(self.folder.metrics, kept)
        if self.reached:  # it stays the file that is written over
            self.note_step()
        else:
            runs.write_text(self.folder.reached, REACHED % self.state.step)
        return max(newest - self.state.step, 0)

    # --- events ---

    def tell(self, stage: str, words: str, at: int | None = None) -> None:
        """To the operator; nothing of it is kept."""
        self.progress(stage, self.state.step if at is None else at, self.last_step, words)

    def event(self, name: str, at: int | None = None, **more: Any) -> None:
        step = self.state.step if at is None else at
        if self.mesh.is_main:
            self.put_down(runs.append_row, self.folder.events, {"event": name, "step": step, **more})
        log.info("%s at step %d %s", name, step, more or "")

    def stop(self, reason: str) -> None:
        self.stopped = True
        self.event("stop", reason=reason, seconds=round(time.time() - self.started, 3))

    def name_straggler(self, spans: dict[str, list[float]]) -> None:
        """Once, when a rank begins to hold the others up, and once when it no longer does."""
        before, found = self.lookout.named, self.lookout.look(spans)
        if found and (before is None or found.rank != before.rank):
            host = self.host_of[found.rank]
            self.event("straggler", host=host, **asdict(found))
            self.tell("straggler", found.sentence(host))
        elif before and not found:
            self.event("straggler_gone", rank=before.rank)

    def hang(self, section: str, seconds: float) -> None:
        """By the rank that hangs itself; nothing else of it works any more. Before there is a run there is no place for it."""
        if self.folder.exists():
            row = self.own_row("hang") | {"section": section, "seconds": round(seconds, 1)}
            runs.append_row(self.folder.events, row)

    def fault(self, error: DragomanError) -> None:
        """By the rank that stops the run; the one that writes may not know of it. What all know (drift, divergence) is told already."""
        if not (self.stopped or isinstance(error, DriftError | owner.FencedError)):
            row = self.own_row("fault") | {"kind": "error", "error": str(error)}
            self.put_down(runs.append_row, self.folder.events, row)

    def own_row(self, name: str) -> runs.Row:
        return {"event": name, "step": self.state.step, "host": socket.gethostname(), "rank": self.mesh.rank}

    def put_down(self, write: Callable[..., object], *what: Any) -> None:
        """A row that a full disk does not take is told, once, and training goes on: it is the weights that count."""
        try:
            write(*what)
            self.disk_full = False
        except OSError as error:
            if not self.disk_full:
                self.tell("disk", f"a row could not be written ({error}); training goes on")
            self.disk_full = True
