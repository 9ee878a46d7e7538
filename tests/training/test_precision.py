"""Arithmetic: bf16 is believed only where it was seen to work."""

import pytest
import torch

from dragoman.errors import TrainingError
from dragoman.training import precision


def test_auto_on_a_cpu_is_fp32():
    assert precision.resolve("auto", torch.device("cpu")) == "fp32"


def test_bf16_on_a_cpu_that_dies_of_it_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(precision, "PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(TrainingError, match=r'train\.precision = "fp32"'):
        precision.resolve("bf16", torch.device("cpu"))
    monkeypatch.setattr(precision, "PROBE", "pass")
    assert precision.resolve("bf16", torch.device("cpu")) == "bf16"


def test_bf16_learns_what_fp32_learns(prepared, tmp_path):
    """On a CPU whose bf16 works (elsewhere it is switched to instructions that do), losses stay within one percent."""
    import os

    from support import as_overrides, dragoman, tiny_config

    from dragoman.runs import read_rows

    losses = {}
    for name in ("fp32", "bf16"):
        config = tiny_config(
            prepared.folder, tmp_path / name, f"train.precision={name}", "train.max_steps=20", "model.dropout=0.0"
        )
        environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
        dragoman("train", "tiny", *as_overrides(config), "--nproc", "1", env=environment)
        losses[name] = [row["loss"] for row in read_rows(tmp_path / name / "metrics.jsonl") if row["kind"] == "train"][
            -1
        ]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.01)
    assert losses["bf16"] != losses["fp32"]
