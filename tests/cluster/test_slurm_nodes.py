"""`dragoman launch --slurm` on a real Slurm of two nodes, hosts of the lab whose own names mean loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
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


def submitted_without_end(slurm, prepared, folder):
    """The job, when it has made its first step."""
    config = tiny_config(prepared.folder, folder / "run", "train.max_steps=1000000", "validation.every=1000000")
    job = submitted(slurm, config, folder)
    wait_until(lambda: happened(folder, "first_step"), folder)
    return job


def happened(folder, *events):
    """Rows of these events, in their order."""
    return [row for row in read_rows(RunFolder(folder / "run").events) if row["event"] in events]


def stop(slurm, job, folder):
    """As two minutes before the time is over."""
    slurm.said("scancel", "--signal=TERM", "--batch", job)
    wait_until(lambda: job not in slurm.jobs(), folder)


def test_a_stop_by_slurm_reaches_the_ranks_and_they_save(slurm, prepared, tmp_path):
    """srun, which would get the signal first, kills its tasks."""
    job = submitted_without_end(slurm, prepared, tmp_path)
    stop(slurm, job, tmp_path)
    [row] = happened(tmp_path, "stop", "fault", "resume")
    assert row["reason"] == "terminated"
    assert step_of(checkpoint_folders(RunFolder(tmp_path / "run"))[-1]) == row["step"]
    assert "next: sbatch one.sbatch\n" in (tmp_path / f"one-{job}.log").read_text(encoding="utf-8")


def test_a_preempted_job_saves_and_goes_on_afterwards(slurm, prepared, tmp_path):
    job = submitted_without_end(slurm, prepared, tmp_path)
    slurm.said("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
    wait_until(lambda: happened(tmp_path, "resume"), tmp_path)
    [left, resumed] = happened(tmp_path, "stop", "fault", "resume")
    assert (left["reason"], resumed["step"]) == ("terminated", left["step"])
    stop(slurm, job, tmp_path)


def test_a_rank_that_dies_takes_all_back_to_the_newest_checkpoint(slurm, prepared, tmp_path):
    """It leaves with a lower code than those that srun ends for it."""
    job = submitted_without_end(slurm, prepared, tmp_path)
    os.kill(rank_of(job, 1), signal.SIGABRT)
    wait_until(lambda: len(happened(tmp_path, "first_step")) == 2, tmp_path)
    stop(slurm, job, tmp_path)


def rank_of(job, rank):
    """The process that Slurm started for it."""
    wanted = {"SLURM_JOB_ID": job, "RANK": str(rank)}
    ours = [one for one in psutil.process_iter(["cmdline", "environ"]) if "train" in (one.info["cmdline"] or [])]
    [found] = [one.pid for one in ours if wanted.items() <= (one.info["environ"] or {}).items()]
    return found
