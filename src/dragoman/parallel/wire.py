"""Numbers on their way between hosts: as they are, in 16 bits, or in 8.

In 8 bits, blocks of numbers share a scale, and what rounding takes away is kept and added the next time (error feedback). The
sum is a reduce-scatter and an all-gather of quantised numbers: every rank adds up its own part in fp32, in the order of
ranks, so that all ranks end with the same bits.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK = 1024  # numbers that share a scale
gather_whole = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)  # as torch 2.13 calls it, and before
NUMBER_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0 + 4.0 / BLOCK}


def sum_over(buffer: Tensor, group: dist.ProcessGroup | None, wire: str, residual: Tensor | None = None) -> None:
    """`buffer` becomes its sum over the group, the same on all its ranks. `residual` is kept by whoever calls, for int8."""
    if wire == "fp32":
        dist.all_reduce(buffer, group=group)
    elif wire == "bf16":
        small = buffer.to(torch.bfloat16)
        dist.all_reduce(small, group=group)
        buffer.copy_(small)
    else:
        assert residual is not None
        sum_in_eight_bits(buffer, group, residual)


def padded_size(count: int, ranks: int) -> int:
    """Every rank adds up an equal part, of whole blocks."""
    return -(-count // (ranks * BLOCK)) * ranks * BLOCK


def sum_in_eight_bits(buffer: Tensor, group: dist.ProcessGroup | None, residual: Tensor) -> None:
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    residual[: buffer.numel()] += buffer
    mine = residual.view(ranks, -1)  # what is to be sent, with what was lost before
    packed = pack(mine)
    mine -= unpack(packed)
    received = torch.empty_like(packed)
    dist.all_to_all_single(received, packed, group=group)
    total = unpack(received).sum(dim=0, keepdim=True)
    result = pack(total)
    mine[rank] += (total - unpack(result))[0]  # the second rounding is owed too, by the rank that did it
    everything = torch.empty_like(packed)
    gather_whole(everything, result, group=group)
    buffer.copy_(unpack(everything).flatten()[: buffer.numel()])


def pack(rows: Tensor) -> Tensor:
    """[rows, numbers] in fp32 -> [rows, bytes]: the numbers in 8 bits, then the scales of their blocks."""
    blocks = rows.view(rows.shape[0], -1, BLOCK)
    scales = torch.linalg.vector_norm(blocks, torch.inf, dim=2).div_(127.0).clamp_(min=1e-30)
    numbers = (blocks / scales.unsqueeze(2)).round_().to(torch.int8)
    return torch.cat([numbers.flatten(1), scales.view(torch.int8)], dim=1)


def unpack(packed: Tensor) -> Tensor:
    count = packed.shape[1] * BLOCK // (BLOCK + 4)
    scales = packed[:, count:].contiguous().view(torch.float32)
    numbers = packed[:, :count].reshape(packed.shape[0], -1, BLOCK)
    return (numbers * scales.unsqueeze(2)).flatten(1)
