"""Where numbers go: always into metrics.jsonl; into TensorBoard event files, Weights & Biases and MLflow when asked. A sink that fails is
told once and left; training goes on."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any, Protocol

from dragoman.config.schema import Monitor
from dragoman.errors import MissingExtra, require_extra
from dragoman.runs import OURS, Row, RunFolder, append_row, write_text

log = logging.getLogger(__name__)

MOST_WAITING = 1_000  # rows that a server may be behind
LAST_SECONDS = 10.0  # that a server gets at the end of a run, to take what is left
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""MLflow's own patience is minutes, which a start would have to wait for."""

OPENSEQ2SEQ = {  # its tags, in its units; it counts the steps of training from 0
    ("train", "loss"): ("train_loss", 1.0),
    ("train", "learning_rate"): ("learning_rate", 1.0),
    ("train", "grad_norm"): ("Loss_Optimization/global_gradient_norm", 1.0),
    ("train", "loss_scale"): ("Loss_Optimization/loss_scale", 1.0),
    ("valid", "loss"): ("eval_loss", 1.0),
    ("valid", "bleu"): ("Eval_BLEU_Score", 0.01),
}


class Sink(Protocol):
    """A place that takes the numbers of a row."""

    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None: ...

    def close(self, *, failed: bool = False) -> None: ...


class TensorBoard:
    """TensorBoard's own records: torch's writer needs torch, and this room starts without it; TensorBoard's has a thread that
    prints a traceback when the disk is full."""

    def __init__(self, folder: Path, tags: str):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.writer, self.tags = RecordWriter((folder / name).open("xb")), tags
        self.put(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        named = self.named(kind, numbers)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in named.items()]
        at = step - (kind == "train" and self.tags == "openseq2seq")
        self.put(Event(wall_time=time.time(), step=at, summary=Summary(value=values)))

    def put(self, event: Any) -> None:
        self.writer.write(event.SerializeToString())
        self.writer.flush()

    def named(self, kind: str, numbers: dict[str, float]) -> dict[str, float]:
        if self.tags != "openseq2seq":
            return {f"{kind}/{key}": value for key, value in numbers.items()}
        theirs = {OPENSEQ2SEQ[kind, key]: value for key, value in numbers.items() if (kind, key) in OPENSEQ2SEQ}
        named = {tag: value * scale for (tag, scale), value in theirs.items()}
        pace = numbers.get("step_seconds")
        return named | ({"global_step/sec": 1.0 / pace} if pace else {}) | ({OURS: 1.0} if kind == "valid" else {})

    def close(self, *, failed: bool = False) -> None:
        self.writer.close()


class WandB:
    def __init__(self, project: str, name: str, known: Path):
        """A resumed run goes on where it was there too: its number is kept in the file `known`."""
        wandb = require_extra("wandb", "wandb", "monitor.wandb")
        self.run = wandb.init(project=project, name=name, id=read_known(known), resume="allow")
        self.run.define_metric("*", step_metric="step")  # its own never goes back, as training does to a checkpoint
        write_text(known, self.run.id)

    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        self.run.log({"step": step, **{f"{kind}/{key}": value for key, value in numbers.items()}})

    def close(self, *, failed: bool = False) -> None:
        self.run.finish(exit_code=int(failed))


class MLflow:
    def __init__(self, experiment: str, name: str, known: Path):
        """By its client, which names the run in every call: the current run of `mlflow.start_run` is one of a thread."""
        for key, value in PATIENCE.items():
            os.environ.setdefault(key, value)
        mlflow = require_extra("mlflow", "mlflow", "monitor.mlflow")
        self.client = mlflow.MlflowClient()
        if run := read_known(known):
            self.run = run
            self.client.update_run(run, status="RUNNING")
        else:
            number = mlflow.set_experiment(experiment).experiment_id
            self.run = self.client.create_run(number, run_name=name).info.run_id
            write_text(known, self.run)
        self.metric = mlflow.entities.Metric

    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(
            self.run, [self.metric(f"{kind}.{key}", value, now, step) for key, value in numbers.items()]
        )

    def close(self, *, failed: bool = False) -> None:
        self.client.set_terminated(self.run, "FAILED" if failed else "FINISHED")


class Aside:
    """A sink that is written to from a thread of its own: a server that does not answer must not hold steps up, until the watchdog
    takes the run for hung."""

    def __init__(self, sink: Sink):
        self.sink, self.kind, self.warned, self.failed = sink, type(sink).__name__, False, False
        self.rows: Queue[tuple[str, int, dict[str, float]] | None] = Queue(MOST_WAITING)
        self.thread = Thread(target=self.work, name=self.kind, daemon=True)
        self.thread.start()

    def work(self) -> None:
        try:
            while row := self.rows.get():
                self.sink.write(*row)
            self.sink.close(failed=self.failed)
        except Exception as error:
            leave(self.kind, error)

    def write(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        try:
            if self.thread.is_alive():
                self.rows.put_nowait((kind, step, numbers))
        except Full:
            if not self.warned:
                told = "%s: its server is %s rows behind; rows are left out until it has caught up, training goes on"
                log.warning(told, self.kind, f"{MOST_WAITING:,}")
            self.warned = True

    def close(self, *, failed: bool = False) -> None:
        until, self.failed = time.monotonic() + LAST_SECONDS, failed
        try:
            if self.thread.is_alive():
                self.rows.put(None, timeout=LAST_SECONDS)
                self.thread.join(max(0.0, until - time.monotonic()))
        except Full:
            pass
        if self.thread.is_alive():
            log.warning(
                "%s: its server has not taken the last rows in %.0f s; they are left out", self.kind, LAST_SECONDS
            )


def read_known(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def sinks(folder: RunFolder, section: Monitor) -> list[Sink]:
    """Those that the configuration names; a missing package is an error before the first step, a server that is down is none."""
    name = folder.path.resolve().name
    asked: dict[str, tuple[object, Callable[[], Sink]]] = {
        "TensorBoard": (section.tensorboard, lambda: TensorBoard(folder.tensorboard, section.tensorboard_tags)),
        "WandB": (section.wandb, lambda: Aside(WandB(section.wandb, name, folder.path / "wandb.id"))),
        "MLflow": (section.mlflow, lambda: Aside(MLflow(section.mlflow, name, folder.path / "mlflow.id"))),
    }
    found: list[Sink] = []
    for kind, (wanted, make) in asked.items():
        try:
            found += [make()] if wanted else []
        except MissingExtra:
            raise
        except Exception as error:
            leave(kind, error)
    return found


def leave(kind: str, error: Exception) -> None:
    """Somebody else's server must not end a training run."""
    log.warning("%s: %s; it gets no more numbers, training goes on", kind, error)


class Metrics:
    """Rows of numbers of one run."""

    def __init__(self, path: Path, sinks: list[Sink]):
        self.path, self.sinks = path, sinks

    def write(self, row: Row) -> None:
        append_row(self.path, row)
        numbers = {
            key: value for key, value in row.items() if isinstance(value, (int, float)) and key not in ("step", "time")
        }
        self.tell(lambda sink: sink.write(row["kind"], row["step"], numbers))

    def close(self, *, failed: bool = False) -> None:
        self.tell(lambda sink: sink.close(failed=failed))

    def tell(self, what: Callable[[Sink], None]) -> None:
        for sink in list(self.sinks):
            try:
                what(sink)
            except Exception as error:
                leave(type(sink).__name__, error)
                self.sinks.remove(sink)
