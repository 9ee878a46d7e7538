"""Tiles: what stands in the slots is what was in the text, and validation sees each pair once."""

from itertools import islice

import numpy as np
import pytest
import torch

from dragoman.data.loader import Share, once, prefetched, steps, tiles
from dragoman.data.pack import Packing, Position
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
