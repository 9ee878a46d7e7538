"""What is put around a module before it trains: gradient exchange and compilation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dragoman.parallel.mesh import Mesh


def wrap(module: nn.Module, mesh: Mesh, *, compiled: bool) -> nn.Module:
    """Gradients are averaged over ranks in buckets, while the backward pass still runs."""
    wrapped = module
    if mesh.world > 1:
        devices = [mesh.local_rank] if mesh.device.type == "cuda" else None
        wrapped = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
    return cast(nn.Module, torch.compile(wrapped, dynamic=False)) if compiled else wrapped


def exchange(wrapped: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Only the last micro-batch of a step exchanges gradients; the ones before it just add up."""
    inner = getattr(wrapped, "_orig_mod", wrapped)
    if isinstance(inner, DistributedDataParallel) and not last:
        return inner.no_sync()
    return nullcontext()
