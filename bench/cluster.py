"""Strategies on hosts out of network namespaces: step time, bytes at the interface, forecast, and BLEU at equal tokens.

    python bench/cluster.py [--quick] [--only speed|quality] [--layouts 2x1 4x1 2x2] [--seeds 1 2 3] [--steps 1500] [--hosts 2] [--each 1]

Needs root and iproute2. Two parts:

- Speed. Computing is a sleep, as on a machine whose GPU does it: two cores can then show what any network does to a model of any
  size. Exchange is real: the strategies of dragoman, gloo, real bytes over links of the given rate. The ratio of parameters to
  seconds is that of transformer-base on an older GPU (60 million in 0.3 s). Every forecast of `dragoman plan` stands beside. Before
  and after each cell steps without exchange are measured, and their mean is what it is held against: machines waver.
- Quality. The task and the model of `dragoman demo` with real `dragoman launch` on two hosts or more, every strategy on the same tokens,
  several seeds; steps are smaller than those of the demo, so that there are many of them. At equal time: each strategy also runs some
  steps at every limited rate. When the fastest has done all its steps, another has done (its seconds a step) fewer of them, and
  its BLEU is read from its curve of validations, between two of them in a straight line. The learning rate of that curve was made for
  all steps: a run that is planned to be shorter ends a little better.

Prints tables, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lab import Lab, missing
from torch import Tensor, nn

from dragoman import runs
from dragoman.cli.demo import RUN_FILE
from dragoman.cli.stages import prepare
from dragoman.config import load_config, to_toml
from dragoman.config.schema import Parallel
from dragoman.parallel import plan, trial
from dragoman.parallel.choose import strategy_for
from dragoman.parallel.mesh import Mesh, joined
from dragoman.parallel.ranks import Place
from dragoman.parallel.strategy import Strategy

LAYERS = 10
PORT = 29400
RATES = {"": "unlimited", "1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
LONG, MANY = 32, 8  # inner steps for the slowest networks, and fragments: the more, the shorter each is on its way


@dataclass(frozen=True)
class Cell:
    """One strategy to be measured; "none": no exchange at all."""

    strategy: str
    wire: str = "fp32"
    inner_steps: int = 20
    fragments: int = 4

    @property
    def name(self) -> str:
        rare = f", H={self.inner_steps}" if self.strategy in ("local", "streaming") else ""
        return f"{self.strategy}{'' if self.wire == 'fp32' else ' ' + self.wire}{rare}"

    def section(self) -> Parallel:
        strategy: Any = "ddp" if self.strategy == "none" else self.strategy
        wire: Any = self.wire
        return Parallel(strategy=strategy, wire=wire, inner_steps=self.inner_steps, fragments=self.fragments)


ALONE = Cell("none")
ONE_EACH = [
    Cell("ddp"),
    Cell("ddp", "bf16"),
    Cell("ddp", "int8"),
    Cell("fsdp"),
    Cell("local", "bf16"),
    Cell("local", "int8"),
    Cell("streaming", "bf16"),
    Cell("streaming", "bf16", LONG, MANY),
    Cell("streaming", "int8"),
    Cell("streaming", "int8", LONG, MANY),
]
TWO_EACH = [
    Cell("ddp"),
    Cell("two_level"),
    Cell("two_level", "int8"),
    Cell("hybrid"),
    Cell("local", "int8"),
    Cell("streaming", "int8", LONG, MANY),
]


# --- one rank of the first part ---------------------------------------------------------------------------------


class Sleep(torch.autograd.Function):
    """A third of the time forward, two thirds backward; the gradient is there already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor, seconds: float) -> Tensor:  # type: ignore[override]
        time.sleep(seconds / 3)
        ctx.gradient, ctx.seconds = gradient, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        time.sleep(2 * ctx.seconds / 3)
        return incoming, ctx.gradient.detach(), None, None  # not copied: on such a machine the GPU would have made it


class Layer(nn.Module):
    def __init__(self, count: int, seconds: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))
        self.gradient = torch.randn(count) * 1e-3
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Sleep.apply(x, self.weight, self.gradient, self.seconds)
        return result


def network_bytes() -> int:
    rows = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()
    return next(int(row.split(":")[1].split()[8]) for row in rows if row.strip().startswith("eth0:"))


def rank_main(options: argparse.Namespace) -> None:
    """Cells come line by line on the standard input of rank 0, answers go to its standard output."""
    torch.set_num_threads(1)
    with joined("cpu", 600) as mesh:
        while True:
            line = [sys.stdin.readline()] if mesh.is_main else [None]
            torch.distributed.broadcast_object_list(line)
            if not line[0]:
                return
            request = json.loads(line[0])
            if "close" in request:
                found = asdict(trial.tried_among(mesh, request["close"]))
            else:
                found = measure(Cell(**request["cell"]), request["seconds"], mesh, options)
            gc.collect()  # models and hooks know each other: without this every cell's memory stays until there is none left
            if mesh.is_main:
                print(json.dumps(found), flush=True)


def measure(cell: Cell, most_seconds: float, mesh: Mesh, options: argparse.Namespace) -> dict[str, float]:
    """Steps for about so many seconds, at least one agreement of all fragments and two steps."""

    def make() -> nn.Module:
        return nn.Sequential(*(Layer(options.parameters // LAYERS, options.compute / LAYERS) for _ in range(LAYERS)))

    objective = make()
    strategy = strategy_for(cell.section(), mesh, lambda whole: list(whole.children()), make)
    alone = cell.strategy == "none"
    if not alone:
        strategy.shard(objective)
    wrapped = objective if alone else strategy.wrap(objective)
    step = stepper(strategy, wrapped, objective, alone)
    strategy.settle(lambda: step(1)) if not alone else step(1)
    rare = cell.inner_steps if cell.strategy in ("local", "streaming") else 1
    for number in range(1, rare + 1):
        step(number)  # memory is new, and the first exchange has nothing before it
    began = time.perf_counter()
    for number in range(rare + 1, 2 * rare + 1):
        step(number)
    steps = agreed_steps((time.perf_counter() - began) / rare, most_seconds, rare)
    torch.distributed.barrier()  # a fragment may be on its way, when counting begins as when it ends
    start, sent = time.perf_counter(), network_bytes()
    for number in range(2 * rare + 1, 2 * rare + 1 + steps):
        step(number)
    torch.distributed.barrier()
    seconds, sent = time.perf_counter() - start, network_bytes() - sent
    strategy.own_state()  # nothing is on its way when the next cell begins
    return {"step_seconds": seconds / steps, "sent_bytes": sent / steps, "steps": steps}


def agreed_steps(each: float, most_seconds: float, rare: int) -> int:
    """Whole rounds of agreements. Rank 0 decides for all, once: asking at every step would wait behind what is on its way."""
    steps = [max(2, round(most_seconds / each / rare) * rare, rare)]
    torch.distributed.broadcast_object_list(steps)
    return steps[0]


def stepper(strategy: Strategy, wrapped: nn.Module, objective: nn.Module, alone: bool) -> Callable[[int], None]:
    x = torch.zeros(1, requires_grad=True)

    def step(number: int) -> None:
        with nullcontext() if alone else strategy.exchange(wrapped, last=True):
            wrapped(x).sum().backward()
        objective.zero_grad(set_to_none=True)
        if not alone:
            strategy.after_step(number)

    return step


# --- the first part: speed ----------------------------------------------------------------------------------------


class Ranks:
    """The ranks of one layout, on the hosts of a lab."""

    def __init__(self, lab: Lab, each: int, options: argparse.Namespace):
        own = ["--rank", "--parameters", str(options.parameters), "--compute", str(options.compute)]
        self.processes = []
        for number, host in enumerate(lab.hosts):
            place = Place(number * each, each, each * len(lab.hosts), lab.address("a"), PORT, "eth0")
            for local in range(each):
                environment = {
                    **os.environ,
                    **place.environment(local),
                    "OMP_NUM_THREADS": "1",
                    "TORCH_CPP_LOG_LEVEL": "ERROR",
                }
                self.processes.append(
                    subprocess.Popen(
                        lab.command(host, sys.executable, __file__, *own),
                        env=environment,
                        text=True,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=None if options.verbose else subprocess.DEVNULL,
                    )
                )

    def measure(self, cell: Cell, seconds: float) -> dict[str, float]:
        return self.asked(cell.name, cell=asdict(cell), seconds=seconds)

    def work(self, close: int) -> plan.Work:
        """As `dragoman plan` tries it out, over the hosts of the lab."""
        return plan.Work(**self.asked("the work of exchanges", close=close))

    def asked(self, what: str, **request: Any) -> dict[str, Any]:
        first = self.processes[0]
        assert first.stdin
        assert first.stdout
        first.stdin.write(json.dumps(request) + "\n")
        first.stdin.flush()
        line = first.stdout.readline()
        if not line:
            sys.exit(f"a rank ended while {what} was measured; --verbose shows what it said")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=60)


def speeds(
    hosts: int, each: int, cells: list[Cell], rates: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every cell at every rate, beside what `dragoman plan` says of it, with the steps without exchange around it as its time of
    computing."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, Lab(hosts, Path(folder), latency_ms=options.latency_ms) as lab:
        ranks = Ranks(lab, each, options)
        work = ranks.work(each)  # before any limit
        for rate in rates:
            lab.limit(rate)
            before = ranks.measure(ALONE, options.seconds)["step_seconds"]
            for cell in cells:
                found = ranks.measure(cell, options.seconds)
                after = ranks.measure(ALONE, options.seconds)["step_seconds"]
                setting = plan.Setting(
                    options.parameters,
                    0,
                    hosts,
                    each,
                    (before + after) / 2,
                    plan.parse_rate(rate or "1tbit"),
                    latency_seconds=options.latency_ms / 1e3,
                    inner_steps=cell.inner_steps,
                    fragments=cell.fragments,
                    work=work,
                    gloo=True,
                    blocks=LAYERS,
                )
                rows.append(
                    row(setting, rate, cell, found) | {"alone_ms": [round(1e3 * before, 1), round(1e3 * after, 1)]}
                )
                tell(rows[-1])
                before = after
        ranks.end()
    return rows


def row(setting: plan.Setting, rate: str, cell: Cell, found: dict[str, float]) -> dict[str, Any]:
    """What was measured, beside the forecast."""
    base = setting.compute_seconds
    measured = {
        "hosts": setting.hosts,
        "ranks_per_host": setting.ranks_per_host,
        "rate": RATES[rate],
        "strategy": cell.name,
        "step_ms": round(1e3 * found["step_seconds"], 1),
        "exposed_ms": round(1e3 * (found["step_seconds"] - base), 1),
        "efficiency": round(base / found["step_seconds"], 3),
        "sent_mb": round(found["sent_bytes"] / 1e6, 3),
        "steps": found["steps"],
    }
    planned = plan.forecast(setting, cell.strategy, cell.wire)
    measured["predicted_mb"] = round(planned.sent_bytes / 1e6, 3)
    measured["bytes_error"] = round(planned.sent_bytes / found["sent_bytes"] - 1, 4)
    measured["predicted_ms"] = round(1e3 * planned.step_seconds, 1)
    measured["time_error"] = round(planned.step_seconds / found["step_seconds"] - 1, 4)
    return measured


def tell(found: dict[str, Any]) -> None:
    predicted = f"{found['predicted_mb']:9.3f} MB ({found['bytes_error']:+.1%})"
    in_time = f"{found['predicted_ms']:9.1f} ms ({found['time_error']:+.1%})"
    print(
        f"{found['hosts']} x {found['ranks_per_host']}  {found['rate']:11s} {found['strategy']:22s} {found['step_ms']:9.1f} ms "
        f"{found['exposed_ms']:9.1f} ms exposed {found['efficiency']:6.1%} {found['sent_mb']:9.3f} MB | {predicted} {in_time}",
        flush=True,
    )


# --- the second part: quality -------------------------------------------------------------------------------------

QUALITY = [
    Cell("ddp"),
    Cell("streaming", "int8", LONG, MANY),
    Cell("streaming", "bf16", LONG, MANY),
    Cell("streaming", "int8"),
    Cell("ddp", "bf16"),
    Cell("ddp", "int8"),
    Cell("local", "int8"),
    Cell("local", "bf16"),
    Cell("streaming", "bf16"),
    Cell("fsdp"),
]
QUALITY_TWO_EACH = [*QUALITY, Cell("two_level"), Cell("two_level", "int8"), Cell("hybrid")]
VALIDATIONS = 6
SLOW_STEPS = 40
SMALLER = [  # steps than those of the demo, and the learning rate by the root of that
    "train.batch_tokens=2048",
    "train.tokens_per_gpu=1024",
    "schedule.learning_rate=0.004",
    "checkpoint.every=100000",
    "monitor.tensorboard=false",
]


class Task:
    """The demo, prepared once, with so many processes on every host."""

    def __init__(self, lab: Lab, folder: Path, steps: int, each: int):
        self.lab, self.folder, self.steps, self.each, self.number = lab, folder, steps, each, 0
        self.run_file = folder / "run.toml"
        self.run_file.write_text(RUN_FILE.format(folder=folder), encoding="utf-8")
        prepare(load_config(self.run_file))

    def trained(self, cell: Cell, *overrides: str) -> dict[str, Any]:
        """One run over all hosts; BLEU over steps, and what host a sent."""
        self.number += 1
        section = cell.section()
        keys = [f"parallel.{name}={value}" for name, value in section.model_dump().items()]
        config = load_config(
            self.run_file, [*SMALLER, *keys, f"run.folder={self.folder}/runs/{self.number}", *overrides]
        )
        path = self.folder / "one.toml"
        path.write_text(to_toml(config), encoding="utf-8")
        sent = self.lab.sent_bytes("a")
        hosts = ",".join(f"{host}:{self.each}" for host in self.lab.hosts)
        words = self.lab.dragoman("launch", str(path), "--hosts", hosts, "--rsh", str(self.lab.rsh))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        if result.returncode:
            sys.exit(f"{cell.name}: {result.stdout}{result.stderr}")
        rows = runs.read_rows(runs.RunFolder(config.run.folder).metrics)
        valid = [row for row in rows if row["kind"] == "valid"]
        train = [row["step_seconds"] for row in rows if row["kind"] == "train"]
        return {
            "bleu": [(0, 0.0), *((row["step"], row["bleu"]) for row in valid)],
            "loss": valid[-1]["loss"],
            "sent_mb": (self.lab.sent_bytes("a") - sent) / 1e6 / config.train.max_steps,
            "step_seconds": statistics.median(train[len(train) // 2 :]),
        }

    def curves(self, cell: Cell, seeds: list[int]) -> list[dict[str, Any]]:
        every = max(1, self.steps // VALIDATIONS)
        common = [f"train.max_steps={self.steps}", f"validation.every={every}", "train.log_every=25"]
        return [self.trained(cell, *common, f"run.seed={seed}") for seed in seeds]

    def step_seconds(self, cell: Cell, rate: str) -> float:
        """Of short runs at a limited rate."""
        self.lab.limit(rate)
        try:
            short = [f"train.max_steps={SLOW_STEPS}", f"validation.every={SLOW_STEPS}", "train.log_every=20"]
            return float(self.trained(cell, *short, "validation.bleu_sentences=1")["step_seconds"])
        finally:
            self.lab.limit("")


def quality(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder, Lab(options.hosts, Path(folder)) as lab:
        task = Task(lab, Path(folder), options.steps, options.each)
        known = QUALITY if options.each == 1 else QUALITY_TWO_EACH
        cells = [cell for cell in known if cell.name in options.strategies]
        if not cells:
            sys.exit(
                f"with {options.each} process on a host these are trained: {', '.join(cell.name for cell in known)}"
            )
        for cell in cells:
            curves = task.curves(cell, options.seeds)
            final = [curve["bleu"][-1][1] for curve in curves]
            rows.append(
                {
                    "strategy": cell.name,
                    "bleu": [round(score, 2) for score in final],
                    "bleu_mean": round(statistics.mean(final), 2),
                    "bleu_deviation": round(statistics.stdev(final), 2) if len(final) > 1 else None,
                    "loss": [round(curve["loss"], 4) for curve in curves],
                    "sent_mb_per_step": round(statistics.mean(curve["sent_mb"] for curve in curves), 4),
                    "curves": [curve["bleu"] for curve in curves],
                }
            )
            last = rows[-1]
            print(
                f"{cell.name:24s} BLEU {last['bleu_mean']:6.2f} {last['bleu']} {last['sent_mb_per_step']:.3f} MB a step",
                flush=True,
            )
        for cell, row in zip(cells, rows, strict=True):  # one after the other: what is compared is measured together
            row["step_seconds"] = {rate: round(task.step_seconds(cell, rate), 4) for rate in RATES if rate}
    for row in rows:
        row["traffic"] = round(rows[0]["sent_mb_per_step"] / row["sent_mb_per_step"], 1)
        row["bleu_at_equal_time"] = {rate: at_equal_time(row, rows, rate, options.steps) for rate in RATES if rate}
    return rows


def at_equal_time(row: dict[str, Any], rows: list[dict[str, Any]], rate: str, steps: int) -> float:
    """Mean over seeds of what a strategy had reached at this rate when the fastest one was done."""
    seconds = steps * min(other["step_seconds"][rate] for other in rows)
    return round(statistics.mean(reached(curve, seconds / row["step_seconds"][rate]) for curve in row["curves"]), 2)


def reached(curve: list[tuple[int, float]], step: float) -> float:
    """On the straight line between two validations."""
    for (left, low), (right, high) in pairwise(curve):
        if step <= right:
            return low + (high - low) * (step - left) / (right - left)
    return curve[-1][1]


def main() -> None:
    options = parse()
    if options.rank:
        rank_main(options)
        return
    if reason := missing():
        sys.exit(f"bench/cluster.py {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are taken down on the way out
    began = time.time()
    rows = []
    for layout in options.layouts if options.only != "quality" else ():
        hosts, each = map(int, layout.split("x"))
        cells = [cell for cell in (ONE_EACH if each == 1 else TWO_EACH) if cell.name in options.strategies]
        rows += speeds(hosts, each, cells, [rate for rate, name in RATES.items() if name in options.rates], options)
    scores = [] if options.only == "speed" else quality(options)
    by_name = {score["strategy"]: score["bleu_mean"] for score in scores}
    for each_row in rows:  # of as many hosts and processes: islands learn otherwise when there are more of them
        trained = (each_row["hosts"], each_row["ranks_per_host"]) == (options.hosts, options.each)
        each_row["bleu"] = by_name.get(each_row["strategy"]) if trained else None
    for score in scores:
        equal_time = ", ".join(
            f"{found:.2f} at {RATES[rate]} ({score['step_seconds'][rate]:.3f} s a step)"
            for rate, found in score["bleu_at_equal_time"].items()
        )
        print(
            f"{score['strategy']:24s} BLEU at equal tokens {score['bleu_mean']:.2f} +- {score['bleu_deviation']}; "
            f"at equal time {equal_time}; traffic {score['traffic']:.0f} times smaller, start and validations included"
        )
    facts = {"bench": "cluster", "parameters": options.parameters, "compute_seconds": options.compute}
    facts |= {"quality_hosts": options.hosts, "quality_processes_per_host": options.each}
    found = {"summary": summary(rows), "speed": rows, "quality": scores, "seconds": round(time.time() - began)}
    print(json.dumps(facts | found))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst forecasts, and the best strategy at every rate: how much longer its step is than one without exchange."""
    if not rows:
        return {}
    best = {}
    for rate in RATES.values():
        for hosts, each in {(row["hosts"], row["ranks_per_host"]) for row in rows}:
            here = [row for row in rows if (row["rate"], row["hosts"], row["ranks_per_host"]) == (rate, hosts, each)]
            if here:
                chosen = max(here, key=lambda row: row["efficiency"])
                best[f"{hosts}x{each}, {rate}"] = [chosen["strategy"], round(1 / chosen["efficiency"] - 1, 4)]
    worst = {name: max(abs(row[name]) for row in rows) for name in ("bytes_error", "time_error")}
    return {"best": best, "worst": worst}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two hosts, a small model, one seed: minutes")
    parser.add_argument("--only", choices=["speed", "quality"], default="")
    parser.add_argument("--layouts", nargs="+", default=["2x1", "4x1", "2x2"], help="hosts x processes on each")
    parser.add_argument("--rates", nargs="+", choices=RATES.values(), default=list(RATES.values()), help="of speed")
    parser.add_argument("--parameters", type=int, default=20_000_000)
    parser.add_argument("--compute", type=float, default=0.1, help="seconds of a step without exchange")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each cell, at least")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="of speed, one way; the switch is slow then")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--hosts", type=int, default=2, help="of quality")
    parser.add_argument("--each", type=int, default=1, help="processes on each of these hosts")
    names = list(dict.fromkeys(cell.name for cell in [*ONE_EACH, *TWO_EACH, *QUALITY]))
    parser.add_argument("--strategies", nargs="+", choices=names, default=names, help="some of them")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.parameters, options.compute, options.seconds = 4_000_000, 0.05, 2.0
        options.seeds, options.steps, options.layouts = [1], 40, options.layouts[:1]
    return options


if __name__ == "__main__":
    main()
