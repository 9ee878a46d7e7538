"""`dragoman plan`: where the time of computing comes from, and the table."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from dragoman.config import Config
from dragoman.data.encode import PreparedData
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.model import size
from dragoman.parallel import plan
from dragoman.report import load_run
from dragoman.report.read import number
from dragoman.runs import Row

USUAL_MFU = 0.35  # share of a GPU's peak that training reaches
FILL = 0.98  # of the slots hold a real token


def vocabulary(config: Config) -> tuple[int, int]:
    """Pieces of the target (or of both sides), and of the source where it has a vocabulary of its own."""
    try:
        found = PreparedData(config.data.folder).vocabulary
        return len(found), found.source_size
    except DataError:  # nothing is prepared yet: as many as are asked for
        return configured(config)


def configured(config: Config) -> tuple[int, int]:
    """Pieces that are to be learnt: of the target or both, and of the source where it has its own."""
    return config.subwords.vocab_size, 0 if config.subwords.joint else config.subwords.vocab_size


def parameters(config: Config, pieces: tuple[int, int]) -> tuple[int, int]:
    """All of the model, and those that learn, as the trainer counts them; `pieces` as of `vocabulary`."""
    count = size.parameters(config.model, sum(pieces))
    if not config.train.freeze:
        return count, count
    import torch

    from dragoman.model.transformer import Transformer
    from dragoman.training import facts, start

    with torch.device("meta"):
        model = Transformer(config.model, *pieces)
    start.freeze(model, config.train.freeze)
    return count, facts.trainable(model)


@dataclass(frozen=True)
class Computing:
    """Of one step on all ranks, without exchange."""

    seconds: float
    source: str  # where the number comes from
    at_once: int | None = None  # target slots on one rank that fit, where a run has tried


def computing(config: Config, ranks: int, run: Path | None, given: float | None, tflops: float) -> Computing:
    slots = config.train.batch_tokens
    if given:
        return Computing(given, "as given")
    if run is None and config.train.device == "cpu":
        told = "how long a CPU computes cannot be guessed: add --run, a run of this model on it, or --compute-seconds"
        raise ConfigError([told], "dragoman plan")
    if run is None:
        work = size.flops(config.model, vocabulary(config)[0], FILL * slots, FILL * slots)
        guess = f"{USUAL_MFU:.0%} of {tflops:g} TFLOP/s a GPU, a guess"
        return Computing(work / (ranks * tflops * 1e12 * USUAL_MFU), guess)
    record = load_run(run)
    rows = record.train_rows[len(record.train_rows) // 2 :]
    if not rows or record.config is None:
        raise RunError(f"{run}: has no row of metrics yet; let it train for a while, or give --compute-seconds")
    world, at_once = (number(record.environment, key) for key in ("world_size", "tokens_per_gpu"))
    if not (world and at_once):
        lacking = record.missing.get(record.folder.environment.name, "environment.json does not say on how many ranks")
        raise RunError(f"{run}: {lacking}; take another run, or give --compute-seconds")
    if reason := unlike(config, record.config, record.environment):
        raise RunError(f"{run}: {reason}; take another run, or give --compute-seconds")
    step = statistics.median(row["step_seconds"] - row.get("exposed_seconds", 0.0) for row in rows)
    per_slot = step * world / record.config.train.batch_tokens
    return Computing(per_slot * slots / ranks, f"measured in {run}", int(at_once))


def unlike(config: Config, measured: Config, environment: Row) -> str:
    """Why a run does not tell how long this model computes; "" where it does."""
    ours, theirs = config.model.model_dump(), measured.model.model_dump()
    others = [key for key in ours if ours[key] != theirs[key] and not key.endswith("dropout")]
    if others:
        told = ", ".join(f"model.{key} = {theirs[key]!r} there and {ours[key]!r} here" for key in others)
        return f"it trained another model ({told})"
    pieces, planned = number(environment, "model", "vocab_size"), vocabulary(config)[0]
    if pieces != planned:
        return f"it trained another model (a vocabulary of {pieces or 0:.0f} pieces there and {planned} here)"
    device, wanted = environment.get("device"), "cpu" if config.train.device == "cpu" else "cuda"
    if device != wanted:
        say = f"; say train.device={device} to plan for that" if device == "cpu" else ""
        return f"it computed on {device}, and train.device = {config.train.device!r} plans for {wanted}{say}"
    precision = environment.get("precision")
    if config.train.precision not in ("auto", precision):
        return f"it computed in {precision}, and train.precision is {config.train.precision!r} here"
    if len(environment.get("hosts", ())) > 1 and measured.parallel.strategy in ("fsdp", "hybrid"):
        return "with fsdp or hybrid over several hosts nobody knows how much of a step was waiting for the network"
    return ""


def setting_of(
    config: Config,
    hosts: int,
    gpus: int,
    seconds: float,
    bandwidth: str,
    latency_ms: float,
    *,
    fitting: int | None = None,
) -> plan.Setting:
    """`fitting`: what train.tokens_per_gpu = "auto" has come to; otherwise everything at once."""
    pieces, train, island = vocabulary(config), config.train, config.parallel.ranks_per_island
    if island not in (0, gpus):
        told = f"parallel.ranks_per_island = {island}: islands are planned as hosts, of {gpus} ranks here; leave it out"
        raise ConfigError([told], "dragoman plan")
    count, learning = parameters(config, pieces)
    at_once = fitting or train.batch_tokens if train.tokens_per_gpu == "auto" else train.tokens_per_gpu
    return plan.Setting(
        parameters=learning,
        frozen=count - learning,
        gathered_once=sum(pieces) * config.model.d_model,
        blocks=config.model.encoder_layers + config.model.decoder_layers,
        ready_last=(pieces[1] or pieces[0]) * config.model.d_model if learning == count else 0,
        hosts=hosts,
        ranks_per_host=gpus,
        compute_seconds=seconds,
        bytes_per_s=plan.parse_rate(bandwidth),
        latency_seconds=latency_ms / 2e3,
        micro_batches=-(-train.batch_tokens // (hosts * gpus * at_once)),
        inner_steps=config.parallel.inner_steps,
        fragments=config.parallel.fragments,
        work=work(train.device, gpus, gpus) if hosts > 1 else plan.Work(),
        gloo=train.device == "cpu",
    )


@cache
def work(device: str, ranks: int, close: int) -> plan.Work:
    """Tried out where a machine of that kind is at hand; for GPUs elsewhere it is next to nothing. `ranks` share its cores, `close`
    of them are on one host."""
    import torch

    from dragoman.parallel import trial

    if device != "cpu" and not torch.cuda.is_available():
        return plan.Work()
    if device == "cpu":
        print("trying out for half a minute what exchanges take on this machine", file=sys.stderr, flush=True)
    return trial.work(torch.device("cpu" if device == "cpu" else "cuda"), ranks, close)


def tell(config: Config, setting: plan.Setting, source: str, bandwidth: str, tokens: float, price: float) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    console = Console(highlight=False)
    console.print(
        f"{setting.parameters + setting.frozen:,} parameters, {config.train.batch_tokens:,} target slots a step, {setting.hosts} x "
        f"{setting.ranks_per_host} GPUs, {bandwidth} a machine; computing {setting.compute_seconds:.4f} s a step ({source})"
    )
    choices = plan.forecasts(setting)
    heads = ("strategy", "exact", "sent", "a step", "exposed", "computes", "time", "cost")
    table = Table(*(Column(head, no_wrap=True) for head in heads), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    expenses = [expense(config, setting, each, tokens, price) for each in choices]
    for each, spent in zip(choices, expenses, strict=True):
        table.add_row(
            each.name,
            "yes" if each.exact else "no",
            f"{each.sent_bytes / 1e6:,.1f} MB",
            f"{each.step_seconds:.3f} s",
            f"{each.exposed_seconds:.3f} s",
            f"{each.efficiency:.0%}",
            f"{spent['hours']:,.1f} h",
            f"{spent.get('cost', 0.0):,.0f}",
        )
    console.print(table)
    best = plan.recommended(choices)
    wire = f' and parallel.wire = "{best.wire}"' if best.wire != "fp32" else ""
    console.print(
        "exact: the same updates as one process. sent: by each host in a step. exposed: not hidden behind computing"
    )
    if setting.hosts == 1:
        console.print(
            "what ranks of one host exchange is not planned: GPUs hardly notice, on CPUs every step takes longer"
        )
    console.print(f"time and cost of {tokens:,.0f} target tokens at {price:g} a GPU and hour")
    console.print(f'take parallel.strategy = "{best.strategy}"{wire}: {reason(setting, best, choices)}')
    told = [asdict(each) | spent for each, spent in zip(choices, expenses, strict=True)]
    asked = {"tokens": tokens, "price": price}
    print(json.dumps({"setting": asdict(setting), **asked, "forecasts": told, "recommended": best.name}))


def expense(
    config: Config, setting: plan.Setting, each: plan.Forecast, tokens: float, price: float
) -> dict[str, float]:
    """Hours until so many target tokens were seen, and their cost where a GPU has a price: slots that hold no token take time too."""
    hours = tokens / (FILL * config.train.batch_tokens) * each.step_seconds / 3600
    return {"hours": hours} | ({"cost": hours * setting.ranks * price} if price else {})


def reason(setting: plan.Setting, best: plan.Forecast, choices: list[plan.Forecast]) -> str:
    plain = choices[0]
    if best is plain:
        computes = f"{best.efficiency:.0%} of the time computes"
        return f"the exchange hides behind computing ({computes}), and updates are exact"
    gain = f"{plain.step_seconds / best.step_seconds:.1f} times faster than ddp, which would wait {1 - plain.efficiency:.0%} of the time"
    if best.exact:
        return f"{gain}; the same updates"
    if best.strategy in plan.RARELY:
        return f"{gain}; hosts agree every {setting.inner_steps} steps, so updates are others than ddp's: see docs/distributed.md"
    return f"{gain}; gradients are rounded on the wire"
