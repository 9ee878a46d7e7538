"""`dragoman checkpoint`: what a run has kept, whether it is sound, and what it is made of. No torch needed."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Optional

import typer

from dragoman import runs
from dragoman.cli import tell
from dragoman.errors import RunError
from dragoman.report.read import role

app = typer.Typer(help="List, inspect, verify, average and remove checkpoints.", no_args_is_help=True)

RunPath = Annotated[str, typer.Argument(help="Run folder.", show_default=False)]
AnyPath = Annotated[Path, typer.Argument(help="Run folder, checkpoint or model folder.", show_default=False)]

OF_RUN = "as in run.toml"
# What a checkpoint is made of: how its files begin, and how many times the bytes of the weights they should have.
PARTS: dict[str, tuple[tuple[str, ...], int]] = {
    "weights": (("model.",), 1),
    "moments": (("optimizer.", "moments-"), 2),
    "weights of training beside their average": (("weights.",), 1),
    "of single ranks": (("own-",), 0),
}


@app.command("list")
def list_checkpoints(run: RunPath) -> None:
    """All checkpoints of a run: step, time, size, scores; the best one is marked."""
    from dragoman.config import recorded_config

    folder = runs.open_run(run)
    metric = recorded_config(folder.config).checkpoint.metric
    best, every = runs.best_checkpoints(folder, metric)[:1], runs.checkpoint_folders(folder)
    rows = [[f"{runs.step_of(path):,}", *told(path), "best" if path in best else ""] for path in every]
    tell.table(["step", "written", "MB", "scores", ""], rows)


def told(checkpoint: Path) -> tuple[str, str, str]:
    """When it was written, its size and its scores, by its manifest."""
    try:
        manifest = runs.read_json(checkpoint / runs.MANIFEST)
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest["time"]))
        megabytes = sum(file["bytes"] for file in manifest["files"].values()) / 1e6
        scores = ", ".join(f"{name} {score:.4g}" for name, score in manifest.get("scores", {}).items())
        return written, f"{megabytes:,.1f}", scores
    except (RunError, OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return "", "", f"{runs.MANIFEST} is damaged"


@app.command()
def inspect(path: AnyPath) -> None:
    """The files of a checkpoint, their roles and bytes; of a run, those of its newest one."""
    folder = chosen(path)[-1]
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    tensors = {name: tensor_bytes(folder / name) for name in sizes if name.endswith(".safetensors")}
    counts = {name: f"{len(found):,}" for name, found in tensors.items() if found}
    rows = [[name, role(name), f"{size:,}", counts.get(name, "")] for name, size in sizes.items()]
    tell.table(["file", "role", "bytes", "tensors"], rows)
    total = sum(sizes.values())
    print(f"{folder}: {total:,} bytes = {total / 1e6:,.1f} MB")
    tell_parts(folder, {name: sum(found) for name, found in tensors.items()}, total)


def tell_parts(folder: Path, held: dict[str, int], total: int) -> None:
    """Bytes by part, beside what the run expected from the shape of its model."""
    run = runs.run_around(folder)
    shape = runs.read_json(run.environment).get("model", {}) if run and run.environment.is_file() else {}
    expected = shape.get("weight_bytes", 0)
    for part, (beginnings, times) in PARTS.items():
        size = sum(count for name, count in held.items() if name.startswith(beginnings))
        if size:
            print(f"  {part}: {size:,} bytes{compared(size, times * expected)}")
    print(f"  other (names of tensors, vocabulary, descriptions): {total - sum(held.values()):,} bytes")


def compared(size: int, predicted: int) -> str:
    if not predicted:
        return ""
    return ", as predicted" if size == predicted else f", predicted were {predicted:,}"


@app.command()
def verify(path: AnyPath) -> None:
    """Read every file again and compare it with its checksum; exit code 2 when one is damaged."""
    problems = []
    for folder in chosen(path):
        problem = runs.damage(folder)
        print(f"{folder}: {problem or 'sound'}")
        problems += [folder.name] if problem else []
    if problems:
        raise RunError(f"{path}: {len(problems)} damaged ({', '.join(problems)})")


@app.command()
def prune(
    run: RunPath,
    keep_last: Annotated[Optional[int], typer.Option(min=1, help="Newest ones to keep.", show_default=OF_RUN)] = None,
    keep_best: Annotated[Optional[int], typer.Option(min=0, help="Best ones to keep.", show_default=OF_RUN)] = None,
    keep_every: Annotated[
        Optional[int], typer.Option(min=0, help="Keep those of every so many steps.", show_default=OF_RUN)
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would go.")] = False,
) -> None:
    """Remove checkpoints that are damaged or not worth keeping, but never the only sound one."""
    from dragoman.config import load_config

    folder = runs.open_run(run)
    section = load_config(folder.config).checkpoint
    sound = [path for path in runs.checkpoint_folders(folder) if runs.damage(path) is None]
    if not sound:
        raise RunError(f"{run}: has no sound checkpoint; nothing was removed")
    wishes = {"keep_last": keep_last, "keep_best": keep_best, "keep_every": keep_every}
    keep = [getattr(section, key) if wish is None else wish for key, wish in wishes.items()]
    kept = runs.worth_keeping(sound, section.metric, *keep)
    for path in runs.checkpoint_folders(folder):
        if path not in kept:
            print(f"{'would remove' if dry_run else 'removed'} {path}")
            if not dry_run:
                runs.remove_folder(path)


@app.command()
def average(
    run: RunPath,
    output: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    last: Annotated[Optional[int], typer.Option(min=2, help="This many newest ones.", show_default="all")] = None,
    best: Annotated[Optional[int], typer.Option(min=2, help="This many best ones instead.")] = None,
) -> None:
    """Write the mean of several checkpoints as a model folder."""
    from dragoman.exporting.average import average as write

    print(write(run, output, last=last, best=best))


def chosen(path: Path) -> list[Path]:
    """The checkpoints of a run, or the one folder that was named."""
    if runs.RunFolder(path).exists():
        found = runs.checkpoint_folders(runs.RunFolder(path))
        if not found:
            raise RunError(f"{path}: has no checkpoint yet")
        return found
    if not path.is_dir():
        raise RunError(f"{path}: no such folder. Name a run, or one of its checkpoints")
    if not (path / runs.MANIFEST).is_file():
        raise RunError(f"{path}: neither a run nor a checkpoint ({runs.MANIFEST} is missing)")
    return [path]


def tensor_bytes(file: Path) -> list[int]:
    """Of every tensor, by the line of JSON at the beginning, its length in 8 bytes before it; none where that is damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError), file.open("rb") as stream:
        header = json.loads(stream.read(min(int.from_bytes(stream.read(8), "little"), 100_000_000)))
        places = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        return [end - start for start, end in places]
    return []
