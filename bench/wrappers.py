"""What a strategy costs that has nobody to exchange with: no wrapper, DDP and FSDP2 over one process, in one run.

    python bench/wrappers.py [tiny | transformer-base | run.toml] [section.key=value ...] [--steps 20] [--rounds 6]

Three trainers with the same seed take the same batches. First their losses step by step: DDP and FSDP2 must learn what the bare model
learns. Then blocks of steps in turns. Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dragoman.benchmark.sentences import opened
from dragoman.benchmark.step import begun, on_device, one_update, synchronize
from dragoman.config import Config, load_config
from dragoman.data.loader import Step
from dragoman.parallel.mesh import Mesh, joined
from dragoman.parallel.sharded import Sharded
from dragoman.parallel.strategy import Strategy
from dragoman.training import trainer
from dragoman.training.compiling import compile_parts


class AlwaysDDP(Strategy):
    def wrap(self, objective: nn.Module) -> nn.Module:
        return self.with_ddp(objective, None)


STRATEGIES: dict[str, Any] = {
    "none": lambda section, mesh, blocks, twin: Strategy(section, mesh),
    "ddp": lambda section, mesh, blocks, twin: AlwaysDDP(section, mesh),
    "fsdp": Sharded,
}


class Contender:
    """One trainer, and its batches on the device."""

    def __init__(self, name: str, config: Config, mesh: Mesh, folder: Any, data: Any):
        trainer.strategy_for = STRATEGIES[name]
        self.trainer = begun(config, data, mesh, folder / name)
        self.wrapped = self.trainer.strategy.wrap(self.trainer.objective).train()
        if self.trainer.compiled:
            compile_parts(self.trainer.objective.model)
        self.batches = cycle(on_device(self.trainer))

    def take(self, count: int) -> list[tuple[torch.Tensor, Step]]:
        return [(one_update(self.trainer, self.wrapped, step)[0], step) for step in islice(self.batches, count)]

    def losses(self, count: int) -> list[float]:
        return [float(loss) / step.target_tokens for loss, step in self.take(count)]

    def seconds(self, count: int) -> float:
        device = self.trainer.mesh.device
        synchronize(device)
        start = time.perf_counter()
        self.take(count)
        synchronize(device)
        return (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_file", nargs="?", default="tiny")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--steps", type=int, default=20, help="of a block")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    config = load_config(options.run_file, options.overrides)
    with joined(config.train.device, config.train.timeout_seconds) as mesh, opened(config, mesh) as (data, folder):
        backend = "nccl" if mesh.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        contenders = {name: Contender(name, config, mesh, folder, data) for name in STRATEGIES}
        losses = {name: each.losses(options.steps) for name, each in contenders.items()}
        apart = {name: farthest(losses[name], losses["none"]) for name in STRATEGIES}
        blocks: dict[str, list[float]] = {name: [] for name in STRATEGIES}
        for turn in range(options.rounds):
            for name in sorted(STRATEGIES, reverse=bool(turn % 2)):
                blocks[name].append(contenders[name].seconds(options.steps))
        dist.destroy_process_group()
    slower = {
        name: statistics.median(own / bare for own, bare in zip(blocks[name], blocks["none"], strict=True)) - 1
        for name in STRATEGIES
    }
    for name in STRATEGIES:
        step = 1e3 * statistics.median(blocks[name])
        close = f"losses at most {apart[name]:.2e} apart, relative"
        print(f"{name:6s} {step:9.2f} ms a step, {slower[name]:+7.2%}; {close}")
    last = {name: round(each[-1], 5) for name, each in losses.items()}
    facts = {"bench": "wrappers", "device": mesh.device.type, "run_file": options.run_file, "last_losses": last}
    apart["fsdp from ddp"] = farthest(losses["fsdp"], losses["ddp"])
    print(json.dumps(facts | {"slower_than_none": slower, "losses_apart": apart, "rounds": options.rounds}))


def farthest(losses: list[float], others: list[float]) -> float:
    """Step by step, relative."""
    return max(abs(a - b) / b for a, b in zip(losses, others, strict=True))


if __name__ == "__main__":
    main()
