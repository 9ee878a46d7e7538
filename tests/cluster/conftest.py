"""Two hosts for all tests of this folder, four where one asks for them, and the real command line on them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lab import Lab, missing
from safetensors.torch import load_file
from support import as_overrides, tiny_config

from dragoman import runs
from dragoman.cli.stages import train

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def hosts_or_skip(count, folder, **network):
    reason = missing()
    if not reason and network.get("latency_ms") and not Path("/dev/net/tun").exists():
        reason = "needs /dev/net/tun"
    if reason:
        pytest.skip(f"hosts out of network namespaces: {reason}")
    return Lab(count, folder, **network)


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    with hosts_or_skip(2, tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture
def four_hosts(tmp_path):
    with hosts_or_skip(4, tmp_path) as made:
        yield made


@pytest.fixture
def far_hosts(tmp_path):
    """15 ms from one to the other."""
    with hosts_or_skip(2, tmp_path, rate="100mbit", latency_ms=15.0) as made:
        yield made


@pytest.fixture
def odd_host(lab, tmp_path):
    """A remote shell that changes something on host b first, for that host alone; mounts too."""

    def shell(*setup: str) -> str:
        path = tmp_path / "odd-rsh"
        inner = "\n".join([*setup, f'exec {lab.rsh} "$@"'])
        path.write_text(
            f"""#!/bin/sh\ntest "$1" = b || exec {lab.rsh} "$@"\nexec unshare --mount sh -ec '{inner}' sh "$@"\n""",
            encoding="utf-8",
        )
        path.chmod(0o755)
        return str(path)

    return shell


@pytest.fixture
def loopback_names(lab):
    """Every host believes, as Debian sets it up, that its own name is 127.0.1.1."""
    files = {host: Path("/etc/netns") / lab.space(host) / "hosts" for host in lab.hosts}
    before = {host: file.read_text(encoding="utf-8") for host, file in files.items()}
    for host, file in files.items():
        file.write_text(before[host].replace(f"{lab.address(host)} {host}\n", f"127.0.1.1 {host}\n"), encoding="utf-8")
    yield
    for host, file in files.items():
        file.write_text(before[host], encoding="utf-8")


@pytest.fixture(scope="session")
def split():
    """Three steps that do not depend on who takes them."""
    return ["model.dropout=0.0", "train.max_steps=3", "train.tokens_per_gpu=256"]


@pytest.fixture(scope="session")
def alone(prepared, split, tmp_path_factory):
    run = tmp_path_factory.mktemp("alone") / "run"
    train(tiny_config(prepared.folder, run, *split))
    return weights(run, 3)


def weights(run, step):
    return load_file(runs.RunFolder(run).checkpoint(step) / "model.safetensors")


@pytest.fixture
def learnt_the_same(alone):
    def check(run: Path, hosts: str = "ab", *, in_order: bool = True) -> None:
        learnt = weights(run, 3)
        assert learnt.keys() == alone.keys()
        for name, tensor in learnt.items():
            torch.testing.assert_close(alone[name], tensor, rtol=1e-4, atol=1e-6)
        found = runs.read_json(run / "environment.json")
        seen = [entry["host"] for entry in found["hosts"]]
        assert (seen if in_order else sorted(seen)) == list(hosts)

    return check


@dataclass
class Starter:
    """`dragoman launch` on host a of the lab, for a tiny run in a folder of its own."""

    lab: Lab
    data: Path
    folder: Path
    limit: float = 300.0  # seconds
    environment = ENVIRONMENT

    def words(
        self, *overrides: str, hosts: str = "a:1,b:1", options: tuple[str, ...] = (), run: str = "run"
    ) -> list[str]:
        config = tiny_config(self.data, self.folder / run, *overrides)
        remote = ["--hosts", hosts, "--rsh", str(self.lab.rsh), *options]
        return self.lab.dragoman("launch", "tiny", *as_overrides(config), *remote)

    def __call__(self, *overrides: str, check: bool = True, **details: Any) -> subprocess.CompletedProcess[str]:
        words = self.words(*overrides, **details)
        result = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=self.limit, check=False)
        assert not check or result.returncode == 0, result.stderr
        assert self.lab.left_behind(seconds=self.limit / 3) == []
        return result


@pytest.fixture
def start(lab, prepared, tmp_path):
    return Starter(lab, prepared.folder, tmp_path)


@pytest.fixture
def far_start(far_hosts, prepared, tmp_path):
    return Starter(far_hosts, prepared.folder, tmp_path)
