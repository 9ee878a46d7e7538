"""Who holds the others up, while it happens. Ranks end a step together, so the step time of all is the same: the slow one is the
rank that waits least, because it works while the others wait for it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

# Of a rank's own: all of a step but its wait for the others.
WORK = ("idle", "other", "forward", "backward", "optimizer")
MUCH = 0.2  # of the others' own time
WINDOWS = 3  # in a row: a hiccup is no straggler


@dataclass(frozen=True)
class Straggler:
    rank: int
    own_seconds: float  # of a step
    others_seconds: float  # in the middle
    where: str  # the span that it loses most in

    def sentence(self, host: str) -> str:
        return (
            f"rank {self.rank} on host {host} holds the others up: {self.own_seconds:.3f} s of a step are its own work, of the "
            f"others {self.others_seconds:.3f} s; most of the difference is {self.where}"
        )


class Lookout:
    """Looks at the spans of every window. `look` returns who is slow, and changes its answer only when it is sure."""

    def __init__(self) -> None:
        self.suspect, self.windows = -1, 0
        self.named: Straggler | None = None

    def look(self, spans: dict[str, list[float]]) -> Straggler | None:
        found = slowest(spans)
        rank = found.rank if found else -1
        self.windows = self.windows + 1 if rank == self.suspect else 1
        self.suspect = rank
        if self.windows >= WINDOWS:
            self.named = found
        return self.named


def slowest(spans: dict[str, list[float]]) -> Straggler | None:
    """The rank with the most work of its own, when that is much more than the others have."""
    own = [sum(seconds) for seconds in zip(*(spans[span] for span in WORK), strict=True)]
    if len(own) < 2:
        return None
    rank = max(range(len(own)), key=own.__getitem__)
    others = statistics.median(own[:rank] + own[rank + 1 :])
    if own[rank] <= (1 + MUCH) * others or spans["exposed"][rank] > min(spans["exposed"]):
        return None

    def excess(span: str) -> float:
        return spans[span][rank] - statistics.median(spans[span])

    return Straggler(rank, own[rank], others, max(WORK, key=excess))
