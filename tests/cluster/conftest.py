"""Two hosts for all tests of this folder, and the real command line on them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, missing
from support import as_overrides, tiny_config

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    reason = missing()
    if reason:
        pytest.skip(f"hosts out of network namespaces: {reason}")
    with Lab(2, tmp_path_factory.mktemp("lab")) as made:
        yield made


@dataclass
class Starter:
    """`dragoman launch` on host a of the lab, for a tiny run in a folder of its own."""

    lab: Lab
    data: Path
    folder: Path

    def words(
        self, *overrides: str, hosts: str = "a:1,b:1", options: tuple[str, ...] = (), run: str = "run"
    ) -> list[str]:
        config = tiny_config(self.data, self.folder / run, *overrides)
        remote = ["--hosts", hosts, "--rsh", str(self.lab.rsh), *options]
        return self.lab.dragoman("launch", "tiny", *as_overrides(config), *remote)

    def __call__(self, *overrides: str, check: bool = True, **details: Any) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            self.words(*overrides, **details), capture_output=True, text=True, env=ENVIRONMENT, timeout=180, check=False
        )
        assert not check or result.returncode == 0, result.stderr
        assert self.lab.left_behind() == []
        return result


@pytest.fixture
def start(lab, prepared, tmp_path):
    return Starter(lab, prepared.folder, tmp_path)
