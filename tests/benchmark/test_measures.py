"""What the benchmarks say is true: real tokens, the formula of the MFU, the trainer's own update, nothing left behind."""

import tempfile
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import tiny_config

from dragoman.benchmark import figures, kernels, loader, sentences
from dragoman.benchmark.loader import measure_loader
from dragoman.benchmark.step import measure_step, on_device, timed_update
from dragoman.benchmark.train import changed, measure_training, summary
from dragoman.config.schema import Corpus, Model
from dragoman.data.encode import PreparedData
from dragoman.data.loader import steps
from dragoman.data.subwords import EOS
from dragoman.model import size
from dragoman.parallel.mesh import Mesh
from dragoman.runs import silent
from dragoman.training.trainer import Trainer

ALONE = Mesh(0, 1, 0, torch.device("cpu"))


@pytest.fixture
def config(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tiny_config(prepared.folder, tmp_path / "run")


def stream(config, data):
    trainer = Trainer(config, data, ALONE, [], "test", silent)
    return steps(trainer.train_data, trainer.packing, trainer.share, trainer.state.position)


def sums(chosen):
    return [sum(getattr(step, name) for step in chosen) for name in ("target_tokens", "source_tokens", "slots")]


def test_training_counts_the_real_tokens_of_the_steps_after_the_warmup(config, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "validate", lambda self: pytest.fail("validation is in the way"))
    monkeypatch.setattr(Trainer, "save", lambda self: pytest.fail("a checkpoint is in the way"))
    found = measure_training(config, steps=5, warmup=2, peak_tflops=0.5)
    target, source, slots = sums(list(islice(stream(config, prepared), 2, 7)))
    assert (found["steps"], found["warmup_steps"]) == (5, 2)
    assert (found["target_tokens"], found["source_tokens"]) == (target, source)
    assert found["row_fill"] == pytest.approx(target / slots, abs=0.03)  # a median of rows of one step
    flops = size.flops(config.model, 400, found["source_tokens_per_s"], found["target_tokens_per_s"])
    assert found["mfu"] == pytest.approx(flops / 0.5e12, abs=1e-4)
    assert 0 <= found["data_wait_share"] < 1
    parts = [found[f"{phase}_seconds"] for phase in (*figures.LOOP_PHASES, "between")]
    assert sum(parts) == pytest.approx(found["step_seconds"], abs=1e-5)
    assert min(parts[:-1]) >= 0
    assert found["first_step_seconds"] > 0
    assert found["peak_process_bytes"] > 0
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not (tmp_path / "run").exists()


def test_the_phases_of_the_real_loop_make_a_step():
    """By hand: rows of 2 and of 4 steps, and 0.3 s between two rows."""
    spans = {
        "forward": 0.1,
        "backward": 0.2,
        "optimizer": 0.03,
        "other": 0.01,
        "exposed": 0.04,
        "idle": 0.12,
        "data": 0.15,
    }
    row = {f"{span}_seconds": spent for span, spent in spans.items()}
    row |= {"row_fill": 0.9, "target_tokens_per_s": 1.0, "step_seconds": 0.5}
    rows = [
        row | {"step": 2, "steps": 2, "time": 10.0, "target_tokens": 10, "source_tokens": 10},
        row | {"step": 4, "steps": 2, "time": 11.3, "target_tokens": 20, "source_tokens": 20},
        row | {"step": 8, "steps": 4, "time": 14.6, "target_tokens": 40, "source_tokens": 40, "idle_seconds": 0.27},
    ]
    found = summary(rows, 2, 0.0)
    assert found["idle_seconds"] == pytest.approx((2 * 0.12 + 4 * 0.27) / 6)
    assert found["between_seconds"] == pytest.approx((4.6 - 2 * 0.5 - 4 * 0.65) / 6, abs=1e-6)
    parts = [found[f"{phase}_seconds"] for phase in (*figures.LOOP_PHASES, "between")]
    assert sum(parts) == pytest.approx(found["step_seconds"], abs=1e-5)
    assert found["data_seconds"] == 0.15, "the host's, beside the device's"


def test_steps_are_rounded_up_to_whole_rows_and_a_budget_ends_them_sooner(config):
    found = measure_training(config, steps=11, warmup=3)  # rows of log_every = 2 steps
    assert (found["steps"], found["warmup_steps"]) == (12, 4)
    found = measure_training(config, steps=1000, warmup=2, seconds=1e-9)
    assert found["steps"] == 2


def test_the_bare_step_counts_the_real_tokens_and_times_every_phase(config, prepared):
    found = measure_step(config, count=3, warmup=1, profile=True)
    target, source, slots = sums(list(islice(stream(config, prepared), 1, 4)))
    assert (found["target_tokens"], found["source_tokens"]) == (target, source)
    assert found["row_fill"] == round(target / slots, 4)
    parts = [found[f"{phase}_seconds"] for phase in ("forward", "backward", "optimizer", "other")]
    assert all(part > 0 for part in parts)
    assert found["mfu"] is None, "the peak of a CPU is not known"
    assert {"matrix products", "attention", "optimizer"} <= found["kinds_ms_per_step"].keys()
    assert found["kernels"][0]["share"] == max(kernel["share"] for kernel in found["kernels"])


def test_the_timed_update_is_the_update_of_the_trainer(config, prepared):
    """The same weights after the same steps as in a real run."""
    real = Trainer(config, prepared, ALONE, [], "test", silent)
    real.begin(resume=False)
    real.run()
    timed = Trainer(config, prepared, ALONE, [], "test", silent)
    for step in islice(stream(config, prepared), config.train.max_steps):
        timed_update(timed, timed.objective.train(), step)
    torch.testing.assert_close(timed.state.model.state_dict(), real.state.model.state_dict(), rtol=0, atol=1e-6)


def test_the_loader_counts_the_real_tokens(config, prepared):
    found = measure_loader(config, count=4)
    target, source, slots = sums(list(islice(stream(config, prepared), 1, 5)))
    assert (found["target_tokens"], found["source_tokens"]) == (target, source)
    assert found["row_fill"] == round(target / slots, 4)
    assert found["prefetched_target_tokens_per_s"] > 0
    assert found["restart_pairs"] == len(prepared.encoded("train"))
    assert found["large_restart_pairs"] >= 20_000_000


def test_corpora_are_mixed_as_in_the_run(tmp_path, monkeypatch):
    """Drawn sentences too are those of the configured corpora."""
    monkeypatch.setattr(sentences, "DRAWN_PAIRS", {"train": 400, "valid": 8})
    monkeypatch.setattr(loader, "LARGE_PAIRS", 1000)
    plain = tiny_config(tmp_path / "nothing", tmp_path / "run", "train.window_pairs=100", "subwords.vocab_size=300")
    corpora = [Corpus(name=name, pairs="none.tsv", weight=weight) for name, weight in (("a", 0.1), ("b", 1.0))]
    config = changed(plain, data={"corpora": corpora})
    found = loader.measure_loader(config, count=2)
    with sentences.opened(config, ALONE) as (data, _):
        trainer = Trainer(config, data, ALONE, [], "test", silent)
        assert [corpus.end for corpus in trainer.stages[0].mixture] == [200, 400]
        where = (trainer.train_data, trainer.packing, trainer.share, trainer.state.position)
        mixed, unmixed = (list(islice(steps(*where, *stages), 3)) for stages in ([trainer.stages], []))
        placed = on_device(trainer)[0].micro_batches[0].source
    assert [found["target_tokens"], found["source_tokens"]] == sums(mixed[1:])[:2] != sums(unmixed[1:])[:2]
    assert placed.equal(mixed[0].micro_batches[0].source)


def test_drawn_sentences_are_prepared_data(tmp_path):
    config = tiny_config(tmp_path / "nothing", tmp_path / "run", "data.max_tokens=60", "subwords.vocab_size=3000")
    with sentences.opened(config, ALONE) as (data, folder):
        assert isinstance(data, PreparedData)
        data.check("train", "valid")
        assert len(data.vocabulary) == 3000
        train = data.encoded("train")
        assert len(train) == sentences.DRAWN_PAIRS["train"]
        for side in (train.source, train.target):
            assert side.lengths.min() >= 2
            assert side.lengths.max() == 61
            assert (np.asarray(side.ids)[side.ends - 1] == EOS).all()
            words = np.asarray(side.ids)[np.asarray(side.ids) != EOS]
            assert words.min() == 4
            assert words.max() == 2999
        assert "drawn" in sentences.told(data)
    assert not folder.exists()


def test_drawn_lengths_are_like_those_of_wmt():
    source, target = sentences.draw_lengths(50_000, 250, np.random.default_rng(1))
    assert source.mean() - 1 == pytest.approx(27.5, abs=1.0)  # cut to whole subwords
    assert source.mean() < target.mean() < 1.1 * source.mean()
    assert np.corrcoef(source, target)[0, 1] > 0.9


def test_mfu_by_hand():
    section = Model(d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16)
    # Weights a token goes through. Source: q, k, v, o and two of the feed-forward, then k, v of the cross-attention.
    per_source = (4 * 64 + 2 * 128) + 2 * 64
    # Target: q, k, v, o, then q, o of the cross-attention, the feed-forward, and the output matrix of 100 pieces.
    per_target = 4 * 64 + 2 * 64 + 2 * 128 + 800
    speeds = {"source_tokens_per_s": 3e9, "target_tokens_per_s": 2e9}
    found = figures.utilization(section, 100, speeds, 2, 50.0)
    assert found["model_tflops_per_s"] == pytest.approx(6 * (3e9 * per_source + 2e9 * per_target) / 1e12)
    assert found["mfu"] == pytest.approx(found["model_tflops_per_s"] / 100.0, abs=1e-4)
    assert figures.utilization(section, 100, speeds, 2, None)["mfu"] is None


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10", 125.0),
        ("Tesla V100-SXM2-16GB", 125.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GeForce RTX 4090", 165.0),
        ("NVIDIA A10G", None),
        ("AMD EPYC", None),
    ],
)
def test_peaks_of_devices(name, peak):
    assert figures.peak_tflops(name) == peak


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopB_NNT", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("aten::mm", "matrix products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob", "attention"),
        ("triton_per_fused_add_native_dropout_native_layer_norm_3", "normalisation and dropout"),
        ("triton_red_fused__to_copy_logsumexp_1", "loss"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", "optimizer"),
        ("Memcpy HtoD (Pinned -> Device)", "other"),
        ("aten::mm_", "other"),
        ("AddNormBackward", "normalisation and dropout"),
        ("aten::_softmax", "attention"),
        ("aten::_log_softmax", "loss"),
        ("SmoothedSums", "loss"),
    ],
)
def test_kinds_of_kernels(kernel, kind):
    assert kernels.kind_of(kernel) == kind


def test_stretches_around_kernels_are_not_kernels():
    for key in ("Torch-Compiled Region: 0/0", "Optimizer.step#Adam.step", "## Call CompiledFxGraph f ##"):
        assert kernels.is_annotation(SimpleNamespace(key=key, is_user_annotation=None))
    assert kernels.is_annotation(SimpleNamespace(key="mine", is_user_annotation=True))
    assert not kernels.is_annotation(SimpleNamespace(key="nvjet_tst_256x128", is_user_annotation=None))


def test_kernels_are_told_per_step():
    found = kernels.summary([("aten::mm", 6000.0, 4), ("aten::bmm", 1000.0, 2), ("aten::copy_", 1000.0, 8)], steps=2)
    assert found["kinds_ms_per_step"] == {"matrix products": 3.5, "other": 0.5}
    assert [kernel["ms_per_step"] for kernel in found["kernels"]] == [3.0, 0.5, 0.5]
    assert found["kernels"][0]["share"] == 0.75
    assert found["kernels"][0]["calls_per_step"] == 2.0
