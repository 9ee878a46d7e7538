"""How many cores this process may use, and how many threads it was told to take: more only wait for each other."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """All, or those that taskset or a scheduler has left, or as many as a container may keep busy."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, math.ceil(container_limit()) or found)


def container_limit() -> float:
    """Cores' worth of time, by version 2 or 1 of Linux' control groups; 0 where there is no limit."""
    with suppress(OSError, ValueError):  # "max": none
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        times = [(CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")]
        return max(0, int(times[0])) / int(times[1])  # -1: none
    return 0.0


def wanted_threads(setting: str) -> int | None:
    """Of OMP_NUM_THREADS: "4,1" is four threads, and one in each of these. None where it says no number of threads."""
    first = setting.split(",")[0].strip()
    return int(first) or None if first.isascii() and first.isdigit() else None
