"""When a checkpoint is due: the state is copied, a thread writes the copy, and training goes on meanwhile. What cannot be written is
told and costs no older checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dragoman import runs
from dragoman.config.schema import Config
from dragoman.errors import RunError
from dragoman.model.folder import Description
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import gather
from dragoman.parallel.strategy import Strategy
from dragoman.training import checkpoint, optim
from dragoman.training.data_check import DataCheck
from dragoman.training.owner import Claim
from dragoman.training.state import TrainState
from dragoman.training.watchdog import Watchdog

STILL_WRITTEN = RunError("the one before is still being written; raise checkpoint.every, or use a faster disk")
MOST_WAITS = 60  # quarters of train.timeout_seconds that the last checkpoint waits for the one before


class Event(Protocol):
    def __call__(self, name: str, at: int | None = None, **facts: Any) -> None: ...


@dataclass
class Saver:
    """One on every rank. `claim`: that the run is ours, on the main rank."""

    config: Config
    folder: runs.RunFolder
    mesh: Mesh
    state: TrainState
    strategy: Strategy
    description: Description
    vocabulary: Path
    identity: dict[str, Any]  # what must be the same on resume
    data_check: DataCheck
    watchdog: Watchdog
    event: Event
    tell: Callable[[str, int, str], None]  # stage, step, words to the operator
    claim: Claim | None = None

    def __post_init__(self) -> None:
        self.writer = checkpoint.Writer()

    def save(self, scores: dict[str, float], *, must: bool) -> None:
        """The main rank copies the state and goes on; a thread writes the copy. Every rank must reach this line."""
        start, moment = time.perf_counter(), time.time()
        if self.strategy.holders() and not self.all_are_ready(must=must):
            return
        state, own = self.state, self.own_files()
        weights = self.strategy.agreed(state.model)
        moments = {} if self.strategy.holders() else optim.moments(state.optimizer, state.model)
        piece, files = (
            checkpoint.pieces(state, self.strategy),
            checkpoint.piece_files(self.folder, state.step, self.strategy),
        )
        own += files
        if not self.mesh.is_main:
            if piece:
                path = files[self.strategy.holders().index(self.mesh.rank)]
                self.writer.start(partial(checkpoint.write_pieces, path, piece), partial(self.failed, state.step))
            return
        # The one before waits for the check of the data: on a slow disk longer than the other ranks wait for this one.
        if not must and self.writer.busy and self.data_check.pending:
            checkpoint.drop_own(own)
            return
        if not self.before_is_written(must=must):  # two copies at once would be too many
            checkpoint.drop_own(own)
            self.failed(state.step, STILL_WRITTEN)
            return
        taken = checkpoint.snapshot(state, weights, moments, self.identity, scores, own)
        stalled = round(time.perf_counter() - start, 3)

        def write() -> None:
            if piece:
                checkpoint.write_pieces(files[0], piece)
            self.data_check.wait_for_all_hosts()  # what was learnt from damaged data is not kept
            began = time.perf_counter()
            assert self.claim
            written = checkpoint.write(self.folder, taken, self.description, self.vocabulary, self.claim)
            checkpoint.prune(self.folder, self.config.checkpoint)
            spent = round(time.perf_counter() - began, 3)
            when = {"stalled_at": round(moment, 3), "seconds": stalled, "write_seconds": spent}
            self.event("checkpoint", taken.step, **when, bytes=written)

        self.writer.start(write, partial(self.failed, taken.step))

    def before_is_written(self, *, must: bool) -> bool:
        """A slow disk is no hang: it is waited for, but not so long that the other ranks, who wait too, give up."""
        for _ in range(MOST_WAITS if must else 1):
            if self.writer.finish(self.config.train.timeout_seconds / 4):
                return True
            self.watchdog.since = time.monotonic()
        return False

    def all_are_ready(self, *, must: bool) -> bool:
        """Where every rank writes a piece: whether all have written the one before."""
        for _ in range(MOST_WAITS if must else 1):
            waits_for_data = self.writer.busy and self.data_check.pending  # then for longer than it is worth
            if all(
                gather(self.mesh, self.writer.finish(0 if waits_for_data else self.config.train.timeout_seconds / 4))
            ):
                return True
            self.watchdog.since = time.monotonic()
        if self.mesh.is_main and not self.data_check.pending:
            self.failed(self.state.step, STILL_WRITTEN)
        return False

    def own_files(self) -> list[Path]:
        """What ranks have for themselves they write themselves, before the rest is written. Every rank must reach this line."""
        try:
            path = checkpoint.write_own(self.folder, self.state, self.strategy)
        except (OSError, RunError) as error:
            self.failed(self.state.step, error)
            path = None  # resumed from there, this rank takes what all agree on
        written = gather(self.mesh, path)
        return [path for path in written if path and path.is_file()]  # a host with a disk of its own keeps it to itself

    def failed(self, step: int, error: Exception) -> None:
        self.event("checkpoint_failed", step, error=str(error))
        detail = f"the checkpoint of step {step} could not be written ({error}); training goes on, older ones are kept"
        self.tell("checkpoint", step, detail)
