"""Who is close to whom, and how long they wait for each other; no rank but this one is there."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from dragoman.config.schema import Parallel
from dragoman.errors import TrainingError
from dragoman.parallel import islands
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.sharded import Sharded
from dragoman.parallel.strategy import Strategy

PATIENCE = timedelta(seconds=7)


@pytest.fixture
def mesh():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield Mesh(0, 4, 0, torch.device("cpu"), timeout=PATIENCE)
    dist.destroy_process_group()


def placed(monkeypatch, *places):
    monkeypatch.setattr(islands, "gather", lambda mesh, own: list(places))


def test_groups_of_islands_and_of_hybrid_wait_as_long_as_the_run_says(mesh, monkeypatch):
    made = []
    original = dist.new_group

    def noted(*arguments, **options):
        made.append(options.get("timeout"))
        return original(*arguments, **options)

    monkeypatch.setattr(dist, "new_group", noted)
    monkeypatch.setattr(dist.distributed_c10d, "new_group", noted)
    placed(monkeypatch, 0, 1, 0, 1)
    strategy = Sharded(Parallel(strategy="hybrid"), mesh, lambda objective: [], lambda: nn.Linear(4, 4))
    strategy.shard(nn.Linear(4, 4))
    assert len(made) >= 7, "within and gradients of two islands, between them, and between places in them"
    assert set(made) == {PATIENCE}


def test_islands_are_hosts_whose_ranks_follow_each_other(mesh, monkeypatch):
    placed(monkeypatch, 0, 0, 1, 2)
    assert islands.found(mesh, 0).ranks == [[0], [1, 2, 3]]
    placed(monkeypatch, 0, 0, 1, 1)  # dealt out in turn
    with pytest.raises(TrainingError, match="--distribution=block"):
        islands.found(mesh, 0)
    assert islands.found(mesh, 2).ranks == [[0, 1], [2, 3]]


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_who_averages_over_all_ranks_does_not_ask_who_is_close(mesh, monkeypatch, wire):
    placed(monkeypatch, 0, 0, 1, 1)
    assert Strategy(Parallel(strategy="ddp", wire=wire, ranks_per_island=3), mesh).islands is None
    with pytest.raises(TrainingError, match="--distribution=block"):
        Strategy(Parallel(strategy="two_level", wire=wire), mesh)
