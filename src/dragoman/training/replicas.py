"""Ranks that must hold the same weights do so to the bit. A sum over them is a cheap fingerprint; whoever has another one is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from dragoman.model.transformer import Transformer
from dragoman.parallel.reduce import gather
from dragoman.parallel.strategy import Strategy


@dataclass(frozen=True)
class Drift:
    ranks: list[int]  # that hold others than the rest; where there is no majority, all that disagree
    known: bool  # whether it can be told who is wrong

    def sentence(self, host_of: dict[int, str]) -> str:
        names = ", ".join(f"{rank} (host {host_of[rank]})" for rank in self.ranks)
        if self.known:
            return f"rank {names} holds other weights than the rest"
        return f"ranks {names} hold different weights; which of them is wrong cannot be told, as there is no majority"


def fingerprint(strategy: Strategy, model: Transformer) -> str:
    """To the last bit, and of weights that are not numbers too."""
    sums = [tensor.detach().double().sum() for tensor in strategy.held(model).values()]
    return float(torch.stack(sums).sum()).hex() if sums else ""


def compare(strategy: Strategy, model: Transformer) -> Drift | None:
    """Every rank must reach this line."""
    groups = strategy.replicas()
    if not groups:
        return None
    prints = gather(strategy.mesh, fingerprint(strategy, model))
    odd: list[int] = []
    known = True
    for group in groups:
        (usual, count), *others = Counter(prints[rank] for rank in group).most_common()
        if others and count * 2 > len(group):
            odd += [rank for rank in group if prints[rank] != usual]
        elif others:
            odd, known = odd + group, False
    return Drift(sorted(odd), known) if odd else None
