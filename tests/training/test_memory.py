"""Batches sized to the machine: the largest that fits, and words when it does not."""

import re
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_config

from dragoman.cli.stages import train
from dragoman.data.loader import Share, tiles
from dragoman.errors import TrainingError
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.sharded import Sharded
from dragoman.parallel.strategy import Strategy
from dragoman.runs import RunFolder, read_json, read_rows, silent
from dragoman.training import memory, trainer
from dragoman.training.precision import Arithmetic

GPU = torch.cuda.is_available()


@given(rows=st.integers(1, 3000), world=st.integers(1, 4), limit=st.integers(0, 4000))
def test_the_fewest_equal_parts_that_fit(rows, world, limit):
    share = Share(rows, 0, world, rows)
    found = memory.most_rows(share, lambda asked: asked <= limit)
    possible = {-(-share.rows_per_rank // parts) for parts in range(1, share.rows_per_rank + 1)}
    assert found == max((size for size in possible if size <= limit), default=0)


def test_auto_keeps_the_batch_and_is_written_down(prepared, tmp_path):
    def run(name, *overrides):
        config = tiny_config(prepared.folder, tmp_path / name, "model.dropout=0.0", *overrides)
        train(config)
        return RunFolder(tmp_path / name)

    automatic = run("auto", "train.tokens_per_gpu=auto", "train.batch_tokens=8192")
    by_hand = run("by-hand", "train.tokens_per_gpu=4096", "train.batch_tokens=8192")
    facts = read_json(automatic.environment)
    assert facts["tokens_per_gpu"] == memory.CPU_SLOTS
    assert facts["micro_batches"] == 2
    losses = [
        [row["loss"] for row in read_rows(each.metrics) if row["kind"] == "train"] for each in (automatic, by_hand)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("place", ["a step", "validation", "before the first step"])
def test_out_of_memory_names_the_key_and_a_value_that_fits(prepared, tmp_path, monkeypatch, place):
    def too_much(*arguments, **options):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    if place == "a step":
        monkeypatch.setattr(trainer, "update", too_much)
    elif place == "validation":
        monkeypatch.setattr(trainer, "validation_loss", too_much)
    else:
        monkeypatch.setattr(Strategy, "settle", too_much)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(memory, "CPU_SLOTS", 512)
    config = tiny_config(prepared.folder, tmp_path / "run")
    with pytest.raises(TrainingError, match=r"train\.tokens_per_gpu = 1024; train\.tokens_per_gpu=512 fits") as told:
        train(config)
    assert ("lower translate.batch_tokens" in str(told.value)) == (place == "validation")


def test_out_of_memory_in_a_validation_that_was_owed_is_told_as_well(prepared, tmp_path, monkeypatch):
    def too_much(*arguments):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def config(hours):
        return tiny_config(prepared.folder, tmp_path / "run", "validation.every=1", f"train.max_hours={hours}")

    assert train(config("1e-9")) == "max_hours"
    monkeypatch.setattr(trainer, "validation_loss", too_much)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(memory, "CPU_SLOTS", 512)
    words = r"step 1: .* train\.tokens_per_gpu=512 fits; .* lower translate\.batch_tokens"
    with pytest.raises(TrainingError, match=words):
        train(config("9"), resume=True)


def test_a_host_out_of_memory_is_a_line_and_nothing_is_tried(prepared, tmp_path, monkeypatch):
    def too_much(*arguments, **options):
        torch.empty(1 << 60)  # more than any machine has, in torch's own words

    monkeypatch.setattr(trainer, "update", too_much)
    monkeypatch.setattr(memory, "rows_that_fit", lambda *arguments, **options: pytest.fail("tried"))
    words = r"the host ran out of memory with train\.tokens_per_gpu = 1024; try train\.tokens_per_gpu=512\."
    with pytest.raises(TrainingError, match=words):
        train(tiny_config(prepared.folder, tmp_path / "run"))


def test_what_has_failed_is_not_named_as_what_fits(monkeypatch):
    """A trial knows nothing of what a compiler or a fragmented memory takes beside it."""
    monkeypatch.setattr(memory, "survives", lambda objective, arithmetic, rows, width, later: rows <= 100)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    share, packing = Share(256, 0, 1, 256), SimpleNamespace(width=128, wide_width=0)
    parts = (lambda: None, share, packing, Arithmetic("fp32", torch.device("cuda")))
    assert memory.rows_that_fit(*parts) == 86
    assert memory.rows_that_fit(*parts, fewer_than=86) == 64
    assert memory.rows_that_fit(*parts, fewer_than=32) == 29
    assert memory.rows_that_fit(*parts, fewer_than=1) == 0


def test_a_trial_has_gradients_beside_it(monkeypatch):
    """A step of several micro-batches adds to those of the ones before."""

    class Objective(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.learns, self.frozen = (
                torch.nn.Parameter(torch.ones(2), requires_grad=learns) for learns in (True, False)
            )

        def forward(self, *batch):
            held.append([each.grad is not None for each in (self.learns, self.frozen)])
            return (self.learns * self.frozen).sum(), torch.zeros(())

    held = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    objective = Objective()
    assert memory.survives(objective, Arithmetic("fp32", torch.device("cpu")), 1, 8, 0)
    assert held == [[True, False]]
    assert objective.learns.grad is None


def test_a_trial_has_the_types_of_training(prepared):
    """Kernels compiled for it are then those of the steps to come."""
    tried, trained = memory.full_batch(3, 16), tiles(prepared.encoded("train"), [[0], [], []], 16)
    shapes = [[(tensor.dtype, tensor.shape) for tensor in batch.tensors()] for batch in (tried, trained)]
    assert shapes[0] == shapes[1]


def test_several_ranks_do_not_try_what_fits(prepared, tmp_path, monkeypatch):
    """The others wait for the exchange of a pass that was cut off; every further pass would join it."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(memory, "rows_that_fit", lambda *arguments, **options: pytest.fail("tried"))
    config = tiny_config(prepared.folder, tmp_path / "run")
    found = trainer.Trainer(config, prepared, Mesh(0, 1, 0, torch.device("cpu")), [], "test", silent)
    found.mesh = replace(found.mesh, world=2)
    words = r"train\.tokens_per_gpu = 1024; try train\.tokens_per_gpu=512\."
    assert re.search(words, str(found.out_of_memory(found.objective)))
    found.share = replace(found.share, micro_rows=1)
    assert "not even one row fits" in str(found.out_of_memory(found.objective))


@pytest.fixture
def pieces(prepared, tmp_path, monkeypatch):
    """A rank of fsdp on what says that it is a GPU; what it tries is kept, with the bytes that will be taken."""
    overrides = [
        "parallel.strategy=fsdp",
        'train.freeze=["encoder.0.*"]',
        "model.d_model=512",
        "subwords.vocab_size=400",
    ]
    config = tiny_config(prepared.folder, tmp_path / "run", *overrides)
    rank = trainer.Trainer(config, prepared, Mesh(0, 1, 0, torch.device("cpu")), [], "test", silent)
    rank.strategy = Sharded(config.parallel, rank.mesh, trainer.blocks, rank.twin)
    rank.arithmetic = Arithmetic("fp8", torch.device("cuda"))
    rank.tried = []

    def survives(objective, arithmetic, rows, width, later):
        rank.tried.append((objective, later))
        return rows <= 4

    monkeypatch.setattr(memory, "survives", survives)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    return rank


def test_pieces_are_tried_with_a_whole_model_that_learns_as_ours_does(pieces):
    pieces.objective.model.use_eight_bits()
    assert pieces.rows_for_all() == 4
    own, (whole, later) = pieces.objective, pieces.tried[0]
    assert whole is not own
    facts = [
        [(name, weight.shape, weight.requires_grad) for name, weight in each.named_parameters()]
        for each in (own, whole)
    ]
    assert facts[0] == facts[1]
    flags = [[getattr(module, "eight_bits", None) for module in each.modules()] for each in (own, whole)]
    assert flags[0] == flags[1]
    assert any(flags[0])
    assert later == 8 * sum(weight.numel() for weight in own.parameters() if weight.requires_grad)


def test_of_a_model_that_is_too_large_as_a_whole_somebody_has_to_say_what_fits(pieces):
    def too_large():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    pieces.strategy.twin = too_large
    with pytest.raises(
        TrainingError, match=r"not one row .* set train\.tokens_per_gpu: it is tried with the whole model"
    ):
        pieces.rows_for_all()


def test_on_a_cpu_no_other_model_is_made_to_try(pieces):
    pieces.arithmetic = Arithmetic("fp32", torch.device("cpu"))
    pieces.strategy.twin = lambda: pytest.fail("made")
    assert pieces.rows_for_all() > 0


def test_moments_are_reserved_once_and_for_the_piece_that_a_rank_holds():
    piece = SimpleNamespace(to_local=lambda: torch.zeros(3), requires_grad=True)
    frozen = torch.zeros(100, requires_grad=False)
    fresh = SimpleNamespace(state={}, param_groups=[{"params": [piece, torch.ones(2, requires_grad=True), frozen]}])
    assert memory.moments_to_come(fresh) == 8 * 5
    fresh.state = {piece.to_local: "there"}
    assert memory.moments_to_come(fresh) == 0


def test_what_fits_is_looked_for_when_the_step_that_failed_is_gone(prepared, tmp_path, monkeypatch):
    """Otherwise it would be looked for beside all that the failed step holds."""
    held = []

    class Activations:
        pass

    def too_much(*arguments):
        activations = Activations()
        held.append(weakref.ref(activations))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def look(*arguments, **options):
        assert held[0]() is None
        return 4

    monkeypatch.setattr(trainer, "update", too_much)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(memory, "rows_that_fit", look)
    with pytest.raises(TrainingError, match="fits"):
        train(tiny_config(prepared.folder, tmp_path / "run"))


@pytest.mark.parametrize(
    ("words", "full"),
    [
        ("CUDA error: out of memory", True),
        ("Triton Error [CUDA]: out of memory", True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_libraries_say_in_their_own_words_that_memory_is_full(words, full):
    assert memory.ran_out(RuntimeError(words)) == full


def test_a_device_without_room_for_one_row_is_told(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "rows_that_fit", lambda *arguments, **options: 0)
    with pytest.raises(TrainingError, match="not one row"):
        train(tiny_config(prepared.folder, tmp_path / "run", "train.tokens_per_gpu=auto"))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_on_a_gpu_what_was_found_trains_and_the_whole_batch_does_not(prepared, tmp_path):
    """Most of the memory is taken away first, so that the limit is near."""
    free, total = torch.cuda.mem_get_info()
    taken = torch.empty(free - int(0.08 * total) - 3 * 2**30, dtype=torch.uint8, device="cuda")
    model = ["model.d_model=1024", "model.heads=16", "model.d_ff=4096"]
    large = [*model, "train.device=cuda", "train.compile=off", "train.batch_tokens=262144", "train.max_steps=2"]
    train(tiny_config(prepared.folder, tmp_path / "auto", *large, "train.tokens_per_gpu=auto"))
    found = read_json(tmp_path / "auto" / "environment.json")["tokens_per_gpu"]
    assert 0 < found < 262_144
    with pytest.raises(TrainingError, match=r"train\.tokens_per_gpu=\d+ fits"):
        train(tiny_config(prepared.folder, tmp_path / "more", *large, "train.tokens_per_gpu=262144"))
    del taken
    torch.cuda.empty_cache()  # or processes that later tests start find no memory
