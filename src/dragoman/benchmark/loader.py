"""The loader alone: how many tokens a second it could feed, made when asked for, and by the thread that works ahead; and how
soon it delivers after a restart, also from a corpus many times as large."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from dragoman.benchmark import figures
from dragoman.benchmark.sentences import opened
from dragoman.config import Config
from dragoman.data.encode import Encoded, Side
from dragoman.data.loader import Share, Stages, Step, prefetched, steps
from dragoman.data.order import AllBut, Order
from dragoman.data.pack import Packing, Position
from dragoman.parallel.mesh import joined
from dragoman.training.facts import packing_of, share_of, stages_of

LARGE_PAIRS = 20_000_000


def measure_loader(config: Config, *, count: int) -> figures.Figures | None:
    """Figures of `count` steps made twice, on the main rank; None on the others."""
    with joined(config.train.device, config.train.timeout_seconds) as mesh, opened(config, mesh) as (data, _):
        encoded, share, packing = data.encoded("train"), share_of(config, mesh), packing_of(data, config)
        stages = stages_of(data, config)
        direct = timed(steps(encoded, packing, share, Position(), stages), count)
        pin = mesh.device.type == "cuda"
        with closing(prefetched(steps(encoded, packing, share, Position(), stages), pin=pin)) as ahead:
            threaded = timed(ahead, count)
        found = {
            "bench": "loader",
            "steps": count,
            **direct,
            **restarts(encoded, packing, share, stages),
            **{f"prefetched_{name}": value for name, value in threaded.items() if name.endswith("_per_s")},
            "rows_per_step": share.rows,
            "pinned": pin,
            **figures.peak_memory(torch.device("cpu")),
            **figures.circumstances(mesh, data),
        }
        return found if mesh.is_main else None


class Repeated:
    """Ids of a corpus written end to end many times, none of them copied."""

    def __init__(self, ids: Any):
        self.ids = ids

    def __getitem__(self, which: Any) -> Any:
        return self.ids[which % len(self.ids)]


def repeated(side: Side, times: int) -> Side:
    ids: Any = Repeated(side.ids)
    return Side(ids, np.tile(side.ends, times) + np.repeat(np.arange(times) * side.ends[-1], len(side.ends)))


def stretched(stages: Stages, times: int) -> Stages:
    """The same shares of corpora so many times as large."""
    return tuple(
        replace(stage, mixture=tuple(replace(corpus, end=corpus.end * times) for corpus in stage.mixture))
        for stage in stages
    )


def restarts(data: Encoded, packing: Packing, share: Share, stages: Stages) -> figures.Figures:
    """Seconds until the first step from a position in the middle, of this corpus and of one of LARGE_PAIRS pairs or more."""
    times = -(-LARGE_PAIRS // len(data))
    large = Encoded(*(repeated(side, times) for side in (data.source, data.target)))
    found: figures.Figures = {}
    for name, corpus, mixed in (("restart", data, stages), ("large_restart", large, stretched(stages, times))):
        epoch = Order(AllBut(len(corpus), np.empty(0, np.int64)), mixed[0].mixture if mixed else ())
        middle = Position(epoch=1, window=len(epoch) // packing.window_pairs // 2)
        began = time.perf_counter()
        next(steps(corpus, packing, share, middle, mixed))
        found |= {f"{name}_pairs": len(corpus), f"{name}_seconds": round(time.perf_counter() - began, 4)}
    return found


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
        "source_tokens_per_s": round(source / seconds, 1),
        "steps_per_s": round(count / seconds, 4),
        "row_fill": round(target / slots, 4),
    }
