"""Tile packing: pure functions from sentence lengths to a plan.

Every pair sits whole in one row of W source and W target slots, several pairs to a row. All attention is then local to
a row, shapes never change, and hardly a slot is empty.

    pairs --shuffle per epoch--> windows --best fit--> rows --shuffle in the window--> one endless stream of rows

A window is packed by itself, so a position in the stream is three small numbers, and any position is reached by packing
one window: no batch is skipped over, however far a run has come. The stream does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Row = list[int]  # indices of the pairs in one row

PACKER = 2  # raised whenever the same settings give another stream: a position in the old one means other rows
LOOK_AT = 64  # rows of equal free space that are tried before the next emptier ones


class Position(NamedTuple):
    """Where the next row comes from: three numbers, valid for any number of ranks."""

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
        return asdict(self) | {"packer": PACKER}


def best_fit(source_lengths: Ints, target_lengths: Ints, width: int) -> list[Row]:
    """Rows of pairs, longest pairs first, each into the row with the fewest free target slots that holds both sides."""
    needs = np.maximum(source_lengths, target_lengths)
    assert needs.size == 0 or int(needs.max()) <= width, "a pair is longer than a row"
    sources, targets = source_lengths.tolist(), target_lengths.tolist()
    rows: list[Row] = []
    open_rows = OpenRows(width)
    for pair in np.argsort(-needs, kind="stable").tolist():
        row = open_rows.place(sources[pair], targets[pair])
        if row == len(rows):
            rows.append([])
        rows[row].append(pair)
    return rows


class OpenRows:
    """Rows by their free target slots. A bit set tells which numbers of free slots occur at all, so that the best one is
    found without walking through the others."""

    def __init__(self, width: int):
        self.width = width
        self.free_source: list[int] = []
        self.by_free_target: list[list[int]] = [[] for _ in range(width + 1)]
        self.occupied = 0

    def place(self, source: int, target: int) -> int:
        """The row that a pair goes into, by its number; a new one when it fits none that was looked at."""
        row, free_target = self.take(source, target)
        self.free_source[row] -= source
        left = free_target - target
        self.by_free_target[left].append(row)
        self.occupied |= 1 << left
        return row

    def take(self, source: int, target: int) -> tuple[int, int]:
        """Take out the fullest row that holds the pair, with its free target slots."""
        levels = self.occupied >> target << target
        while levels:
            free_target = (levels & -levels).bit_length() - 1
            candidates = self.by_free_target[free_target]
            for place in range(len(candidates) - 1, max(-1, len(candidates) - 1 - LOOK_AT), -1):
                row = candidates[place]
                if self.free_source[row] >= source:
                    candidates[place] = candidates[-1]
                    candidates.pop()
                    if not candidates:
                        self.occupied &= ~(1 << free_target)
                    return row, free_target
            levels &= levels - 1
        self.free_source.append(self.width)
        return len(self.free_source) - 1, self.width


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
