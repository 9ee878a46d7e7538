"""Hosts out of network namespaces, joined by a bridge in a namespace of its own: no packet reaches a real interface.

Each host has its own address (198.18.x.y, set aside for benchmarks), host name, /etc/hosts and rate limits. The command
lines that run in them are the real ones. Needs root and iproute2; `missing()` says what is not there. Firewalls and lost packets need
nftables, and nothing else does. With latency the bridge is a process (switch.py), because netem is not in every kernel.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from unittest import SkipTest

SHELL = """#!/bin/sh
# rsh HOST COMMAND: as ssh would, in the namespace of that host
test -e /run/netns/{name}-$1 || {{ echo "rsh: Could not resolve hostname $1" >&2; exit 255; }}
exec ip netns exec {name}-$1 unshare --uts sh -c 'hostname "$1"; exec sh -c "$2"' sh "$1" "$2"
"""


def missing() -> str:
    """Why there can be no lab here; empty where there can."""
    if os.geteuid() != 0:
        return "needs root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "needs iproute2"
    trial = f"dragoman-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, check=False).returncode == 0
    linked = f"ip -n {trial} link add t0 type veth peer name t1 && ip -n {trial} link add b0 type bridge"
    works = made and subprocess.run(linked, shell=True, capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", trial], check=False)
    return "" if works else "needs network namespaces, veth and bridges"


def sh(line: str, *, check: bool = True) -> str:
    return subprocess.run(line, shell=True, check=check, text=True, stdout=subprocess.PIPE).stdout


NUMBERS = count()


class Lab:
    """Hosts a, b, c, ... Use as a context. `latency_ms`: from one host to another."""

    def __init__(self, hosts: int, folder: Path, rate: str = "", latency_ms: float = 0.0):
        self.name = f"dm{os.getpid()}x{next(NUMBERS)}"
        self.latency_ms = latency_ms
        self.switch = f"{self.name}-switch"
        self.hosts = "abcdefgh"[:hosts]
        self.network = f"198.18.{os.getpid() % 250 + 1}"
        self.rate = rate
        self.rsh = folder / "rsh"

    def address(self, host: str) -> str:
        return f"{self.network}.{self.hosts.index(host) + 1}"

    def space(self, host: str) -> str:
        return f"{self.name}-{host}"

    def __enter__(self) -> Lab:
        self.rsh.write_text(SHELL.format(name=self.name), encoding="utf-8")
        self.rsh.chmod(self.rsh.stat().st_mode | stat.S_IXUSR)
        sh(f"ip netns add {self.switch}")
        self.slow_switch() if self.latency_ms else self.bridge()
        names = "127.0.0.1 localhost\n" + "".join(f"{self.address(host)} {host}\n" for host in self.hosts)
        for host in self.hosts:
            space, settings = self.space(host), Path("/etc/netns") / self.space(host)
            sh(f"ip netns add {space}")
            settings.mkdir(parents=True)
            (settings / "hosts").write_text(names, encoding="utf-8")
            self.plug_in(host)
            sh(f"ip -n {space} addr add {self.address(host)}/24 dev eth0")
            sh(f"ip -n {space} link set eth0 up; ip -n {space} link set lo up")
        self.limit(self.rate)
        return self

    def bridge(self) -> None:
        sh(f"ip -n {self.switch} link add br0 type bridge stp_state 0 forward_delay 0")
        sh(f"ip -n {self.switch} link set br0 up")

    def slow_switch(self) -> None:
        """Cables cannot be pulled there."""
        words = [sys.executable, str(Path(__file__).with_name("switch.py")), str(self.latency_ms)]
        devices = [f"{self.name}{host}" for host in self.hosts]
        self.carrier = subprocess.Popen([*words, *devices], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.carrier.stdout
        assert self.carrier.stdout.readline() == "ready\n"

    def plug_in(self, host: str) -> None:
        space = self.space(host)
        if self.latency_ms:
            sh(f"ip link set {self.name}{host} netns {space} && ip -n {space} link set {self.name}{host} name eth0")
            return
        sh(f"ip -n {space} link add eth0 type veth peer name port-{host} netns {self.switch}")
        sh(f"ip -n {self.switch} link set port-{host} master br0; ip -n {self.switch} link set port-{host} up")

    def __exit__(self, *error: object) -> None:
        for host in self.hosts:
            deadline = time.monotonic() + 60.0
            while (left := self.processes(host)) and time.monotonic() < deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
            sh(f"ip netns del {self.space(host)}", check=False)
            shutil.rmtree(Path("/etc/netns") / self.space(host), ignore_errors=True)
        sh(f"ip netns del {self.switch}", check=False)
        if self.latency_ms:
            assert self.carrier.stdin
            self.carrier.stdin.close()
            self.carrier.wait()

    def limit(self, rate: str, host: str = "") -> None:
        """Both directions of every link, or of one host's; "" takes the limit away."""
        for each in host or self.hosts:
            ends = [(self.space(each), "eth0"), *([] if self.latency_ms else [(self.switch, f"port-{each}")])]
            for space, device in ends:
                sh(f"tc -n {space} qdisc del dev {device} root 2>/dev/null", check=False)
                if rate:
                    sh(f"tc -n {space} qdisc add dev {device} root tbf rate {rate} burst 128kb latency 40ms")

    def cut(self, host: str) -> None:
        """The cable is pulled: no goodbye of any kind."""
        sh(f"ip -n {self.switch} link set port-{host} down")

    def mend(self, host: str) -> None:
        sh(f"ip -n {self.switch} link set port-{host} up")

    def kill(self, host: str) -> None:
        """Power is lost: nothing on this host runs on, and nobody is told over the network."""
        self.cut(host)
        while left := self.processes(host):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def nft(self, host: str, rule: str, *, check: bool = True) -> None:
        """Without nftables a test that asks for this is skipped in words: pytest knows this error, and so need no test say it."""
        inside = f"ip netns exec {self.space(host)} nft"
        if subprocess.run(f"{inside} list tables", shell=True, capture_output=True, check=False).returncode:
            raise SkipTest("firewalls and lost packets: needs nftables")
        sh(f"{inside} {rule}", check=check)

    def lose(self, percent: int, host: str) -> None:
        """So many of a hundred packets that come to this host get lost; 0 mends it."""
        self.nft(host, "delete table inet loss 2>/dev/null", check=False)
        if percent:
            self.nft(host, "add table inet loss")
            self.nft(host, "'add chain inet loss in { type filter hook input priority 0; }'")
            self.nft(host, f"add rule inet loss in iifname eth0 numgen random mod 100 '<' {percent} drop")

    def close_port(self, host: str, port: int) -> None:
        """A firewall on this host drops what comes to a port."""
        self.nft(host, "add table inet wall")
        self.nft(host, "'add chain inet wall in { type filter hook input priority 0; }'")
        self.nft(host, f"add rule inet wall in tcp dport {port} drop")

    def open_ports(self, host: str) -> None:
        self.nft(host, "delete table inet wall")

    def sent_bytes(self, host: str) -> int:
        rows = sh(f"ip netns exec {self.space(host)} cat /proc/net/dev").splitlines()
        return next(int(row.split(":")[1].split()[8]) for row in rows if row.strip().startswith("eth0:"))

    def processes(self, host: str) -> list[int]:
        found = sh(f"ip netns pids {self.space(host)} 2>/dev/null", check=False)
        return [int(pid) for pid in found.split()]

    def left_behind(self, seconds: float = 60.0) -> list[int]:
        """Processes in any host, after those that are on their way out have had so long to go."""
        deadline = time.monotonic() + seconds
        while (left := [pid for host in self.hosts for pid in self.processes(host)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def command(self, host: str, *words: str) -> list[str]:
        return [
            "ip",
            "netns",
            "exec",
            self.space(host),
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname "$0"; exec "$@"',
            host,
            *words,
        ]

    def dragoman(self, *words: str, host: str = "a") -> list[str]:
        """dragoman on a host, with the remote shell that knows the others."""
        return self.command(host, sys.executable, "-m", "dragoman", *words)
