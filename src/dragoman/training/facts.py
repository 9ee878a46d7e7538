"""What a run is made of and runs on, as it is written into its folder, and what must fit before it starts."""

from __future__ import annotations

import platform
import statistics
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dragoman import runs
from dragoman.config.load import differences, load_config
from dragoman.config.schema import Config
from dragoman.data.encode import PreparedData
from dragoman.data.loader import Share, Stage, Stages
from dragoman.data.order import Corpus, with_temperature
from dragoman.data.pack import Packing
from dragoman.data.subwords import Vocabulary
from dragoman.errors import ConfigError, DataError, RunError, TrainingError
from dragoman.model import size
from dragoman.monitor import gpu, host
from dragoman.parallel import plan
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import from_main, gather, wait_for_all
from dragoman.training import owner
from dragoman.training.precision import resolve
from dragoman.training.state import TrainState
from dragoman.training.window import Totals

CLOCK_ROUNDS = 5  # messages by which the clocks of hosts are compared


def share_of(config: Config, mesh: Mesh) -> Share:
    """With "auto", everything at once: the trainer makes it smaller when it does not fit."""
    train = config.train
    at_once = train.batch_tokens if train.tokens_per_gpu == "auto" else train.tokens_per_gpu
    return Share(train.batch_tokens // train.tile_width, mesh.rank, mesh.world, max(1, at_once // train.tile_width))


def precision_of(config: Config, mesh: Mesh, folder: runs.RunFolder) -> str:
    """What `auto` means is decided once in a run: by trying on a CPU, where another time it might be decided otherwise."""
    wanted = config.train.precision
    decided = from_main(mesh, decided_before(folder, mesh.device) if wanted == "auto" else "")
    trying = mesh.device.type == "cuda" or mesh.local_rank == 0  # on a CPU one a host, or they would hinder each other
    names = set(gather(mesh, possible(decided, wanted, mesh.device) if trying else None)) - {None}
    return str(names.pop()) if len(names) == 1 else "fp32"


def decided_before(folder: runs.RunFolder, device: torch.device) -> str:
    """What `auto` meant when the run was started last, on such a device; empty where it was not asked for."""
    known = environment_before(folder)
    with suppress(RunError, ConfigError):
        asked = load_config(folder.config).train.precision
        if asked == "auto" and known.get("device") == device.type and known.get("precision") in ("bf16", "fp32"):
            return str(known["precision"])
    return ""


def environment_before(folder: runs.RunFolder) -> runs.Row:
    """Of the last start; empty where there was none, or nothing that can be read."""
    with suppress(RunError):
        return dict(runs.read_json(folder.environment))
    return {}


def possible(decided: str, wanted: str, device: torch.device) -> str:
    """What was decided, where this device can do it."""
    if decided:
        with suppress(TrainingError):
            return resolve(decided, device)
    return resolve(wanted, device)


def packing_of(data: PreparedData, config: Config) -> Packing:
    """Wide rows only where some pair needs them: without one their width changes nothing, and nobody has to keep it."""
    train = config.train
    wide_width = train.wide_tile_width if data.manifest["train"]["longest"] > train.tile_width else 0
    return Packing(train.tile_width, train.window_pairs, config.run.seed, wide_width=wide_width)


def stages_of(data: PreparedData, config: Config) -> Stages:
    """The mixtures of corpora over training; none where there is one corpus only."""
    section, counts = config.data, data.manifest["train"].get("corpora", {})
    names = [corpus.name for corpus in section.corpora]
    if names and names != list(
        counts
    ):  # ids lie in the order of preparing, and weights would go to the pairs of others
        raise DataError(
            f"{data.folder}: was prepared from {', '.join(counts) or 'one corpus'}, the run file names {', '.join(names)}: other "
            "corpora or in another order. Prepare again, or put data.corpora back"
        )
    if len(names) < 2:
        return ()
    sizes = [counts[name]["pairs"] for name in names]
    ends = np.cumsum(sizes).tolist()
    usual = {corpus.name: corpus.weight for corpus in section.corpora}
    stages = []
    for step, named in [(0, usual), *((stage.from_step, usual | stage.weights) for stage in section.stages)]:
        weights = [named[name] for name in names]
        if not any(size * weight for size, weight in zip(sizes, weights, strict=True)):
            raise DataError(f"{data.folder}: from step {step:,} on only corpora have a weight of which no pair is left")
        times = with_temperature(sizes, weights, section.temperature)
        if not 1 <= (most := np.round(np.multiply(sizes, times)).max()) < 2**53:
            raise DataError(
                f"{data.folder}: from step {step:,} on the weights {weights} make epochs of at most {most:g} pairs of a corpus; "
                "choose weights nearer to 1"
            )
        stages.append(Stage(step, tuple(map(Corpus, ends, times))))
    return tuple(stages)


def check_fits(data: PreparedData, config: Config) -> None:
    train, longest = config.train, data.manifest["train"]["longest"]
    widest = max(train.tile_width, train.wide_tile_width)
    if longest > widest:
        raise DataError(
            f"{data.folder}: its longest training sentence has {longest} tokens, a row has train.tile_width = {train.tile_width}, "
            f"a wide one train.wide_tile_width = {train.wide_tile_width}. Raise train.wide_tile_width to {longest} or more, or "
            f"lower data.max_tokens to {widest - 1} and prepare again"
        )


def check_folder(folder: runs.RunFolder, *, resume: bool) -> None:
    """A run is never overwritten, and files of somebody else are left alone."""
    if folder.exists() and not resume:
        raise RunError(occupied(folder))
    owner.check_not_alive(folder)
    if not (folder.exists() or runs.vacant(folder.path) or only_begun(folder)):
        raise RunError(f"{folder.path}: is not empty and holds no run; it is left alone. Choose another run.folder")


def only_begun(folder: runs.RunFolder) -> bool:
    """Whether a start that was killed or hung before there was a run left nothing but this."""
    found = folder.path.rglob("*") if folder.path.is_dir() else [folder.path]
    begun = f".{folder.config.name}."
    return all(path == folder.logs or path.suffix == ".stacks" or path.name.startswith(begun) for path in found)


STREAM = {  # what must be the same on resume, and what it follows from
    "data_digest": "the prepared data",
    "mixture": "data.corpora, their weights, data.temperature or data.stages",
    "packing": "train.tile_width, train.wide_tile_width, train.window_pairs, run.seed or the version of dragoman (its packer)",
    "rows_per_step": "train.batch_tokens or train.tile_width",
    "shape": "the section [model]",
}


def identity(config: Config, data: PreparedData, packing: Packing, share: Share, stages: Stages) -> dict[str, Any]:
    """What must not change between saving and resuming: another stream of rows would repeat or lose sentences."""
    return {
        "data_digest": data.manifest["digest"],
        "packing": packing.settings(),
        "mixture": runs.digest_of([asdict(stage) for stage in stages]) if stages else "one corpus",
        "rows_per_step": share.rows,
        "shape": {key: value for key, value in config.model.model_dump().items() if "dropout" not in key},
    }


def check_same(saved: dict[str, Any], now: dict[str, Any], changed: list[str], source: Path) -> None:
    told = f" (changed since: {', '.join(changed)})" if changed else ""
    for key, names in STREAM.items():
        if saved.get(key, now[key]) != now[key]:
            raise RunError(
                f"{source}: was saved with {key} = {saved[key]}, now it is {now[key]}{told}. "
                f"Put {names} back as it was, or start another run.folder"
            )


def changes(folder: runs.RunFolder, config: Config, precision: str) -> list[str]:
    """What is configured otherwise than when the run was started last, key by key, and what "auto" now means."""
    before = environment_before(folder).get("precision", precision)
    is_other = config.train.precision == "auto" and before != precision
    told = [f"train.precision auto: {before} -> {precision}"] if is_other else []
    try:
        return differences(load_config(folder.config), config) + told
    except ConfigError as error:  # of another version, say
        return [f"run.toml cannot be compared ({error})", *told]


SILENT = "no last words: killed, or the power was lost"


def ended_by(events: list[runs.Row]) -> str:
    """How the start before this one ended; empty where there was none."""
    begun = [number for number, row in enumerate(events) if row.get("event") in ("start", "resume")]
    since = events[begun[-1] :] if begun else []
    for row in reversed(since):
        if row.get("event") == "stop":
            return f"stop: {row.get('reason')}"
        where = f"host {row.get('host')}"
        who = where if row.get("rank") is None else f"rank {row['rank']} on {where}"
        if row.get("event") == "fault":
            error = str(row.get("error")).removeprefix(f"{where}, rank {row.get('rank')}: ").removeprefix(f"{where}: ")
            return f"{row.get('kind')}: {who}: {error}"
        if row.get("event") == "hang":
            return f"hung: {who}, section {row.get('section')}"
    return SILENT if since else ""


def occupied(folder: runs.RunFolder) -> str:
    checkpoints = runs.checkpoint_folders(folder)
    held = f"with checkpoints up to step {runs.step_of(checkpoints[-1])}" if checkpoints else "without a checkpoint"
    return f"{folder.path}: already holds a run {held}. Add --resume to continue it, or choose another run.folder; nothing was changed"


def hosts(mesh: Mesh) -> list[dict[str, Any]]:
    """One entry per host, with its ranks, the GPU of each, and how far its clock is ahead. Every rank must reach this line."""
    told = gather(mesh, (host.describe(), host.boot_id(), card_of(mesh)))
    return by_host(told, clock_offsets(mesh))


def by_host(told: list[tuple[dict[str, Any], str, int | None]], offsets: list[float]) -> list[dict[str, Any]]:
    """Machines of the same name, as those made from one image, are numbered."""
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for rank, (facts, boot, card) in enumerate(told):
        alike = sum(name == facts["host"] and other != boot for name, other in seen)
        name = f"{facts['host']}-{alike + 1}" if alike else facts["host"]
        own: dict[str, Any] = {"host": name, "ranks": [], "rank_gpus": [], "clock_offset_seconds": offsets[rank]}
        entry = seen.setdefault((facts["host"], boot), facts | own)
        entry["ranks"].append(rank)
        entry["rank_gpus"].append(card)
    return list(seen.values())


def card_of(mesh: Mesh) -> int | None:
    """The place of this rank's GPU among those of the host: CUDA counts visible ones only."""
    if mesh.device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(mesh.device), "uuid", None)
    return gpu.index_of(str(uuid)) if uuid else None


def clock_offsets(mesh: Mesh) -> list[float]:
    """How far the clock of every rank's host is ahead of the main rank's: the median over a few moments at which all leave a
    barrier, hence right to about the time of one message."""
    moments = []
    for _ in range(CLOCK_ROUNDS if mesh.world > 1 else 1):
        wait_for_all(mesh)
        moments.append(time.time())
    of_all = gather(mesh, moments)
    ahead = [[mine - main for mine, main in zip(own, of_all[0], strict=True)] for own in of_all]
    return [round(statistics.median(each), 6) for each in ahead]


def metrics_row(state: TrainState, totals: Totals, rate: float, train_pairs: int) -> runs.Row:
    """What a window of steps was, from sums that are the same on every rank."""
    return {
        "kind": "train",
        "step": state.step,
        "epoch": round(state.pairs / train_pairs, 4),
        "loss": totals.loss,
        "learning_rate": rate,
        "grad_norm": totals.grad_norm,
        "largest_grad_norm": totals.largest_norm,
        "clipped_steps": totals.clipped,
        **({"loss_scale": state.scaler.get_scale()} if state.scaler.is_enabled() else {}),
        "steps": totals.steps,
        "step_seconds": totals.seconds / totals.steps,
        "median_step_seconds": totals.median_step,
        "slowest_step_seconds": totals.slowest_step,
        **{f"{span}_seconds": statistics.fmean(ranks) for span, ranks in totals.spans.items()},
        "lead_seconds": totals.lead_seconds,
        "target_tokens_per_s": totals.target_tokens / totals.seconds,
        "source_tokens_per_s": totals.source_tokens / totals.seconds,
        "source_tokens": state.source_tokens,
        "target_tokens": state.target_tokens,
        "pairs": state.pairs,
        "row_fill": round(totals.target_tokens / totals.slots, 4),
        "train_seconds": round(state.train_seconds, 3),
    }


def spans_row(step: int, totals: Totals) -> runs.Row:
    """Seconds a step of every rank, to the microsecond."""
    spans = {name: [round(seconds, 6) for seconds in ranks] for name, ranks in totals.spans.items()}
    sizes = {name: list(map(int, ranks)) for name, ranks in totals.sizes.items()}
    return {"step": step, "steps": totals.steps, **sizes, **spans}


def exchange(config: Config, hosts: list[dict[str, Any]], share: Share, model: nn.Module, gloo: bool) -> dict[str, Any]:
    """How ranks agree, and the bytes that must leave a host for it in a step, by the arithmetic of `dragoman plan`; null where it
    has none: hosts of different sizes, or islands that are no hosts."""
    section, per_host = config.parallel, {len(entry["ranks"]) for entry in hosts}
    facts: dict[str, Any] = {"strategy": section.strategy, "wire": section.wire, "sent_bytes": None}
    if len(per_host) == 1 and section.ranks_per_island in (0, *per_host):
        once = sum(tensor.numel() for name, tensor in model.named_parameters() if "embedding" in name)
        machines = plan.Setting(
            parameters=trainable(model),
            gathered_once=once,
            hosts=len(hosts),
            ranks_per_host=per_host.pop(),
            compute_seconds=0.0,
            bytes_per_s=1.0,
            micro_batches=share.micro_batches,
            inner_steps=section.inner_steps,
            frozen=sum(tensor.numel() for tensor in model.parameters()) - trainable(model),
            gloo=gloo,
        )
        facts["sent_bytes"] = round(plan.sent_bytes(machines, section.strategy, section.wire))
    return facts


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else host.cpu_name()


def trainable(model: nn.Module) -> int:
    return sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad)


def environment(config: Config, mesh: Mesh, share: Share, vocabulary: Vocabulary, model: nn.Module) -> dict[str, Any]:
    """Devices, versions and sizes, without anything that changes while the run goes on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "world_size": mesh.world,
        "device": mesh.device.type,
        "device_name": device_name(mesh.device),
        "backend": mesh.backend,
        "rows_per_step": share.rows,
        "micro_batches": share.micro_batches,
        "rows_per_micro_batch": share.rows_per_micro_batch,
        "tokens_per_gpu": share.rows_per_micro_batch * config.train.tile_width,
        "model": size.summary(config.model, config.train, len(vocabulary), vocabulary.source_size, trainable(model)),
    }
