"""What is put around a module before it trains: gradient exchange and compilation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dragoman.parallel.mesh import Mesh

TIMED_EVERY = 5  # steps: DDP's own clocks wait for the step before


def wrap(module: nn.Module, mesh: Mesh, *, compiled: bool) -> nn.Module:
    """Gradients are averaged over ranks in buckets, while the backward pass still runs."""
    wrapped = module
    if mesh.world > 1:
        devices = [mesh.local_rank] if mesh.device.type == "cuda" else None
        wrapped = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
        wrapped._set_ddp_runtime_logging_sample_rate(TIMED_EVERY)  # type: ignore[no-untyped-call]
    return cast(nn.Module, torch.compile(wrapped, dynamic=False)) if compiled else wrapped


def exchange(wrapped: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Only the last micro-batch of a step exchanges gradients; the ones before it just add up."""
    inner = getattr(wrapped, "_orig_mod", wrapped)
    if isinstance(inner, DistributedDataParallel) and not last:
        return inner.no_sync()
    return nullcontext()


def exchange_seconds(wrapped: nn.Module) -> tuple[float, float] | None:
    """How long the last timed exchange of gradients took, and how much of that came after the end of the backward pass,
    when nothing hid it any more; None where nothing was exchanged."""
    inner = getattr(wrapped, "_orig_mod", wrapped)
    if not isinstance(inner, DistributedDataParallel):
        return None
    found = inner._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    total, hidden = (found.get(f"backward_{key}_time") for key in ("comm", "compute_comm_overlap"))
    return None if total is None or hidden is None else (total / 1e9, max(0, total - hidden) / 1e9)
