"""The bare step: the trainer's own model, loss and optimizer on batches that lie on the device already.

No loader, no rows of metrics. The device's own clock splits the time into forward, backward, optimizer and the rest."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman import __version__, runs
from dragoman.benchmark import figures, kernels
from dragoman.benchmark.sentences import opened
from dragoman.benchmark.train import changed
from dragoman.config import Config
from dragoman.data.encode import PreparedData
from dragoman.data.loader import Step
from dragoman.parallel.mesh import Mesh, joined
from dragoman.training import optim
from dragoman.training.spans import Clock
from dragoman.training.step import update
from dragoman.training.trainer import Trainer

BATCHES = 8  # different ones, taken in turns
PROFILED_STEPS = 3


def begun(config: Config, data: PreparedData, mesh: Mesh, folder: Path) -> Trainer:
    """A trainer before its first step, its run in this folder; it has found out how many rows fit."""
    run = changed(config, run={"folder": str(folder)})
    trainer = Trainer(run, data, mesh, [], __version__, runs.silent)
    trainer.begin(resume=False)
    return trainer


def timed_update(trainer: Trainer, wrapped: nn.Module, step: Step) -> Clock:
    """One update of the trainer; its clock has marks between the phases."""
    clock = Clock(trainer.mesh.device)
    one_update(trainer, wrapped, step, clock)
    return clock


def one_update(trainer: Trainer, wrapped: nn.Module, step: Step, clock: Clock | None = None) -> tuple[Tensor, Tensor]:
    """As the trainer does it; returns the loss sum and the norm of the gradient, still on the device."""
    state = trainer.state
    optim.set_rate(state.optimizer, trainer.rate(state.step))
    how = (trainer.strategy, trainer.config.train, trainer.arithmetic, trainer.config.run.seed, clock)
    return update(state, wrapped, step, *how)


def measure_step(
    config: Config, *, count: int, warmup: int, peak_tflops: float | None = None, profile: bool = False
) -> figures.Figures | None:
    """Figures of `count` steps, on the main rank; None on the others."""
    with joined(config.train.device, config.train.timeout_seconds) as mesh, opened(config, mesh) as (data, folder):
        trainer = begun(config, data, mesh, folder / "run")
        figures.forget_peak_memory(mesh.device)
        wrapped = trainer.wrapped()
        take = partial(trainer.within_memory, wrapped, timed_update, trainer, wrapped)
        batches = cycle(on_device(trainer))
        for step in islice(batches, warmup):
            take(step)
        synchronize(mesh.device)
        chosen = list(islice(batches, count))
        start = time.perf_counter()
        clocks = [take(step) for step in chosen]
        synchronize(mesh.device)
        measured = summary(chosen, clocks, time.perf_counter() - start)
        found = figures.of_trainer(trainer, data, measured, peak_tflops)  # before the profiler takes memory of its own
        if profile:
            found |= kernels.profile(take, islice(batches, PROFILED_STEPS), mesh.device)
        return {"bench": "step", "warmup_steps": warmup, **found} if mesh.is_main else None


def on_device(trainer: Trainer) -> list[Step]:
    device = trainer.mesh.device
    return [
        replace(step, micro_batches=[batch.to(device) for batch in step.micro_batches])
        for step in islice(trainer.coming_steps(), BATCHES)
    ]


def summary(chosen: list[Step], clocks: list[Clock], seconds: float) -> figures.Figures:
    """Speeds over all steps, and the median of every phase."""
    tokens = {key: sum(getattr(step, key) for step in chosen) for key in ("target_tokens", "source_tokens")}
    spent = [clock.seconds() for clock in clocks]
    return {
        "steps": len(chosen),
        **tokens,
        **{f"{name}_per_s": round(count / seconds, 1) for name, count in tokens.items()},
        "steps_per_s": round(len(chosen) / seconds, 4),
        "step_seconds": round(seconds / len(chosen), 6),
        **{f"{phase}_seconds": round(statistics.median(each[phase] for each in spent), 6) for phase in figures.PHASES},
        "row_fill": round(tokens["target_tokens"] / sum(step.slots for step in chosen), 4),
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
