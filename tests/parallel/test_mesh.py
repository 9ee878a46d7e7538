"""What a process that joins others does to itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

AGAIN = """
import resource, threading, torch
from dragoman.parallel import mesh

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(1 << 24).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

{keep}
found = []
other = threading.Thread(target=lambda: found.extend(faults() for _ in range(8)))  # as exchanges are
other.start()
other.join()
print(min(found[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux and glibc have them")
@pytest.mark.parametrize(("keep", "new"), [("mesh.keep_memory()", False), ("", True)])
def test_memory_that_is_let_go_is_there_the_next_time(keep, new):
    told = subprocess.run(
        [sys.executable, "-c", AGAIN.format(keep=keep)], capture_output=True, text=True, check=True, timeout=120
    )
    pages = (1 << 26) // (1 << 21)  # as large as pages may be
    assert (int(told.stdout) >= pages) == new, told.stdout
