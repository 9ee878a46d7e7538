"""The one object that is saved. What is not in here does not survive a restart."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from dragoman.data.pack import Position
from dragoman.model.transformer import Transformer
from dragoman.training.average import Average

COUNTERS = ("step", "source_tokens", "target_tokens", "pairs", "train_seconds", "best", "stale_validations")


@dataclass
class TrainState:
    """Model, optimizer and how far training has come.

    No random state: dropout at every step follows from (seed, step, rank), see `training.step.seed_for`."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler  # of the loss; only fp16 needs it
    average: Average | None = None  # of the weights, where train.average_decay asks for it
    step: int = 0  # updates done
    position: Position = Position()  # of the next row of the data
    source_tokens: int = 0  # seen, over all ranks
    target_tokens: int = 0
    pairs: int = 0
    train_seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)  # metric, score and step of the best validation so far
    stale_validations: int = 0  # validations since then
    owes_validation: bool = False  # a stop did not wait for the one of this step

    def to_be_used(self) -> AbstractContextManager[None]:
        """The model has the weights that are validated and kept in here: the averaged ones where there are any."""
        return self.average.in_place() if self.average else nullcontext()

    def numbers(self) -> dict[str, Any]:
        """Everything but the tensors."""
        own = {"position": list(self.position), "scaler": self.scaler.state_dict()}
        return {key: getattr(self, key) for key in (*COUNTERS, "owes_validation")} | own

    def restore_numbers(self, numbers: dict[str, Any]) -> None:
        for key in COUNTERS:
            setattr(self, key, numbers[key])
        self.owes_validation = numbers.get("owes_validation", False)
        self.position = Position(*numbers["position"])
        if self.scaler.is_enabled() and numbers.get("scaler"):  # a run that was not in fp16 before has no scale
            self.scaler.load_state_dict(numbers["scaler"])
