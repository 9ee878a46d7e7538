"""The order of an epoch: every pair as often as the mixture says, found at once at any place."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.encode import Encoded, Side
from dragoman.data.loader import Share, Stage, steps
from dragoman.data.order import AllBut, Corpus, Order, shuffled, with_temperature
from dragoman.data.pack import Packing, Position

NONE = np.zeros(0, np.int64)


@settings(deadline=None)
@given(st.integers(0, 60).flatmap(lambda size: st.lists(st.booleans(), min_size=size, max_size=size)))
def test_all_but_a_few_numbers(left_out):
    kept = np.flatnonzero(~np.array(left_out, bool))
    some = AllBut(len(left_out), np.flatnonzero(left_out))
    assert len(some) == len(kept)
    assert some[np.arange(len(kept))].tolist() == kept.tolist()
    assert [some.below(end) for end in range(len(left_out) + 1)] == [
        (kept < end).sum() for end in range(len(left_out) + 1)
    ]


@settings(deadline=None)
@given(size=st.integers(1, 5_000), key=st.integers(0, 2**40))
def test_a_shuffle_has_every_number_once(size, key):
    assert sorted(shuffled(np.arange(size), size, key)) == list(range(size))


def test_a_shuffle_is_random():
    """Places tell nothing about pairs, neighbours nothing about each other, and another epoch has another order."""
    size = 100_000
    one, other = shuffled(np.arange(size), size, 1, 0), shuffled(np.arange(size), size, 1, 1)
    for left, right in ((one, np.arange(size)), (one[:-1], one[1:]), (one, other)):
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.015
    halves = [(one[start : start + 1000] < size // 2).mean() for start in range(0, size, 1000)]
    assert np.std(halves) == pytest.approx(0.5 / 1000**0.5, rel=0.25)


def test_any_place_of_a_huge_corpus_is_found_without_the_others():
    """Ten thousand million pairs: writing the order down would take 80 GB."""
    places = shuffled(np.arange(5_000_000_000, 5_000_000_100), 10_000_000_000, 3)
    assert len(set(places.tolist())) == 100
    assert places.max() < 10_000_000_000


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    times=st.lists(st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.0, 2.5]), min_size=4, max_size=4),
    epoch=st.integers(0, 3),
)
def test_an_epoch_has_every_pair_as_often_as_its_corpus_says(sizes, times, epoch):
    ends = np.cumsum(sizes).tolist()
    mixture = tuple(Corpus(end, often) for end, often in zip(ends, times, strict=False))
    order = Order(AllBut(ends[-1], NONE), mixture, 7)
    if not len(order):
        return
    found = np.bincount(order.at(epoch, 0, len(order)), minlength=ends[-1])
    pieces = [order.at(epoch, start, start + 7) for start in range(0, len(order), 7)]
    assert np.concatenate(pieces).tolist() == order.at(epoch, 0, len(order)).tolist()
    for start, end, corpus in zip([0, *ends], ends, mixture, strict=False):
        counts = found[start:end]
        assert counts.sum() == round((end - start) * corpus.times)
        assert set(counts.tolist()) <= {int(corpus.times), int(corpus.times) + 1}


def test_a_part_of_a_corpus_is_another_part_in_every_epoch():
    order = Order(AllBut(1000, NONE), (Corpus(1000, 0.5),), 7)
    first, second = (set(order.at(epoch, 0, 500).tolist()) for epoch in (0, 1))
    assert 150 < len(first & second) < 350


def test_temperature_flattens():
    sizes = [1000, 10]
    assert with_temperature(sizes, [1.0, 1.0], 1.0) == pytest.approx([1.0, 1.0])
    flat = with_temperature(sizes, [1.0, 1.0], 5.0)
    assert flat[0] < 1.0 < flat[1]
    assert sum(size * times for size, times in zip(sizes, flat, strict=True)) == pytest.approx(1010)
    assert with_temperature(sizes, [1.0, 2.0], 1e9)[1] == pytest.approx(51.0)


@pytest.mark.parametrize("temperature", [1e-3, 1e-300])
def test_a_temperature_that_no_power_can_be_taken_of_leaves_all_to_the_largest(temperature):
    assert with_temperature([1000, 10], [1.0, 1.0], temperature) == pytest.approx([1.01, 0.0])
    assert with_temperature([10, 1000], [1e-5, 1e-9], temperature)[1] == 0.0


def encoded(lengths):
    ends = np.cumsum(lengths)
    side = Side(np.zeros(ends[-1], dtype=np.uint16), ends)
    return Encoded(side, side)


def test_stages_change_the_mixture_at_their_step_and_resume_anywhere():
    lengths = np.random.default_rng(0).integers(3, 40, 400)
    data, packing, share = encoded(lengths), Packing(32, 64, 3, 64), Share(4, 0, 1, 4)
    stages = (Stage(0, (Corpus(200), Corpus(400, 0.0))), Stage(10, (Corpus(200, 0.0), Corpus(400))))
    straight = list(islice(steps(data, packing, share, Position(), stages), 25))
    assert [step.position.stage for step in straight] == [0] * 10 + [1] * 15
    for done in (3, 9, 10, 17):
        position = straight[done - 1].position
        resumed = list(islice(steps(data, packing, share, position, stages, done), 25 - done))
        assert [step.position for step in resumed] == [step.position for step in straight[done:]]


class Counting:
    """Where sentences end, every one of 10 ids, without a list of them; counts what is looked up."""

    def __init__(self, size):
        self.size, self.looked_up = size, 0

    def __len__(self):
        return self.size

    def __getitem__(self, which):
        self.looked_up += np.size(which)
        return (np.asarray(which) % self.size + 1) * 10


class Ones:
    def __getitem__(self, which):
        return np.ones(len(which), np.uint16)


def test_any_position_is_restored_by_one_window_however_large_the_corpus():
    """No order and no lengths are written down: the work is that of one window, whatever the corpus and the position."""
    work = set()
    for size in (10**6, 10**11):
        ends = Counting(size)
        data = Encoded(Side(Ones(), ends), Side(Ones(), ends))
        step = next(steps(data, Packing(128, 1000, 1), Share(4, 0, 1, 4), Position(50, 299, 7)))
        assert step.position == Position(50, 299, 11)
        assert step.pairs == 48
        work.add(ends.looked_up)
    assert len(work) == 1
    assert work.pop() < 10 * 1000
