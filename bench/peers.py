"""Training speed against others, on one device: same model shape, same sentences, same optimizer and arithmetic (on a
CPU fp32).

    python bench/peers.py [section.key=value ...] [--preset transformer-base] [--data FOLDER] [--tokens 8192 16384 32768]

dragoman runs its real loop: loader, packing, logging. The others get a bare loop around padded batches that lie on the
device already, no logging, and no gradient norm unless clipping is configured: what is left out is in their favour. Every
one of their batches is passed over once before the clock starts, because the first pass over new shapes is much slower.
Each is tried with every batch size, padded ones on a GPU also with widths that are multiples of 8, and counts with its best;
what does not fit the memory is left out. Speeds are real target tokens a second, padding not counted. Prints a table, with
the multiple in brackets, and, as its last line, one JSON object.

marian            Hugging Face's MarianMTModel, eager                    nn.Transformer           torch's own, eager
marian-compiled   the same, every layer compiled for dynamic shapes      nn.Transformer-compiled  the same, compiled
marian-whole      the same, compiled as a whole
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle, islice
from typing import Any, NamedTuple

import border
import torch
from marian import MarianLoss, build
from padded import Padded, Plain, precision_of, sample, update
from rich.console import Console
from rich.table import Table
from torch import nn

from dragoman.benchmark.figures import circumstances
from dragoman.benchmark.sentences import opened
from dragoman.benchmark.step import synchronize
from dragoman.benchmark.train import changed, measure_training
from dragoman.config import Config, load_config
from dragoman.data.encode import PreparedData
from dragoman.errors import DragomanError
from dragoman.parallel.mesh import Mesh, pick_device
from dragoman.training import optim
from dragoman.training.garbage import Aside

WARMUP_STEPS = 10  # of dragoman, whose shapes do not change

MULTIPLES = {"cpu": [1], "cuda": [1, 8]}  # of the widths of padded batches


class Size(NamedTuple):
    """Of a batch: target slots, and what the widths of its sides are multiples of; 0 where nothing is padded."""

    tokens: int
    multiple: int


Options = argparse.Namespace
Peer = Callable[[Config, PreparedData, Size, Options], float]  # real target tokens/s with batches of this size
Speeds = dict[str, dict[Size, float]]
Best = dict[str, tuple[Size, float]]


def dragoman(config: Config, data: PreparedData, size: Size, options: Options) -> float:
    """The real loop, as `dragoman bench train` measures it."""
    run = changed(config, data={"folder": str(data.folder)}, train=batch_of(config, size.tokens))
    found = measure_training(run, steps=options.batches, warmup=WARMUP_STEPS, seconds=options.seconds)
    assert found is not None, "there is one rank only"
    return float(found["target_tokens_per_s"])


def batch_of(config: Config, tokens: int) -> dict[str, int]:
    """One micro-batch a step, so that nothing is accumulated."""
    slots = max(1, tokens // config.train.tile_width) * config.train.tile_width
    return {"batch_tokens": slots, "tokens_per_gpu": slots}


def marian(config: Config, data: PreparedData, size: Size, options: Options, *, compiled: str = "off") -> float:
    model = build(config, len(data.vocabulary))
    return padded_speed(MarianLoss(model, config.train.label_smoothing, compiled), config, data, size, options)


def plain(config: Config, data: PreparedData, size: Size, options: Options, *, compiled: bool = False) -> float:
    model = Plain(config, len(data.vocabulary))
    if compiled:
        torch._dynamo.config.recompile_limit = 256
        model.compile(dynamic=True)
    return padded_speed(model, config, data, size, options)


PEERS: dict[str, Peer] = {
    "dragoman": dragoman,
    "dragoman-fp8": lambda config, *rest: dragoman(changed(config, train={"precision": "fp8"}), *rest),
    "marian": marian,
    "marian-compiled": partial(marian, compiled="layers"),
    "marian-whole": partial(marian, compiled="whole"),
    "nn.Transformer": plain,
    "nn.Transformer-compiled": partial(plain, compiled=True),
}
USUAL = ["dragoman", "marian", "marian-compiled", "marian-whole", "nn.Transformer"]


# --- padded peers ------------------------------------------------------------------------------------------


def padded_speed(module: nn.Module, config: Config, data: PreparedData, size: Size, options: Options) -> float:
    device = pick_device(config.train.device)
    chosen = sample(data.encoded("train"), size.tokens, options.batches, config.run.seed, size.multiple)
    batches = [batch.to(device) for batch in chosen]
    take = updates(module.to(device).train(), config)
    for batch in batches:
        take(batch)
    Aside().put()
    synchronize(device)
    start, done = time.perf_counter(), 0
    for batch in islice(cycle(batches), options.batches):
        take(batch)
        done += batch.target_tokens
        if time.perf_counter() - start > options.seconds:
            break
    synchronize(device)
    return done / (time.perf_counter() - start)


def updates(module: nn.Module, config: Config) -> Callable[[Padded], object]:
    """The update of a module that returns its mean loss, always at the same rate."""
    optimizer = optim.build(module, config.train)
    optim.set_rate(optimizer, 1e-4)
    return partial(update, module, optimizer, config)


# --- the story ---------------------------------------------------------------------------------------------


def main() -> None:
    options = parse()
    config = load_config(options.preset, options.overrides)
    if options.data:
        config = changed(config, data={"folder": options.data})
    mesh = Mesh(0, 1, 0, pick_device(config.train.device))
    if mesh.device.type == "cpu":
        config = changed(config, train={"precision": "fp32"})  # as the others have it; bench/cpu.py has bf16 too
    given = {"preset": options.preset, "overrides": options.overrides, "precision": precision_of(config, mesh.device)}
    with opened(config, mesh) as (data, _):
        speeds = {name: speeds_of(name, config, data, options) for name in options.peers}
        facts = {"bench": "peers", **given, **circumstances(mesh, data), "transformers": installed()}
    best = {name: fastest(by_size) for name, by_size in speeds.items() if by_size}
    tell(speeds, best)
    print(json.dumps(facts | results(speeds, best)))


def parse() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="section.key=value, for example model.attention_dropout=0.0")
    parser.add_argument("--preset", default="transformer-base", help="or a run file")
    parser.add_argument("--data", help="prepared folder; without one at data.folder sentences are drawn")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16_384, 32_768], help="target slots a batch")
    parser.add_argument("--own-tokens", type=int, nargs="+", help="the same for dragoman, if other sizes suit it")
    parser.add_argument(
        "--multiples", type=int, nargs="+", help="of the widths of padded batches, where one is known to be best"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=USUAL, metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--batches", type=int, default=60, help="updates to measure, at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="to measure one peer with one batch size, at most")
    return parser.parse_intermixed_args()


def sizes_of(name: str, device: torch.device, options: Options) -> list[Size]:
    if name.startswith("dragoman"):
        return [Size(tokens, 0) for tokens in options.own_tokens or options.tokens]
    multiples = options.multiples or MULTIPLES[device.type]
    return [Size(tokens, multiple) for tokens in options.tokens for multiple in multiples]


def speeds_of(name: str, config: Config, data: PreparedData, options: Options) -> dict[Size, float]:
    """By batch size. What fails is said and left out: the others should not have been measured for nothing."""
    speeds = {}
    for size in sizes_of(name, pick_device(config.train.device), options):
        start = time.perf_counter()
        try:
            speeds[size] = round(PEERS[name](config, data, size, options), 1)
            told = f"{speeds[size]:,.0f} target tokens/s"
        except torch.OutOfMemoryError:
            told = "out of memory"
        except DragomanError as error:  # also when dragoman's own memory is full
            told = str(error)
        except Exception:
            told = f"failed\n{traceback.format_exc()}"
        shape = f"{size.tokens:,} slots{in_brackets(size)}"
        print(f"{name}, {shape}: {told} ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)
        tidy_up()
    return speeds


def installed() -> str | None:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def tidy_up() -> None:
    """The next one finds the memory and the compiler as if it were the first."""
    torch.compiler.reset()
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def fastest(by_size: dict[Size, float]) -> tuple[Size, float]:
    return max(by_size.items(), key=lambda entry: entry[1])


def in_brackets(size: Size) -> str:
    return f" ({size.multiple})" if size.multiple else ""


def by_tokens(by_size: dict[Size, float]) -> dict[int, tuple[Size, float]]:
    """The faster multiple of every number of slots."""
    every = {size.tokens for size in by_size}
    return {
        tokens: fastest({size: speed for size, speed in by_size.items() if size.tokens == tokens}) for tokens in every
    }


def tell(speeds: Speeds, best: Best) -> None:
    every = sorted({size.tokens for by_size in speeds.values() for size in by_size})
    owns = own_of(best)
    table = Table("target tokens/s", *(f"{tokens:,} slots" for tokens in every), "best", *(f"{own} is" for own in owns))
    for name, by_size in speeds.items():
        found = by_tokens(by_size)
        cells = [
            f"{found[tokens][1]:,.0f}{in_brackets(found[tokens][0])}" if tokens in found else "-" for tokens in every
        ]
        top = f"{best[name][1]:,.0f}" if name in best else "-"
        times = [f"{best[own][1] / best[name][1]:.2f} x" if name in best else "-" for own in owns]
        table.add_row(name, *cells, top, *times)
    Console(highlight=False).print(table)


def own_of(best: Best) -> list[str]:
    return [name for name in best if name.startswith("dragoman")]


def results(speeds: Speeds, best: Best) -> dict[str, Any]:
    """`ratio` is of dragoman in the precision of the configuration, `ratio_fp8` of it in fp8."""

    def ratios(own: str) -> dict[str, float]:
        others = (name for name in best if name not in own_of(best))
        return {name: round(best[own][1] / best[name][1], 3) for name in others}

    return {
        "target_tokens_per_s": {
            name: [size._asdict() | {"target_tokens_per_s": speed} for size, speed in each.items()]
            for name, each in speeds.items()
        },
        "best": {name: size._asdict() | {"target_tokens_per_s": speed} for name, (size, speed) in best.items()},
        **{own.replace("dragoman-", "ratio_").replace("dragoman", "ratio"): ratios(own) for own in own_of(best)},
    }


if __name__ == "__main__":
    border.run(main)
