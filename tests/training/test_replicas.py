"""Ranks that hold other weights than they should are named; where nobody can tell which, that is said."""

import pytest
import torch
from torch import nn

from dragoman.parallel.mesh import Mesh
from dragoman.training import replicas


class Held:
    """A strategy whose ranks must hold the same in groups."""

    def __init__(self, *groups):
        self.groups, self.mesh = groups, Mesh(0, sum(map(len, groups)), 0, torch.device("cpu"))

    def held_alike(self, model):
        return [([list(group) for group in self.groups], dict(model.named_parameters()))]


@pytest.mark.parametrize(
    ("groups", "prints", "ranks", "known"),
    [
        ([(0, 1, 2)], "aaa", None, True),
        ([(0, 1, 2)], "aba", [1], True),
        ([(0, 1, 2)], "baa", [0], True),
        ([(0, 1)], "ab", [0, 1], False),
        ([(0, 1, 2, 3)], "abab", [0, 1, 2, 3], False),
        ([(0, 2), (1, 3)], "abab", None, True),  # hybrid: pieces differ inside an island
        ([(0, 2, 4), (1, 3, 5)], "ababac", [5], True),
    ],
)
def test_who_drifted(monkeypatch, groups, prints, ranks, known):
    monkeypatch.setattr(replicas, "gather", lambda mesh, own: list(prints))
    drift = replicas.compare(Held(*groups), nn.Linear(2, 2))
    assert (drift and drift.ranks, not drift or drift.known) == (ranks, known)
    if ranks:
        words = drift.sentence(dict.fromkeys(range(6), "b"))
        assert f"{ranks[-1]} (host b)" in words
        assert ("cannot be told" in words) == (not known)


def test_a_fingerprint_sees_one_bit_and_weights_that_are_no_numbers():
    model = nn.Linear(64, 64)
    before = replicas.fingerprint(dict(model.named_parameters()))
    assert replicas.fingerprint(dict(model.named_parameters())) == before
    with torch.no_grad():
        model.weight[3, 4] = torch.nextafter(model.weight[3, 4], torch.tensor(1e9))
    assert replicas.fingerprint(dict(model.named_parameters())) != before
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    assert replicas.fingerprint(dict(model.named_parameters())) == replicas.fingerprint(dict(model.named_parameters()))


def test_a_fingerprint_does_not_depend_on_the_order_in_which_threads_add():
    """Hosts with other numbers of cores hold the same."""
    before = torch.get_num_threads()
    try:
        for seed in range(6):
            torch.manual_seed(seed)
            model = nn.Module()
            model.weight = nn.Parameter(torch.randn(300, 1000) ** 9)  # of all sizes, as weights are
            prints = set()
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                prints.add(replicas.fingerprint(dict(model.named_parameters())))
            assert len(prints) == 1
    finally:
        torch.set_num_threads(before)


def test_a_fingerprint_of_half_numbers_and_of_nothing():
    model = nn.Linear(4, 4, dtype=torch.bfloat16)
    model.empty = nn.Parameter(torch.empty(0))
    before = replicas.fingerprint(dict(model.named_parameters()))
    with torch.no_grad():
        model.weight[0, 0] = -model.weight[0, 0]
    assert replicas.fingerprint(dict(model.named_parameters())) != before
