"""A stretch of steps between two rows of metrics: added up on the device, read once."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.monitor import host
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import sum_over_ranks
from dragoman.training.spans import Clock, memory_bytes
from dragoman.training.step import ANY_FINITE

SPANS = ("data", "idle", "other", "forward", "backward", "communication", "exposed", "optimizer", "cpu")
"""Seconds a step, of every rank. `data`: how long the host waited for data. `idle`: how long the device waited for the host between
two steps. `backward` is without `exposed`, the part of `communication` that the backward pass did not hide. `cpu`: processor time."""
SIZES = ("memory_bytes", "sent_bytes", "received_bytes")  # the last two in this window, by the host of the rank


@dataclass
class Totals:
    """Sums over one window, the loss over all ranks. Steps that changed nothing are left out of loss and norm."""

    loss: float
    grad_norm: float  # of the last step
    largest_norm: float
    clipped: int
    skipped: int
    seconds: float
    steps: int
    source_tokens: int
    target_tokens: int
    slots: int
    slowest_step: float  # seconds, of this rank, as the median
    median_step: float
    lead_seconds: float  # how long the host had to wait for the device at the end of the window
    spans: dict[str, list[float]]  # seconds a step, by rank
    sizes: dict[str, list[float]]  # by rank too


class Window:
    """Adds up steps on the device; only `close` waits for it."""

    def __init__(self, mesh: Mesh, clip_norm: float = 0.0, norm_limit: float = ANY_FINITE):
        self.mesh, self.clip_norm, self.norm_limit = mesh, clip_norm or float("inf"), norm_limit
        sums = torch.zeros(6, dtype=torch.float64, device=mesh.device)
        self.loss, self.good_tokens, self.good_steps, self.norm, self.largest, self.clipped = sums
        self.steps = self.source_tokens = self.target_tokens = self.slots = 0
        self.data_seconds = 0.0
        self.exchanges: list[tuple[float, float]] = []  # communication of some steps: in all, exposed
        self.since, self.cpu_since = time.perf_counter(), time.process_time()
        self.traffic = host.traffic()
        self.clock = Clock(mesh.device)

    def add(self, loss_sum: Tensor, norm: Tensor, source_tokens: int, target_tokens: int, slots: int) -> None:
        good = norm <= self.norm_limit
        self.loss = self.loss + torch.where(good, loss_sum, 0.0)
        self.good_tokens = self.good_tokens + good * target_tokens
        self.good_steps = self.good_steps + good
        self.norm = torch.where(good, norm, self.norm)
        self.largest = torch.maximum(self.largest, torch.where(good, norm, 0.0))
        self.clipped = self.clipped + (good & (norm > self.clip_norm))
        self.steps += 1
        self.source_tokens += source_tokens
        self.target_tokens += target_tokens
        self.slots += slots

    def close(self) -> Totals:
        """Wait for the device and for the other ranks."""
        parts = (self.loss, self.good_tokens, self.good_steps, self.norm, self.largest, self.clipped)
        waiting = time.perf_counter()
        own = torch.stack([part.double() for part in parts]).tolist()
        lead = time.perf_counter() - waiting
        columns = self.of_all_ranks(own)
        losses, *others = columns[: len(own)]
        # Ranks that train by themselves for a while may differ in what was good: all must see the same numbers.
        tokens, good, norm, largest, clipped = map(statistics.fmean, others)
        each = self.clock.steps()
        return Totals(
            sum(losses) / tokens if tokens else float("nan"),
            norm,
            largest,
            int(clipped),
            self.steps - int(good),
            time.perf_counter() - self.since,
            self.steps,
            self.source_tokens,
            self.target_tokens,
            self.slots,
            max(each),
            statistics.median(each),
            lead,
            dict(zip(SPANS, columns[len(own) : -len(SIZES)], strict=True)),
            dict(zip(SIZES, columns[-len(SIZES) :], strict=True)),
        )

    def of_all_ranks(self, own: list[float]) -> list[list[float]]:
        """Columns by rank, in one exchange: everybody writes a line of a table of zeros, and the tables are added up."""
        spans, traffic = self.own_spans(), host.traffic()
        own = own + [spans[span] / self.steps for span in SPANS] + [float(memory_bytes(self.mesh.device))]
        own += [float(now - before) for now, before in zip(traffic, self.traffic, strict=True)]
        table = [0.0] * (self.mesh.world * len(own))
        table[self.mesh.rank * len(own) : (self.mesh.rank + 1) * len(own)] = own
        table = sum_over_ranks(self.mesh, table)
        return [table[column :: len(own)] for column in range(len(own))]

    def own_spans(self) -> dict[str, float]:
        spent = self.clock.seconds()
        share = self.steps / len(self.exchanges) if self.exchanges else 0.0
        spent["communication"], spent["exposed"] = (share * sum(pair[at] for pair in self.exchanges) for at in (0, 1))
        spent["backward"] = max(0.0, spent["backward"] - spent["exposed"])
        spent["communication"] += spent["exchange"]  # what comes after the backward pass hides behind nothing
        spent["exposed"] += spent["exchange"]
        return spent | {"data": self.data_seconds, "cpu": time.process_time() - self.cpu_since}
