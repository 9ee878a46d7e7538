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

LOOK_AT = 64  # rows of equal free space that are tried before the next emptier ones


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
    """Rows of pairs, longest pairs first, each into the row with the fewest free target slots that holds both sides."""
    needs = np.maximum(source_lengths, target_lengths)
    assert needs.size == 0 or int(needs.max()) <= width, "a pair is longer than a row"
    sources, targets = source_lengths.tolist(), target_lengths.tolist()
    rows: list[Row] = []
    free_source: list[int] = []
    rows_by_free_target: list[list[int]] = [[] for _ in range(width + 1)]
    for pair in np.argsort(-needs, kind="stable").tolist():
        row, free_target = take_row(rows_by_free_target, free_source, sources[pair], targets[pair])
        if row is None:
            row, free_target = len(rows), width
            rows.append([])
            free_source.append(width)
        rows[row].append(pair)
        free_source[row] -= sources[pair]
        rows_by_free_target[free_target - targets[pair]].append(row)
    return rows


def take_row(
    rows_by_free_target: list[list[int]], free_source: list[int], source: int, target: int
) -> tuple[int | None, int]:
    """Take out the best row and say how many target slots it has free; None when no row is found. Of rows that are
    equally full only some are looked at, so that the time stays in proportion to the pairs."""
    for free_target in range(target, len(rows_by_free_target)):
        candidates = rows_by_free_target[free_target]
        for place in range(len(candidates) - 1, max(-1, len(candidates) - 1 - LOOK_AT), -1):
            if free_source[candidates[place]] >= source:
                row = candidates[place]
                candidates[place] = candidates[-1]
                candidates.pop()
                return row, free_target
    return None, 0


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
