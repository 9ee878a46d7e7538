"""A moving average of the weights: what is validated, kept and translated with, while training goes on with its own."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from dragoman.parallel.strategy import holding


class Average:
    """average = decay * average + (1 - decay) * weights, after every step. Early on the decay is lower: the first weights are
    random, and would be remembered for 1 / (1 - decay) steps."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        self.tensors = {name: weight.clone() for name, weight in self.weights.items()}

    def follow(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(self.weights.values()), 1.0 - decay)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    def in_place(self) -> AbstractContextManager[None]:
        """The model holds the average in here, and its own weights again afterwards."""
        return holding(list(self.weights.values()), list(self.tensors.values()))
