"""CPU, memory, disk and network of this host, through psutil and Linux' own files. Counters are totals; readers take
differences. What this machine does not tell is null or left out."""

from __future__ import annotations

import os
import platform
import re
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from dragoman.cores import usable_cores
from dragoman.monitor import gpu

INSIDE = ("lo", "docker", "br-", "virbr", "veth", "ifb")  # their traffic stays here, or leaves by another one as well
TRIAL_BYTES = 2**25
INTERFACES = Path("/sys/class/net")
IPOIB = 32  # the kernel's number for interfaces of this kind
UNKNOWN_SPEED = 65535  # Mbit/s: what a virtual interface says that has none
INFINIBAND = Path("/sys/class/infiniband")
CGROUPS = Path("/sys/fs/cgroup")
SNMP = Path("/proc/net/snmp")


def told(path: Path, find: Callable[[str], Any]) -> Any:
    """What is found in one of the kernel's files; None where it is missing or says something else."""
    try:
        return find(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError):
        return None


def boot_id() -> str:
    """Tells machines apart that have the same name; empty where the system does not tell."""
    return str(told(Path("/proc/sys/kernel/random/boot_id"), str.strip) or "")


def describe() -> dict[str, Any]:
    """What does not change while a run goes on. No addresses: a run folder may be shown to anybody."""
    cards = [gpu.describe(card) for card in gpu.handles()]
    interfaces = [
        {"name": name, "speed_mbit": status.speed if 0 < status.speed != UNKNOWN_SPEED else None}
        for name, status in sorted(psutil.net_if_stats().items())
        if status.isup and counts(name)
    ]
    return {
        "host": socket.gethostname(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": cards,
        "interfaces": interfaces + [{"name": name, "speed_mbit": speed(port)} for name, port in ports().items()],
        "missing": [] if cards else ["no NVIDIA GPU that NVML can see"],
    }


def disk(folder: Path) -> dict[str, Any]:
    """Free bytes where a folder is, or will be, and how fast bytes get there for good."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        file.write(os.urandom(TRIAL_BYTES))
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - start
    free = psutil.disk_usage(str(folder)).free
    return {"folder": str(folder), "free_bytes": free, "bytes_per_s": TRIAL_BYTES / seconds}


def cpu_name() -> str:
    name = told(Path("/proc/cpuinfo"), lambda text: re.findall(r"^model name\s*: *(.*\S)", text, re.MULTILINE)[0])
    return str(name or platform.processor() or platform.machine())


def sample() -> dict[str, Any]:
    disk, times, cores = psutil.disk_io_counters(), psutil.cpu_times_percent(), psutil.cpu_percent(percpu=True)
    own_group = told(Path("/proc/self/cgroup"), lambda text: text.strip().rpartition("::/")[2]) or ""
    return {
        "cpu_percent": round(sum(cores) / len(cores), 1),
        "busiest_core_percent": max(cores),
        "iowait_percent": getattr(times, "iowait", None),
        # Of the control group that limits this process: in a container, or under a batch system, not the whole machine.
        "cpu_throttled_us": told(CGROUPS / own_group / "cpu.stat", throttled_us),
        "memory_used_bytes": psutil.virtual_memory().used,
        "process_bytes": psutil.Process().memory_info().rss,
        "disk_read_bytes": disk.read_bytes if disk else None,
        "disk_write_bytes": disk.write_bytes if disk else None,
        "tcp_retransmitted": told(SNMP, retransmitted),
        "nics": nics(),
    }


def throttled_us(text: str) -> int:
    return int(dict(line.split() for line in text.splitlines())["throttled_usec"])


def retransmitted(text: str) -> int:
    """Segments that TCP had to send again, since the machine (or its network namespace) started."""
    names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def counts(interface: str) -> bool:
    """Whether its bytes leave the host by itself. What stands on others (a bond, a bridge, a VLAN: `lower_*` names them) carries
    what those carry; IPoIB is counted by its InfiniBand port."""
    place = INTERFACES / interface
    stands_on_others = any(place.glob("lower_*"))
    on_port = any((place / "device" / "infiniband").glob("*")) and told(place / "type", int) == IPOIB
    return not interface.startswith(INSIDE) and not stands_on_others and not on_port


def nics() -> dict[str, dict[str, int | None]]:
    """Bytes by interface since the host started. The counters of InfiniBand count words of four bytes."""
    found: dict[str, dict[str, int | None]] = {}
    for name, count in psutil.net_io_counters(pernic=True).items():
        if counts(name):
            faults = count.errin + count.errout + count.dropin + count.dropout
            found[name] = {"sent_bytes": count.bytes_sent, "received_bytes": count.bytes_recv, "faults": faults}
    for name, port in ports().items():
        files = {"sent_bytes": "port_xmit_data", "received_bytes": "port_rcv_data"}
        found[name] = {key: told(port / "counters" / file, lambda text: 4 * int(text)) for key, file in files.items()}
    return found


def traffic() -> tuple[int, int]:
    """Bytes sent and received by this host since it started."""
    found = nics().values()
    return sum(nic["sent_bytes"] or 0 for nic in found), sum(nic["received_bytes"] or 0 for nic in found)


def ports() -> dict[str, Path]:
    """InfiniBand: RDMA traffic passes the kernel by, so its interfaces do not count it; the ports do."""
    return {f"{port.parent.parent.name}/{port.name}": port for port in sorted(INFINIBAND.glob("*/ports/*"))}


def speed(port: Path) -> int | None:
    """`200 Gb/sec (4X HDR)` in Mbit/s."""
    found: int | None = told(port / "rate", lambda text: round(1000 * float(text.split()[0])))
    return found
