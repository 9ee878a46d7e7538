"""The global plan dealt to ranks: one step = a fixed number of rows of the stream, cut into equal shares.

Every rank walks the same plan and builds the tensors of its own rows only. As the plan is known to all, so is the number
of target tokens of the whole step, and nobody has to ask the others for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.data.encode import Encoded, Lengths, Side
from dragoman.data.order import Mixture
from dragoman.data.pack import LongPairs, Packing, Position, Row, best_fit, rows_from
from dragoman.data.subwords import BOS

Slots = npt.NDArray[np.int32]

PREFETCH_STEPS = 4


@dataclass
class Batch:
    """Rows of slots, all tensors [rows, width]. Segment 0 is an empty slot; pairs in a row are numbered from 1.

    Labels are int64, which the loss needs; all else is int32, which is less to copy to the device."""

    source: Tensor
    source_position: Tensor
    source_segment: Tensor
    target_in: Tensor
    target_out: Tensor
    target_position: Tensor
    target_segment: Tensor

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self.tensors()))

    def pin(self) -> Batch:
        return Batch(*(tensor.pin_memory() for tensor in self.tensors()))


@dataclass
class Step:
    """What one rank computes for one update, and what all ranks together see."""

    micro_batches: list[Batch]
    source_tokens: int  # these four over all ranks
    target_tokens: int
    pairs: int
    slots: int  # on each side, empty ones included
    position: Position  # behind this step


@dataclass(frozen=True)
class Stage:
    """From this step on, epochs have this mixture of corpora."""

    from_step: int
    mixture: Mixture


Stages = tuple[Stage, ...]


@dataclass(frozen=True)
class Share:
    """How the rows of a step are divided. The update does not depend on it."""

    rows: int
    rank: int
    world: int
    micro_rows: int

    @property
    def rows_per_rank(self) -> int:
        return -(-self.rows // self.world)

    @property
    def micro_batches(self) -> int:
        return -(-self.rows_per_rank // self.micro_rows)

    @property
    def rows_per_micro_batch(self) -> int:
        """Equal sizes, so that shapes never change; what is too much is filled with empty rows."""
        return -(-self.rows_per_rank // self.micro_batches)

    def widened(self, packing: Packing) -> Share:
        """The share of a step of wide rows: about as many slots, in fewer rows."""
        rows, micro_rows = (
            max(1, rows * packing.width // max(packing.wide_width, packing.width))
            for rows in (self.rows, self.micro_rows)
        )
        return replace(self, rows=rows, micro_rows=micro_rows)

    def deal(self, rows: list[Row]) -> list[list[Row]]:
        """The micro-batches of this rank."""
        mine = rows[self.rank :: self.world]
        size = self.rows_per_micro_batch
        cut = [mine[start : start + size] for start in range(0, self.micro_batches * size, size)]
        return [part + [[]] * (size - len(part)) for part in cut]


def steps(
    data: Encoded, packing: Packing, share: Share, position: Position, stages: Stages = (), step: int = 0
) -> Iterator[Step]:
    """Endless steps from `position` on, each of narrow or of wide rows alone: two shapes in all. `step`: how many were
    done before, which says at what stage of training the mixture of corpora is."""
    while True:
        stage = sum(step >= each.from_step for each in stages[1:])
        position = position if position.stage == stage else Position(stage=stage)
        for made in steps_of_stage(data, packing, share, position, stages):
            yield made
            step, position = step + 1, made.position
            if any(step == each.from_step for each in stages[1:]):
                break


def steps_of_stage(data: Encoded, packing: Packing, share: Share, position: Position, stages: Stages) -> Iterator[Step]:
    lengths = Lengths(data.source.ends), Lengths(data.target.ends)
    mixture = stages[position.stage].mixture if stages else ()
    wide_share = share.widened(packing)
    long_pairs = LongPairs(*lengths, packing, wide_share.rows, mixture, position.stage)
    narrow_rows = rows_from(position, *lengths, packing, mixture, long_pairs.pairs)
    wide_rows = long_pairs.steps_from(position.wide)
    while True:
        if position.wide < long_pairs.due(position):
            position = position._replace(wide=position.wide + 1)
            yield one_step(data, lengths, next(wide_rows), packing.wide_width, wide_share, position)
        else:
            rows, behind = zip(*islice(narrow_rows, share.rows), strict=True)
            position = behind[-1]._replace(wide=position.wide)
            yield one_step(data, lengths, list(rows), packing.width, share, position)


def one_step(
    data: Encoded, lengths: tuple[Lengths, Lengths], rows: list[Row], width: int, share: Share, behind: Position
) -> Step:
    pairs = np.fromiter(chain.from_iterable(rows), np.int64)
    source_tokens, target_tokens = (int(side[pairs].sum()) for side in lengths)
    micro_batches = [tiles(data, part, width) for part in share.deal(rows)]
    return Step(micro_batches, source_tokens, target_tokens, len(pairs), share.rows * width, behind)


def once(data: Encoded, width: int, slots: int, rank: int, world: int) -> Iterator[tuple[Batch, int]]:
    """This rank's share of every pair exactly once, with the number of pairs in each batch: for validation.
    Rows are as wide as the longest pair needs, and as many as `slots` hold; the last batch is filled with empty ones."""
    source_lengths, target_lengths = data.source.lengths, data.target.lengths
    width = max(width, int(source_lengths.max()), int(target_lengths.max()))
    rows_per_batch = max(1, slots // width)
    mine = best_fit(source_lengths, target_lengths, width)[rank::world]
    for start in range(0, len(mine), rows_per_batch):
        rows = mine[start : start + rows_per_batch]
        yield tiles(data, rows + [[]] * (rows_per_batch - len(rows)), width), sum(map(len, rows))


def tiles(data: Encoded, rows: list[Row], width: int) -> Batch:
    """Tensors of some rows."""
    source, source_position, source_segment = place(data.source, rows, width)
    target, target_position, target_segment = place(data.target, rows, width)
    target_in = np.zeros_like(target)
    target_in[:, 1:] = target[:, :-1]
    target_in[target_position == 0] = BOS
    target_in[target_segment == 0] = 0
    labels = target.astype(np.int64)
    arrays = (source, source_position, source_segment, target_in, labels, target_position, target_segment)
    return Batch(*(torch.from_numpy(array) for array in arrays))


def place(side: Side, rows: list[Row], width: int) -> tuple[Slots, Slots, Slots]:
    """Ids, positions and segments of one side, [rows, width] each, without a Python loop over tokens or pairs."""
    pairs = np.fromiter(chain.from_iterable(rows), np.int64)
    counts = np.fromiter(map(len, rows), np.int64)
    row_of = np.repeat(np.arange(len(rows)), counts)
    first_of = np.repeat(np.cumsum(counts) - counts, counts)  # the first pair in the row of each pair
    starts = np.where(pairs > 0, side.ends[pairs - 1], 0)
    lengths = side.ends[pairs] - starts
    before = np.cumsum(lengths) - lengths  # tokens placed before each pair, over all rows
    first_slots = row_of * width + before - before[first_of]

    within = np.arange(lengths.sum()) - np.repeat(before, lengths)
    slots = np.repeat(first_slots, lengths) + within
    ids, positions, segments = np.zeros((3, len(rows) * width), dtype=np.int32)
    ids[slots] = side.ids[np.repeat(starts, lengths) + within]
    positions[slots] = within
    segments[slots] = np.repeat(np.arange(1, len(pairs) + 1) - first_of, lengths)
    return ids.reshape(-1, width), positions.reshape(-1, width), segments.reshape(-1, width)


def prefetched(stream: Iterator[Step], *, pin: bool) -> Generator[Step, None, None]:
    """The same steps, built by a background thread a few steps ahead. An error in it is raised here."""
    ready: queue.Queue[Step | BaseException] = queue.Queue(PREFETCH_STEPS)
    stopped = threading.Event()

    def produce() -> None:
        try:
            for step in stream:
                if pin:
                    step.micro_batches = [batch.pin() for batch in step.micro_batches]
                if not offer(step):
                    return
        except BaseException as error:  # handed to the consumer, not swallowed
            offer(error)

    def offer(item: Step | BaseException) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    thread = threading.Thread(target=produce, name="loader", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join(timeout=5.0)  # a thread that still computes while Python shuts down may abort the process
