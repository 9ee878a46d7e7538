"""Weights, gradients and moments cut into pieces, one a rank (FSDP2): for models that do not fit. `hybrid`: cut inside an
island only, and gradients averaged between islands."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dragoman.config.schema import Parallel
from dragoman.errors import TrainingError
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import held, uncut
from dragoman.parallel.strategy import Strategy, Tensors

Blocks = Callable[[nn.Module], list[nn.Module]]


class Sharded(Strategy):
    """`blocks`: the parts of an objective that are gathered one at a time. `twin`: another objective, not cut."""

    if_too_large = "set train.tokens_per_gpu: it is tried with the whole model, of which a rank will hold a piece"

    def __init__(self, section: Parallel, mesh: Mesh, blocks: Blocks, twin: Callable[[], nn.Module]):
        super().__init__(section, mesh)
        self.blocks, self.twin = blocks, twin

    def needs_islands(self) -> bool:
        return self.section.strategy == "hybrid"

    def needs_courier(self) -> bool:
        return False

    def shard(self, objective: nn.Module) -> None:
        # It warns of operations in place on what a block returns. The model has none; tests compare its gradients.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        mesh = self.grid()
        for block in self.blocks(objective):
            fully_shard(block, mesh=mesh)
        fully_shard(objective, mesh=mesh)

    def grid(self) -> DeviceMesh:
        """Of islands with groups of our own: those that torch makes do not know train.timeout_seconds."""
        device, islands = self.mesh.device.type, self.islands
        if not islands:
            return init_device_mesh(device, (self.mesh.world,))
        if len({len(members) for members in islands.ranks}) > 1:
            raise TrainingError(
                'parallel.strategy = "hybrid" needs the same number of processes on every host; start it so, or use "fsdp"'
            )
        between = [self.mesh.group(members) for members in self.replicas()]
        mine = between[islands.ranks[islands.own].index(self.mesh.rank)], cast(dist.ProcessGroup, islands.gradients)
        return DeviceMesh.from_group(list(mine), device, islands.ranks, mesh_dim_names=("between", "within"))

    def to_be_tried(self, objective: nn.Module) -> nn.Module:
        """One that is whole: more than a rank will ever hold, so what fits beside it fits beside pieces."""
        return self.twin()

    def wrap(self, objective: nn.Module) -> nn.Module:
        return objective

    def settle(self, one_pass: Callable[[], None], *, needed: bool = False) -> None:
        """Pieces have their order from the beginning."""
        if needed:
            one_pass()

    def exchange(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    def replicas(self) -> list[list[int]]:
        """Islands hold the same pieces; inside one nobody holds what another does."""
        assert self.islands
        return [list(ranks) for ranks in zip(*self.islands.ranks, strict=True)]

    def held_alike(self, model: nn.Module) -> list[tuple[list[list[int]], Tensors]]:
        return [(self.replicas(), local(model.state_dict()))] if self.islands else []

    def holders(self) -> list[int]:
        return list(self.islands.ranks[0]) if self.islands else list(range(self.mesh.world))

    def held_of(self, tensors: Tensors) -> Tensors:
        return local(tensors) if self.mesh.rank in self.holders() else {}

    def agreed(self, model: nn.Module) -> Tensors:
        """In the memory of the host, on the main rank alone: a piece at a time is all that fits."""
        result = {}
        for name, tensor in model.state_dict().items():
            full = uncut(tensor)  # every rank takes part, one has to keep it
            if self.mesh.is_main:
                result[name] = full.cpu()
        return result

    def cut(self, like: Tensor, tensor: Tensor) -> Tensor:
        if not isinstance(like, DTensor):
            return tensor
        cut = distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
        own = cut.to_local().clone()  # or the piece keeps the whole in memory
        return DTensor.from_local(own, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())

    @contextmanager
    def looking(self, objective: nn.Module) -> Iterator[nn.Module]:
        """A whole copy of the weights alone, without gradients and moments: ranks may then translate in their own time."""
        twin = self.twin()
        weights = {name: uncut(tensor) for name, tensor in objective.state_dict().items()}
        twin.load_state_dict(weights)
        yield twin


def local(tensors: Tensors) -> Tensors:
    """Of each tensor what this rank holds."""
    return {name: held(tensor) for name, tensor in tensors.items()}
