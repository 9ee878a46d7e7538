"""How many rows a device can handle at once, found by trying: forward and backward of a full batch, without compilation
(which needs no more), with room set aside for what comes later."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dragoman.data.loader import Batch, Share
from dragoman.data.pack import Packing
from dragoman.model.loss import SequenceLoss
from dragoman.parallel.reduce import held
from dragoman.training.precision import Arithmetic

CPU_SLOTS = 4096  # memory is no limit there, and more at once is not faster
SPARE = 0.08  # of the GPU's memory: for the compiler's buffers and for fragmentation
MOMENT_BYTES = 8  # per parameter, made by the optimizer at its first step


def most_rows(share: Share, fits: Callable[[int], bool]) -> int:
    """The most rows per micro-batch that fit: the share of a rank in as few equal parts as possible; 0 if not even one row."""
    if fits(share.rows_per_rank):
        return share.rows_per_rank
    too_few, enough = 1, 2
    while not fits(rows_in(share, enough)):
        if rows_in(share, enough) == 1:
            return 0
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fits(rows_in(share, middle)) else (middle, enough)
    return rows_in(share, enough)


def rows_in(share: Share, parts: int) -> int:
    return max(1, -(-share.rows_per_rank // parts))


def rows_that_fit(
    to_be_tried: Callable[[], SequenceLoss],
    share: Share,
    packing: Packing,
    arithmetic: Arithmetic,
    *,
    later: int = 0,
    fewer_than: float = float("inf"),
) -> int:
    """Rows of the narrow width for one micro-batch of this rank. Leaves nothing behind on the device. `later`: bytes that will be
    taken. `fewer_than`: rows that did not fit, whatever a trial says of them."""
    if arithmetic.device.type != "cuda":
        return int(min(fewer_than - 1, max(1, min(share.rows_per_rank, CPU_SLOTS // packing.width))))
    try:
        rows = rows_tried(to_be_tried(), share, packing, arithmetic, later, fewer_than)
    except RuntimeError as error:
        if not ran_out(error):
            raise
        rows = 0
    torch.cuda.empty_cache()  # a trial that failed, and a model that was made for it, have let go of their own only now
    torch.cuda.reset_peak_memory_stats(arithmetic.device)  # trying filled it to the brim
    return rows


def rows_tried(
    objective: SequenceLoss, share: Share, packing: Packing, arithmetic: Arithmetic, later: int, fewer_than: float
) -> int:
    def fits(rows: int) -> bool:
        if rows >= fewer_than:
            return False
        shapes = [(rows, packing.width)]
        if packing.wide_width:
            shapes.append((max(1, rows * packing.width // packing.wide_width), packing.wide_width))
        return all(survives(objective, arithmetic, *shape, later) for shape in shapes)

    return most_rows(share, fits)


def moments_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that it takes on this rank at its first step; nothing where it has them."""
    if optimizer.state:
        return 0
    weights = (weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad)
    return MOMENT_BYTES * sum(held(weight).numel() for weight in weights)


def survives(objective: SequenceLoss, arithmetic: Arithmetic, rows: int, width: int, later: int) -> bool:
    """Whether a batch without an empty slot goes through forward and backward beside the gradients of another, as in a step of several."""
    device, parameters = arithmetic.device, list(objective.parameters())
    kept = [parameter.grad for parameter in parameters]
    try:
        spare = int(SPARE * torch.cuda.get_device_properties(device).total_memory)
        reserved = torch.empty(later + spare, dtype=torch.uint8, device=device)
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        with arithmetic():
            loss, _ = objective(*full_batch(rows, width).to(device).tensors())
        loss.backward()
        torch.cuda.synchronize(device)
        del reserved
        return True
    except RuntimeError as error:
        if not ran_out(error):
            raise
        return False
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient
        torch.cuda.empty_cache()


def ran_out(error: RuntimeError) -> bool:
    """Whether an error means that a GPU's memory is full. Libraries beside torch's allocator say it in their own words."""
    words = str(error)
    return isinstance(error, torch.cuda.OutOfMemoryError) or "ALLOC_FAILED" in words or "out of memory" in words.lower()


def host_ran_out(error: RuntimeError) -> bool:
    """Whether it means that the host's is."""
    return "can't allocate memory" in str(error)


def full_batch(rows: int, width: int) -> Batch:
    """Of the types that training has: for others kernels would be compiled that nobody needs."""
    ids, position = (
        torch.ones(rows, width, dtype=torch.int32),
        torch.arange(width, dtype=torch.int32).expand(rows, width),
    )
    return Batch(ids, position, ids, ids, ids.long(), position, ids)
