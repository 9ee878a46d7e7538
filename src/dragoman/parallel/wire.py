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
PIECE = 1 << 19  # numbers in 8 bits that travel together
# As torch 2.13 calls it, and before.
gather_whole = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
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
    """In pieces, so that one is on the wire while another is packed, added up or unpacked."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    residual[: buffer.numel()] += buffer
    pieces = torch.split(residual.view(ranks, -1), max(1, PIECE // (ranks * BLOCK)) * BLOCK, dim=1)
    sent, gathered = [], []
    for mine in pieces:  # what is to be sent, with what was lost before
        packed = pack(mine)
        received = torch.empty_like(packed)
        arrival = dist.all_to_all_single(received, packed, group=group, async_op=True)
        sent.append((received, packed, arrival))  # what is sent must not be given back before it is
        mine -= unpack(packed)
        forgive(mine, packed)
    for mine, (received, _, arrival) in zip(pieces, sent, strict=True):
        arrival.wait()
        total = unpack(received).sum(dim=0, keepdim=True)
        result = pack(total)
        everything = torch.empty_like(received)
        arrival = gather_whole(everything, result, group=group, async_op=True)
        gathered.append((everything, result, arrival))
        mine[rank] += (total - unpack(result))[0]  # the second rounding is owed too, by the rank that did it
        forgive(mine[rank : rank + 1], result)
    start, each = 0, residual.numel() // ranks
    for everything, _, arrival in gathered:
        arrival.wait()
        rows = unpack(everything)
        for number, row in enumerate(rows):
            place = buffer[number * each + start : number * each + start + row.numel()]
            place.copy_(row[: place.numel()])
        start += rows.shape[1]


def forgive(owed: Tensor, packed: Tensor) -> None:
    """Where a number was not finite nothing is owed: the step changes nothing, and the next one must not suffer from it."""
    broken = ~scales_of(packed).isfinite()
    if owed.is_cuda or broken.any():  # asking a GPU would wait for it
        owed.view(owed.shape[0], -1, BLOCK).masked_fill_(broken.unsqueeze(2), 0.0)


def pack(rows: Tensor) -> Tensor:
    """[rows, numbers] in fp32 -> [rows, bytes]: the numbers in 8 bits, then the scales of their blocks."""
    blocks = rows.view(rows.shape[0], -1, BLOCK)
    scales = largest_of(blocks).div_(127.0).clamp_(min=1e-30)
    numbers = (blocks / scales.unsqueeze(2)).round_().to(torch.int8)
    return torch.cat([numbers.flatten(1), scales.view(torch.int8)], dim=1)


def largest_of(blocks: Tensor) -> Tensor:
    """The same on both: on a CPU the norm takes 20 times as long."""
    if not blocks.is_cuda:
        return torch.maximum(blocks.amax(dim=2), -blocks.amin(dim=2))
    norm: Tensor = torch.linalg.vector_norm(blocks, torch.inf, dim=2)
    return norm


def unpack(packed: Tensor) -> Tensor:
    numbers = packed[:, : count_of(packed)].to(torch.float32).view(packed.shape[0], -1, BLOCK)
    numbers.mul_(scales_of(packed).unsqueeze(2))  # in place: memory that is new costs a CPU more than the product
    return numbers.flatten(1)


def count_of(packed: Tensor) -> int:
    return packed.shape[1] * BLOCK // (BLOCK + 4)


def scales_of(packed: Tensor) -> Tensor:
    return packed[:, count_of(packed) :].contiguous().view(torch.float32)
