"""Tile packing: pure functions from sentence lengths to a plan.

Every pair sits whole in one row of W source and W target slots, several pairs to a row. All attention is then local to
a row, shapes never change, and hardly a slot is empty.

    pairs --shuffle per epoch--> windows --best fit--> rows --shuffle in the window--> one endless stream of rows

A window is packed by itself, so a position in the stream is three small numbers, and any position is reached by packing
one window: restart time does not grow with the corpus. The stream does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Row = list[int]  # indices of the pairs in one row


class Position(NamedTuple):
    """Where the next row comes from: constant size, constant time to restore, valid for any number of ranks."""

    epoch: int = 0
    window: int = 0
    row: int = 0


@dataclass(frozen=True)
class Packing:
    """Settings that the stream of rows depends on. Changing one starts another stream."""

    width: int
    window_pairs: int
    seed: int

    def settings(self) -> dict[str, int]:
        return asdict(self)


def best_fit(source_lengths: Ints, target_lengths: Ints, width: int) -> list[Row]:
    """Rows of pairs, longest pairs first, each into the fullest row that still holds it on both sides."""
    needs = np.maximum(source_lengths, target_lengths)
    assert needs.size == 0 or int(needs.max()) <= width, "a pair is longer than a row"
    rows: list[Row] = []
    left: list[list[int]] = []  # free source and target slots of every row
    rows_by_free: list[list[int]] = [[] for _ in range(width + 1)]  # free = the scarcer side
    for pair in np.argsort(-needs, kind="stable").tolist():
        source, target = int(source_lengths[pair]), int(target_lengths[pair])
        row = fullest_row(rows_by_free, max(source, target))
        if row is None:
            row = len(rows)
            rows.append([])
            left.append([width, width])
        rows[row].append(pair)
        left[row][0] -= source
        left[row][1] -= target
        rows_by_free[min(left[row])].append(row)
    return rows


def fullest_row(rows_by_free: list[list[int]], need: int) -> int | None:
    """Take out the row with the least free space that is still enough; None when there is none."""
    for free in range(need, len(rows_by_free)):
        if rows_by_free[free]:
            return rows_by_free[free].pop()
    return None


def rows_from(
    position: Position, source_lengths: Ints, target_lengths: Ints, packing: Packing
) -> Iterator[tuple[Row, Position]]:
    """The endless stream of rows from `position` on, each with the position behind it.

    Every epoch has every pair exactly once, in an order of its own that follows from (seed, epoch)."""
    pairs = len(source_lengths)
    windows = -(-pairs // packing.window_pairs)
    epoch, window, skip = position
    while True:
        order = np.random.default_rng([packing.seed, epoch]).permutation(pairs)
        for current in range(window, windows):
            chosen = order[current * packing.window_pairs : (current + 1) * packing.window_pairs]
            rows = best_fit(source_lengths[chosen], target_lengths[chosen], packing.width)
            shuffled = np.random.default_rng([packing.seed, epoch, current]).permutation(len(rows))
            for place in range(skip, len(rows)):
                last = place + 1 == len(rows)
                behind = Position(epoch, current, place + 1) if not last else next_window(epoch, current, windows)
                yield [int(chosen[pair]) for pair in rows[shuffled[place]]], behind
            skip = 0
        epoch, window = epoch + 1, 0


def next_window(epoch: int, window: int, windows: int) -> Position:
    return Position(epoch, window + 1, 0) if window + 1 < windows else Position(epoch + 1, 0, 0)
