"""The loader alone: how many tokens a second it could feed, made when asked for, and by the thread that works ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from dragoman.benchmark import figures
from dragoman.benchmark.sentences import opened
from dragoman.config import Config
from dragoman.data.loader import Step, prefetched, steps
from dragoman.data.pack import Position
from dragoman.parallel.mesh import joined
from dragoman.training.facts import packing_of, share_of


def measure_loader(config: Config, *, count: int) -> figures.Figures | None:
    """Figures of `count` steps made twice, on the main rank; None on the others."""
    with joined(config.train.device, config.train.timeout_seconds) as mesh, opened(config, mesh) as (data, _):
        encoded, share, packing = data.encoded("train"), share_of(config, mesh), packing_of(data, config)
        direct = timed(steps(encoded, packing, share, Position()), count)
        pin = mesh.device.type == "cuda"
        with closing(prefetched(steps(encoded, packing, share, Position()), pin=pin)) as ahead:
            threaded = timed(ahead, count)
        found = {
            "bench": "loader",
            "steps": count,
            **direct,
            **{f"prefetched_{name}": value for name, value in threaded.items() if name.endswith("_per_s")},
            "rows_per_step": share.rows,
            "pinned": pin,
            **figures.circumstances(mesh, data),
        }
        return found if mesh.is_main else None


def timed(stream: Iterator[Step], count: int) -> figures.Figures:
    """The first step is not counted: it packs a whole window."""
    next(stream)
    start = time.perf_counter()
    made = [(step.target_tokens, step.source_tokens, step.slots) for step in islice(stream, count)]
    seconds = time.perf_counter() - start
    target, source, slots = (sum(each) for each in zip(*made, strict=True))
    return {
        "target_tokens": target,
        "source_tokens": source,
        "target_tokens_per_s": round(target / seconds, 1),
        "steps_per_s": round(count / seconds, 4),
        "row_fill": round(target / slots, 4),
    }
