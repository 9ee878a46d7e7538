"""Runs that faults happen to, and how their ends are compared."""

from __future__ import annotations

import sys

from safetensors.torch import load_file
from support import as_overrides

from dragoman import runs

STEPS = ["train.max_steps=60", "checkpoint.every=10", "train.log_every=1", "train.timeout_seconds=20"]


def train_command(config, ranks, *options):
    words = ["train", "tiny", *as_overrides(config), "--nproc", str(ranks), *options]
    return [sys.executable, "-m", "dragoman", *words]


def final_weights(run):
    return load_file(runs.checkpoint_folders(runs.RunFolder(run))[-1] / "model.safetensors")


def equal(left, right):
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)
