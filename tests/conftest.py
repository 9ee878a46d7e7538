"""A tiny prepared corpus, shared by all tests of one worker."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support import tiny_config

from dragoman.cli.stages import prepare
from dragoman.data.encode import PreparedData

torch.set_num_threads(1)  # workers share two cores
# A shell's background job ignores Ctrl-C, and so would every process that a test starts and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, so that a red test is about the change at hand. DRAGOMAN_FUZZ=5000 looks for new ones.
fuzz = int(os.environ.get("DRAGOMAN_FUZZ", "0"))
settings.register_profile("dragoman", derandomize=not fuzz, max_examples=fuzz or 100, deadline=None)
settings.load_profile("dragoman")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    return prepare(tiny_config(folder, folder.parent / "unused"))


@pytest.fixture
def alone_with_ray() -> Iterator[None]:
    """Ray gives itself half a minute to start, which two of them at once on two cores may not make."""
    with (Path(tempfile.gettempdir()) / "dragoman-test-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
