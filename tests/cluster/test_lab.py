"""Latency and lost packets, where the kernel has none to offer, and a real run over them."""

from __future__ import annotations

import json
import subprocess
import sys

LISTEN = """
import sys
from dragoman.parallel.network import Listener
print(Listener([sys.argv[1]], 29581).ports[0], flush=True)
sys.stdin.read()
"""
MEASURE = "import json, sys; from dragoman.parallel.network import measure; print(json.dumps(measure(sys.argv[1], 29581, 0.5)))"


def test_hosts_that_are_far_from_each_other(far_hosts):
    lab = far_hosts
    words = lab.command("b", sys.executable, "-c", LISTEN, lab.address("b"))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as far:
        assert far.stdout.readline() == "29581\n"
        words = lab.command("a", sys.executable, "-c", MEASURE, lab.address("b"))
        found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        far.stdin.close()
    assert 0.030 <= found["round_trip_seconds"] < 0.2
    assert found["bytes_per_s"] < 13e6, "the limit holds as well"


def test_hosts_that_are_far_apart_and_lose_packets_learn_the_same(far_start, split, learnt_the_same):
    far_start.lab.lose(2, "b")
    far_start(*split)
    learnt_the_same(far_start.folder / "run")
