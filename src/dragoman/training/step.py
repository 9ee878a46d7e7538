"""One update of the weights.

Invariant: the update is the gradient of (sum of the loss over all target tokens of the step) / (their number), whatever
the number of ranks and micro-batches they were split over. Tested with 1x4 = 2x2 = 4x1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.config.schema import Train
from dragoman.data.loader import Step
from dragoman.parallel.reduce import uncut
from dragoman.parallel.strategy import Strategy
from dragoman.training.precision import Arithmetic
from dragoman.training.recorded import Recorded
from dragoman.training.spans import Clock
from dragoman.training.state import TrainState

ANY_FINITE = torch.finfo(torch.float32).max  # as a limit for norms: infinity and NaN are above it


def update(
    state: TrainState,
    wrapped: nn.Module,
    step: Step,
    strategy: Strategy,
    train: Train,
    arithmetic: Arithmetic,
    seed: int,
    clock: Clock | None = None,
    norm_limit: float = ANY_FINITE,
) -> tuple[Tensor, Tensor]:
    """Returns this rank's loss sum and the norm of the whole gradient, both still on the device: reading them waits."""
    mesh = strategy.mesh
    clock = clock or Clock(mesh.device)
    torch.manual_seed(seed_for(seed, state.step, mesh.rank))
    loss_sum = torch.zeros((), device=mesh.device)
    for number, batch in enumerate(step.micro_batches, 1):
        with strategy.exchange(wrapped, last=number == len(step.micro_batches)):
            inputs = batch.to(mesh.device).tensors()
            clock.mark("other")
            with arithmetic():
                loss, _ = wrapped(*inputs)
            clock.mark("forward")
            # Gradients are averaged over ranks, hence `world`; the tokens are those of all ranks.
            state.scaler.scale(loss * (mesh.world / step.target_tokens)).backward()
            loss_sum += loss.detach()
            del loss  # or its graph, and what that holds, lives on during the next forward pass
            clock.mark("backward")
    state.scaler.unscale_(state.optimizer)
    norm = clip(state.model, train.clip_norm)
    refused = ~(norm <= norm_limit)
    apply(state, refused)
    strategy.forgive(refused)
    state.optimizer.zero_grad(set_to_none=not (isinstance(wrapped, Recorded) and wrapped.keeps_gradients))
    state.step += 1
    if state.average:
        state.average.follow(state.step)
    clock.mark("optimizer")
    strategy.after_step(state.step)
    clock.mark("exchange")
    state.position = step.position
    state.source_tokens += step.source_tokens
    state.target_tokens += step.target_tokens
    state.pairs += step.pairs
    return loss_sum, norm


def apply(state: TrainState, refused: Tensor) -> None:
    """Update the weights, but not where the gradient is not finite or far too long: the device decides by itself, nobody waits
    for it. With fp16 the scaler decides, and only about what is not finite."""
    if state.scaler.is_enabled():
        state.scaler.step(state.optimizer)
        state.scaler.update()
    else:
        state.optimizer.found_inf = refused.float()  # type: ignore[attr-defined]  # read by fused Adam
        state.optimizer.step()


def clip(model: nn.Module, clip_norm: float) -> Tensor:
    """The norm of the gradient before it is clipped."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = uncut(nn.utils.get_total_norm(gradients))
    if clip_norm:
        nn.utils.clip_grads_with_norm_(model.parameters(), clip_norm, norm)
    return norm


def seed_for(seed: int, step: int, rank: int) -> int:
    """Another stream of random numbers for every (seed, step, rank): resuming needs no saved random state."""
    return ((seed * 1_000_003 + step) * 1_000_003 + rank) % 2**63
