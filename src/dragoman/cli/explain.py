"""`dragoman explain`: what a run file means, before anything runs. Formula, table, CSV and picture of the learning rate; what a step is;
the bytes of a checkpoint by part; the bytes on the wire by strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from dragoman.config import Config, load_config
from dragoman.config.schedule import formula, learning_rate
from dragoman.report import units

app = typer.Typer(help="What a run file means, before any run: lr, step, checkpoint, network.", no_args_is_help=True)

RunFile = Annotated[str, typer.Argument(help="A run file (TOML), or the name of a preset.", show_default=False)]
Overrides = Annotated[
    Optional[list[str]], typer.Argument(help="section.key=value, as many as you like.", show_default=False)
]
TARGET_PER_PAIR = 28.0  # subwords of a usual European sentence, where no prepared data says better
LINKS_GBIT = (0.1, 1.0, 10.0, 100.0)


@app.command()
def lr(
    run_file: RunFile,
    overrides: Overrides = None,
    csv: Annotated[Optional[Path], typer.Option(help="Write step,learning_rate of every step there.")] = None,
    picture: Annotated[Optional[Path], typer.Option(help="Draw the curve there (.svg or .png).")] = None,
) -> None:
    """The learning rate: formula, table, CSV, picture."""
    config = load_config(run_file, overrides)
    rate, last = learning_rate(config), config.train.max_steps
    print(formula(config))
    print("It depends on the step alone, neither on BLEU nor on a plateau of the loss. Steps are counted from 0.\n")
    marks = {0, 1_000, config.schedule.warmup_steps - 1, 20_000, 50_000, 100_000, last // 2, last}
    for step in sorted(mark for mark in marks if 0 <= mark <= last):
        print(
            f"{step:>12,}  {rate(step):.3g}{'   the end of the warm-up' if step == config.schedule.warmup_steps - 1 else ''}"
        )
    if csv:
        csv.write_text(
            "step,learning_rate\n" + "".join(f"{step},{rate(step):.9g}\n" for step in range(last)), encoding="utf-8"
        )
        print(csv)
    if picture:
        from dragoman.report.charts import draw_rate

        draw_rate(config, picture)
        print(picture)


@app.command()
def step(
    run_file: RunFile, overrides: Overrides = None, gpus: Annotated[int, typer.Option(min=1, help="Ranks in all.")] = 1
) -> None:
    """What a step is: in rows, tokens, sentences and epochs."""
    config = load_config(run_file, overrides)
    train, pairs, per_pair = config.train, *data_of(config)
    tokens = train.batch_tokens * 0.98  # rows are about that full
    print("A step is one update of all weights, from the gradients of all ranks and micro-batches.")
    rows = train.batch_tokens // train.tile_width
    print(
        f"train.batch_tokens = {train.batch_tokens:,} target slots in {rows:,} rows of {train.tile_width}, over all ranks:"
    )
    print(
        f"  {units.count(tokens)} target tokens, {tokens / per_pair:,.0f} sentence pairs of {per_pair:.1f} target tokens"
    )
    if gpus > 1:
        print(
            f"  {train.batch_tokens / gpus:,.0f} slots for each of {gpus} ranks; the update does not depend on how many there are"
        )
    print(f"{train.max_steps:,} steps see {units.rough(train.max_steps * tokens, 'target tokens')}")
    if pairs:
        epoch = pairs * per_pair / tokens
        print(
            f"An epoch of {pairs:,} pairs is {epoch:,.0f} steps; the run sees every pair {train.max_steps / epoch:.2f} times"
        )
    else:
        print("How many steps an epoch has depends on the data: prepare it, and ask again")


@app.command()
def checkpoint(run_file: RunFile, overrides: Overrides = None) -> None:
    """The bytes of a checkpoint by part."""
    from dragoman.model import size

    config = load_config(run_file, overrides)
    count = parameters_of(config)
    averaged = config.train.average_decay > 0
    parts = ["weights, fp32", "Adam's first moment, fp32", "Adam's second moment, fp32"]
    parts += ["average of weights, fp32"] if averaged else []
    whole = size.checkpoint_bytes(count, averaged=averaged)
    print(f"{count:,} parameters")
    for name in parts:
        print(f"  {name:28s} {4 * count:>16,} bytes  {units.size(4 * count)}")
    print(f"  {'counters':28s} {16:>16,} bytes")
    print(f"  {'in all':28s} {whole:>16,} bytes  {units.size(whole)}, and a vocabulary and descriptions")
    kept = config.checkpoint.keep_last + config.checkpoint.keep_best
    print(f"Up to {kept} are kept: {units.size(kept * whole)} of disk")
    print(f"Half-precision copies, as other systems keep them, would make it {units.size(whole + 2 * count)}")


@app.command()
def network(
    run_file: RunFile,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1)] = 2,
    gpus_per_node: Annotated[int, typer.Option(min=1)] = 1,
    step_seconds: Annotated[
        Optional[float], typer.Option(help="Computing of a step, to say what a link costs.")
    ] = None,
) -> None:
    """Bytes on the wire by strategy, and what links make of them."""
    count, ranks = parameters_of(load_config(run_file, overrides)), nodes * gpus_per_node
    if nodes == 1:
        print("One node: nothing crosses the network.")
        return
    ring, level = 2 * (ranks - 1) / ranks, 2 * (nodes - 1) / nodes
    strategies = {
        "ring over all ranks, fp32": ring * 4 * count,
        "two levels (inside a node first), fp32": level * 4 * count,
        "ring over all ranks, 16 bit": ring * 2 * count,
        "two levels, 16 bit": level * 2 * count,
        "every 20 steps, two levels, 16 bit": level * 2 * count / 20,
    }
    print(
        f"{count:,} parameters, {units.size(4 * count)} of gradients in fp32, {nodes} nodes of {gpus_per_node}: {ranks} ranks"
    )
    print(
        f"{'sent by a node in a step, each way':40s}{'':>12s}"
        + "".join(f"{units.link_speed(1000 * link):>14s}" for link in LINKS_GBIT)
    )
    for name, sent in strategies.items():
        times = "".join(f"{units.duration(sent * 8 / (link * 1e9)):>14s}" for link in LINKS_GBIT)
        print(f"{name:40s}{units.decimal_size(sent):>12s}{times}")
    if step_seconds:
        print(
            f"\nWith {units.duration(step_seconds)} of computing a step, of which two thirds can hide the exchange, steps would take:"
        )
        for name, sent in strategies.items():
            whole = [step_seconds + max(0.0, sent * 8 / (link * 1e9) - step_seconds * 2 / 3) for link in LINKS_GBIT]
            print(f"{name:52s}" + "".join(f"{units.duration(seconds):>14s}" for seconds in whole))
    print(
        "\nBytes are 8 bits: 192 MB/s are 1.54 Gbit/s. Mixed precision alone does not shrink them: gradients travel in fp32."
    )


def data_of(config: Config) -> tuple[int | None, float]:
    """Pairs of the prepared training set, and its target tokens a pair."""
    from dragoman.runs import MANIFEST, read_json

    manifest = Path(config.data.folder) / MANIFEST
    if not manifest.is_file():
        return None, TARGET_PER_PAIR
    train = read_json(manifest)["train"]
    return int(train["pairs"]), train["target_tokens"] / max(1, train["pairs"])


def parameters_of(config: Config) -> int:
    from dragoman.model.size import parameters

    return parameters(config.model, config.subwords.vocab_size * (1 if config.subwords.joint else 2))
