"""The real loop, measured by its own rows of metrics: loader, prefetch, logging and telemetry as in any run.

The run lives in a temporary folder and is left after its last row, so that no validation and no checkpoint is in it."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman import __version__, runs
from dragoman.benchmark import figures
from dragoman.benchmark.sentences import opened
from dragoman.config import Config
from dragoman.errors import TrainingError
from dragoman.parallel.mesh import joined
from dragoman.parallel.reduce import wait_for_all
from dragoman.training.stopping import STOP_CODES
from dragoman.training.trainer import Trainer

ROWS = 5  # of metrics to take the median of, at least
SPANS = (*figures.LOOP_PHASES, "data")


class Enough(Exception):
    """All rows are there: leave the run before it validates and saves."""


class Watch:
    """The trainer reports after every row of metrics; the report after the last row, or when `seconds` have passed
    since the warm-up, ends the run."""

    def __init__(self, warmup: int, last: int, seconds: float, progress: runs.Progress):
        self.warmup, self.last, self.seconds, self.progress = warmup, last, seconds, progress
        self.deadline = float("inf")

    def __call__(self, stage: str, done: int, total: int, detail: str) -> None:
        self.progress(stage, done, total, detail)
        if done == self.warmup:
            self.deadline = time.monotonic() + self.seconds
        elif stage == "training" and (done >= self.last or time.monotonic() > self.deadline):
            raise Enough


class Stopped(TrainingError):
    def __init__(self, reason: str):
        super().__init__(f"{reason} before all steps were measured; nothing is kept")
        self.exit_code = STOP_CODES[reason]


def measure_training(
    config: Config,
    *,
    steps: int,
    warmup: int,
    seconds: float = float("inf"),
    peak_tflops: float | None = None,
    progress: runs.Progress = runs.silent,
) -> figures.Figures | None:
    """Figures of the steps after the warm-up, on the main rank; None on the others. Steps are rounded up to whole rows
    of metrics. `seconds` to measure at most, where there is one rank only."""
    every = max(1, min(config.train.log_every, steps // ROWS))
    warmup, steps = (every * -(-count // every) for count in (warmup, steps))
    with joined(config.train.device, config.train.timeout_seconds) as mesh, opened(config, mesh) as (data, folder):
        started = time.time()
        watch = Watch(warmup, warmup + steps, seconds, progress if mesh.is_main else runs.silent)
        trainer = Trainer(for_speed(config, watch.last, every, folder), data, mesh, [], __version__, watch)
        trainer.begin(resume=False)
        figures.forget_peak_memory(mesh.device)  # finding out how many rows fit fills it
        reason = ""
        with suppress(Enough):
            reason = trainer.run()
        wait_for_all(mesh)  # all write into the folder that is taken away after this
        if reason in STOP_CODES:
            raise Stopped(reason)
        if not mesh.is_main:
            return None
        trainer.logbook.close()
        rows = [row for row in runs.read_rows(trainer.folder.metrics) if row["kind"] == "train"]
        return {"bench": "train", **figures.of_trainer(trainer, data, summary(rows, warmup, started), peak_tflops)}


def for_speed(config: Config, steps: int, log_every: int, folder: Path) -> Config:
    """The same run in another folder, with nothing due but rows of metrics."""
    never = {"every": steps + 1}
    train, nobody = {"max_steps": steps, "log_every": log_every}, {"wandb": "", "mlflow": ""}
    return changed(
        config, run={"folder": str(folder / "run")}, train=train, validation=never, checkpoint=never, monitor=nobody
    )


def changed(config: Config, **sections: dict[str, Any]) -> Config:
    copies = {name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()}
    return config.model_copy(update=copies)


def summary(rows: list[runs.Row], warmup: int, started: float) -> figures.Figures:
    """All tokens after the warm-up by all the time from its last row to the last one, whatever happened in it. Phases are means
    over the steps, so that they and what lies between two rows add up to a step. The time of the first step is that of the first
    row without its other steps."""
    before = [row for row in rows if row["step"] <= warmup][-1]
    after = [row for row in rows if row["step"] > warmup]
    steps, seconds = after[-1]["step"] - before["step"], after[-1]["time"] - before["time"]
    tokens = {key: after[-1][key] - before[key] for key in ("target_tokens", "source_tokens")}
    spans = {span: sum(row[f"{span}_seconds"] * row["steps"] for row in after) / steps for span in SPANS}
    between = seconds / steps - sum(spans[phase] for phase in figures.LOOP_PHASES)
    typical = statistics.median(row["step_seconds"] for row in after)
    return {
        "steps": steps,
        "warmup_steps": before["step"],
        **tokens,
        **{f"{key}_per_s": round(count / seconds, 1) for key, count in tokens.items()},
        "median_target_tokens_per_s": round(statistics.median(row["target_tokens_per_s"] for row in after), 1),
        "steps_per_s": round(steps / seconds, 4),
        "step_seconds": round(seconds / steps, 6),
        **{f"{span}_seconds": round(spent, 6) for span, spent in (spans | {"between": between}).items()},
        "row_fill": round(statistics.median(row["row_fill"] for row in after), 6),
        "data_wait_share": round(statistics.median(row["data_seconds"] / row["step_seconds"] for row in after), 4),
        "first_step_seconds": round(rows[0]["time"] - started - (rows[0]["step"] - 1) * typical, 3),
    }
