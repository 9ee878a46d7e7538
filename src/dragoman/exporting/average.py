"""The mean of several checkpoints of a run: often better than any of them."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from dragoman import runs
from dragoman.config import recorded_config
from dragoman.errors import RunError
from dragoman.exporting import vacant
from dragoman.exporting.card import write_card
from dragoman.model import folder as model_folder


def average(path: str | Path, out: str | Path, *, last: int | None = None, best: int | None = None) -> Path:
    """Write the mean of the last or of the best checkpoints of the run at `path` as a model folder."""
    run = runs.RunFolder(path)
    chosen = choose(run, last, best)
    target = vacant(Path(out))
    for checkpoint in chosen:
        if problem := runs.damage(checkpoint):
            raise RunError(f"{checkpoint}: damaged ({problem}); nothing was written")
    with runs.new_folder(target) as fresh:
        description = model_folder.read_description(chosen[-1])
        vocabulary = chosen[-1] / model_folder.VOCABULARY
        model_folder.write_model(fresh, mean(chosen), description, vocabulary)
        steps = [runs.step_of(checkpoint) for checkpoint in chosen]
        origin = {"averaged_steps": steps, "time": round(time.time(), 3)}
        write_card(fresh, fresh, run, origin)
        runs.write_manifest(fresh, origin)
    return Path(out)


def choose(run: runs.RunFolder, last: int | None, best: int | None) -> list[Path]:
    if not run.exists():
        raise RunError(f"{run.path}: holds no run")
    found = runs.checkpoint_folders(run)
    if best:
        found = runs.best_checkpoints(run, recorded_config(run.config).checkpoint.metric)[::-1]
    wanted = best or last or len(found)
    if len(found) < max(2, wanted):
        raise RunError(
            f"{run.path}: has {len(found)} checkpoints to choose from, {max(2, wanted)} are needed. Raise "
            "checkpoint.keep_last or checkpoint.keep_best for the next run, or ask for fewer"
        )
    return sorted(found[-wanted:], key=runs.step_of)


def mean(checkpoints: list[Path]) -> dict[str, torch.Tensor]:
    """Added up in fp64, one checkpoint in memory at a time."""
    total: dict[str, torch.Tensor] = {}
    for checkpoint in checkpoints:
        for name, tensor in model_folder.read_weights(checkpoint).items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
    return {name: (tensor / len(checkpoints)).float() for name, tensor in total.items()}
