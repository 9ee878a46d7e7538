"""Which pair stands where in an epoch: a shuffle that is computed, not written down, so that any place of any epoch is found
at once, however large the corpus. And how often an epoch has the pairs of each corpus, when there are several.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

ROUNDS = 4
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: multiplying by it spreads bits


def shuffled(places: Ints, size: int, *key: int) -> Ints:
    """The pairs at these places of a shuffle of 0 .. size - 1 that follows from `key`.

    A Feistel network: the two halves of a number's bits are mixed with each other in turns, which can be undone, so no two
    places have the same pair. Numbers beyond the end are sent through it again until they are inside."""
    half = np.uint64(max(1, (max(1, size - 1).bit_length() + 1) // 2))
    low = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.SeedSequence([size, *key]).generate_state(ROUNDS, np.uint64)
    result = places.astype(np.uint64)
    outside = np.ones(len(result), dtype=bool)
    while outside.any():
        left, right = result[outside] >> half, result[outside] & low
        for round_key in keys:
            mixed = (right ^ round_key) * ODD
            mixed = (mixed ^ (mixed >> np.uint64(29))) * ODD
            left, right = right, left ^ ((mixed >> np.uint64(32)) & low)
        result[outside] = left << half | right
        outside = result >= size
    return result.astype(np.int64)


@dataclass(frozen=True)
class Corpus:
    """A stretch of the training pairs, and how often an epoch has each of them; a part of them, drawn anew every epoch, where
    that is not a whole number."""

    end: int  # the pair behind its last one
    times: float = 1.0


Mixture = tuple[Corpus, ...]


class AllBut:
    """The numbers 0 .. size - 1 without a few, rising; looked up, not written down."""

    def __init__(self, size: int, left_out: Ints):
        self.size, self.left_out = size - len(left_out), left_out
        self.kept_before = left_out - np.arange(len(left_out))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, places: Ints) -> Ints:
        return places + np.searchsorted(self.kept_before, places, side="right")

    def below(self, end: int) -> int:
        """How many are less than `end`."""
        return end - int(np.searchsorted(self.left_out, end))


class Order:
    """The pairs of an epoch in random order. `pairs` are those that take part."""

    def __init__(self, pairs: AllBut, mixture: Mixture, *key: int):
        ends = [pairs.below(corpus.end) for corpus in mixture] or [len(pairs)]
        self.starts = np.array([0, *ends[:-1]])
        self.counts = np.array(ends) - self.starts
        times = np.array([corpus.times for corpus in mixture] or [1.0])
        self.ends = np.cumsum(np.round(self.counts * times).astype(np.int64))  # of every corpus in the epoch
        self.pairs, self.key = pairs, key

    def __len__(self) -> int:
        return int(self.ends[-1])

    def at(self, epoch: int, start: int, stop: int) -> Ints:
        """The pairs at places start .. stop - 1 of an epoch."""
        places = shuffled(np.arange(start, min(stop, len(self))), len(self), *self.key, epoch)
        if len(self.ends) == 1 and len(self) == len(self.pairs):
            return self.pairs[places]
        chosen = np.searchsorted(self.ends, places, side="right")
        found = np.empty_like(places)
        for number in np.unique(chosen):
            own = chosen == number
            count, before = int(self.counts[number]), int(self.ends[number - 1]) if number else 0
            within = shuffled((places[own] - before) % count, count, *self.key, epoch, int(number))
            found[own] = self.pairs[self.starts[number] + within]
        return found


def with_temperature(sizes: list[int], weights: list[float], temperature: float) -> list[float]:
    """How often an epoch has each pair of every corpus: shares are (size x weight)^(1/temperature), the sum is kept."""
    with np.errstate(over="ignore", invalid="ignore"):
        amounts = np.array(sizes, dtype=np.float64) * weights
        flattened = amounts ** (1.0 / temperature)
        if not 0.0 < flattened.sum() < np.inf:  # only then, as runs that were saved go on with the very same shares
            flattened = (amounts / amounts.max()) ** (1.0 / temperature)
        shares = flattened / flattened.sum()
        return [float(share * amounts.sum() / size) if size else 0.0 for share, size in zip(shares, sizes, strict=True)]
