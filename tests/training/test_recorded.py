"""Recorded steps learn what unrecorded ones learn. Needs a GPU."""

import pytest
import torch
from support import as_overrides, dragoman, tiny_config

from dragoman.runs import read_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def losses(prepared, run, *overrides):
    config = tiny_config(prepared.folder, run, "train.max_steps=12", "train.device=cuda", *overrides)
    dragoman("train", "tiny", *as_overrides(config), "--nproc", "1")
    return [row["loss"] for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]


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
