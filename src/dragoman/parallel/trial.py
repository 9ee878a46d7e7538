"""What exchanges cost a host beside their travel, tried out for a moment: on a CPU by steps that compute nothing and by agreements of
islands, between processes of this machine, where gloo and the kernel work for every byte; on a GPU it is packing and unpacking
alone."""

from __future__ import annotations

import gc
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.config.schema import Parallel
from dragoman.cores import usable_cores
from dragoman.parallel import wire
from dragoman.parallel.launch import loopback
from dragoman.parallel.local import Local
from dragoman.parallel.mesh import Mesh, keep_memory
from dragoman.parallel.plan import Setting, Work, ring, sent_bytes
from dragoman.parallel.ranks import NURSERY, heed_launcher, warm
from dragoman.parallel.sharded import Sharded
from dragoman.parallel.strategy import Strategy

log = logging.getLogger(__name__)

NUMBERS = 1 << 22  # about as many as DDP exchanges at once
MOST = 1 << 24  # of one rank: some buckets, and more than caches hold, as gradients are
OF_ALL_RANKS = 1 << 27
LAYERS = 8  # each nearly as large as blocks are: an exchange of a small one is mostly waiting
TRIALS = 5
UNCOUNTED = 2  # memory is new, and DDP orders its buckets anew
PATIENCE_SECONDS = 120.0


def work(device: torch.device, ranks: int, close: int) -> Work:
    """Where so many ranks share the cores of this machine, of which `close` ones are on one host."""
    if device.type == "cuda":
        return packing_alone(device)
    several = min(max(2, ranks), 2 * usable_cores())  # more of them only wait for each other
    fewer = math.gcd(several, close)
    with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
        found = tried(several, fewer, Path(folder) / "store")
    if not found:
        log.warning(
            "processes of this host could not try out an exchange: its work is left out, and steps will take longer"
        )
        return packing_alone(device)
    more = ring(close) / ring(fewer) if fewer > 1 else 1.0
    return replace(found, inside=found.inside * more, hybrid=found.hybrid * more)


def packing_alone(device: torch.device) -> Work:
    packing = packing_seconds(device)
    return Work(packing, packing, leaders=packing)


def packing_seconds(device: torch.device) -> dict[str, float]:
    numbers = torch.randn(1, NUMBERS, device=device)

    def eight_bits() -> None:
        """Packed once; unpacked to know what is owed, to be added up, and at the end."""
        packed = wire.pack(numbers)
        for _ in range(3):
            numbers.add_(wire.unpack(packed), alpha=0.0)

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    sixteen = seconds_of(lambda: numbers.copy_(numbers.to(torch.bfloat16)), settle)
    return {"fp32": 0.0, "bf16": sixteen / NUMBERS, "int8": seconds_of(eight_bits, settle) / NUMBERS}


def tried(ranks: int, close: int, store: Path) -> Work | None:
    """Nothing where processes cannot talk to each other here."""
    warm()
    heard, said = NURSERY.Pipe(duplex=False)
    said_by = [(rank, ranks, close, str(store), said) for rank in range(ranks)]
    processes = [NURSERY.Process(target=be_one, args=each, daemon=True) for each in said_by]
    found: Work | None = None
    try:
        for process in processes:
            process.start()
        said.close()
        with suppress(EOFError):
            found = heard.recv() if heard.poll(PATIENCE_SECONDS) else None
    finally:
        for process in processes:
            if process.pid:
                process.kill()
                process.join()
    return found


def be_one(rank: int, ranks: int, close: int, store: str, out: Connection) -> None:
    """One of the processes that try."""
    heed_launcher()
    torch.set_num_threads(max(1, usable_cores() // ranks))
    keep_memory()  # as ranks do
    os.environ["GLOO_SOCKET_IFNAME"] = loopback()
    patience = timedelta(seconds=PATIENCE_SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=patience)
    found = tried_among(Mesh(rank, ranks, 0, torch.device("cpu"), timeout=patience), close)
    if rank == 0:
        out.send(found)
    time.sleep(PATIENCE_SECONDS)  # to be ended by whoever has heard it


def tried_among(mesh: Mesh, close: int) -> Work:
    """By all ranks of a gloo group together, `close` ones of them on one host. Every rank must reach this line."""
    ranks = mesh.world
    count = max(NUMBERS, min(MOST, OF_ALL_RANKS // ranks))
    alone = seconds_of(step_of(layers(count)), dist.barrier)
    several = ranks > close  # hosts; where all are on one, each stands for one of them
    islands = close if several else 1
    wires: Any = tuple(wire.NUMBER_BYTES)

    def beyond(strategy: Strategy) -> float:
        model = layers(count)
        strategy.shard(model)
        found = seconds_of(step_of(strategy.wrap(model)), dist.barrier) - alone
        gc.collect()  # models and hooks know each other: each would keep its memory
        return max(0.0, found) / count

    def exchanged(strategy: Any, kind: Any = "fp32", per_island: int = 0) -> float:
        return beyond(Strategy(Parallel(strategy=strategy, wire=kind, ranks_per_island=per_island), mesh))

    def cut(strategy: Any) -> float:
        section = Parallel(strategy=strategy, ranks_per_island=close)
        return beyond(Sharded(section, mesh, lambda whole: list(whole.children()), lambda: layers(count)))

    buckets = {kind: exchanged("ddp", kind) for kind in wires}
    agreements = {kind: agreement_seconds(kind, mesh, islands, count) for kind in wires}
    pieces = cut("fsdp")
    sent = sent_bytes(Setting(1, 0, ranks, 1, 0.0, 1.0, gloo=True), "fsdp", "fp32")
    if close == 1:
        return Work(buckets, agreements, pieces=pieces / sent)
    inside = beyond(Local(Parallel(strategy="local", ranks_per_island=close), mesh))
    before = inside if several else 0.0
    leaders = {kind: max(0.0, exchanged("two_level", kind, islands) - before) for kind in wires}
    hybrid = cut("hybrid") if several else pieces + leaders["fp32"]
    return Work(buckets, agreements, inside, leaders, pieces / sent, hybrid)


def agreement_seconds(kind: Any, mesh: Mesh, close: int, count: int) -> float:
    """All of it: what is sent, summed up, the outer step, and weights put where they belong."""
    strategy = Local(Parallel(strategy="local", wire=kind, inner_steps=1, ranks_per_island=close), mesh)
    strategy.shard(layers(count))
    found = seconds_of(lambda: strategy.after_step(1), dist.barrier) / count
    gc.collect()
    return found


class Known(torch.autograd.Function):
    """Its gradient is there already: nothing is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.gradient = weight.detach()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return incoming, ctx.gradient


class Layer(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Known.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return result


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(Layer(count // LAYERS) for _ in range(LAYERS)))


def step_of(model: nn.Module) -> Callable[[], None]:
    """One step beside no computing; of DDP it is an exchange in buckets."""
    x = torch.zeros(1, requires_grad=True)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad(set_to_none=True)

    return step


def seconds_of(work: Callable[[], object], settle: Callable[[], object]) -> float:
    taken = []
    for _ in range(UNCOUNTED + TRIALS):
        settle()
        start = time.perf_counter()
        work()
        settle()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[UNCOUNTED:])
