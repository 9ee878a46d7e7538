"""Forward and backward pass as CUDA graphs: recorded once for each shape of batch, then each is one call.

A small model's kernels take less time than the host needs to start them one by one, compiled or not: the GPU waits. A graph
starts them all at once. The kernels are the same, and so are the random numbers: a graph takes seed and offset of the generator
when it is played."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

WARM_UP = 3  # passes of a shape before it is recorded: the first compiles and tries out kernels
MOST_MEMORY = 0.45  # of the GPU's. What a graph uses nothing else can, and a step that fills a GPU keeps it busy


@dataclass
class Recording:
    """Two graphs, and the tensors that they read and write."""

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    sums: tuple[Tensor, Tensor]
    factor: Tensor


class Recorded(nn.Module):
    """An objective on one GPU. What is recorded adds to gradients where they are: see `keeps_gradients`."""

    def __init__(self, objective: nn.Module, device: torch.device):
        super().__init__()
        self.objective, self.device = objective, device
        self.passes: Counter[tuple[torch.Size, ...]] = Counter()
        self.recordings: dict[tuple[torch.Size, ...], Recording] = {}
        self.works = True
        self.pool = torch.cuda.graph_pool_handle()  # one for all: no two graphs are under way at once
        self.anchor = torch.zeros((), device=device, requires_grad=True)  # autograd wants something to differentiate by

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        shape = tuple(tensor.shape for tensor in inputs)
        if shape not in self.recordings:
            self.passes[shape] += 1
            if self.passes[shape] > WARM_UP and self.works and self.room():
                self.try_to_record(shape, inputs)
        if shape not in self.recordings:
            sums: tuple[Tensor, Tensor] = self.objective(*inputs)
            return sums
        played: tuple[Tensor, Tensor] = Play.apply(self.anchor, self.recordings[shape], *inputs)  # type: ignore[no-untyped-call]
        return played

    @property
    def keeps_gradients(self) -> bool:
        """Whether they must be filled with zeros after a step, not forgotten. A step too large to be recorded may forget them:
        then the first micro-batch writes them, where it would read and add."""
        return bool(self.recordings)

    def room(self) -> bool:
        if self.recordings:
            return True
        total = torch.cuda.get_device_properties(self.device).total_memory
        return torch.cuda.max_memory_reserved(self.device) < MOST_MEMORY * total

    def try_to_record(self, shape: tuple[torch.Size, ...], inputs: tuple[Tensor, ...]) -> None:
        """What cannot be recorded runs as it did before."""
        stream = torch.cuda.current_stream(self.device)
        try:
            self.recordings[shape] = self.record(inputs)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a graph that cannot be ended stays in its own
            self.works = False
            self.recordings.clear()
            log.warning(
                "a step could not be recorded as a CUDA graph (%s); training goes on without, set train.cuda_graphs = false",
                error,
            )

    def record(self, inputs: tuple[Tensor, ...]) -> Recording:
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for parameter in self.objective.parameters():
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        own = [tensor.clone() for tensor in inputs]
        # Other threads go on meanwhile: the loader pins memory, a checkpoint is copied.
        how: dict[str, Any] = {"pool": self.pool, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(forward, **how):
            loss, nll = self.objective(*own)
        factor = torch.ones_like(loss)
        with torch.cuda.graph(backward, **how):
            loss.backward(factor)
        return Recording(forward, backward, own, (loss.detach(), nll.detach()), factor)


class Play(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, recording: Recording, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        for own, given in zip(recording.inputs, inputs, strict=True):
            own.copy_(given)
        recording.forward.replay()
        ctx.recording = recording
        loss, nll = (tensor.clone() for tensor in recording.sums)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, factor: Tensor, _: Tensor) -> Any:  # type: ignore[override]
        ctx.recording.factor.copy_(factor)
        ctx.recording.backward.replay()  # adds to the parameters' gradients
        return None, None, *(None for _ in ctx.recording.inputs)
