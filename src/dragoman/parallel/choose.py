"""From parallel.strategy to the class that does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from dragoman.config.schema import Parallel
from dragoman.parallel.local import Local
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.plan import RARELY
from dragoman.parallel.strategy import Strategy

if TYPE_CHECKING:
    from dragoman.parallel.sharded import Blocks


def strategy_for(section: Parallel, mesh: Mesh, blocks: Blocks, twin: Callable[[], nn.Module]) -> Strategy:
    """One process has nobody to share with, whatever the strategy."""
    if mesh.world > 1 and section.strategy in ("fsdp", "hybrid"):
        from dragoman.parallel.sharded import Sharded  # takes half a second to import

        return Sharded(section, mesh, blocks, twin)
    if mesh.world > 1 and section.strategy in RARELY:
        return Local(section, mesh)
    return Strategy(section, mesh)
