"""The lab itself: latency where the kernel has none to offer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab import Lab, missing

LISTEN = """
import sys
from dragoman.parallel.network import Listener
print(Listener([sys.argv[1]], 29581).ports[0], flush=True)
sys.stdin.read()
"""
MEASURE = "import json, sys; from dragoman.parallel.network import measure; print(json.dumps(measure(sys.argv[1], 29581, 0.5)))"


def test_hosts_that_are_far_from_each_other(tmp_path):
    if reason := missing() or ("" if Path("/dev/net/tun").exists() else "needs /dev/net/tun"):
        pytest.skip(f"hosts out of network namespaces: {reason}")
    with Lab(2, tmp_path, rate="100mbit", latency_ms=15.0) as lab:
        words = lab.command("b", sys.executable, "-c", LISTEN, lab.address("b"))
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as far:
            assert far.stdout.readline() == "29581\n"
            words = lab.command("a", sys.executable, "-c", MEASURE, lab.address("b"))
            found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
            far.stdin.close()
    assert 0.030 <= found["round_trip_seconds"] < 0.2
    assert found["bytes_per_s"] < 13e6, "the limit holds as well"
