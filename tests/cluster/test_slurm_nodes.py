"""`dragoman launch --slurm` on a real Slurm of two nodes, hosts of the lab whose own names mean loopback."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import slurm_cluster
from support import tiny_config

from dragoman.config import to_toml
from dragoman.runs import RunFolder, checkpoint_folders, read_rows, step_of

pytestmark = pytest.mark.usefixtures("loopback_names")


@pytest.fixture(scope="module")
def slurm(lab):
    if reason := slurm_cluster.missing():
        pytest.skip(f"Slurm on the hosts of the lab: {reason}")
    folder = tempfile.TemporaryDirectory(prefix="dm-slurm-", dir="/tmp")  # sockets want a short path
    with folder, slurm_cluster.SlurmCluster(lab, Path(folder.name)) as cluster:
        yield cluster


def submitted(slurm, config, folder):
    """`dragoman launch --slurm` on the first host, one process on each node; the number of the job."""
    run_file = folder / "one.toml"
    run_file.write_text(to_toml(config), encoding="utf-8")
    words = slurm.lab.dragoman("launch", str(run_file), "--slurm", "--nodes", "2", "--tasks", "1", "--restarts", "1")
    result = subprocess.run(words, env=slurm.environment, cwd=folder, capture_output=True, text=True, check=True)
    return re.search(r"Submitted batch job (\d+)", result.stdout)[1]


def wait_until(what, folder):
    deadline = time.monotonic() + 300.0
    while not what():
        assert time.monotonic() < deadline, [log.read_text(encoding="utf-8") for log in folder.glob("one-*.log")]
        time.sleep(0.2)


def test_slurm_on_its_nodes(slurm, prepared, split, learnt_the_same, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", *split)
    job = submitted(slurm, config, tmp_path)
    wait_until(lambda: job not in slurm.jobs(), tmp_path)
    learnt_the_same(tmp_path / "run")


def test_a_stop_by_slurm_reaches_the_ranks_and_they_save(slurm, prepared, tmp_path):
    """As two minutes before the time is over. srun, which would get the signal first, kills its tasks."""
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=1000000", "validation.every=1000000")
    job, run = submitted(slurm, config, tmp_path), RunFolder(tmp_path / "run")
    wait_until(lambda: any(row["event"] == "first_step" for row in read_rows(run.events)), tmp_path)
    slurm.said("scancel", "--signal=TERM", "--batch", job)
    wait_until(lambda: job not in slurm.jobs(), tmp_path)
    [stop] = [row for row in read_rows(run.events) if row["event"] == "stop"]
    assert stop["reason"] == "terminated"
    assert step_of(checkpoint_folders(run)[-1]) == stop["step"]
    assert [row["event"] for row in read_rows(run.events) if row["event"] in ("fault", "resume")] == []
