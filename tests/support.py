"""A tiny configuration, a small corpus in files, and the real command line in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.config import Config, load_config
from dragoman.config.load import toml_value

Pairs = list[tuple[Any, Any]]  # text, or bytes that are none


def tiny_config(data: Path, run: Path, *overrides: str) -> Config:
    """A model that takes milliseconds a step."""
    small = [
        "data.corpus=grammar",
        f"data.folder={data}",
        "data.train_pairs=600",
        "data.valid_pairs=40",
        "data.test_pairs=30",
        f"run.folder={run}",
        "subwords.vocab_size=400",
        "model.d_model=32",
        "model.heads=2",
        "model.d_ff=64",
        "train.batch_tokens=1024",
        "train.tokens_per_gpu=1024",
        "train.log_every=2",
        "train.max_steps=6",
        "train.device=cpu",
        "train.precision=fp32",
        "validation.every=100",
        "checkpoint.every=100",
        "monitor.interval_seconds=0.1",
    ]
    return load_config("tiny", [*small, *overrides])


def sentences(*numbers: int) -> Pairs:
    return [(f"Sentence number {n} about a house.", f"Satz Nummer {n} über ein Haus.") for n in numbers]


SENTENCES = sentences(*range(300))
VALID = sentences(*range(300, 310))


def write_corpus(folder: Path, train: Pairs = SENTENCES, valid: Pairs = VALID) -> Path:
    for part, pairs in (("train", train), ("valid", valid)):
        for side, suffix in ((0, "en"), (1, "de")):
            lines = [line if isinstance(line, bytes) else line.encode() for line in (pair[side] for pair in pairs)]
            (folder / f"{part}.{suffix}").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def config_for(folder: Path, *overrides: str, out: str = "out") -> Config:
    sides = (("source", "en"), ("target", "de"))
    files = [f"data.{part}_{side}={folder}/{part}.{suffix}" for part in ("train", "valid") for side, suffix in sides]
    return tiny_config(folder / out, folder / "run", "data.corpus=files", "subwords.vocab_size=120", *files, *overrides)


def as_overrides(config: Config) -> list[str]:
    """A configuration as command line arguments."""
    sections = config.model_dump()
    return [f"{name}.{key}={toml_value(value)}" for name, keys in sections.items() for key, value in keys.items()]


def dragoman(*arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command line, in a process of its own."""
    command = [sys.executable, "-m", "dragoman", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, **options)
    assert not check or result.returncode == 0, result.stderr
    return result


def wait_until(condition: Callable[[], Any], seconds: float = 300.0) -> None:
    """Long enough for a busy machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(0.02)


def started(run: Path) -> bool:
    """Whether a first step was taken."""
    return any(row["event"] == "first_step" for row in runs.read_rows(run / "events.jsonl"))
