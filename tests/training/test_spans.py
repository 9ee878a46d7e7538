"""Where the time of a step goes: marks of the clock, spans of every rank, bytes, the slice of training data."""

import time

import numpy as np
import pytest
import torch
from support import tiny_config
from torch import nn

from dragoman import runs
from dragoman.cli.stages import prepare, train
from dragoman.config import load_config
from dragoman.data.loader import Share
from dragoman.parallel.mesh import Mesh
from dragoman.training import facts
from dragoman.training.spans import Clock
from dragoman.training.validate import even_slice
from dragoman.training.window import SPANS, Window

CPU = torch.device("cpu")


class Event:
    """Stands for a CUDA event: the device comes to it `late` seconds after the host."""

    late = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        self.at = time.perf_counter() + Event.late

    def elapsed_time(self, other):
        return (other.at - self.at) * 1000.0


def test_phases_add_up_by_name_and_by_step():
    clock = Clock(CPU)
    clock.marks = [("start", 0.0)]
    for step in (0.0, 10.0):
        clock.marks += [("idle", step + 1), ("forward", step + 3), ("backward", step + 6), ("optimizer", step + 10)]
    assert clock.seconds() == {"idle": 2, "other": 0, "forward": 4, "backward": 6, "optimizer": 8, "exchange": 0}
    assert clock.steps() == [10.0, 10.0]


def test_on_a_gpu_the_device_says_how_long_it_took(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    clock = Clock(torch.device("cuda", 0))
    Event.late = 5.0  # the host has gone on long ago
    clock.mark("forward")
    assert clock.seconds()["forward"] == pytest.approx(5.0, abs=0.5)


def test_a_window_counts_clipped_steps_and_keeps_the_largest_norm():
    window = Window(Mesh(0, 1, 0, CPU), clip_norm=2.0)
    for norm in (1.0, 5.0, float("inf"), 3.0, 1.5):
        window.clock.mark("optimizer")
        window.add(torch.tensor(10.0), torch.tensor(norm), 5, 5, 8)
    totals = window.close()
    assert (totals.clipped, totals.largest_norm, totals.grad_norm, totals.skipped) == (2, 5.0, 1.5, 1)
    assert totals.loss == 2.0


def test_exposed_communication_is_taken_out_of_the_backward_pass():
    window = Window(Mesh(0, 1, 0, CPU))
    window.steps = 4
    window.exchanges = [(0.30, 0.10), (0.50, 0.30)]  # two of the four steps were timed
    window.clock.marks = [("start", 0.0), ("backward", 2.0)]
    spans = window.own_spans()
    assert (spans["communication"], spans["exposed"], spans["backward"]) == pytest.approx((1.6, 0.8, 1.2))
    window.clock.marks.append(("exchange", 2.5))  # a strategy that exchanges after the optimizer
    spans = window.own_spans()
    assert (spans["communication"], spans["exposed"], spans["backward"]) == pytest.approx((2.1, 1.3, 1.2))


def test_the_slice_is_spread_over_the_training_set_and_always_the_same(tmp_path):
    data = prepare(tiny_config(tmp_path / "data", tmp_path / "run")).encoded("train")
    chosen = even_slice(data, 40)
    assert len(chosen) == 40
    for side, original in ((chosen.source, data.source), (chosen.target, data.target)):
        for at, index in ((0, 0), (39, len(data) - 1)):
            np.testing.assert_array_equal(side.sentence(at), original.sentence(index))
    np.testing.assert_array_equal(chosen.source.ids, even_slice(data, 40).source.ids)
    assert len(even_slice(data, 10**6)) == len(data)


def test_a_run_writes_spans_that_make_up_its_steps(tmp_path):
    config = tiny_config(tmp_path / "data", tmp_path / "run", "validation.every=6", "train.log_every=3")
    prepare(config)
    train(config)
    folder = runs.RunFolder(config.run.folder)
    rows = runs.read_rows(folder.spans)
    assert [row["step"] for row in rows] == [3, 6]
    metrics = [row for row in runs.read_rows(folder.metrics) if row["kind"] == "train"]
    for row, spans in zip(metrics, rows, strict=True):
        assert spans["steps"] == row["steps"] == 3
        assert all(len(spans[name]) == 1 for name in SPANS)
        made_of = sum(
            row[f"{name}_seconds"] for name in ("idle", "other", "forward", "backward", "exposed", "optimizer")
        )
        assert 0 < made_of <= row["step_seconds"]
        assert row["median_step_seconds"] <= row["slowest_step_seconds"]
    (valid,) = [row for row in runs.read_rows(folder.metrics) if row["kind"] == "valid"]
    assert valid["train_slice_pairs"] == valid["pairs"]
    assert valid["train_slice_loss"] > 0
    (host,) = runs.read_json(folder.environment)["hosts"]
    assert (host["ranks"], host["rank_gpus"], host["clock_offset_seconds"]) == ([0], [None], 0.0)


def test_a_run_knows_what_its_strategy_must_send():
    """As `dragoman plan` says it for the reference: 365.3 MB with ddp over two hosts of two, half of it in 16 bit."""
    model = nn.Linear(60_880_896, 1, bias=False, device="meta")
    two = [{"ranks": [0, 1]}, {"ranks": [2, 3]}]

    def sent(hosts, *overrides):
        config = load_config("transformer-base", list(overrides))
        return facts.exchange(config, hosts, Share(64, 0, 4, 16), model, gloo=False)["sent_bytes"]

    assert sent(two) == 365_285_376
    assert sent(two, "parallel.wire=bf16") == 365_285_376 / 2
    assert sent(two, "parallel.strategy=two_level") == 4 * 60_880_896
    assert sent(two, "parallel.strategy=local", "parallel.wire=bf16") == round(2 * 60_880_896 / 20)
    assert sent(two[:1]) == 0
    assert sent([*two, {"ranks": [4]}]) is None
    assert sent(two, "parallel.strategy=two_level", "parallel.ranks_per_island=1") is None


def test_machines_of_the_same_name_are_two_hosts():
    """As those made from one image; a container's ranks share the machine, and its name."""
    told = [
        ({"host": name, "cores": 8}, boot, None)
        for name, boot in (("node", "a"), ("node", "b"), ("node", "a"), ("gpu", "c"))
    ]
    found = facts.by_host(told, [0.0, 0.5, 0.0, 0.1])
    assert [(entry["host"], entry["ranks"], entry["clock_offset_seconds"]) for entry in found] == [
        ("node", [0, 2], 0.0),
        ("node-2", [1], 0.5),
        ("gpu", [3], 0.1),
    ]
