"""Run folders of which the truth is known because it was put in: every second, byte and watt of them is made up here."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.config import Config, load_config, to_toml
from dragoman.config.schedule import learning_rate
from dragoman.parallel.plan import Setting, sent_bytes

Row = dict[str, Any]
Curve = Callable[[int], float]
START = 1_763_200_000.0
PARAMETERS = 60_880_896
FLOOR = 1.3648
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"


def settling(start: float, end: float, scale: float) -> Curve:
    """Falls (or rises) from one value to another and stays there."""
    return lambda step: end + (start - end) * math.exp(-step / scale)


@dataclass
class Gpu:
    """What NVML says of each card while steps are made."""

    busy: float = 99.0
    active: float | None = 90.0
    watts: float = 620.0
    limit: float = 700.0
    clock: float = 1900.0
    most: float = 1980.0
    reasons: list[str] = field(default_factory=list)


@dataclass
class Made:
    """A run as it would have been recorded. Times in seconds a step."""

    folder: Path
    steps: int = 4000
    log_every: int = 50
    valid_every: int = 250
    hosts: int = 1
    ranks: int = 1  # on each host
    forward: float = 0.10
    backward: float = 0.20
    network: float = 0.0  # that nothing hides
    hidden: float = 0.0  # communication behind the backward pass
    data: float = 0.0  # waiting for it, while the device is idle
    idle: float = 0.0  # of the device, for another reason
    stall: float = 0.0  # seconds more that one step of every window takes
    since: int = 0  # the step after which network and data are as slow as that
    slow: dict[int, float] = field(default_factory=dict)  # rank -> times as long
    jitter: float = 0.01
    granted: float = 1.0  # share of its computing that a rank got a processor for
    wave: float = 0.0  # of the network's part over the run
    sent: float | None = None  # bytes a step and host; as planned when not said
    link_mbit: float | None = 10_000
    gpu: Gpu | None = None
    lead: float = 0.5  # seconds the host waits for its GPU
    loss: Curve = field(default_factory=lambda: settling(9.0, 3.0, 500))
    valid: Curve = field(default_factory=lambda: settling(8.5, 2.9, 350))
    slice: Curve | None = field(default_factory=lambda: settling(8.5, 2.8, 350))
    bleu: Curve | None = field(default_factory=lambda: settling(0.0, 27.0, 350))
    noise: float = 0.002
    overrides: list[str] = field(default_factory=list)
    planned: int = 0
    reason: str = "max_steps"
    checkpoint_stall: float = 0.05
    valid_seconds: float = 5.0
    memory: float = 60e9
    clipped: float = 0.0
    fill: float = 0.98
    retransmitted: float = 0.0  # share of segments
    throttled: dict[int, float] = field(default_factory=dict)  # host -> seconds in a second
    crash_at: int = 0
    stops: tuple[int, ...] = ()  # steps of a stop in good order, each followed by a resume
    start_up: float = 8.0  # seconds without work after every start
    skipped: int = 0
    missing: list[str] = field(default_factory=list)
    change: Callable[[Made], None] | None = None  # of the finished rows, before they are written

    def __post_init__(self) -> None:
        planned = self.planned or self.steps
        keys = [
            f"train.max_steps={planned}",
            f"train.log_every={self.log_every}",
            f"validation.every={self.valid_every}",
        ]
        self.config: Config = load_config("transformer-base", [*keys, "schedule.warmup_steps=1000", *self.overrides])
        self.world, self.random, self.now = self.hosts * self.ranks, random.Random(7), START
        self.device = "cuda" if self.gpu else "cpu"
        self.rows: list[Row] = []
        self.spans: list[Row] = []
        self.events: list[Row] = []
        self.telemetry: dict[int, list[Row]] = {host: [] for host in range(self.hosts)}
        self.counters = [dict.fromkeys(("sent", "again", "held"), 0.0) for _ in range(self.hosts)]
        self.trained = 0.0
        how = self.config.parallel
        machines = Setting(PARAMETERS, 0, self.hosts, self.ranks, 0.0, 1.0, inner_steps=how.inner_steps)
        self.planned_bytes = sent_bytes(machines, how.strategy, how.wire)
        self.per_step = self.planned_bytes if self.sent is None else self.sent
        self.environment = self.describe()
        self.data_facts = manifest()

    # --- the story ---

    def write(self) -> Path:
        self.event("start", 0, ranks=self.world)
        self.pass_time(self.start_up, working=False)
        rate = learning_rate(self.config)
        for step in range(self.log_every, self.steps + 1, self.log_every):
            self.window(step, rate(step - 1))
            if step % self.valid_every == 0:
                self.validate(step)
            if self.crash_at and step >= self.crash_at:
                self.crash(step)
            if step in self.stops:
                self.stop(step)
        if self.reason:
            self.event("stop", self.steps, reason=self.reason, seconds=self.now - START)
        if self.change:
            self.change(self)
        self.write_files()
        return self.folder

    def window(self, step: int, rate: float) -> None:
        spans, usual = self.make_spans(step)
        seconds = usual + self.stall / self.log_every
        spans["idle"] = [idle + self.stall / self.log_every for idle in spans["idle"]]
        if step == self.log_every:
            seconds *= 3  # compilation
        before = [dict(counter) for counter in self.counters]
        self.pass_time(seconds * self.log_every, working=True)
        self.trained += seconds * self.log_every
        sent = [int(now["sent"] - then["sent"]) for now, then in zip(self.counters, before, strict=True)]
        by_rank = [sent[rank // self.ranks] for rank in range(self.world)]
        many = {"memory_bytes": [int(self.memory)] * self.world, "sent_bytes": by_rank, "received_bytes": by_rank}
        self.spans.append({"time": self.now, "step": step, "steps": self.log_every, **many, **spans})
        tokens = 24_000
        row = {"kind": "train", "step": step, "epoch": 0.1, "loss": self.noisy(self.loss(step)), "learning_rate": rate}
        row |= {"grad_norm": 0.6, "largest_grad_norm": 0.9, "clipped_steps": round(self.clipped * self.log_every)}
        row |= {"steps": self.log_every, "step_seconds": seconds, "lead_seconds": self.lead, "row_fill": self.fill}
        row |= {"median_step_seconds": usual, "slowest_step_seconds": usual * (1 + self.jitter) + self.stall}
        row |= {f"{name}_seconds": sum(values) / len(values) for name, values in spans.items()}
        row |= {"target_tokens_per_s": tokens / seconds, "target_tokens": tokens * step, "source_tokens": tokens * step}
        self.rows.append({"time": self.now, **row, "pairs": 800 * step, "train_seconds": self.trained})
        if self.skipped and step == self.skipped:
            self.event("skipped", step, steps=3)

    def make_spans(self, step: int) -> tuple[Row, float]:
        """Every rank's own time, then the wait for the slowest, then the network."""
        late = step > self.since
        network, data = self.network * (1 + self.wave * math.sin(step / 150)) * late, self.data * late
        own = []
        for rank in range(self.world):
            factor = self.slow.get(rank, 1.0) * (1 + self.random.gauss(0, self.jitter))
            own.append((self.forward * factor, self.backward * factor))
        last = max(sum(times) for times in own)
        exposed = [network + last - sum(times) for times in own] if self.world > 1 else [0.0]
        spans: Row = {"data": [data] * self.world, "idle": [data + self.idle] * self.world}
        spans |= {
            "other": [0.001] * self.world,
            "optimizer": [0.01] * self.world,
            "cpu": [self.granted * (sum(times) + 0.01) for times in own],
        }
        spans |= {"forward": [times[0] for times in own], "backward": [times[1] for times in own], "exposed": exposed}
        spans["communication"] = [self.hidden + wait for wait in exposed]
        return spans, last + network * (self.world > 1) + data + self.idle + 0.012

    def validate(self, step: int) -> None:
        self.pass_time(self.valid_seconds, working=False)
        loss = self.noisy(self.valid(step))
        row = {"kind": "valid", "step": step, "loss": loss, "nll": loss - 1, "perplexity": math.exp(loss - 1)}
        row |= {"pairs": 2000, "target_tokens": 60_000, "seconds": self.valid_seconds}
        if self.slice:
            row |= {"train_slice_loss": self.noisy(self.slice(step)), "train_slice_pairs": 2000}
        if self.bleu:
            row |= {"bleu": self.bleu(step) + self.random.gauss(0, 15 * self.noise), "bleu_signature": SIGNATURE}
        self.rows.append({"time": self.now, **row})
        self.event("validation", step, seconds=self.valid_seconds)
        facts = {"stalled_at": self.now, "seconds": self.checkpoint_stall, "write_seconds": 2.0}
        self.pass_time(self.checkpoint_stall, working=False)
        self.event("checkpoint", step, **facts, bytes=12 * PARAMETERS + 16)

    def crash(self, step: int) -> None:
        kept = step - step % self.valid_every
        self.crash_at = 0
        self.now += 120.0
        self.event("resume", kept, ranks=self.world, lost_steps=step - kept)

    def stop(self, step: int) -> None:
        self.event("stop", step, reason="interrupted", seconds=self.now - START)
        self.now += 60.0
        self.event("resume", step, ranks=self.world, lost_steps=0)
        self.pass_time(self.start_up, working=False)

    def noisy(self, value: float) -> float:
        return value + self.random.gauss(0, self.noise)

    def event(self, name: str, step: int, **facts: Any) -> None:
        self.events.append({"time": self.now, "event": name, "step": step, **facts})

    # --- the machines ---

    def pass_time(self, seconds: float, *, working: bool) -> None:
        """One sample in ten seconds; counters grow with the steps."""
        per_s = self.per_step / (seconds / self.log_every) if working and seconds else 0.0
        for part in range(max(1, int(seconds // 10))):
            chunk = seconds / max(1, int(seconds // 10))
            for host, counter in enumerate(self.counters):
                counter["sent"] += per_s * chunk
                counter["again"] += self.retransmitted * per_s * chunk / 1448
                counter["held"] += self.throttled.get(host, 0.0) * chunk * 1e6 * working
                self.sample(host, self.now + (part + 0.9) * chunk, working)
        self.now += seconds

    def sample(self, host: int, time: float, working: bool) -> None:
        sent, again, held = self.counters[host].values()
        row: Row = {
            "time": time,
            "cpu_percent": 50.0,
            "iowait_percent": 1.0,
            "tcp_retransmitted": int(again),
            "cpu_throttled_us": int(held),
        }
        row |= {"disk_read_bytes": int(1e6 * (time - START)), "disk_write_bytes": int(2e6 * (time - START))}
        row["nics"] = {"eth0": {"sent_bytes": int(sent), "received_bytes": int(sent), "faults": 0}}
        row["gpus"] = [self.card(working)] * self.ranks if self.gpu else []
        self.telemetry[host].append(row)

    def card(self, working: bool) -> Row:
        assert self.gpu
        gpu, part = self.gpu, 1.0 if working else 0.1
        row = {"utilization_percent": gpu.busy * part, "power_watts": gpu.watts * part, "sm_clock_mhz": gpu.clock}
        row |= {"temperature_celsius": 70, "memory_used_bytes": self.memory, "throttle_reasons": gpu.reasons}
        return row | ({"sm_percent": gpu.active * part} if gpu.active is not None else {})

    def describe(self) -> Row:
        hosts = []
        for host in range(self.hosts):
            ranks = list(range(host * self.ranks, (host + 1) * self.ranks))
            card = {"name": "H200", "memory_bytes": 150e9, "missing": self.missing}
            card |= {"power_limit_watts": self.gpu.limit, "max_sm_clock_mhz": self.gpu.most} if self.gpu else {}
            facts: Row = {"host": f"host{host}", "ranks": ranks, "cores": 16, "memory_bytes": 128e9, "missing": []}
            facts |= {"gpus": [card] * self.ranks if self.gpu else [], "clock_offset_seconds": 0.0}
            facts |= {"rank_gpus": list(range(self.ranks)) if self.gpu else [None] * self.ranks}
            hosts.append({**facts, "interfaces": [{"name": "eth0", "speed_mbit": self.link_mbit}]})
        model = {"parameters": PARAMETERS, "vocab_size": 32768, "weight_bytes": 4 * PARAMETERS, "loss_floor": FLOOR}
        model |= {"checkpoint_bytes": 12 * PARAMETERS + 16, "flops_per_target_token": 4e8}
        facts = {"world_size": self.world, "device": self.device, "device_name": "H200" if self.gpu else "AMD EPYC"}
        facts |= {"rows_per_step": 64, "micro_batches": 1, "rows_per_micro_batch": 64, "precision": "bf16"}
        how = self.config.parallel
        facts["exchange"] = {"strategy": how.strategy, "wire": how.wire, "sent_bytes": self.planned_bytes}
        return {"dragoman": "0.1.0", **facts, "hosts": hosts, "model": model}

    def write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run.toml").write_text(to_toml(self.config), encoding="utf-8")
        (self.folder / "environment.json").write_text(json.dumps(self.environment))
        (self.folder / "data.json").write_text(json.dumps(self.data_facts))
        files = {"metrics": self.rows, "spans": self.spans, "events": self.events}
        files |= {f"telemetry/host{host}": rows for host, rows in self.telemetry.items()}
        (self.folder / "telemetry").mkdir(exist_ok=True)
        for name, rows in files.items():
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        write_checkpoint(self.folder / "checkpoints" / f"step-{self.steps:08d}", self.steps, PARAMETERS)


def manifest() -> Row:
    train: Row = {
        "pairs": 49990,
        "source_bytes": 2_100_000,
        "target_bytes": 2_500_000,
        "source_tokens": 610_000,
        "target_tokens": 700_000,
    }
    train |= {"read_pairs": 50000, "dropped": {"empty": 3, "too long": 7}, "digest": "d"}
    languages = {"source_lang": "en", "target_lang": "de", "vocabulary": {"kind": "bpe", "size": 2000, "digest": "d"}}
    return {
        "format": 1,
        "dragoman": "0.1.0",
        "corpus": "grammar",
        **languages,
        "train": train,
        "valid": train,
        "digest": "d",
        "settings": {},
    }


def write_safetensors(path: Path, payload_bytes: int, description: str) -> None:
    """Header and a hole of the right size: 730 MB take no room on disk."""
    header = json.dumps({"__metadata__": {"what": description}}).encode()
    with path.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + payload_bytes)


def write_checkpoint(path: Path, step: int, parameters: int) -> int:
    path.mkdir(parents=True, exist_ok=True)
    write_safetensors(path / "model.safetensors", 4 * parameters, "weights")
    write_safetensors(path / "optimizer.safetensors", 8 * parameters, "moments")
    (path / "vocabulary.model").write_bytes(b"v" * 270_000)
    (path / "model.toml").write_text("format = 1\n" * 40, encoding="utf-8")
    (path / "training.json").write_text(json.dumps({"step": step}), encoding="utf-8")
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": "0"}
        for file in path.iterdir()
        if file.name != "manifest.json"
    }
    content = {"format": 1, "step": step, "time": START, "scores": {"loss": 3.1, "bleu": 43.2}, "files": files}
    (path / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
    return sum(file.stat().st_size for file in path.iterdir())


def resumed(run: Made, *starts: tuple[int, int, str]) -> None:
    """After the rows of a step the run was started again from the same step or an earlier one, with something changed."""
    for after, step, changed in starts:
        at = next((place for place, row in enumerate(run.events) if row["step"] > after), len(run.events))
        resume = {"event": "resume", "step": step, "lost_steps": after - step, "changed": [changed]}
        run.events.insert(at, {"time": run.events[at - 1]["time"], **resume})
