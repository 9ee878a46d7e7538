"""`dragoman doctor` on hosts out of network namespaces: go where all is well, no with the reason where it is not."""

from __future__ import annotations

import re
import subprocess

from support import as_overrides, tiny_config


def doctor(lab, prepared, tmp_path, *overrides, hosts="a:1,b:1"):
    config = tiny_config(prepared.folder, tmp_path / "run", *overrides)
    words = lab.dragoman("doctor", "tiny", *as_overrides(config), "--hosts", hosts, "--rsh", str(lab.rsh))
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert lab.left_behind() == []
    assert not (tmp_path / "run").exists(), "it only looks"
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
    assert "an all-reduce of" in result.stdout
    assert result.stdout.strip().splitlines()[-1].startswith("go: 0 to mend")


def test_what_is_wrong_is_said_and_the_exit_code_is_one(lab, prepared, tmp_path):
    result = doctor(lab, prepared, tmp_path, f"data.folder={tmp_path}/nothing", hosts="a:1,b:99")
    assert result.returncode == 1
    assert "STOP    host a: " in result.stdout
    assert "no prepared data there. Run `dragoman prepare`" in result.stdout
    assert re.search(r"STOP    host b: .* for 99 processes; start at most \d+ there", result.stdout)
    assert result.stdout.strip().splitlines()[-1].startswith("no: ")
