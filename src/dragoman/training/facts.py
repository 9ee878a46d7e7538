"""What a run is made of and runs on, as it is written into its folder, and what must fit before it starts."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

import torch

from dragoman import runs
from dragoman.config.schema import Config
from dragoman.data.encode import PreparedData
from dragoman.data.loader import Share
from dragoman.errors import DataError, RunError
from dragoman.model import size
from dragoman.monitor import host
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import gather


def share_of(config: Config, mesh: Mesh) -> Share:
    train = config.train
    return Share(
        train.batch_tokens // train.tile_width,
        mesh.rank,
        mesh.world,
        max(1, train.micro_batch_tokens // train.tile_width),
    )


def check_fits(data: PreparedData, config: Config) -> None:
    longest = data.manifest["train"]["longest"]
    if longest > config.train.tile_width:
        raise DataError(
            f"{data.folder}: its longest training sentence has {longest} tokens, a row has train.tile_width = {config.train.tile_width}. "
            f"Raise train.tile_width, or lower data.max_tokens to {config.train.tile_width - 1} and prepare again"
        )


def check_folder(folder: runs.RunFolder, *, resume: bool) -> None:
    """A run is never overwritten, and files of somebody else are left alone."""
    if folder.exists() and not resume:
        raise RunError(occupied(folder))
    if not folder.exists() and not runs.vacant(folder.path):
        raise RunError(f"{folder.path}: is not empty and holds no run; it is left alone. Choose another run.folder")


def occupied(folder: runs.RunFolder) -> str:
    checkpoints = runs.checkpoint_folders(folder)
    held = (
        f"a run with checkpoints up to step {runs.step_of(checkpoints[-1])}"
        if checkpoints
        else "a run without a checkpoint"
    )
    return f"{folder.path}: already holds {held}. Add --resume to continue it, or choose another run.folder; nothing was changed"


def hosts(mesh: Mesh) -> list[dict[str, Any]]:
    """One entry per host, with its ranks. Every rank must reach this line."""
    seen: dict[str, dict[str, Any]] = {}
    for rank, facts in enumerate(gather(mesh, host.describe())):
        seen.setdefault(facts["host"], facts | {"ranks": []})["ranks"].append(rank)
    return list(seen.values())


def environment(config: Config, mesh: Mesh, share: Share, vocab_size: int) -> dict[str, Any]:
    """Devices, versions and sizes, without anything that changes while the run goes on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "world_size": mesh.world,
        "device": mesh.device.type,
        "device_name": torch.cuda.get_device_name(mesh.device) if mesh.device.type == "cuda" else host.cpu_name(),
        "backend": mesh.backend,
        "rows_per_step": share.rows,
        "micro_batches": share.micro_batches,
        "rows_per_micro_batch": share.rows_per_micro_batch,
        "model": size.summary(config.model, vocab_size, config.train.label_smoothing, mesh.world),
    }
