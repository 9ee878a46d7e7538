"""How ranks share the work, chosen by parallel.strategy and put on from outside. This one is for gradients that are averaged
over all ranks at every step (ddp, two_level); `sharded` and `local` are the others.

A strategy knows what the ranks agree on: these weights are validated and kept. What a rank has for itself (what rounding took
away, weights between two agreements) is its own state, saved beside them so that a resumed run is the straight one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dragoman.config.schema import Parallel
from dragoman.parallel import islands, wire
from dragoman.parallel.courier import Courier
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.timing import inside

Tensors = dict[str, Tensor]


@contextmanager
def holding(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """The parameters hold these values in here, and their own again afterwards."""
    own = [parameter.detach().clone() for parameter in parameters]
    try:
        fill(parameters, values)
        yield
    finally:
        fill(parameters, own)


def fill(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.detach().copy_(value.view_as(parameter))


class Strategy:
    """Gradients are averaged over all ranks at every step, in buckets, while the backward pass still runs."""

    drifts = False  # whether weights and moments of ranks differ between two agreements
    if_too_large = "choose a smaller model"  # what to do where not one row of `to_be_tried` fits

    def __init__(self, section: Parallel, mesh: Mesh):
        self.section, self.mesh = section, mesh
        self.residuals: dict[int, Tensor] = {}  # by bucket, on ranks that speak with other islands
        self.islands: islands.Islands | None = None
        if mesh.world > 1 and self.needs_islands():
            self.islands = islands.found(mesh, section.ranks_per_island)
        if mesh.world > 1 and self.needs_courier():
            self.courier = Courier(mesh.device, patient=section.strategy == "streaming")

    def needs_islands(self) -> bool:
        return self.section.strategy == "two_level"

    def needs_courier(self) -> bool:
        """Whether exchanges are made here, and not by torch."""
        return self.needs_islands() or self.section.wire != "fp32"

    @property
    def seat(self) -> int | None:
        """The number under which this rank keeps its own state; None where another keeps it."""
        return self.mesh.rank

    @property
    def seat_to_read(self) -> int:
        return self.mesh.rank

    def shard(self, objective: nn.Module) -> None:
        """Before there is an optimizer."""

    def to_be_tried(self, objective: nn.Module) -> nn.Module:
        """What a rank can run by itself, while others do not, to see what fits its memory."""
        return objective

    def wrap(self, objective: nn.Module) -> nn.Module:
        wrapped = self.with_ddp(objective, None) if self.mesh.world > 1 else objective
        if self.mesh.world > 1 and self.needs_courier():
            cast(DistributedDataParallel, wrapped).register_comm_hook(None, lambda _, bucket: self.hook(bucket))
        return wrapped

    def with_ddp(self, objective: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        devices = [self.mesh.local_rank] if self.mesh.device.type == "cuda" else None
        constant = [name for name, _ in objective.named_buffers()]  # DDP would send them again at every step
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(objective, constant)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(objective, device_ids=devices, gradient_as_bucket_view=True, process_group=group)

    def settle(self, one_pass: Callable[[], None], *, needed: bool = False) -> None:
        """DDP orders its buckets anew after the first backward pass. It is done before the first step, for nothing, so that a
        run that starts in the middle has the buckets, and adds in the order, of one that came there by itself. `needed`: by the
        caller too."""
        if self.mesh.world > 1 or needed:
            kept, self.residuals = self.residuals, {}
            one_pass()
            self.residuals = kept

    def exchange(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Only the last micro-batch of a step exchanges gradients; the ones before it just add up."""
        ddp = inside(wrapped)
        if ddp and not last:
            return ddp.no_sync()
        return nullcontext()

    def hook(self, bucket: Any) -> Future[Tensor]:
        """Called by DDP for every bucket that is full, in the same order on every rank."""
        buffer, index = bucket.buffer(), bucket.index()
        return self.courier.hand_in(lambda: self.sum_gradients(buffer, index).div_(self.mesh.world))

    def sum_gradients(self, buffer: Tensor, index: int) -> Tensor:
        """two_level: inside the island first, then between their first ranks, and back. Only what goes between islands is
        made smaller; otherwise every rank is on its own."""
        if not self.islands:
            wire.sum_over(buffer, None, self.section.wire, self.residual(index, buffer, self.mesh.world))
            return buffer
        if self.islands.size > 1:
            dist.reduce(buffer, self.islands.first, group=self.islands.within)
        return self.sum_over_islands(buffer, index)

    def sum_over_islands(self, buffer: Tensor, index: int) -> Tensor:
        """Between the first ranks of all islands, then to the others of each."""
        assert self.islands
        if self.islands.leads:
            residual = self.residual(index, buffer, len(self.islands.ranks))
            wire.sum_over(buffer, self.islands.between, self.section.wire, residual)
        if self.islands.size > 1:
            dist.broadcast(buffer, self.islands.first, group=self.islands.within)
        return buffer

    def residual(self, index: int, buffer: Tensor, ranks: int) -> Tensor | None:
        if self.section.wire != "int8":
            return None
        size = wire.padded_size(buffer.numel(), ranks)
        kept = self.residuals.get(index)
        if kept is None or kept.numel() != size:  # of another number of ranks: it is lost, and learnt again
            kept = self.residuals[index] = torch.zeros(size, device=buffer.device)
        return kept

    def forgive(self, refused: Tensor) -> None:
        """The gradient of this step changed nothing: what rounding took away from it is owed to no later one either."""
        for residual in self.residuals.values():
            if residual.is_cuda or bool(refused):  # asking a GPU would wait for it
                residual.masked_fill_(refused, 0.0)

    def after_step(self, step: int) -> None:
        """Every rank has made its update."""

    # --- what is agreed on, and what is not ---

    def agreed(self, model: nn.Module) -> Tensors:
        """The weights that all ranks share. Every rank must reach this line."""
        return model.state_dict()

    def held_alike(self, model: nn.Module) -> list[tuple[list[list[int]], Tensors]]:
        """Groups of ranks of which all hold the same, and what this one holds of it."""
        return [([list(range(self.mesh.world))], self.agreed(model))]

    def cut(self, like: Tensor, tensor: Tensor) -> Tensor:
        """A whole tensor, as this rank holds `like`."""
        return tensor

    def holders(self) -> list[int]:
        """Ranks of which each holds a piece of every moment, in the order of the pieces; none where moments are not cut."""
        return []

    def held_of(self, tensors: Tensors) -> Tensors:
        """What one of these ranks holds of each tensor; on all others nothing."""
        return {}

    @contextmanager
    def looking(self, objective: nn.Module) -> Iterator[nn.Module]:
        """The objective with the weights that are agreed on."""
        yield objective

    def own_state(self) -> Tensors:
        return {f"residual.{index}": tensor for index, tensor in self.residuals.items()}

    def load_own(self, tensors: Tensors) -> None:
        self.residuals = {
            int(name.removeprefix("residual.")): tensor.to(self.mesh.device)
            for name, tensor in tensors.items()
            if name.startswith("residual.") and self.section.wire == "int8" and bool(tensor.isfinite().all())
        }
