"""Which ranks are close to each other. An island is a set of ranks joined by a fast network, one host as a rule; its first rank
speaks with the first ranks of the others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch.distributed as dist

from dragoman.errors import TrainingError
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import gather


@dataclass(frozen=True)
class Islands:
    ranks: list[list[int]]  # of every island
    own: int  # index of the island of this rank
    # Each group is used by one thread only: exchanges of two threads would meet in another order on another rank.
    within: dist.ProcessGroup | None  # the ranks of one's own island, for the courier
    gradients: dist.ProcessGroup | None  # the same ranks, for DDP and FSDP
    between: dist.ProcessGroup | None  # the first ranks of all islands, for the courier

    @property
    def first(self) -> int:
        return self.ranks[self.own][0]

    @property
    def leads(self) -> bool:
        return dist.get_rank() == self.first

    @property
    def size(self) -> int:
        return len(self.ranks[self.own])


def found(mesh: Mesh, ranks_per_island: int) -> Islands:
    """By hosts, or so many ranks each. Every rank must reach this line."""
    places = gather(mesh, mesh.local_rank)
    starts = [rank for rank, place in enumerate(places) if place == 0]
    if ranks_per_island:
        if mesh.world % ranks_per_island:
            raise TrainingError(
                f"parallel.ranks_per_island = {ranks_per_island} does not divide the {mesh.world} ranks; choose a divisor"
            )
        starts = list(range(0, mesh.world, ranks_per_island))
    elif places != [place for start, end in pairwise([*starts, mesh.world]) for place in range(end - start)]:
        raise TrainingError(
            "ranks of one host do not follow each other, so that nobody knows who is close to whom; number them host by host "
            "(Slurm: --distribution=block), or set parallel.ranks_per_island"
        )
    ranks = [list(range(start, end)) for start, end in pairwise([*starts, mesh.world])]
    own = next(index for index, members in enumerate(ranks) if mesh.rank in members)
    within, gradients = ([mesh.group(members) for members in ranks][own] for _ in range(2))
    return Islands(ranks, own, within, gradients, mesh.group([members[0] for members in ranks]))
