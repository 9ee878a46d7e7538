"""A stretch of steps between two rows of metrics: added up on the device, read once."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.monitor.trace import Phases
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import sum_over_ranks


@dataclass
class Totals:
    """Sums over one window, the loss over all ranks. Steps whose gradient was not finite are left out of loss and norm."""

    loss: float
    grad_norm: float  # of the last step
    skipped: int
    seconds: float
    data_seconds: float
    steps: int
    source_tokens: int
    target_tokens: int
    slots: int


class Window:
    """Adds up steps on the device; only `close` waits for it."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.phases = Phases()
        self.loss, self.good_tokens, self.good_steps, self.norm = torch.zeros(
            4, dtype=torch.float64, device=mesh.device
        )
        self.steps = self.source_tokens = self.target_tokens = self.slots = 0
        self.since = time.perf_counter()

    def add(self, loss_sum: Tensor, norm: Tensor, source_tokens: int, target_tokens: int, slots: int) -> None:
        good = torch.isfinite(norm)
        self.loss = self.loss + torch.where(good, loss_sum, 0.0)
        self.good_tokens = self.good_tokens + good * target_tokens
        self.good_steps = self.good_steps + good
        self.norm = torch.where(good, norm, self.norm)
        self.steps += 1
        self.source_tokens += source_tokens
        self.target_tokens += target_tokens
        self.slots += slots

    def close(self) -> Totals:
        """Wait for the device and for the other ranks."""
        parts = (self.loss, self.good_tokens, self.good_steps, self.norm)
        own, tokens, good, norm = torch.stack([part.double() for part in parts]).tolist()
        # Ranks that train by themselves for a while may differ in what was good: all must see the same numbers.
        loss, *others = sum_over_ranks(self.mesh, [own, tokens, good, norm])
        tokens, good, norm = (total / self.mesh.world for total in others)
        return Totals(
            loss / tokens if tokens else float("nan"),
            norm,
            self.steps - int(good),
            time.perf_counter() - self.since,
            self.phases.seconds["data"],
            self.steps,
            self.source_tokens,
            self.target_tokens,
            self.slots,
        )
