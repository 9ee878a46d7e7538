"""CPU, memory, disk and network of this host, through psutil. Counters are totals; readers take differences."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from dragoman.monitor import gpu

LOOPBACK = ("lo", "lo0")
TRIAL_BYTES = 2**25


def describe() -> dict[str, Any]:
    """What does not change while a run goes on. No addresses: a run folder may be shown to anybody."""
    return {
        "host": socket.gethostname(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [gpu.describe(card) for card in gpu.handles()],
        "interfaces": [
            {"name": name, "speed_mbit": status.speed or None}
            for name, status in sorted(psutil.net_if_stats().items())
            if status.isup and name not in LOOPBACK
        ],
    }


def disk(folder: Path) -> dict[str, float]:
    """Free bytes where a folder is, or will be, and how fast bytes get there for good."""
    while not folder.is_dir():
        folder = folder.absolute().parent
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        file.write(os.urandom(TRIAL_BYTES))
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - start
    return {"free_bytes": psutil.disk_usage(str(folder)).free, "bytes_per_s": TRIAL_BYTES / seconds}


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def sample() -> dict[str, Any]:
    disk = psutil.disk_io_counters()
    return {
        "cpu_percent": psutil.cpu_percent(),
        "memory_used_bytes": psutil.virtual_memory().used,
        "process_bytes": psutil.Process().memory_info().rss,
        "disk_read_bytes": disk.read_bytes if disk else None,
        "disk_write_bytes": disk.write_bytes if disk else None,
        "nics": {
            name: {"sent_bytes": count.bytes_sent, "received_bytes": count.bytes_recv}
            for name, count in psutil.net_io_counters(pernic=True).items()
        },
    }
