"""The training step of `dragoman demo` against a plain padded `nn.Transformer` loop, on a CPU, in one run.

    python bench/cpu.py [--pairs 20000] [--tokens 4096] [--steps 12] [--rounds 3]

Same sentences, shape and optimizer. dragoman computes in what it would choose by itself here; `nn.Transformer` in fp32, as one
writes it first. Where dragoman chooses bf16, both are measured in the other arithmetic too, so that one sees what comes from
where. All take a turn to warm up, then they take turns, so that noise of the machine hits all alike. Prints a table and, as
its last line, one JSON object. Tokens are real target tokens, padding not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import torch
from padded import Plain, sample
from peers import batch_of, updates

from dragoman import runs
from dragoman.benchmark.step import begun, timed_update
from dragoman.benchmark.train import changed
from dragoman.cli.demo import RUN_FILE
from dragoman.cli.stages import prepare
from dragoman.config import Config, load_config
from dragoman.data.encode import PreparedData
from dragoman.parallel.mesh import Mesh, pick_device
from dragoman.training.precision import resolve

PADDED_BATCHES = 200  # different ones

Update = Callable[[], int]  # does one update, returns its real target tokens


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        config = demo_config(Path(folder), options)
        data = prepare(config)
        sides = {"dragoman": packed(config, data, Path(folder) / "run"), "nn.Transformer": plain(config, data)}
        chosen = resolve(config.train.precision, pick_device(config.train.device))
        if chosen == "bf16":
            sides["dragoman, fp32"] = packed(changed(config, train={"precision": "fp32"}), data, Path(folder) / "fp32")
            sides["nn.Transformer, bf16"] = plain(config, data, bf16=True)
        speeds = compare(sides, options.steps, options.rounds)
    ratio = speeds["dragoman"] / speeds["nn.Transformer"]
    print(f"\n{'':22s}{'target tokens/s':>18s}{'times nn.Transformer':>24s}")
    for name, speed in speeds.items():
        print(f"{name:22s}{speed:18,.0f}{speed / speeds['nn.Transformer']:24.2f}")
    facts = {"bench": "cpu", "threads": torch.get_num_threads(), "torch": str(torch.__version__), "precision": chosen}
    rounded = {name: round(speed, 1) for name, speed in speeds.items()}
    print(json.dumps(facts | {"target_tokens_per_s": rounded, "ratio": round(ratio, 3)}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=4096, help="target slots per update")
    parser.add_argument("--steps", type=int, default=12, help="updates per round")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def demo_config(folder: Path, options: argparse.Namespace) -> Config:
    """What `dragoman demo` trains with, but for the number of sentences and the batch."""
    run_file = folder / "run.toml"
    runs.write_text(run_file, RUN_FILE.format(folder=folder))
    config = load_config(run_file, [f"data.train_pairs={options.pairs}", "data.valid_pairs=10"])
    if options.tokens != config.train.batch_tokens:
        config = changed(config, train=batch_of(config, options.tokens))
    return config


def compare(sides: dict[str, Update], count: int, rounds: int) -> dict[str, float]:
    """Median over rounds; the sides take turns."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, update in sides.items():
            start = time.perf_counter()
            tokens = sum(update() for _ in range(count))
            if turn:  # the first turn warms up
                measured[name].append(tokens / (time.perf_counter() - start))
                print(f"round {turn}, {name}: {measured[name][-1]:,.0f} target tokens/s", flush=True)
    return {name: statistics.median(values) for name, values in measured.items()}


def packed(config: Config, data: PreparedData, folder: Path) -> Update:
    """dragoman's own update, put together by the trainer as for a run, its rows packed when they are asked for."""
    trainer = begun(config, data, Mesh(0, 1, 0, pick_device(config.train.device)), folder)
    wrapped, stream = trainer.wrapped(), trainer.coming_steps()

    def update() -> int:
        step = next(stream)
        timed_update(trainer, wrapped, step)
        return step.target_tokens

    return update


def plain(config: Config, data: PreparedData, *, bf16: bool = False) -> Update:
    update = updates(Plain(config, len(data.vocabulary)).train(), config)
    batches = cycle(sample(data.encoded("train"), config.train.batch_tokens, PADDED_BATCHES, config.run.seed))

    def update_next() -> int:
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            update(batch)
        return batch.target_tokens

    return update_next


if __name__ == "__main__":
    main()
