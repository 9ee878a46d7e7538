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
    """Sums over one window, the loss over all ranks."""

    loss: float
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
        self.loss = torch.zeros((), dtype=torch.float64, device=mesh.device)
        self.steps = self.source_tokens = self.target_tokens = self.slots = 0
        self.since = time.perf_counter()

    def add(self, loss_sum: Tensor, source_tokens: int, target_tokens: int, slots: int) -> None:
        self.loss += loss_sum
        self.steps += 1
        self.source_tokens += source_tokens
        self.target_tokens += target_tokens
        self.slots += slots

    def close(self) -> Totals:
        """Wait for the device and for the other ranks."""
        (loss,) = sum_over_ranks(self.mesh, [float(self.loss)])
        return Totals(
            loss / self.target_tokens,
            time.perf_counter() - self.since,
            self.phases.seconds["data"],
            self.steps,
            self.source_tokens,
            self.target_tokens,
            self.slots,
        )
