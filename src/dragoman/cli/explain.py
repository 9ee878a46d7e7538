"""`dragoman explain`: what a run file means, before anything runs. Formula, table, CSV and picture of the learning rate; what a step is;
the bytes of a checkpoint by part; the bytes on the wire by strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from dragoman.cli.hosts import Overrides, RunFile
from dragoman.config import Config, load_config
from dragoman.config.schedule import formula, learning_rate
from dragoman.errors import ConfigError
from dragoman.report import units

app = typer.Typer(help="What a run file means, before any run: lr, step, checkpoint, network.", no_args_is_help=True)

PICTURES = (".svg", ".png")
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
    if picture and picture.suffix not in PICTURES:
        raise ConfigError([f"--picture {picture}: a picture ends in {' or '.join(PICTURES)}"], "explain lr")
    config = load_config(run_file, overrides)
    rate, last, warm = learning_rate(config), config.train.max_steps, config.schedule.warmup_steps - 1
    print(formula(config))
    print("It depends on the step alone, neither on BLEU nor on a plateau of the loss. Steps are counted from 0.\n")
    marks = {0, 1_000, warm, 20_000, 50_000, 100_000, last // 2, last}
    for step in sorted(mark for mark in marks if 0 <= mark <= last):
        print(f"{step:>12,}  {rate(step):.3g}{'   the end of the warm-up' if step == warm else ''}")
    if csv:
        rows = "".join(f"{step},{rate(step):.9g}\n" for step in range(last))
        csv.write_text(f"step,learning_rate\n{rows}", encoding="utf-8")
        print(csv)
    if picture:
        from dragoman.report.charts import draw_rate

        draw_rate(config, picture)
        print(picture)


@app.command()
def step(
    run_file: RunFile,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(min=1, help="Ranks in all.")] = 1,
    pairs: Annotated[
        Optional[int], typer.Option(min=1, help="Of the training set, where none is prepared yet.", show_default=False)
    ] = None,
) -> None:
    """What a step is: in rows, tokens, sentences and epochs."""
    config = load_config(run_file, overrides)
    train, (prepared, per_pair, ways) = config.train, data_of(config)
    pairs = pairs or prepared
    slots, width = train.batch_tokens, train.tile_width
    tokens = slots * 0.98  # rows are about that full
    print("A step is one update of all weights, from the gradients of all ranks and micro-batches.")
    print(f"train.batch_tokens = {slots:,} target slots in {slots // width:,} rows of {width}, over all ranks:")
    sentences = f"{tokens / per_pair:,.0f} sentence pairs of {per_pair:.1f} target tokens"
    print(f"  {units.count(tokens)} target tokens, {sentences}")
    if gpus > 1:
        each = f"{slots / gpus:,.0f} slots for each of {gpus} ranks"
        print(f"  {each}; the update does not depend on how many there are")
    print(f"{train.max_steps:,} steps see {units.rough(train.max_steps * tokens, 'target tokens')}")
    if pairs:
        once = pairs * per_pair / tokens
        cut = f", each cut {ways} ways," if ways > 1 else ""
        seen = f"the run sees every pair {train.max_steps / once:.2f} times"
        print(f"An epoch of {pairs:,} pairs{cut} is {ways * once:,.0f} steps; {seen}")
    else:
        print("How many steps an epoch has depends on the data: prepare it and ask again, or tell --pairs")


@app.command()
def checkpoint(run_file: RunFile, overrides: Overrides = None) -> None:
    """The bytes of a checkpoint by part."""
    from dragoman.cli.forecast import configured, parameters
    from dragoman.model import size

    config = load_config(run_file, overrides)
    count, learning = parameters(config, configured(config))
    averaged = config.train.average_decay > 0
    parts = {"weights, fp32": count, "Adam's first moment, fp32": learning, "Adam's second moment, fp32": learning}
    parts |= {"average of weights, fp32": count} if averaged else {}
    whole = size.checkpoint_bytes(count, averaged=averaged, trainable=learning)
    print(f"{count:,} parameters{f', {learning:,} of them learn (train.freeze)' if learning != count else ''}")
    for name, many in parts.items():
        print(f"  {name:28s} {4 * many:>16,} bytes  {units.size(4 * many)}")
    print(f"  {'counters':28s} {16:>16,} bytes")
    print(f"  {'in all':28s} {whole:>16,} bytes  {units.size(whole)}, and a vocabulary and descriptions")
    kept = config.checkpoint.most(config.train.max_steps)
    print(f"Up to {kept:,} are kept: {units.size(kept * whole)} of disk")
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
    from dragoman.cli.forecast import setting_of
    from dragoman.parallel import plan

    config = load_config(run_file, overrides)
    if nodes == 1:
        print("One node: nothing crosses the network.")
        return
    settings = [
        setting_of(config, nodes, gpus_per_node, step_seconds or 0.0, f"{link}gbit", 0.0) for link in LINKS_GBIT
    ]
    first = settings[0]
    model = f"{first.parameters + first.frozen:,} parameters, {units.size(4 * first.parameters)} of gradients in fp32"
    print(f"{model}, {nodes} nodes of {gpus_per_node}: {first.ranks} ranks")
    heads = "".join(f"{units.link_speed(1000 * link):>20s}" for link in LINKS_GBIT)
    by_strategy = list(zip(*map(plan.forecasts, settings), strict=True))
    print(f"\n{'strategy':18s}{'a step, each way':>17s}{heads}")
    for row in by_strategy:
        bare = [units.duration(8 * row[0].sent_bytes / (1e9 * link)) for link in LINKS_GBIT]
        real = [f"({units.duration(each.exchange_seconds)})" for each in row]
        times = "".join(f"{f'{full} {usual}':>20s}" for full, usual in zip(bare, real, strict=True))
        print(f"{row[0].name:18s}{units.decimal_size(row[0].sent_bytes):>17s}{times}")
    if step_seconds:
        print(f"\n{'with ' + units.duration(step_seconds) + ' of computing':35s}{heads}   seconds a step")
        for row in by_strategy:
            print(f"{row[0].name:35s}" + "".join(f"{units.duration(each.step_seconds):>20s}" for each in row))
    print(
        f"\nSent by a node in a step; local and streaming agree every {config.parallel.inner_steps} steps, as a mean. Times are "
        f"those on the wire at the full rate of the link, and in brackets at the {plan.GOODPUT:.0%} of it that headers leave, or as "
        "long as the hosts' own work on them takes. "
        "1 byte = 8 bit.\nMixed precision alone does not shrink them: gradients travel in fp32 "
        "unless parallel.wire says otherwise. `dragoman plan` chooses."
    )


def data_of(config: Config) -> tuple[int | None, float, int]:
    """Pairs of the prepared training set, its target tokens a pair, and in how many ways each is cut into subwords."""
    from dragoman.runs import MANIFEST, read_json

    manifest = Path(config.data.folder) / MANIFEST
    if not manifest.is_file():
        return None, TARGET_PER_PAIR, config.subwords.ways
    train = read_json(manifest)["train"]
    ways = train.get("variants", 1)
    return train.get("text_pairs", train["pairs"]), train["target_tokens"] / max(1, train["pairs"]), ways
