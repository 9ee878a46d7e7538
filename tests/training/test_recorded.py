"""Recorded steps learn what unrecorded ones learn, and what cannot be recorded is learnt too."""

import pytest
import torch
from support import as_overrides, dragoman, tiny_config

from dragoman.runs import read_json, read_rows
from dragoman.training.recorded import WARM_UP, Recorded


class Graph:
    """Cannot record."""

    def __init__(self, *arguments, **options):
        pass

    def __enter__(self):
        torch.cuda.set_stream("its own")
        raise RuntimeError("operation not permitted when stream is capturing")

    def __exit__(self, *error):
        pass


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (self.weight * x).sum(), x.sum()


def test_what_cannot_be_recorded_runs_as_it_is(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    streams = ["before"]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(Recorded, "room", lambda self: True)
    objective = Sum()
    wrapped = Recorded(objective, torch.device("cpu"))
    for _ in range(WARM_UP + 3):
        loss, _ = wrapped(torch.arange(3.0))
        assert loss.item() == 3.0
        loss.backward()
    assert objective.weight.grad.tolist() == [0.0, WARM_UP + 3, 2 * (WARM_UP + 3)]
    assert streams[-1] == "before"
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "train.cuda_graphs" in told[0]


def losses(prepared, run, *overrides):
    config = tiny_config(prepared.folder, run, "train.max_steps=12", "train.device=cuda", *overrides)
    dragoman("train", "tiny", *as_overrides(config), "--nproc", "1")
    assert read_json(run / "environment.json")["compile"], "what is not compiled is not recorded"
    assert "could not be recorded" not in (run / "log" / "rank-000.log").read_text()
    return [row["loss"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "more",
    [
        ["model.dropout=0.3"],
        ["train.tokens_per_gpu=512", "train.clip_norm=1.0"],
        ["train.precision=fp16"],
    ],
    ids=["dropout", "several micro-batches", "fp16"],
)
def test_recorded_steps_learn_the_same(prepared, tmp_path, more):
    """Sums over many programs are added in any order, so not to the bit; other random numbers would be a hundred times as far."""
    recorded = losses(prepared, tmp_path / "on", "train.cuda_graphs=true", *more)
    plain = losses(prepared, tmp_path / "off", "train.cuda_graphs=false", *more)
    assert recorded == pytest.approx(plain, rel=2e-5)
