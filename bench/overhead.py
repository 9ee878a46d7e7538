"""What measuring costs: the same steps with and without clocks, counters and telemetry, in one run.

    python bench/overhead.py [tiny | transformer-base | run.toml] [section.key=value ...] [--steps 40] [--rounds 8]

One trainer takes blocks of steps, in turns with everything that a run measures (marks of the device's clock, timers of the
exchange, sums and spans of all ranks, bytes of the interfaces, telemetry once a second) and with none of it. Then every part is
priced by itself: on a noisy machine the ratio of the blocks wavers by more than measuring costs, the sum of the prices does
not. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from torch import nn

from dragoman.benchmark.sentences import opened
from dragoman.benchmark.step import begun, one_update, synchronize
from dragoman.config import load_config
from dragoman.data.loader import Step, prefetched
from dragoman.monitor import gpu, host
from dragoman.monitor.sampler import sampling
from dragoman.parallel.mesh import joined
from dragoman.parallel.timing import TIMED_EVERY, exchange_seconds, time_exchanges
from dragoman.training.spans import Clock
from dragoman.training.trainer import Trainer
from dragoman.training.validate import validation_loss
from dragoman.training.window import Window

MARKS = 5  # of the clock, in a step of one micro-batch


class Silent(Clock):
    """Takes no time."""

    def mark(self, phase: str) -> None:
        pass


def main() -> None:
    options = parse()
    config = load_config(options.run_file, options.overrides)
    with joined(config.train.device, config.train.timeout_seconds) as mesh, opened(config, mesh) as (data, folder):
        trainer = begun(config, data, mesh, folder / "run")
        wrapped = trainer.wrapped()
        time_exchanges(wrapped)  # DDP's timers cannot be turned off again; they wait in one step of TIMED_EVERY
        with closing(prefetched(trainer.coming_steps(), pin=mesh.device.type == "cuda")) as stream:
            block(trainer, wrapped, stream, options.steps, measured=True)  # warms up, and compiles
            ratios, seconds = [], []
            for turn in range(options.rounds):
                order = (True, False) if turn % 2 else (False, True)
                took = {on: block(trainer, wrapped, stream, options.steps, measured=on) for on in order}
                ratios.append(took[True] / took[False])
                seconds.append(took[False])
                print(f"round {turn + 1}: {took[True]:.4f} s a step measured, {took[False]:.4f} s without", flush=True)
        step = statistics.median(seconds)
        prices = price(trainer, step, config.train.log_every, config.monitor.interval_seconds)
    for name, (cost, share) in prices.items():
        print(f"{name:54s}{1e6 * cost:10.1f} µs{100 * share:10.4f} %")
    facts = {"bench": "overhead", "device": mesh.device.type, "step_seconds": round(step, 5), "rounds": options.rounds}
    measured = {"blocks_overhead_percent": round(100 * (statistics.median(ratios) - 1), 3)}
    total = sum(share for _, share in prices.values())
    print(json.dumps(facts | measured | {"priced_overhead_percent": round(100 * total, 4)}))


def block(trainer: Trainer, wrapped: nn.Module, stream: Iterator[Step], count: int, *, measured: bool) -> float:
    """Seconds a step, as the trainer takes them."""
    mesh = trainer.mesh
    with tempfile.TemporaryDirectory() as folder, sampling(Path(folder) / "host.jsonl", 1.0, enabled=measured):
        synchronize(mesh.device)
        start = time.perf_counter()
        window = Window(mesh, trainer.config.train.clip_norm) if measured else None
        clock = window.clock if window else Silent(mesh.device)
        for number in range(count):
            clock.mark("other")
            step = next(stream)
            clock.mark("idle")
            loss, norm = one_update(trainer, wrapped, step, clock)
            if window:
                window.add(loss, norm, step.source_tokens, step.target_tokens, step.slots)
                if number % TIMED_EVERY == 0 and (spent := exchange_seconds(wrapped)):
                    window.exchanges.append(spent)
        if window:
            window.close()
        synchronize(mesh.device)
        return (time.perf_counter() - start) / count


def price(trainer: Trainer, step: float, log_every: int, interval: float) -> dict[str, tuple[float, float]]:
    """Seconds of one call, and the share of a run that all calls take. Telemetry runs in a thread of its own; here it is
    counted as if it stopped training."""
    clock, cards = Clock(trainer.mesh.device), gpu.Cards()
    mark, sample, read = cost(lambda: clock.mark("other")), cost(host.sample, 20), cost(cards.sample, 20)
    traffic, close = cost(host.traffic, 20), closing_cost(trainer)
    known, between = slice_cost(trainer), trainer.config.validation.every
    parts = {  # seconds of a call, and between two of them
        f"{MARKS + 2} marks of the clock, every step": (mark * (MARKS + 2), step),
        "a sample of the host, every second": (sample, interval),
        f"a sample of {len(cards.cards)} GPUs, every second": (read, interval),
        f"bytes of the interfaces, every {log_every} steps": (2 * traffic, log_every * step),
        f"sums and spans of all ranks, every {log_every} steps": (close, log_every * step),
        f"loss of a slice of training data, every {between} steps": (known, between * step),
    }
    return {name: (spent, spent / every) for name, (spent, every) in parts.items()}


def closing_cost(trainer: Trainer) -> float:
    """Of Window.close, without waiting for the device: it has nothing to do here."""
    spent = []
    for _ in range(20):
        window = Window(trainer.mesh)
        window.steps, window.target_tokens = 1, 1
        for phase in ("other", "idle", "forward", "backward", "optimizer"):
            window.clock.mark(phase)
        synchronize(trainer.mesh.device)
        start = time.perf_counter()
        window.close()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def slice_cost(trainer: Trainer) -> float:
    width = trainer.packing.width
    how = (trainer.mesh, width, trainer.share.rows_per_micro_batch * width, trainer.arithmetic)
    spent = cost(lambda: validation_loss(trainer.objective, trainer.train_slice, *how), 1)
    trainer.objective.train()
    return spent


def cost(call: Callable[[], object], times: int = 1000) -> float:
    call()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_file", nargs="?", default="tiny")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--steps", type=int, default=40, help="in a block")
    parser.add_argument("--rounds", type=int, default=8)
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    main()
