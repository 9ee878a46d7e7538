"""What an exchange costs a host beside its travel, tried out for a moment: on a CPU by real exchanges between processes of this
machine, where gloo and the kernel work for every byte; on a GPU it is packing and unpacking alone."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from dragoman.cores import usable_cores
from dragoman.parallel import wire
from dragoman.parallel.launch import loopback
from dragoman.parallel.ranks import NURSERY, warm

NUMBERS = 1 << 22  # about as many as DDP exchanges at once
OF_ALL_RANKS = 1 << 25  # more than caches hold, as gradients are
TRIALS = 5
PATIENCE_SECONDS = 120.0


def work_seconds(device: torch.device, ranks: int) -> dict[str, float]:
    """By wire, the work of `sum_over` for one number, where so many ranks share the cores of this machine."""
    if device.type == "cuda":
        return packing_seconds(device)
    with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
        return exchange_seconds(max(2, ranks), Path(folder) / "store") or packing_seconds(device)


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


def exchange_seconds(ranks: int, store: Path) -> dict[str, float]:
    """Empty where processes cannot talk to each other here."""
    warm()
    heard, said = NURSERY.Pipe(duplex=False)
    processes = [NURSERY.Process(target=be_one, args=(rank, ranks, str(store), said)) for rank in range(ranks)]
    for process in processes:
        process.start()
    said.close()
    found: dict[str, float] = {}
    with suppress(EOFError):
        found = heard.recv() if heard.poll(PATIENCE_SECONDS) else {}
    for process in processes:
        process.join(PATIENCE_SECONDS if found else 0)
        process.kill()
    return found


def be_one(rank: int, ranks: int, store: str, out: Connection) -> None:
    torch.set_num_threads(max(1, usable_cores() // ranks))
    os.environ["GLOO_SOCKET_IFNAME"] = loopback()
    patience = timedelta(seconds=PATIENCE_SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=patience)
    count = max(NUMBERS, OF_ALL_RANKS // ranks)
    numbers, residual = torch.randn(count), torch.zeros(wire.padded_size(count, ranks))
    found = {
        kind: seconds_of(partial(wire.sum_over, numbers, None, kind, residual), dist.barrier) / count
        for kind in wire.NUMBER_BYTES
    }
    if rank == 0:
        out.send(found)
    dist.barrier()
    dist.destroy_process_group()


def seconds_of(work: Callable[[], object], settle: Callable[[], object]) -> float:
    taken = []
    for _ in range(TRIALS + 1):
        settle()
        start = time.perf_counter()
        work()
        settle()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])
