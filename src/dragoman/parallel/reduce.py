"""Exchange between ranks. Every rank must reach each of these lines, in the same order."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.parallel.mesh import Mesh

Value = TypeVar("Value")


def sum_over_ranks(mesh: Mesh, values: list[float]) -> list[float]:
    """Element-wise sum, in double precision; the same result on every rank."""
    if mesh.world == 1:
        return values
    total = torch.tensor(values, dtype=torch.float64, device=mesh.device)
    dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def gather(mesh: Mesh, value: Value) -> list[Value]:
    """The values of all ranks, in their order, on every rank."""
    if mesh.world == 1:
        return [value]
    values: list[Any] = [None] * mesh.world
    dist.all_gather_object(values, value, group=mesh.patient)
    return values


def from_main(mesh: Mesh, value: Value) -> Value:
    """The main rank's value on every rank."""
    return gather(mesh, value)[0]


def uncut(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which every rank holds a piece; any other as it is."""
    whole = getattr(tensor, "full_tensor", None)  # of a DTensor, which takes half a second to import
    return cast(Tensor, whole()) if whole else tensor


def held(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    own = getattr(tensor, "to_local", None)
    return cast(Tensor, own()) if own else tensor


def wait_for_all(mesh: Mesh) -> None:
    if mesh.world > 1:
        dist.barrier(group=mesh.patient)
