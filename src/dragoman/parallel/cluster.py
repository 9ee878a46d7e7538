"""Start ranks on a Ray cluster: one actor per rank, each running the same command as everywhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from dragoman.errors import TrainingError, require_extra
from dragoman.parallel.launch import free_port, listening

START_SECONDS = 60.0
LOOK_SECONDS = 0.5  # between two looks at signals and ranks


def launch_on_ray(processes: int | None, arguments: list[str], device: str) -> int:
    """Run `python -m dragoman ARGUMENTS` in several ranks; the cluster is RAY_ADDRESS, or one made on this host.
    The folders of the run file must be visible on every node. Returns the exit code."""
    ray = require_extra("ray", "ray", "--engine ray")
    address = os.environ.get("RAY_ADDRESS")
    # A cluster of our own stays on loopback: Ray asks nobody for a password.
    place = {"address": address} if address else {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(**place, logging_level="ERROR")
    try:
        with listening() as received:
            return run_ranks(ray, processes, arguments, device, received)
    finally:
        ray.shutdown()


def run_ranks(ray: Any, processes: int | None, arguments: list[str], device: str, received: list[int]) -> int:
    available = ray.cluster_resources()
    gpus = int(available.get("GPU", 0)) if device != "cpu" else 0  # of the cluster: this host may have none
    room, wanted = gpus or int(available.get("CPU", 0)), processes or max(1, gpus)
    if wanted > room:
        raise TrainingError(
            f"--nproc {wanted}: the Ray cluster has {room} {'GPUs' if gpus else 'CPUs'}; lower it or add nodes"
        )
    actor = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_concurrency=2)(Rank)
    ranks = [actor.remote() for _ in range(wanted)]
    hosts = ray.get([rank.host.remote() for rank in ranks], timeout=START_SECONDS)
    port = ray.get(ranks[0].free_port.remote())
    settings = [environment(number, hosts, port, own_gpu=gpus > 0) for number in range(wanted)]
    running = [rank.run.remote(own, arguments) for rank, own in zip(ranks, settings, strict=True)]
    try:
        return first_failure(ray, ranks, running, received)
    finally:
        ray.get([rank.hand_on.remote(signal.SIGKILL) for rank in ranks])  # whoever still waits for one that failed


def environment(rank: int, hosts: list[str], port: int, *, own_gpu: bool) -> dict[str, str]:
    """What torchrun would set. Ray shows every rank only its own GPU, which then is number 0."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": "0" if own_gpu else str(hosts[:rank].count(hosts[rank])),
        "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(port),
    }


def first_failure(ray: Any, ranks: list[Any], running: list[Any], received: list[int]) -> int:
    """The exit code of the first rank that fails, or 0. A signal is handed on to all ranks, which stop together."""
    handed_on = 0
    while running:
        done, running = ray.wait(running, num_returns=1, timeout=LOOK_SECONDS)
        for code in ray.get(done):
            if code and not received:
                return int(code)
        if len(received) > handed_on:
            ray.get([rank.hand_on.remote(received[-1]) for rank in ranks])
            handed_on = len(received)
    return 128 + received[0] if received else 0


class Rank:
    """Lives on the node that Ray chose for it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def host(self) -> str:
        """As Ray knows it: the host's own name often resolves to an address that nobody else reaches."""
        import ray

        return str(ray.util.get_node_ip_address())

    def free_port(self) -> int:
        return free_port("")

    def run(self, settings: dict[str, str], arguments: list[str]) -> int:
        command = [sys.executable, "-m", "dragoman", *arguments]
        # A session of its own: a Ctrl-C at the terminal reaches it through `hand_on` alone, once.
        self.process = subprocess.Popen(command, env={**os.environ, **settings}, start_new_session=True)
        return self.process.wait()

    def hand_on(self, number: int) -> None:
        if self.process:
            self.process.send_signal(number)
