"""One update of the weights.

Invariant: the update is the gradient of (sum of the loss over all target tokens of the step) / (their number), whatever
the number of ranks and micro-batches they were split over. Tested with 1x4 = 2x2 = 4x1.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from dragoman.config.schema import Train
from dragoman.data.loader import Step
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.wrap import exchange
from dragoman.training.state import TrainState


class Arithmetic(Protocol):
    def __call__(self) -> AbstractContextManager[object]: ...


def update(
    state: TrainState, wrapped: nn.Module, step: Step, mesh: Mesh, train: Train, arithmetic: Arithmetic, seed: int
) -> tuple[Tensor, Tensor]:
    """Returns this rank's loss sum and the norm of the whole gradient, both still on the device: reading them waits."""
    torch.manual_seed(seed_for(seed, state.step, mesh.rank))
    loss_sum = torch.zeros((), device=mesh.device)
    for number, batch in enumerate(step.micro_batches, 1):
        with exchange(wrapped, last=number == len(step.micro_batches)):
            with arithmetic():
                loss, _ = wrapped(*batch.to(mesh.device).tensors())
            # Gradients are averaged over ranks, hence `world`; the tokens are those of all ranks.
            (loss * (mesh.world / step.target_tokens)).backward()
            loss_sum += loss.detach()
    norm = nn.utils.clip_grad_norm_(state.model.parameters(), train.clip_norm or float("inf"))
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.position = step.position
    state.source_tokens += step.source_tokens
    state.target_tokens += step.target_tokens
    state.pairs += step.pairs
    return loss_sum, norm


def seed_for(seed: int, step: int, rank: int) -> int:
    """Another stream of random numbers for every (seed, step, rank): resuming needs no saved random state."""
    return ((seed * 1_000_003 + step) * 1_000_003 + rank) % 2**63
