"""Cores that a process may use, and the threads that ranks get of them."""

import os

import pytest

from dragoman import cores
from dragoman.parallel import ranks


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Of 64 cores, so many of them left by taskset, with these files of control groups."""

    def make(left, files):
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(left)), raising=False)
        monkeypatch.setattr(cores, "CGROUP", tmp_path)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="ascii")

    return make


def first(quota):
    return {"cpu/cpu.cfs_quota_us": f"{quota}\n", "cpu/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("left", "files", "usable"),
    [
        (64, {}, 64),
        (8, {}, 8),
        (8, {"cpu.max": "max 100000\n"}, 8),
        (8, {"cpu.max": "250000 100000\n"}, 3),
        (8, {"cpu.max": "10000 100000\n"}, 1),
        (2, {"cpu.max": "400000 100000\n"}, 2),
        (8, first(200000), 2),
        (8, first(-1), 8),
        (8, {"cpu.max": "torn"}, 8),
    ],
)
def test_cores_are_those_that_are_left(machine, left, files, usable):
    machine(left, files)
    assert cores.usable_cores() == usable


@pytest.mark.parametrize(("usable", "threads"), [(8, "4"), (1, "1")])
def test_ranks_share_the_cores_that_are_left(machine, monkeypatch, tmp_path, usable, threads):
    machine(usable, {})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    given = []
    monkeypatch.setattr(ranks.Crew, "start", lambda crew, local, arguments, shared, say: given.append(shared))
    ranks.Crew(ranks.Place(0, 2, 2, "127.0.0.1", 1), [], 0).files.cleanup()
    assert [shared["OMP_NUM_THREADS"] for shared in given] == [threads] * 2
