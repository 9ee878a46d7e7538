"""`dragoman doctor` on hosts out of network namespaces: go where all is well, no with the reason where it is not."""

from __future__ import annotations

import re
import subprocess

from support import as_overrides, tiny_config

from dragoman.cli.stages import prepare


def doctor(lab, prepared, tmp_path, *overrides, hosts="a:1,b:1", options=()):
    disk = tmp_path / "disk"
    disk.mkdir()
    config = tiny_config(prepared.folder, disk / "run", *overrides)
    words = lab.dragoman("doctor", "tiny", *as_overrides(config), "--hosts", hosts, "--rsh", str(lab.rsh), *options)
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert lab.left_behind() == []
    assert list(disk.iterdir()) == [], "it only looks"
    return result


def test_all_is_well_and_figures_are_right(lab, prepared, tmp_path):
    lab.limit("200mbit")
    try:
        result = doctor(lab, prepared, tmp_path)
    finally:
        lab.limit("")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "the same versions everywhere" in result.stdout
    assert f"host b: reached by all others at {lab.address('b')}, interface eth0" in result.stdout
    rates = [float(found) for found in re.findall(r" to .: ([\d.]+) Mbit/s", result.stdout)]
    assert len(rates) == 2
    assert all(150 < rate < 210 for rate in rates)
    assert "run.folder is on a disk that all hosts share" in result.stdout
    assert "ok      every host finds all others by name" in result.stdout
    assert "an all-reduce of" in result.stdout
    assert result.stdout.strip().splitlines()[-1].startswith("go: 0 to mend")


def test_what_is_wrong_is_said_and_the_exit_code_is_one(lab, prepared, tmp_path):
    result = doctor(lab, prepared, tmp_path, f"data.folder={tmp_path}/nothing", hosts="a:1,b:99")
    assert result.returncode == 1
    assert "STOP    host a: " in result.stdout
    assert "no prepared data there. Run `dragoman prepare`" in result.stdout
    assert re.search(r"STOP    host b: .* for 99 processes; start at most \d+ there", result.stdout)
    assert result.stdout.strip().splitlines()[-1].startswith("no: ")


ODD_CLOCK_AND_DISK = """
import os, time
now, sync = time.time, os.fsync
time.time = lambda: now() + 7.0
def slow(descriptor):
    time.sleep(2.0)
    sync(descriptor)
os.fsync = slow
"""


def test_a_host_with_another_clock_and_name_a_slow_disk_of_its_own_and_other_data(lab, prepared, odd_host, tmp_path):
    other = prepare(tiny_config(tmp_path / "other", tmp_path / "unused", "data.train_pairs=300"))
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "sitecustomize.py").write_text(ODD_CLOCK_AND_DISK, encoding="utf-8")
    (tmp_path / "names").write_text("127.0.0.1 localhost\n127.0.1.1 a\n", encoding="utf-8")
    shell = odd_host(
        f"mount --bind {tmp_path}/names /etc/netns/{lab.space('b')}/hosts",
        f"export PYTHONPATH={tmp_path}/odd:$PYTHONPATH",
        f"mount --bind {other.folder} {prepared.folder}",
        f"mount -t tmpfs none {tmp_path}/disk",
    )
    result = doctor(lab, prepared, tmp_path, options=("--rsh", shell))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "STOP    host b: its prepared data is not that of host a" in result.stdout
    assert re.search(r"WARNING clocks are [67]\.\d s apart: .*; let chrony or ntpd set them", result.stdout)
    assert re.search(r"WARNING host b: .* MB/s; checkpoints will take long; choose a faster disk", result.stdout)
    assert re.search(r"WARNING host b does not see what host a writes .*; put run.folder on a disk", result.stdout)
    assert (
        "WARNING host b takes the name a for its own (127.0.1.1); put it into DNS or into /etc/hosts" in result.stdout
    )
    assert "an all-reduce" not in result.stdout, "ranks would not get far"


def test_a_full_disk_and_a_closed_port(lab, prepared, odd_host, tmp_path):
    shell = odd_host(f"mount -t tmpfs -o size=4k none {tmp_path}/disk")
    lab.close_port("a", 29557)
    try:
        result = doctor(lab, prepared, tmp_path, options=("--rsh", shell, "--port", "29557"))
    finally:
        lab.open_ports("a")
    assert result.returncode == 1
    assert "STOP    host b: run.folder cannot be written to (No space left on device); make room" in result.stdout
    assert "STOP    host b: cannot connect to host a at port 29557" in result.stdout
    assert "open TCP between the hosts" in result.stdout
