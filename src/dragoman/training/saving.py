"""When a checkpoint is due: the state is copied, a thread writes the copy, and training goes on meanwhile. What cannot be written is
told and costs no older checkpoint.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.config.schema import Config
from dragoman.errors import RunError
from dragoman.model.folder import Description
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import from_main, gather
from dragoman.parallel.strategy import Strategy
from dragoman.training import checkpoint, optim
from dragoman.training.data_check import DataCheck
from dragoman.training.logbook import Logbook
from dragoman.training.owner import Claim
from dragoman.training.state import TrainState
from dragoman.training.watchdog import Watchdog

STILL_WRITTEN = RunError("the one before is still being written; raise checkpoint.every, or use a faster disk")
MOST_WAITS = 60  # quarters of train.timeout_seconds that the last checkpoint waits for the one before


@dataclass
class Saver:
    """One on every rank. `claim`: that the run is ours; all ranks know it."""

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
    logbook: Logbook
    claim: Claim | None = None
    writer: checkpoint.Writer = field(default_factory=checkpoint.Writer)
    memory: checkpoint.HostMemory = field(default_factory=checkpoint.HostMemory)
    told_apart: bool = False

    def save(self, scores: dict[str, float], *, must: bool) -> None:
        """The main rank copies the state and goes on; a thread writes the copy. Every rank must reach this line."""
        start, moment = time.perf_counter(), time.time()
        if not self.before_is_written(must=must):  # two copies at once would be too many
            return
        state, claim = self.state, self.claim
        assert claim
        folder = checkpoint.own_folder(self.folder, state.step, claim)
        own = self.own_files(folder)
        if own is None:
            return
        weights, moments = self.strategy.agreed(state.model), optim.moments(state.optimizer, state.model)
        holders = self.strategy.holders()  # each writes its piece of every moment into a file
        [piece] = self.memory.copies("piece", self.strategy.held_of(moments))
        files = [folder / checkpoint.PIECES.format(number) for number, _ in enumerate(holders)]
        own += files
        if not self.mesh.is_main:
            if piece:
                path = files[holders.index(self.mesh.rank)]
                self.writer.start(partial(checkpoint.write_pieces, path, piece), partial(self.failed, state.step))
            return
        whole = {} if holders else moments
        taken = checkpoint.snapshot(state, weights, whole, self.identity, scores, own, self.memory)
        stalled = round(time.perf_counter() - start, 3)

        def write() -> None:
            try:
                if piece:
                    checkpoint.write_pieces(files[0], piece)
                self.data_check.wait_for_all_hosts()  # what was learnt from damaged data is not kept
                checkpoint.wait_for(own, lambda: self.writer.given_up)
                began = time.perf_counter()
                written = checkpoint.write(self.folder, taken, self.description, self.vocabulary, claim)
                self.prune()
                spent = round(time.perf_counter() - began, 3)
                when = {"stalled_at": round(moment, 3), "seconds": stalled, "write_seconds": spent}
                self.logbook.event("checkpoint", taken.step, **when, bytes=written)
            finally:  # on a full disk what no checkpoint has taken would be in the way of the next one
                shutil.rmtree(folder, ignore_errors=True)

        self.writer.start(write, partial(self.failed, taken.step))

    def before_is_written(self, *, must: bool) -> bool:
        """A slow disk is no hang: it is waited for, but not so long that the other ranks give up. Every rank must reach this line."""
        for _ in range(MOST_WAITS if must else 1):
            waits_for_data = self.writer.busy and self.data_check.pending  # then for longer than it is worth
            seconds = 0.0 if waits_for_data else self.config.train.timeout_seconds / 4
            if all(gather(self.mesh, self.writer.finish(seconds))):
                return True
            self.watchdog.alive()
        if self.mesh.is_main and not self.data_check.pending:
            self.failed(self.state.step, STILL_WRITTEN)
        return False

    def own_files(self, folder: Path) -> list[Path] | None:
        """What ranks have for themselves they write themselves, before the rest is written; None when one of them cannot: without
        it a resumed run would not be the straight one. Every rank must reach this line."""
        path, error = None, ""
        try:
            path = checkpoint.write_own(folder, self.state, self.strategy)
        except (OSError, RunError) as failure:
            error = str(failure)
        written = gather(self.mesh, (path, error))
        errors = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(written) if text]
        seen = [] if errors else from_main(self.mesh, [path for path, _ in written if path and path.is_file()])
        apart = [rank for rank, (path, _) in enumerate(written) if path and path not in seen]
        if apart and not errors and not self.told_apart:
            self.told_apart = True
            self.tell_apart(apart[0])
        if errors or (path and path not in seen):  # there on a disk of one's own, from which nobody takes it
            shutil.rmtree(folder, ignore_errors=True)
        if errors and self.mesh.is_main:
            self.failed(self.state.step, RunError(errors[0]))
        return None if errors else seen

    def prune(self) -> None:
        """What cannot be removed is in the way of nothing yet: the checkpoint before it is whole."""
        try:
            checkpoint.prune(self.folder, self.config.checkpoint)
        except OSError as error:
            self.logbook.tell("checkpoint", f"older ones could not be removed ({error})")

    def tell_apart(self, rank: int) -> None:
        """Once, by the main rank: checkpoints are good to translate with, but what is resumed from them is not the straight run."""
        if self.mesh.is_main:
            host = self.logbook.host_of.get(rank, "?")
            detail = (
                f"what rank {rank} on host {host} has for itself cannot be seen from here, and is in no checkpoint: put run.folder on a "
                "disk that all hosts share, or --resume will not go on exactly"
            )
            self.logbook.tell("checkpoint", detail)

    def failed(self, step: int, error: Exception) -> None:
        self.writer.error = error  # of the last one, this ends the run in words
        self.logbook.event("checkpoint_failed", step, error=str(error))
        detail = f"the checkpoint of step {step} could not be written ({error}); training goes on, older ones are kept"
        self.logbook.tell("checkpoint", detail, step)
