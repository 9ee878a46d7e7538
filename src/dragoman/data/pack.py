"""Tile packing: pure functions from sentence lengths to a plan.

Every pair sits whole in one row of W source and W target slots, several pairs to a row. All attention is then local to
a row, shapes never change, and hardly a slot is empty.

    pairs --shuffle per epoch--> windows --best fit--> rows --shuffle in the window--> one endless stream of rows

A window is packed by itself, so a position in the stream is a few small numbers, and any position is reached by packing
one window: no batch is skipped over, however far a run has come. The stream does not depend on the number of ranks.

Pairs that do not fit such a row are kept out of the stream. They are packed into wider rows, which fill steps of their
own, spread over the epoch: two shapes in all. Two long pairs seldom fit one row, and their rows seldom make whole steps, so
short pairs, drawn once by chance, keep them company and are kept out of the stream as well. All of them are looked for and
packed at every start, which takes time in proportion to all pairs and to the long ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dragoman.data.order import AllBut, Corpus, Ints, Mixture, Order, shuffled

Row = list[int]  # indices of the pairs in one row
Lengths = Any  # of all pairs: an array, or something that looks up those of the pairs that it is asked for

PACKER = 3  # raised whenever the same settings give another stream: a position in the old one means other rows
WIDE_PACKER = 5  # the same, where there are wide rows
SCANNED = 1 << 18  # pairs whose lengths are looked at together
SAMPLE = 1000  # pairs that say how long short ones are
LOOK_AT = 64  # rows of equal free space that are tried before the next emptier ones


class Position(NamedTuple):
    """Where the next step comes from: a few numbers, valid for any number of ranks."""

    epoch: int = 0
    window: int = 0
    row: int = 0
    wide: int = 0  # steps of long pairs so far, over all epochs
    stage: int = 0  # which of several mixtures of corpora; the others count from its beginning


@dataclass(frozen=True)
class Packing:
    """Settings that the stream of rows depends on. Changing one starts another stream."""

    width: int
    window_pairs: int
    seed: int
    wide_width: int = 0  # of the rows for pairs that do not fit `width`; 0: there are none

    def settings(self) -> dict[str, int]:
        named = {key: value for key, value in asdict(self).items() if key != "wide_width" or value}
        return named | {"packer": WIDE_PACKER if self.wide_width else PACKER}

    def long_pairs(self, source_lengths: Lengths, target_lengths: Lengths) -> Ints:
        """Those that need a wide row, rising."""
        found = [np.zeros(0, np.int64)]
        for start in range(0, len(source_lengths) if self.wide_width else 0, SCANNED):
            part = slice(start, start + SCANNED)
            found.append(start + np.flatnonzero(np.maximum(source_lengths[part], target_lengths[part]) > self.width))
        return np.concatenate(found)


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
    """Rows by their free target slots. A bit set tells which numbers of free slots occur at all, and a bound for each of
    them how many source slots are free at most, so that the best row is found without walking through the others."""

    def __init__(self, width: int):
        self.width = width
        self.free_source: list[int] = []
        self.by_free_target: list[list[int]] = [[] for _ in range(width + 1)]
        self.most_free_source = [0] * (width + 1)
        self.occupied = 0

    def place(self, source: int, target: int) -> int:
        """The row that a pair goes into, by its number; a new one when it fits none that was looked at."""
        row, free_target = self.take(source, target)
        self.free_source[row] -= source
        left = free_target - target
        self.by_free_target[left].append(row)
        self.most_free_source[left] = max(self.most_free_source[left], self.free_source[row])
        self.occupied |= 1 << left
        return row

    def take(self, source: int, target: int) -> tuple[int, int]:
        """Take out the fullest row that holds the pair, with its free target slots."""
        levels = self.occupied >> target << target
        while levels:
            free_target = (levels & -levels).bit_length() - 1
            levels &= levels - 1
            if self.most_free_source[free_target] < source:
                continue
            candidates = self.by_free_target[free_target]
            for place in range(len(candidates) - 1, max(-1, len(candidates) - 1 - LOOK_AT), -1):
                row = candidates[place]
                if self.free_source[row] >= source:
                    candidates[place] = candidates[-1]
                    candidates.pop()
                    if not candidates:
                        self.occupied &= ~(1 << free_target)
                    return row, free_target
            if len(candidates) <= LOOK_AT:
                self.most_free_source[free_target] = source - 1
        self.free_source.append(self.width)
        return len(self.free_source) - 1, self.width


def rows_from(
    position: Position,
    source_lengths: Lengths,
    target_lengths: Lengths,
    packing: Packing,
    mixture: Mixture = (),
    long_pairs: Ints | None = None,
) -> Iterator[tuple[Row, Position]]:
    """The endless stream of rows from `position` on, each with the position behind it. Who knows the long pairs and their company
    already need not have them looked for again.

    Every epoch has every other pair once, or as often as the mixture says, in an order of its own that follows
    from (seed, stage, epoch)."""
    if long_pairs is None:
        long_pairs = LongPairs(source_lengths, target_lengths, packing, 1, mixture).pairs
    order = Order(AllBut(len(source_lengths), long_pairs), mixture, packing.seed, position.stage)
    windows = -(-len(order) // packing.window_pairs)
    here, skip = position._replace(wide=0), position.row
    while windows:
        start = here.window * packing.window_pairs
        chosen = order.at(here.epoch, start, start + packing.window_pairs)
        rows = best_fit(source_lengths[chosen], target_lengths[chosen], packing.width)
        pairs = chosen.tolist()
        key = [packing.seed, here.stage, here.epoch, here.window]
        shuffled = np.random.default_rng(key).permutation(len(rows)).tolist()
        following = next_window(here, windows)
        for place in range(skip, len(rows)):
            behind = here._replace(row=place + 1) if place + 1 < len(rows) else following
            yield [pairs[pair] for pair in rows[shuffled[place]]], behind
        here, skip = following, 0


def next_window(here: Position, windows: int) -> Position:
    if here.window + 1 < windows:
        return here._replace(window=here.window + 1, row=0)
    return here._replace(epoch=here.epoch + 1, window=0, row=0)


class LongPairs:
    """The pairs that need wide rows, and others that fill these up, cut into steps, and when these are due.

    They are packed once, each corpus by itself, and an epoch has as many rows of a corpus as the mixture says, at least one,
    drawn anew every time: so every epoch has the same number of steps, and in the long run every pair its turn."""

    def __init__(
        self,
        source_lengths: Lengths,
        target_lengths: Lengths,
        packing: Packing,
        rows_per_step: int,
        mixture: Mixture = (),
        stage: int = 0,
    ):
        self.packing, self.stage = packing, stage
        self.lengths = source_lengths, target_lengths
        corpora = mixture or (Corpus(len(source_lengths)),)
        long = packing.long_pairs(*self.lengths)
        shorts = AllBut(len(source_lengths), long)
        starts = [0, *(corpus.end for corpus in corpora[:-1])]
        parts = [slice(start, corpus.end) for start, corpus in zip(starts, corpora, strict=True)]
        own = [long[slice(*np.searchsorted(long, (part.start, part.stop)))] for part in parts]
        counts = row_counts([len(self.packed(pairs)) for pairs in own], corpora, rows_per_step)
        self.rows: list[Row] = []
        shares: list[Corpus] = []
        for part, pairs, count, corpus in zip(parts, own, counts, corpora, strict=True):
            # Where the mixture says less than a row, every epoch has one all the same: short pairs would come too often in it.
            often = corpus.times * count >= 1
            drawn = np.concatenate([pairs, self.companions(pairs, shorts, part, count)]) if often else pairs
            # Long pairs come first, so the first rows are theirs; whoever found no room in so many stays where it was.
            rows = self.packed(drawn)[:count]
            self.rows += [drawn[row].tolist() for row in rows]
            least = 1 / len(rows) if rows and corpus.times else 0.0
            shares.append(Corpus(len(self.rows), max(corpus.times, least)))
        self.pairs = np.sort(np.fromiter(chain.from_iterable(self.rows), np.int64))
        nothing = np.zeros(0, np.int64)
        self.order = Order(AllBut(len(self.rows), nothing), tuple(shares), packing.seed, stage)
        self.steps_per_epoch = -(-len(self.order) // rows_per_step)
        kept = AllBut(len(source_lengths), self.pairs)
        self.narrow_pairs = len(Order(kept, mixture, packing.seed, stage))
        share = self.narrow_pairs / max(1, len(kept))
        tokens = [int(side.sum()) - int(side[self.pairs].sum()) for side in (source_lengths, target_lengths)]
        # About: packing them all would take too long.
        self.narrow_rows = max(1, int(share * max(tokens)) // packing.width)

    def companions(self, long: Ints, shorts: AllBut, part: slice, rows: int) -> Ints:
        """Short pairs of the same part of the corpora: as many as fill so many rows beside the long ones, half of all at most. They
        are drawn by chance, so that steps have short pairs of all lengths, and are the same at every start."""
        start, end = shorts.below(part.start), shorts.below(part.stop)
        count = end - start

        def drawn(most: int) -> Ints:
            return shorts[start + shuffled(np.arange(min(most, count // 2)), count, self.packing.seed)]

        few = drawn(SAMPLE)
        if not len(few):
            return few
        free = [rows * self.packing.wide_width - int(side[long].sum()) for side in self.lengths]
        return drawn(min(int(slots / side[few].mean()) for side, slots in zip(self.lengths, free, strict=True)))

    def packed(self, pairs: Ints) -> list[Row]:
        source_lengths, target_lengths = self.lengths
        return best_fit(source_lengths[pairs], target_lengths[pairs], self.packing.wide_width)

    def due(self, position: Position) -> int:
        """How many wide steps there should have been before `position`, so that they are spread over the epoch."""
        if not self.steps_per_epoch:
            return 0
        if not self.narrow_pairs:
            return position.wide + 1
        done = min(self.rows_before(position.window) + position.row, self.rows_before(position.window + 1))
        return self.steps_per_epoch * position.epoch + self.steps_per_epoch * done // self.narrow_rows

    def rows_before(self, window: int) -> int:
        return self.narrow_rows * min(window * self.packing.window_pairs, self.narrow_pairs) // self.narrow_pairs

    def steps_from(self, wide: int) -> Iterator[list[Row]]:
        """The rows of every wide step from number `wide` on. Steps of an epoch are equally large, but for one row."""
        epoch, first = divmod(wide, self.steps_per_epoch)
        while True:
            chosen = np.sort(self.order.at(epoch, 0, len(self.order)))
            random = np.random.default_rng([self.packing.seed, self.stage, epoch, 0, 1])
            order = random.permutation(chosen).tolist()
            cuts = [len(order) * step // self.steps_per_epoch for step in range(self.steps_per_epoch + 1)]
            for step in range(first, self.steps_per_epoch):
                yield [self.rows[row] for row in order[cuts[step] : cuts[step + 1]]]
            epoch, first = epoch + 1, 0


def row_counts(needed: list[int], corpora: Mixture, rows_per_step: int) -> list[int]:
    """Rows of every corpus, so many more than are needed that all steps of an epoch are full: one with few pairs would count as
    much as any other. In a mixture of corpora where an epoch has one or two such steps they may be less full, as every corpus
    has whole rows."""
    shares = [
        max(1.0, corpus.times * count) for count, corpus in zip(needed, corpora, strict=True) if count and corpus.times
    ]
    steps = math.ceil(sum(shares) / rows_per_step)
    more = steps * rows_per_step / sum(shares) if shares else 1.0
    return [int(count * more + 1e-6) for count in needed]
