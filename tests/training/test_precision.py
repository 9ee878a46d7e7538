"""Arithmetic: what a device cannot do is refused, and every precision learns what fp32 learns."""

import json
import os

import pytest
import torch
from support import as_overrides, dragoman, tiny_config

from dragoman.config.load import to_toml
from dragoman.errors import TrainingError
from dragoman.model import ops
from dragoman.parallel.mesh import Mesh
from dragoman.runs import RunFolder, read_rows, write_json, write_text
from dragoman.training import facts, precision
from dragoman.training.state import TrainState

CPU = torch.device("cpu")
GPU = torch.cuda.is_available()


@pytest.fixture
def probe(monkeypatch):
    """What the child that tries bf16 does."""

    def replace(program):
        monkeypatch.setattr(precision, "PROBE", program)
        precision.gain_of_bf16.cache_clear()

    yield replace
    precision.gain_of_bf16.cache_clear()


@pytest.mark.parametrize(("gain", "chosen"), [(0.9, "fp32"), (1.1, "fp32"), (1.8, "bf16")])
def test_auto_on_a_cpu_is_the_faster_one(probe, gain, chosen):
    probe(f"print({gain})")
    assert precision.resolve("auto", CPU) == chosen


def test_bf16_on_a_cpu_that_dies_of_it_is_refused_in_words(probe):
    probe("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(TrainingError, match=r'train\.precision = "fp32"'):
        precision.resolve("bf16", CPU)
    assert precision.resolve("auto", CPU) == "fp32"
    probe("print(0.5)")
    assert precision.resolve("bf16", CPU) == "bf16"


@pytest.mark.parametrize("name", ["tf32", "fp16", "fp8"])
def test_what_needs_a_gpu_is_refused_on_a_cpu(name):
    with pytest.raises(TrainingError, match="needs a GPU"):
        precision.resolve(name, CPU)


def test_what_needs_a_newer_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(TrainingError, match=r'"fp8" needs a GPU of compute capability 8\.9, Tesla T4 has 7\.5'):
        precision.resolve("fp8", torch.device("cuda"))
    assert precision.resolve("fp16", torch.device("cuda")) == "fp16"


def begun(folder, config, **known):
    """What a start leaves behind."""
    write_text(folder.config, to_toml(config))
    write_json(folder.environment, known)


def test_what_auto_means_is_decided_once_in_a_run(prepared, tmp_path, monkeypatch):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.precision=auto")
    here, folder = Mesh(0, 1, 0, CPU), RunFolder(tmp_path / "run")

    def decided(gain, known=None):
        monkeypatch.setattr(precision, "gain_of_bf16", lambda: gain)
        if known:
            begun(folder, config, **known)
        return facts.precision_of(config, here, folder)

    assert (decided(9.0), decided(0.0)) == ("bf16", "fp32")
    assert decided(9.0, {"device": "cpu", "precision": "fp32"}) == "fp32"
    assert decided(1.0, {"device": "cpu", "precision": "bf16"}) == "bf16"
    assert decided(1.0, {"device": "cuda", "precision": "bf16"}) == "fp32", "another machine"


def test_auto_is_decided_afresh_where_the_device_cannot_do_what_was_decided(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    config = tiny_config(prepared.folder, tmp_path / "run", "train.precision=auto")
    folder = RunFolder(tmp_path / "run")
    begun(folder, config, device="cuda", precision="bf16")
    found = facts.precision_of(config, Mesh(0, 1, 0, torch.device("cuda")), folder)
    assert found == "fp32"
    assert facts.changes(folder, config, found) == ["train.precision auto: bf16 -> fp32"]
    assert facts.changes(folder, config, "bf16") == []


@pytest.mark.parametrize("before", ["auto", "fp32"])
def test_auto_is_decided_afresh_after_a_precision_that_was_asked_for(prepared, tmp_path, monkeypatch, before):
    """Also where an auto that followed took it over."""
    monkeypatch.setattr(precision, "gain_of_bf16", lambda: 9.0)
    asked = tiny_config(prepared.folder, tmp_path / "run", f"train.precision={before}")
    config = tiny_config(prepared.folder, tmp_path / "run", "train.precision=auto")
    begun(RunFolder(tmp_path / "run"), asked, device="cpu", precision="fp16" if before == "auto" else before)
    assert facts.precision_of(config, Mesh(0, 1, 0, CPU), RunFolder(tmp_path / "run")) == "bf16"


def last_loss(prepared, run, name, *overrides):
    """After 20 steps without dropout, in a process of its own."""
    config = tiny_config(
        prepared.folder, run, f"train.precision={name}", "train.max_steps=20", "model.dropout=0.0", *overrides
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
    dragoman("train", "tiny", *as_overrides(config), "--nproc", "1", env=environment)
    return [row["loss"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"][-1]


def test_bf16_learns_what_fp32_learns(prepared, tmp_path):
    """On a CPU whose bf16 works (elsewhere it is switched to instructions that do), losses stay within one percent."""
    losses = {name: last_loss(prepared, tmp_path / name, name) for name in ("fp32", "bf16")}
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.01)
    assert losses["bf16"] != losses["fp32"]


def test_fp8_without_its_kernels_is_refused_and_no_bf16_in_disguise(monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(ops, "cannot_compile", lambda device: "there is no C compiler")
    with pytest.raises(TrainingError, match=r'"fp8" needs kernels .* there is no C compiler; .*"bf16"'):
        precision.resolve("fp8", gpu)
    assert precision.resolve("bf16", gpu) == "bf16"
    monkeypatch.setattr(ops, "cannot_compile", lambda device: "")
    assert precision.resolve("fp8", gpu) == "fp8"


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "fp8"])
def test_every_precision_learns_what_fp32_learns_on_a_gpu(prepared, tmp_path, name):
    """fp8 too inside the layers: the model is wide enough for it."""
    wide = [
        "train.device=cuda",
        "train.compile=off",
        "model.d_model=1024",
        "model.heads=16",
        "schedule.learning_rate=0.5",
    ]
    others = {"fp32", "bf16"} - {name}
    losses = {each: last_loss(prepared, tmp_path / each, each, *wide) for each in (*others, name)}
    assert losses[name] == pytest.approx(losses["fp32"], rel=0.01)
    assert all(losses[name] != losses[each] for each in others), "it is an arithmetic of its own"


def test_the_scale_of_fp16_survives_a_restart():
    def made(enabled=True):
        model = torch.nn.Linear(2, 2)
        return TrainState(model, torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", enabled=enabled))

    before, after, other = made(), made(), made(enabled=False)
    before.scaler.scale(torch.ones(()))  # it has a scale from its first use on
    before.scaler.update(512.0)
    saved = json.loads(json.dumps(before.numbers()))
    after.restore_numbers(saved)
    assert after.scaler.state_dict() == before.scaler.state_dict()
    assert after.scaler.get_scale() == 512.0
    other.restore_numbers(saved)  # a run that goes on in bf16
    after.restore_numbers(other.numbers())  # and back
    assert after.scaler.get_scale() == 512.0
