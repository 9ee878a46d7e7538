"""Start ranks on a Ray cluster: one actor per rank, each running the same command as everywhere else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

from dragoman.errors import TrainingError, require_extra

START_SECONDS = 60.0


def launch_on_ray(processes: int, arguments: list[str], *, gpus: bool) -> int:
    """Run `python -m dragoman ARGUMENTS` in several ranks; the cluster is RAY_ADDRESS, or one made on this host.
    The folders of the run file must be visible on every node."""
    ray = require_extra("ray", "ray", "--engine ray")
    address = os.environ.get("RAY_ADDRESS")
    # A cluster of our own stays on loopback: Ray asks nobody for a password.
    place = {"address": address} if address else {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(**place, logging_level="ERROR")
    try:
        if ray.cluster_resources().get("GPU" if gpus else "CPU", 0) < processes:
            what = "GPUs" if gpus else "CPUs"
            raise TrainingError(f"--nproc {processes}: the Ray cluster has fewer {what}; lower it or add nodes")
        Actor = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0)(Rank)
        ranks = [Actor.remote() for _ in range(processes)]
        hosts = ray.get([rank.host.remote() for rank in ranks], timeout=START_SECONDS)
        port = ray.get(ranks[0].free_port.remote())
        settings = [environment(number, hosts, port, gpus=gpus) for number in range(processes)]
        running = [rank.run.remote(own, arguments) for rank, own in zip(ranks, settings, strict=True)]
        return first_failure(ray, running)
    finally:
        ray.shutdown()


def environment(rank: int, hosts: list[str], port: int, *, gpus: bool) -> dict[str, str]:
    """What torchrun would set. Ray shows every rank only its own GPU, which then is number 0."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": "0" if gpus else str(hosts[:rank].count(hosts[rank])),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(port),
    }


def first_failure(ray: Any, running: list[Any]) -> int:
    """The exit code of the first rank that fails (the others are ended with the cluster's session), or 0."""
    while running:
        done, running = ray.wait(running, num_returns=1)
        code = int(ray.get(done[0]))
        if code:
            return code
    return 0


class Rank:
    """Lives on the node that Ray chose for it."""

    def host(self) -> str:
        """As Ray knows it: the host's own name often resolves to an address that nobody else reaches."""
        import ray

        return str(ray.util.get_node_ip_address())

    def free_port(self) -> int:
        with socket.socket() as listener:
            listener.bind(("", 0))
            return int(listener.getsockname()[1])

    def run(self, settings: dict[str, str], arguments: list[str]) -> int:
        command = [sys.executable, "-m", "dragoman", *arguments]
        return subprocess.run(command, env={**os.environ, **settings}, check=False).returncode
