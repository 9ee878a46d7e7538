"""Compiled = eager, and blocks share what is compiled."""

import shutil

import pytest
import torch
import torch.distributed as dist
from support import tiny_config
from torch._dynamo.utils import counters

from dragoman.cli.stages import train
from dragoman.config.schema import Model, Parallel
from dragoman.data.loader import tiles
from dragoman.model import ops, transformer
from dragoman.model.loss import SequenceLoss
from dragoman.model.transformer import Transformer
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import uncut
from dragoman.parallel.sharded import Sharded
from dragoman.parallel.strategy import Strategy
from dragoman.runs import RunFolder, read_json, read_rows
from dragoman.training.compiling import compile_parts, uncompiled
from dragoman.training.trainer import Trainer, blocks

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "relu_dropout": 0.0}


def forget():
    """What was compiled, and how much of it."""
    torch.compiler.reset()
    counters.clear()


@pytest.fixture(autouse=True)
def fresh():
    forget()
    yield
    forget()


def objective_of(prepared, layers=1):
    section = Model(d_model=16, heads=2, encoder_layers=layers, decoder_layers=layers, d_ff=16, **NO_DROPOUT)
    model = Transformer(section, len(prepared.vocabulary))
    model.init_weights(1)
    return SequenceLoss(model, 0.1)


def compiled_graphs():
    return counters["stats"]["unique_graphs"]


@pytest.fixture
def only_traced():
    """Whatever would be compiled is found, and runs as it is."""
    with torch.compiler.set_stance(force_backend="eager"):
        yield


def learnt(objective, wrapped, batch):
    loss, _ = wrapped(*batch.tensors())
    loss.backward()
    return loss.item(), {name: uncut(weight.grad) for name, weight in objective.named_parameters()}


@pytest.mark.skipif(not shutil.which("g++"), reason="compiling for the CPU needs g++")
def test_compiled_is_eager(prepared):
    batch = tiles(prepared.encoded("valid"), [[0], [1]], 64)
    results = []
    for compiled in (False, True):
        objective = objective_of(prepared)
        if compiled:
            compile_parts(objective.model)
        results.append(learnt(objective, objective, batch))
    assert compiled_graphs()
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)


def test_deeper_models_compile_no_more(prepared, only_traced):
    """Two widths of rows; the first block of each side has nothing to add yet, and another graph on a CPU."""
    found = []
    for layers in (2, 5):
        forget()
        objective = objective_of(prepared, layers)
        compile_parts(objective.model)
        for width in (64, 128):
            learnt(objective, objective, tiles(prepared.encoded("valid"), [[0], [1]], width))
        found.append(compiled_graphs())
    assert found[0] == found[1] > 0


def test_nothing_is_compiled_for_a_validation(prepared, only_traced):
    objective = objective_of(prepared)
    compile_parts(objective.model)
    data = prepared.encoded("valid")
    objective(*tiles(data, [[0], [1]], 64).tensors())
    before = compiled_graphs()
    assert before
    with uncompiled(), torch.no_grad():
        objective.eval()(*tiles(data, [[2], [3], [4]], 80).tensors())
    assert compiled_graphs() == before


@pytest.fixture
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Mesh(0, 1, 0, torch.device("cpu"))
    dist.destroy_process_group()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_wrappers_change_neither_what_is_compiled_nor_what_is_learnt(prepared, group_of_one, only_traced, strategy):
    batch, results, graphs = tiles(prepared.encoded("valid"), [[0], [1]], 64), [], []
    for name in ("alone", strategy):
        forget()
        objective = wrapped = objective_of(prepared, 3)
        if name == "fsdp":
            Sharded(Parallel(), group_of_one, blocks, lambda: objective_of(prepared, 3)).shard(objective)
        elif name == "ddp":
            wrapped = Strategy(Parallel(), group_of_one).with_ddp(objective, None)
        compile_parts(objective.model)
        results.append(learnt(objective, wrapped, batch))
        graphs.append(compiled_graphs())
    assert graphs[0] == graphs[1] > 0
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)


def test_a_run_compiles_before_its_first_step_and_never_again(prepared, tmp_path, monkeypatch, only_traced):
    """Validations have shapes of their own, and the search for BLEU."""
    seen = []
    usual = Trainer.validate

    def validate(self):
        seen.append(compiled_graphs())
        scores = usual(self)
        seen.append(compiled_graphs())
        return scores

    monkeypatch.setattr(Trainer, "validate", validate)
    same = [f"model.{key}={value}" for key, value in NO_DROPOUT.items()]
    same += ["validation.every=2", "train.max_steps=4"]
    train(tiny_config(prepared.folder, tmp_path / "run", "train.compile=on", *same))
    assert len(seen) == 4
    assert len(set(seen)) == 1
    assert seen[0] > 0
    run = RunFolder(tmp_path / "run")
    assert read_json(run.environment)["compile"]
    train(tiny_config(prepared.folder, tmp_path / "eager", *same))
    losses = [[row["loss"] for row in read_rows(each.metrics)] for each in (run, RunFolder(tmp_path / "eager"))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_what_embeddings_are_added_to_is_like_any_other_stream(prepared, monkeypatch, only_traced):
    """On a GPU: then the first block of a side needs no graph of its own."""
    batch, results, graphs = tiles(prepared.encoded("valid"), [[0], [1]], 64), [], []
    for begin in (ops.AddedToNothing.apply, lambda x: (torch.zeros_like(x), x)):
        forget()
        monkeypatch.setattr(transformer, "stream", lambda x, dropout, norms_first, begin=begin: begin(x))
        objective = objective_of(prepared, 3)
        compile_parts(objective.model)
        results.append(learnt(objective, objective, batch))
        graphs.append(compiled_graphs())
    assert graphs == [3, 5]
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)
