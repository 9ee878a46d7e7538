"""CPU, memory, disk and network of this host, through psutil and Linux' own files. Counters are totals; readers take
differences. What this machine does not tell is null or left out."""

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

INSIDE = (
    "lo",
    "docker",
    "br-",
    "virbr",
    "veth",
    "ifb",
)  # interfaces whose traffic stays here, or leaves by another one as well
TRIAL_BYTES = 2**25
INTERFACES = Path("/sys/class/net")
UNKNOWN_SPEED = 65535  # Mbit/s: what a virtual interface says that has none
INFINIBAND = Path("/sys/class/infiniband")
CGROUPS = Path("/sys/fs/cgroup")
SNMP = Path("/proc/net/snmp")


def describe() -> dict[str, Any]:
    """What does not change while a run goes on. No addresses: a run folder may be shown to anybody."""
    cards = [gpu.describe(card) for card in gpu.handles()]
    return {
        "host": socket.gethostname(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": cards,
        "interfaces": [
            {"name": name, "speed_mbit": status.speed if 0 < status.speed < UNKNOWN_SPEED else None}
            for name, status in sorted(psutil.net_if_stats().items())
            if status.isup and counts(name)
        ]
        + [{"name": port_name(port), "speed_mbit": port_speed(port)} for port in infiniband_ports()],
        "missing": [] if cards else ["no NVIDIA GPU that NVML can see"],
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
    disk, times, cores = psutil.disk_io_counters(), psutil.cpu_times_percent(), psutil.cpu_percent(percpu=True)
    return {
        "cpu_percent": round(sum(cores) / len(cores), 1),
        "busiest_core_percent": max(cores),
        "iowait_percent": getattr(times, "iowait", None),
        "cpu_throttled_us": number_in(own_cgroup() / "cpu.stat", "throttled_usec"),
        "memory_used_bytes": psutil.virtual_memory().used,
        "process_bytes": psutil.Process().memory_info().rss,
        "disk_read_bytes": disk.read_bytes if disk else None,
        "disk_write_bytes": disk.write_bytes if disk else None,
        "tcp_retransmitted": tcp_retransmitted(),
        "nics": {
            name: {
                "sent_bytes": count.bytes_sent,
                "received_bytes": count.bytes_recv,
                "faults": count.errin + count.errout + count.dropin + count.dropout,
            }
            for name, count in psutil.net_io_counters(pernic=True).items()
            if counts(name)
        }
        | {port_name(port): port_bytes(port) for port in infiniband_ports()},
    }


def counts(interface: str) -> bool:
    """Whether its bytes leave the host by itself: those of a bond's parts are counted by the bond."""
    return not interface.startswith(INSIDE) and not (INTERFACES / interface / "master").exists()


def traffic() -> tuple[int, int]:
    """Bytes sent and received by this host since it started."""
    nics = [count for name, count in psutil.net_io_counters(pernic=True).items() if counts(name)]
    ports = [port_bytes(port) for port in infiniband_ports()]
    return (
        sum(nic.bytes_sent for nic in nics) + sum(port["sent_bytes"] or 0 for port in ports),
        sum(nic.bytes_recv for nic in nics) + sum(port["received_bytes"] or 0 for port in ports),
    )


def infiniband_ports() -> list[Path]:
    """RDMA traffic passes the kernel by, so its interfaces do not count it; the ports do."""
    return sorted(INFINIBAND.glob("*/ports/*")) if INFINIBAND.is_dir() else []


def port_name(port: Path) -> str:
    return f"{port.parent.parent.name}/{port.name}"


def port_speed(port: Path) -> int | None:
    """`200 Gb/sec (4X HDR)` in Mbit/s."""
    try:
        return round(1000 * float((port / "rate").read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return None


def port_bytes(port: Path) -> dict[str, int | None]:
    """The counters count words of four bytes."""
    words = {
        name: number_of(port / "counters" / f"port_{key}_data") for name, key in (("sent", "xmit"), ("received", "rcv"))
    }
    return {f"{name}_bytes": None if value is None else 4 * value for name, value in words.items()}


def own_cgroup() -> Path:
    """The control group that limits this process: in a container, or under a batch system, not the whole machine."""
    try:
        return CGROUPS / Path("/proc/self/cgroup").read_text().strip().rpartition("::/")[2]
    except OSError:
        return CGROUPS


def number_of(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def number_in(path: Path, key: str) -> int | None:
    """From a file of lines `key value`."""
    try:
        lines = (line.split() for line in path.read_text().splitlines())
        return next((int(line[1]) for line in lines if line[:1] == [key]), None)
    except (OSError, ValueError, IndexError):
        return None


def tcp_retransmitted() -> int | None:
    """Segments that TCP had to send again, since the machine (or its network namespace) started."""
    try:
        names, values = [line.split() for line in SNMP.read_text().splitlines() if line.startswith("Tcp:")]
        return int(values[names.index("RetransSegs")])
    except (OSError, ValueError, IndexError):
        return None
