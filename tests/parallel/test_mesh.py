"""What a process that joins others does to itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dragoman.parallel import mesh

AGAIN = """
import resource, threading, torch
from dragoman.parallel import mesh

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(10 << 20).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

{keep}
found = []
other = threading.Thread(target=lambda: found.extend(faults() for _ in range(40)))  # as exchanges are
other.start()
other.join()
print(min(found[20:]))  # before glibc 2.38 an aligned piece takes no place that fits exactly: the heap grows a few times
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux and glibc have them")
@pytest.mark.parametrize(("keep", "new"), [("mesh.keep_memory()", False), ("", True)])
def test_memory_that_is_let_go_is_there_the_next_time(keep, new):
    told = subprocess.run(
        [sys.executable, "-c", AGAIN.format(keep=keep)], capture_output=True, text=True, check=True, timeout=120
    )
    pages = (40 << 20) // (1 << 21)  # as large as pages may be
    assert (int(told.stdout) >= pages) == new, told.stdout


@pytest.mark.parametrize(("said", "threads"), [("", 3), ("8", 8)])
def test_one_process_has_no_more_threads_than_its_container_has_cores(monkeypatch, said, threads):
    """torch sees the cores of the host, not the quota; OMP_NUM_THREADS is the word of whoever knows better."""
    before = torch.get_num_threads()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr(mesh, "usable_cores", lambda: 3)
    try:
        torch.set_num_threads(8)
        with mesh.joined("cpu", 60):
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
