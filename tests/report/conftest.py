"""Writes run folders by docs/run-folder.md: whole, resumed, killed, tampered with. The clock is simulated, so that
every second of a run is known exactly and the report's arithmetic can be checked against it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from made_runs import manifest, write_checkpoint

from dragoman.config import Config, load_config, to_toml
from dragoman.config.schedule import learning_rate
from dragoman.runs import step_name

Row = dict[str, Any]
START = 1763199900.0
STARTUP_SECONDS, VALID_SECONDS, CHECKPOINT_SECONDS = 5.0, 4.1, 0.5
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"
PARAMETERS = 1_231_360


def step_seconds(step: int) -> float:
    """Slow first steps (compilation), then a gentle wave."""
    return 0.28 + (0.25 if step <= 10 else 0.0) + 0.01 * math.sin(step / 17)


@dataclass
class Story:
    """One run, told to the file system. Each switch is one way in which run folders differ."""

    folder: Path
    steps: int = 600
    log_every: int = 10
    every: int = 200
    parameters: int = PARAMETERS
    overrides: list[str] = field(default_factory=list)
    validation: bool = True
    checkpoints: bool = True
    metrics: bool = True
    killed: bool = False
    crash_at: int = 0
    """Dies after this step and resumes 60 s later from its last checkpoint."""
    tamper_from: int = 0
    """Logged learning rates are halved from this step on."""
    probe: str = "Der kleine Hund schläft."

    def __post_init__(self) -> None:
        self.now = START
        self.trained = 0.0
        self.rows: list[Row] = []
        self.events: list[Row] = []
        overrides = [
            f"train.max_steps={self.steps}",
            f"train.log_every={self.log_every}",
            f"validation.every={self.every}",
        ]
        self.config: Config = load_config("tiny", [*overrides, *self.overrides])
        self.rate = learning_rate(self.config)

    def write(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run.toml").write_text(to_toml(self.config), encoding="utf-8")
        self.write_json("environment.json", environment(self.parameters))
        self.write_json("data.json", manifest())
        self.event("start", 0, ranks=2)
        self.now += STARTUP_SECONDS
        if self.crash_at:
            self.crash()
        self.train(self.kept_step(), self.steps)
        if not self.killed:
            self.event("stop", self.steps, reason="max_steps", seconds=self.now - START)
        self.write_rows()
        return self.folder

    def crash(self) -> None:
        self.train(0, self.crash_at)
        kept = self.kept_step()
        self.now += 60.0
        self.rows = [row for row in self.rows if row["step"] <= kept]
        self.trained = sum(step_seconds(step) for step in range(1, kept + 1))
        self.event("resume", kept, ranks=2, lost_steps=self.crash_at - kept)
        self.now += STARTUP_SECONDS

    def kept_step(self) -> int:
        return max((event["step"] for event in self.events if event["event"] == "checkpoint"), default=0)

    def train(self, since: int, until: int) -> None:
        logged = since
        for step in range(since + 1, until + 1):
            self.now += step_seconds(step)
            self.trained += step_seconds(step)
            if step % self.log_every == 0 or step == self.steps:
                self.train_row(step, range(logged + 1, step + 1))
                logged = step
            if step % self.every == 0 or step == self.steps:
                self.pause(step)

    def train_row(self, step: int, covered: range) -> None:
        seconds = sum(step_seconds(s) for s in covered) / len(covered)
        rate = self.rate(step - 1) * (0.5 if self.tamper_from and step >= self.tamper_from else 1.0)
        row = {
            "kind": "train",
            "step": step,
            "epoch": step * 170 / 49990,
            "loss": 1.3 + 6.2 * math.exp(-step / 140),
            "learning_rate": rate,
        }
        row |= {"grad_norm": 0.6 + 2.5 * math.exp(-step / 60), "step_seconds": seconds, "data_seconds": 0.02 * seconds}
        row |= {
            "target_tokens_per_s": 3800 / seconds,
            "source_tokens_per_s": 3325 / seconds,
            "source_tokens": step * 3325,
            "target_tokens": step * 3800,
        }
        row |= {"pairs": step * 170, "row_fill": 0.94, "train_seconds": self.trained}
        self.rows.append({"time": self.now, **row})

    def pause(self, step: int) -> None:
        if self.validation:
            self.now += VALID_SECONDS
            loss = 1.25 + 5.0 * math.exp(-step / 120)
            row = {
                "kind": "valid",
                "step": step,
                "loss": loss,
                "nll": loss - 1.0,
                "perplexity": math.exp(loss - 1.0),
                "pairs": 500,
            }
            row |= {
                "target_tokens": 7712,
                "bleu": 80.0 - 70.0 * math.exp(-step / 250),
                "bleu_signature": SIGNATURE,
                "chrf": 61.0,
            }
            self.rows.append({"time": self.now, **row, "bleu_sentences": 500, "seconds": VALID_SECONDS})
            self.event("validation", step, seconds=VALID_SECONDS)
            self.write_probes(step)
        if self.checkpoints:
            self.now += CHECKPOINT_SECONDS
            path = self.folder / "checkpoints" / step_name(step)
            self.event(
                "checkpoint", step, seconds=CHECKPOINT_SECONDS, bytes=write_checkpoint(path, step, self.parameters)
            )

    def event(self, name: str, step: int, **more: Any) -> None:
        self.events.append({"time": self.now, "event": name, "step": step, **more})

    def write_probes(self, step: int) -> None:
        path = self.folder / "translations" / f"{step_name(step)}.txt"
        path.parent.mkdir(exist_ok=True)
        words = self.probe.split()[: step // 150 + 1]
        blocks = [
            ("The small dog sleeps.", self.probe, " ".join(words)),
            ("We saw three birds.", "Wir sahen drei Vögel.", "Wir sahen."),
        ]
        path.write_text(
            "\n\n".join(f"source       {s}\nreference    {r}\ntranslation  {t}" for s, r, t in blocks) + "\n",
            encoding="utf-8",
        )

    def write_rows(self) -> None:
        lines = [json.dumps(row) for row in self.rows] if self.metrics else []
        torn = lines[-1][: len(lines[-1]) // 2] if self.killed and lines else ""
        (self.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines) + torn, encoding="utf-8")
        (self.folder / "events.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in self.events), encoding="utf-8"
        )

    def write_json(self, name: str, content: Any) -> None:
        (self.folder / name).write_text(json.dumps(content), encoding="utf-8")


def environment(parameters: int) -> Row:
    host = {"host": "alpha", "ranks": [0, 1], "cores": 2, "memory_bytes": 25769803776, "cpu": "AMD EPYC", "gpus": []}
    model = {
        "parameters": parameters,
        "vocab_size": 2000,
        "weight_bytes": 4 * parameters,
        "checkpoint_bytes": 12 * parameters + 16,
    }
    return {
        "dragoman": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu", "world_size": 2,
        "started": "2026-11-15T09:30:00+00:00",
        "device": "cpu", "device_name": "AMD EPYC", "backend": "gloo", "precision": "fp32", "compile": False,
        "rows_per_step": 64, "micro_batches": 1, "rows_per_micro_batch": 32,
        "hosts": [{**host, "interfaces": [{"name": "eth0", "speed_mbit": 10000}]}],
        "model": {**model, "flops_per_target_token": 7400000, "loss_floor": 1.0799},
    }  # fmt: skip


@pytest.fixture
def story(tmp_path: Path) -> Callable[..., Path]:
    """story(killed=True) writes such a run folder and returns its path."""

    def write(**switches: Any) -> Path:
        return Story(tmp_path / "demo", **switches).write()

    return write
