"""Ranks that must hold the same weights do so to the bit. A sum over them is a cheap fingerprint; whoever has another one is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from dragoman.model.transformer import Transformer
from dragoman.parallel.reduce import gather
from dragoman.parallel.strategy import Strategy, Tensors

WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number


@dataclass(frozen=True)
class Drift:
    ranks: list[int]  # that hold others than the rest; where there is no majority, all that disagree
    known: bool  # whether it can be told who is wrong

    def sentence(self, host_of: dict[int, str]) -> str:
        names = ", ".join(f"{rank} (host {host_of[rank]})" for rank in self.ranks)
        if self.known:
            return f"rank {names} holds other weights than the rest"
        return f"ranks {names} hold different weights; which of them is wrong cannot be told, as there is no majority"


def fingerprint(tensors: Tensors) -> str:
    """Of the bits, taken as whole numbers: their sum is the same in whatever order threads and devices add them up."""
    bits = [tensor.detach().view(WHOLE[tensor.element_size()]) for tensor in tensors.values()]
    return str(int(torch.stack([each.sum(dtype=torch.int64) for each in bits]).sum())) if bits else ""


def compare(strategy: Strategy, model: Transformer) -> Drift | None:
    """Every rank must reach this line."""
    odd: set[int] = set()
    known = True
    for groups, tensors in strategy.held_alike(model):
        prints = gather(strategy.mesh, fingerprint(tensors))
        for group in groups:
            (usual, count), *others = Counter(prints[rank] for rank in group).most_common()
            if others and count * 2 > len(group):
                odd |= {rank for rank in group if prints[rank] != usual}
            elif others:
                odd, known = odd | set(group), False
    return Drift(sorted(odd), known) if odd else None
