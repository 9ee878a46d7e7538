"""Tiles: what stands in the slots is what was in the text, and validation sees each pair once."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.encode import Encoded, Side
from dragoman.data.loader import Share, once, prefetched, steps, tiles
from dragoman.data.pack import LongPairs, Packing, Position
from dragoman.data.subwords import BOS, EOS


def test_tiles_hold_the_sentences(prepared):
    data = prepared.encoded("valid")
    batch = tiles(data, [[3, 0, 7], [], [5]], 200)
    for row, pairs in enumerate([[3, 0, 7], [], [5]]):
        for segment, pair in enumerate(pairs, 1):
            source = batch.source[row][batch.source_segment[row] == segment]
            assert source.tolist() == data.source.sentence(pair).tolist()
            slots = batch.target_segment[row] == segment
            wanted = data.target.sentence(pair).tolist()
            assert batch.target_out[row][slots].tolist() == wanted
            assert batch.target_in[row][slots].tolist() == [BOS, *wanted[:-1]]
            assert batch.target_position[row][slots].tolist() == list(range(len(wanted)))
            assert wanted[-1] == EOS
    assert batch.source_segment[1].max() == 0
    empty = batch.target_segment == 0
    assert batch.target_in[empty].sum() == batch.target_out[empty].sum() == 0


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_validation_sees_each_pair_once_whatever_the_ranks(prepared, world):
    data = prepared.encoded("valid")
    seen = []
    for rank in range(world):
        for batch, pairs in once(data, 64, 256, rank, world):
            sentences = [
                tuple(batch.target_out[row][batch.target_segment[row] == segment].tolist())
                for row in range(len(batch.target_out))
                for segment in range(1, int(batch.target_segment[row].max()) + 1)
            ]
            assert len(sentences) == pairs
            assert batch.target_out.numel() <= 256
            seen += sentences
    assert sorted(seen) == sorted(tuple(data.target.sentence(index).tolist()) for index in range(len(data)))


def test_a_step_counts_the_tokens_of_all_ranks(prepared):
    data = prepared.encoded("train")
    packing = Packing(64, 100, 1)
    shares = [Share(16, rank, 2, 5) for rank in range(2)]
    dealt = [next(steps(data, packing, share, Position())) for share in shares]
    own = [sum(int((batch.target_segment > 0).sum()) for batch in step.micro_batches) for step in dealt]
    assert dealt[0].target_tokens == dealt[1].target_tokens == sum(own)
    assert dealt[0].position == dealt[1].position


def test_prefetching_changes_nothing_and_brings_errors_back(prepared):
    data, packing, share = prepared.encoded("train"), Packing(64, 100, 1), Share(8, 0, 1, 8)
    plain = islice(steps(data, packing, share, Position()), 6)
    ahead = islice(prefetched(steps(data, packing, share, Position()), pin=False), 6)
    for left, right in zip(plain, ahead, strict=True):
        assert left.position == right.position
        assert torch.equal(left.micro_batches[0].source, right.micro_batches[0].source)

    def broken():
        yield from islice(steps(data, packing, share, Position()), 2)
        raise OSError("the disk is gone")

    stream = prefetched(broken(), pin=False)
    assert [next(stream).pairs > 0 for _ in range(2)] == [True, True]
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)


def test_memory_map_is_what_the_index_says(prepared):
    data = prepared.encoded("train")
    assert int(data.source.lengths.sum()) == len(data.source.ids) == prepared.manifest["train"]["source_tokens"]
    assert np.all(data.target.lengths >= 2)


def numbered(lengths):
    """An encoded part in which every token of pair i is i."""
    sides = [np.array(side) for side in zip(*lengths, strict=True)]
    return Encoded(*(Side(np.repeat(np.arange(len(side)), side), np.cumsum(side)) for side in sides))


def pairs_in(step):
    """The pairs of a step as it was dealt to one rank."""
    firsts = [
        batch.target_out[(batch.target_segment > 0) & (batch.target_position == 0)] for batch in step.micro_batches
    ]
    return torch.cat(firsts).tolist()


def shapes_of(step):
    return [tuple(batch.source.shape) for batch in step.micro_batches]


side = st.one_of(st.integers(1, 16), st.integers(1, 40))
mixed = st.lists(st.tuples(side, side), min_size=1, max_size=60)
long_only = st.lists(st.tuples(side, st.integers(17, 40)), min_size=1, max_size=30)
packings = st.builds(
    Packing, width=st.just(16), window_pairs=st.integers(1, 40), seed=st.just(3), wide_width=st.just(40)
)


@given(mixed | long_only, packings, st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_every_epoch_has_every_pair_once_in_two_shapes(lengths, packing, rows):
    is_wide = np.zeros(len(lengths), bool)
    wide_rows = Share(rows, 0, 1, rows).widened(packing).rows
    is_wide[LongPairs(*np.array(lengths).T, packing, wide_rows).pairs] = True
    assert is_wide[np.array(lengths).max(axis=1) > packing.width].all()
    seen = {packing.width: [], packing.wide_width: []}
    shapes = set()
    for step in islice(steps(numbered(lengths), packing, Share(rows, 0, 1, rows), Position()), 2 * len(lengths)):
        (shape,) = shapes_of(step)
        shapes.add(shape)
        assert step.slots == shape[0] * shape[1] <= max(rows * packing.width, packing.wide_width)
        seen[shape[1]] += pairs_in(step)
        if not is_wide.all():
            assert len(seen[packing.wide_width]) <= (step.position.epoch + 1) * is_wide.sum(), "not ahead of the others"
    assert len(shapes) <= 2
    for width, wanted in ((packing.width, ~is_wide), (packing.wide_width, is_wide)):
        size = int(wanted.sum())
        assert size or not seen[width]
        for start in range(0, len(seen[width]) - size + 1, size or 1):
            assert sorted(seen[width][start : start + size]) == np.flatnonzero(wanted).tolist()


@given(mixed | long_only, packings, st.integers(1, 9), st.integers(0, 25))
@settings(max_examples=100, deadline=None)
def test_steps_go_on_from_any_position(lengths, packing, rows, done):
    data, share = numbered(lengths), Share(rows, 0, 1, 4)
    straight = list(islice(steps(data, packing, share, Position()), done + 12))
    position = Position(*straight[done - 1].position) if done else Position()
    for left, right in zip(straight[done:], steps(data, packing, share, position), strict=False):
        assert (left.position, left.slots, left.target_tokens) == (right.position, right.slots, right.target_tokens)
        for one, other in zip(left.micro_batches, right.micro_batches, strict=True):
            assert all(map(torch.equal, one.tensors(), other.tensors()))


@given(mixed | long_only, packings, st.integers(1, 9), st.integers(2, 4), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_ranks_take_the_same_steps_in_the_same_shapes(lengths, packing, rows, world, micro_rows):
    data = numbered(lengths)
    alone = steps(data, packing, Share(rows, 0, 1, rows), Position())
    dealt = [steps(data, packing, Share(rows, rank, world, micro_rows), Position()) for rank in range(world)]
    for whole, *parts in islice(zip(alone, *dealt, strict=True), 12):
        assert sorted(pair for part in parts for pair in pairs_in(part)) == sorted(pairs_in(whole))
        assert {part.position for part in parts} == {whole.position}
        assert {(part.target_tokens, part.slots) for part in parts} == {(whole.target_tokens, whole.slots)}
        assert len({tuple(shapes_of(part)) for part in parts}) == 1


def test_a_pair_that_fits_no_row_is_never_left_out_silently():
    for wide_width in (0, 20):
        with pytest.raises(AssertionError, match="longer than a row"):
            next(steps(numbered([(3, 4), (5, 21)]), Packing(16, 9, 1, wide_width), Share(2, 0, 1, 2), Position()))
