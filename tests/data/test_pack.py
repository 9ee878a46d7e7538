"""The packer and the stream of rows: nothing lost, nothing twice, the same from any position and for any number of ranks."""

from hashlib import sha256
from itertools import islice, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.loader import Share
from dragoman.data.order import Corpus
from dragoman.data.pack import LongPairs, Packing, Position, best_fit, rows_from

WIDTH = 32
lengths = st.lists(st.tuples(st.integers(1, WIDTH), st.integers(1, WIDTH)), min_size=1, max_size=120)


def arrays(pairs):
    source, target = zip(*pairs, strict=True)
    return np.array(source), np.array(target)


@given(lengths)
@settings(max_examples=150, deadline=None)
def test_every_pair_once_and_every_row_within_its_width(pairs):
    source, target = arrays(pairs)
    rows = best_fit(source, target, WIDTH)
    assert sorted(pair for row in rows for pair in row) == list(range(len(pairs)))
    assert all(source[row].sum() <= WIDTH and target[row].sum() <= WIDTH for row in rows)
    assert all(rows)


@given(lengths, st.integers(1, 50), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_a_stream_goes_on_from_any_position(pairs, window, skip):
    source, target = arrays(pairs)
    packing = Packing(WIDTH, window, seed=3)
    straight = list(islice(rows_from(Position(), source, target, packing), skip + 40))
    position = straight[skip - 1][1] if skip else Position()
    assert list(islice(rows_from(position, source, target, packing), 40)) == straight[skip:]


@given(lengths, st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_every_epoch_has_every_pair_once_in_its_own_order(pairs, window):
    source, target = arrays(pairs)
    epochs = {0: [], 1: []}
    position = Position()
    for row, behind in rows_from(position, source, target, Packing(WIDTH, window, seed=5)):
        if position.epoch > 1:
            break
        epochs[position.epoch] += row
        position = behind
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(len(pairs)))
    if len(pairs) > 40:
        assert epochs[0] != epochs[1]


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_ranks_share_the_rows_of_a_step_evenly(count, world, micro_rows):
    rows = [[number] for number in range(count)]
    dealt = [Share(count, rank, world, micro_rows).deal(rows) for rank in range(world)]
    assert sorted(pair for rank in dealt for part in rank for row in part for pair in row) == list(range(count))
    shapes = {(len(rank), *map(len, rank)) for rank in dealt}
    assert len(shapes) == 1, "every rank has the same number of micro-batches of the same size"
    assert all(len(part) <= micro_rows for rank in dealt for part in rank)


def test_rows_are_full_on_lengths_of_real_text_and_not_sorted():
    random = np.random.default_rng(0)
    source = np.exp(random.normal(3.15, 0.55, 40_000)).clip(4, 120).astype(int)
    target = (source * np.exp(random.normal(0.03, 0.15, 40_000))).clip(4, 120).astype(int)
    rows = [row for row, _ in islice(rows_from(Position(), source, target, Packing(128, 16_384, 1)), 4_000)]
    fill = sum(target[row].sum() for row in rows) / (128 * len(rows))
    assert fill > 0.98
    longest = np.array([target[row].max() for row in rows])
    first, second = longest[:2000].mean(), longest[2000:].mean()
    assert abs(first - second) < 0.05 * first, "no curriculum by accident"


def test_the_stream_is_the_one_that_older_checkpoints_point_into():
    """Another digest means other rows behind the same position: raise PACKER then."""
    number = np.arange(4_000)
    source, target = 1 + number * number * 7 % 31, 1 + number * 11 // 3 % 3
    for wide_width in (0, 64):
        stream = rows_from(Position(), source, target, Packing(32, 2_000, 3, wide_width))
        digest = sha256(repr([row for row, _ in islice(stream, 3_000)]).encode()).hexdigest()
        assert digest.startswith("6553684b61c12669")


def test_wide_steps_are_those_that_older_checkpoints_count():
    """As above: raise WIDE_PACKER then."""
    number = np.arange(4_000)
    source, target = 1 + number * number * 7 % 61, 1 + number * 11 // 3 % 3
    wide = LongPairs(source, target, Packing(32, 2_000, 3, 64), 16)
    digest = sha256(repr(list(islice(wide.steps_from(3), 300))).encode()).hexdigest()
    assert digest.startswith("bbddf229818c74ef")


long_sides = st.lists(st.integers(WIDTH + 1, 2 * WIDTH), min_size=1, max_size=25)


@given(st.lists(long_sides, min_size=1, max_size=3), st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.5]), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_long_pairs_of_a_part_of_a_corpus_are_others_in_every_epoch(corpora, times, rows_per_step):
    """An epoch has as many of their rows as the mixture says, as many steps as any other, and all have their turn."""
    lengths = np.concatenate(corpora)
    ends = np.cumsum([len(corpus) for corpus in corpora]).tolist()
    mixture = tuple(Corpus(end, 1.0 if place else times) for place, end in enumerate(ends))
    wide = LongPairs(lengths, lengths, Packing(WIDTH, 50, 3, 2 * WIDTH), rows_per_step, mixture)
    assert sorted(pair for row in wide.rows for pair in row) == list(range(len(lengths)))
    epochs = 80
    steps = list(islice(wide.steps_from(0), epochs * wide.steps_per_epoch)) if wide.steps_per_epoch else []
    assert all(len(rows) <= rows_per_step for rows in steps)
    seen = np.zeros((epochs, len(lengths)), int)
    for number, rows in enumerate(steps):
        np.add.at(seen[number // wide.steps_per_epoch], [pair for row in rows for pair in row], 1)
    first = ends[0]
    assert (seen[:, first:] == 1).all()
    own_rows = sum(row[0] < first for row in wide.rows)
    drawn = [
        sum(row[0] < first for rows in steps[at : at + wide.steps_per_epoch] for row in rows)
        for at in range(0, len(steps), wide.steps_per_epoch or 1)
    ]
    assert set(drawn) <= {max(round(own_rows * times), 1 if times else 0)}
    assert (seen[:, :first].sum(axis=0) > 0).all() == bool(times)


@given(st.integers(0, 5), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_short_pairs_keep_long_ones_company_until_their_rows_are_full(seed, corpora):
    random = np.random.default_rng(seed)
    source = np.exp(random.normal(3.0, 0.6, 30_000)).clip(4, 100).astype(int)
    target = (source * np.exp(random.normal(0.03, 0.15, 30_000))).clip(4, 100).astype(int)
    ends = np.linspace(0, 30_000, corpora + 1).astype(int).tolist()
    mixture = tuple(Corpus(end) for end in ends[1:])
    wide = LongPairs(source, target, Packing(64, 2_000, seed, 128), 16, mixture)
    fill = target[wide.pairs].sum() / (128 * len(wide.rows))
    long = np.maximum(source, target) > 64
    parts = [np.flatnonzero(long[start:end]) + start for start, end in pairwise(ends)]
    alone = sum(len(best_fit(source[part], target[part], 128)) for part in parts)
    assert fill > 0.97
    assert alone <= len(wide.rows) < alone + 16, "they take what is free, and rows of their own only to fill a step"
    assert len(wide.rows) > 16 * wide.steps_per_epoch - corpora
    own = np.digitize([row[0] for row in wide.rows], ends)
    assert all((np.digitize(row, ends) == number).all() for row, number in zip(wide.rows, own, strict=True))
    company = [pair for pair in wide.pairs if not long[pair]]
    assert abs(target[company].mean() / target[~long].mean() - 1) < 0.2, "drawn, not chosen"


def test_most_short_pairs_stay_with_each_other():
    """Or the few that are left would fill whole steps, again and again."""
    lengths = np.repeat([70, 20], [10_000, 29_002])
    wide = LongPairs(lengths, lengths, Packing(64, 2_000, 1, 128), 512)
    assert len(wide.rows) == 10_000
    assert 10_000 < len(wide.pairs) <= 10_000 + 29_002 // 2


def test_a_step_of_wide_rows_is_as_full_as_any_other():
    """One long pair is no step: each of its tokens would count a hundred times as much."""
    lengths = np.array([20] * 30_000 + [300] + [25] * 30_000)
    wide = LongPairs(lengths, lengths, Packing(128, 2_000, 1, 512), 64)
    assert wide.steps_per_epoch == 1
    assert len(wide.rows) == 64
    assert lengths[wide.pairs].sum() > 0.95 * 64 * 512


def test_a_row_that_every_epoch_must_have_has_long_pairs_only():
    lengths = np.array([20] * 1_000 + [70] + [20] * 500)
    wide = LongPairs(lengths, lengths, Packing(64, 2_000, 1, 128), 4, (Corpus(1_001, 0.001), Corpus(1_501)))
    assert wide.rows == [[1_000]]
    assert wide.pairs.tolist() == [1_000]


def test_settings_name_wide_rows_only_where_there_are_some():
    narrow = {"width": 32, "window_pairs": 100, "seed": 3, "packer": 3}
    assert Packing(32, 100, 3).settings() == narrow
    assert Packing(32, 100, 3, 64).settings() == narrow | {"wide_width": 64, "packer": 5}


def test_wide_steps_of_an_epoch_are_equally_large_and_spread_evenly():
    random = np.random.default_rng(0)
    target = np.where(random.random(20_000) < 0.1, random.integers(129, 400, 20_000), random.integers(5, 80, 20_000))
    packing = Packing(128, 3_000, 1, 512)
    long_pairs = LongPairs(target, target, packing, 32)
    wide = [
        pair for rows in islice(long_pairs.steps_from(0), long_pairs.steps_per_epoch) for row in rows for pair in row
    ]
    assert sorted(wide) == long_pairs.pairs.tolist()
    assert set(np.flatnonzero(target > 128)) < set(wide)
    counts = [len(rows) for rows in islice(long_pairs.steps_from(0), long_pairs.steps_per_epoch)]
    assert max(counts) <= 32
    assert max(counts) - min(counts) <= 1
    due = [long_pairs.due(behind) for _, behind in islice(rows_from(Position(), target, target, packing), 15_000)]
    assert np.diff(due).min() == 0
    assert np.diff(due).max() == 1, "never two at once"
    between = np.diff(np.flatnonzero(np.diff(due)))
    assert between.max() < 2 * between.mean()
