"""How long the exchange of gradients takes, by DDP's own timers."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

TIMED_EVERY = 5  # steps: the timers wait for the step before


def inside(wrapped: nn.Module) -> DistributedDataParallel | None:
    return wrapped if isinstance(wrapped, DistributedDataParallel) else None


def time_exchanges(wrapped: nn.Module) -> None:
    if ddp := inside(wrapped):
        ddp._set_ddp_runtime_logging_sample_rate(TIMED_EVERY)  # type: ignore[no-untyped-call]


def exchange_seconds(wrapped: nn.Module) -> tuple[float, float] | None:
    """How long the last timed exchange took, and how much of that came after the end of the backward pass, when nothing
    hid it any more; None where DDP exchanges nothing."""
    ddp = inside(wrapped)
    found = ddp._get_ddp_logging_data() if ddp else {}  # type: ignore[no-untyped-call]
    total, hidden = (found.get(f"backward_{key}_time") for key in ("comm", "compute_comm_overlap"))
    return None if total is None or hidden is None else (total / 1e9, max(0, total - hidden) / 1e9)
