"""Who am I among the ranks, and on which device. One process is the special case of many."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dragoman.cores import usable_cores
from dragoman.errors import TrainingError
from dragoman.parallel import network

KNOCK_SECONDS = 0.02  # between two tries to reach rank 0
CONNECT_SECONDS = 5.0
PATIENCE = timedelta(hours=1)
KEEPING = {-1: -1, -4: 0, -8: 1}  # mallopt's: never trim, all from the heap, one heap for all threads


@dataclass(frozen=True)
class Mesh:
    rank: int
    world: int
    local_rank: int
    device: torch.device
    patient: dist.ProcessGroup | None = None  # for waits on one rank's files: a slow disk is not a hang
    timeout: timedelta | None = None  # of every exchange

    @property
    def is_main(self) -> bool:
        """The rank that writes files. Nothing that matters may live there alone."""
        return self.rank == 0

    def group(self, ranks: Sequence[int]) -> Any:
        """Some of the ranks. All ranks must reach this line, for all groups."""
        return dist.new_group(list(ranks), timeout=self.timeout)

    @property
    def backend(self) -> str:
        if self.world == 1:
            return "none"
        return "nccl" if self.device.type == "cuda" else "gloo"


@contextmanager
def joined(device: str, timeout_seconds: int) -> Iterator[Mesh]:
    """Join the other ranks that torchrun (or a compatible launcher) started; alone where nobody did."""
    rank, world, local_rank = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    mesh = Mesh(rank, world, local_rank, pick_device(device, local_rank))
    if mesh.device.type == "cuda":
        torch.cuda.set_device(mesh.device)
    if world == 1:
        if mesh.device.type == "cpu":
            use_own_cores()
        yield mesh
        return
    if mesh.device.type == "cpu":
        keep_memory()
    timeout = timedelta(seconds=timeout_seconds)
    name_interface()
    dist.init_process_group(mesh.backend, timeout=timeout, rank=rank, world_size=world, store=own_store(rank, timeout))
    yield replace(mesh, patient=dist.new_group(backend="gloo", timeout=PATIENCE), timeout=timeout)
    # Without this a finished job is reported as failed. After an error it would make the others fail first, or block.
    dist.destroy_process_group()


def use_own_cores() -> None:
    """torch starts a thread for every core that it sees, also where a container may keep only some of them busy: the others would
    wait for each other. OMP_NUM_THREADS says it better."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))


def keep_memory() -> None:
    """What an exchange lets go the next one wants again. glibc would give it back to the system, and a virtual machine to its host:
    memory that is new takes longer there than what is put into it, so that a rank stood still for a second now and then."""
    with suppress(AttributeError, OSError):  # another C library
        for option, value in KEEPING.items():
            ctypes.CDLL(None).mallopt(option, value)


def name_interface() -> None:
    """gloo asks what the host's own name resolves to, which may be a loopback address, and NCCL takes the first interface that looks
    well. A launcher that knows better has said so."""
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    if found := named or network.leading_to(os.environ["MASTER_ADDR"], outside=several_hosts()):
        os.environ["GLOO_SOCKET_IFNAME"] = found
        if several_hosts():
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={found}")


def several_hosts() -> bool:
    return os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]


def own_store(rank: int, timeout: timedelta) -> Any:
    """Where ranks find each other: at the one address that the launcher named, while torch would listen at every interface of
    the host. torchrun has a store of its own."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank:
        wait_for_listener(address, port, timeout)
        return TCPStore(address, port, is_master=False, timeout=timeout)
    family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    if several_hosts() and network.is_loopback(str(place[0])):
        family, place = socket.AF_INET, ("", port)  # what this name means elsewhere cannot be known here
    listener = socket.create_server(place[:2], family=family)
    return TCPStore(address, port, is_master=True, timeout=timeout, master_listen_fd=listener.detach())


def wait_for_listener(address: str, port: int, timeout: timedelta) -> None:
    """Until rank 0 listens, or the store may say that it does not: a store that comes too early sleeps for most of a second."""
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return
        time.sleep(KNOCK_SECONDS)


def pick_device(wanted: str, local_rank: int = 0) -> torch.device:
    if wanted not in ("auto", "cpu", "cuda"):
        raise TrainingError(f"device {wanted!r} is not known; choose auto, cpu or cuda")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise TrainingError(
            'device "cuda": torch sees no GPU here; set it to "auto" or "cpu", or check the driver with nvidia-smi'
        )
    if local_rank >= gpus:
        raise TrainingError(
            f"rank {local_rank} of this host has no GPU of its own: {gpus} are visible. Start at most {gpus} processes here"
        )
    return torch.device("cuda", local_rank)
