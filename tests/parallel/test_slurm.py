"""The job script for Slurm, run by stand-ins for its three commands: every task is a rank of one run, and again is to go on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import as_overrides, dragoman, tiny_config
from typer.testing import CliRunner

from dragoman import runs
from dragoman.cli.main import app
from dragoman.config import to_toml
from dragoman.parallel import slurm

SBATCH = """#!/bin/sh
# as Slurm on one node: two tasks
export SLURM_JOB_NODELIST=localhost SLURM_JOB_ID=$$ SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
exec bash "$1"
"""
SRUN = """#!/bin/sh
shift 2  # its own options
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" &
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" && wait $!
"""


def test_the_script_trains_and_goes_on(prepared, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", "#!/bin/sh\necho localhost\n")):
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    run_file = tmp_path / "one.toml"
    run_file.write_text(to_toml(tiny_config(prepared.folder, tmp_path / "run", "model.dropout=0.0")), encoding="utf-8")
    words = ["launch", str(run_file), "train.max_steps=4", "--slurm", "--nodes", "1", "--tasks", "2"]
    dragoman(*words, "--sbatch=--time=10", env=environment, cwd=tmp_path)
    script = tmp_path / "one.sbatch"
    assert "#SBATCH --time=10\n" in script.read_text(encoding="utf-8")
    assert "#SBATCH --distribution=block\n" in script.read_text(encoding="utf-8"), "ranks of a host follow each other"
    events = runs.read_rows(tmp_path / "run" / "events.jsonl")
    assert (events[0]["event"], events[0]["ranks"]) == ("start", 2)
    again = script.read_text(encoding="utf-8").replace("train.max_steps=4", "train.max_steps=6")
    script.write_text(again, encoding="utf-8")
    subprocess.run(["sbatch", str(script)], env=environment, cwd=tmp_path, check=True, capture_output=True)
    events = runs.read_rows(tmp_path / "run" / "events.jsonl")
    assert [row["event"] for row in events if row["event"] in ("start", "resume")] == ["start", "resume"]
    assert events[-1]["step"] == 6


# What ranks do that were stopped; a mistake that one of them found.
STOPPED, MISTAKE = 'echo "$START 143" >> "$CODES"; exit 0', 'echo "$START 2" >> "$CODES"'
# srun kills its tasks when it is asked to end; scancel asks them past it, of which this one is told by another signal.
KILLS_ON_TERM = f"trap 'exit 137' TERM; trap '{STOPPED}' USR1; echo $$ > HERE/srun.pid; kill -TERM $PPID; while :; do sleep 0.02; done"
RUNS, ENDS = "JobState=RUNNING", "JobState=COMPLETING"
RECORD = "JobId=7 JobName=tiny\n   {} Reason=None\n   PreemptEligibleTime=2026-11-19T12:00:00 {}\n   NtasksPerN:B:S:C=2:0:1:*"


@pytest.mark.parametrize(
    ("ending", "before", "state", "preempted", "asked", "code"),
    [
        ("exit 1", "", RUNS, False, True, 1),
        ("exit 74", "0 fault\n", RUNS, False, True, 74),  # a hang
        ("kill -KILL $$", "", RUNS, False, True, 137),
        ("exit 1", "0 fault\n1 fault\n", RUNS, False, False, 1),  # so many times, and no more
        ("exit 1", "0 fault\n1 143\n1 143\n2 143\n", RUNS, False, True, 1),  # starts after preemptions are no faults
        (f"{MISTAKE}; exit 2", "", RUNS, False, False, 2),
        (f"{MISTAKE}; exit 137", "", RUNS, False, False, 2),  # the others did not end by themselves
        ("exit 0", "", RUNS, False, False, 0),
        ("exit 0", "0 fault\n", RUNS, True, False, 0),  # they were done first
        (STOPPED, "", RUNS, False, False, 143),  # Slurm told the ranks itself
        (STOPPED, "0 fault\n1 fault\n", RUNS, True, True, 143),
        ("exit 1", "0 fault\n1 fault\n", RUNS, True, True, 1),
        ("exit 137", "", ENDS, False, False, 137),  # scancel
        (KILLS_ON_TERM, "", RUNS, False, False, 143),  # time is up
    ],
)
def test_a_fault_is_queued_again_and_a_stop_is_not(ending, before, state, preempted, asked, code, tmp_path):
    record = RECORD.format(state, f"PreemptTime={'2026-11-19T12:00:00' if preempted else 'None'}")
    tools = {
        "srun": ending.replace("HERE", str(tmp_path)),
        "scancel": f'[ "$*" = "--signal=TERM 7.0" ] && kill -USR1 "$(cat {tmp_path}/srun.pid)"',
        "scontrol": f"echo \"$@\" >> {tmp_path}/asked; case $2 in hostnames) echo localhost ;; job) echo '{record}' ;; esac",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    codes = tmp_path / "my run (1)-7.codes"
    codes.write_text(before, encoding="utf-8")
    script = slurm.script("my run (1).toml", [], 1, 1, sys.executable, str(tmp_path), "", [], restarts=2)
    starts = int(before.split()[-2]) + 1 if before else 0
    slurm_says = {"SLURM_JOB_NODELIST": "a", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(starts)}
    slurm_says |= {"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "3"}
    environment = {**os.environ, **slurm_says, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", script], env=environment, check=False, timeout=60)
    assert result.returncode == code
    asked_for = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()[2:]
    assert asked_for == (["requeue 6_3"] if asked else [])
    assert codes.exists() == asked, "kept for the next start alone"


def test_without_slurm_the_script_is_there_and_the_user_told(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run")
    result = dragoman(
        "launch",
        "tiny",
        *as_overrides(config),
        "--slurm",
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PATH": "/nowhere"},
    )
    assert result.returncode == 2
    assert "submit tiny.sbatch from a login node" in result.stderr
    assert sys.executable in (tmp_path / "tiny.sbatch").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--slurm", "--hosts", "a,b"], "--hosts: means nothing with --slurm"),
        (["--slurm", "--port", "29500"], "--port: means nothing with --slurm"),
        (["--slurm", "--rsh", "ssh"], "--rsh: means nothing with --slurm"),
        (["--slurm", "--simulate-fault", "kill:rank=0,step=1"], "--simulate-fault: means nothing with --slurm"),
        (["--slurm", "--sbatch=--gpus-per-task=1"], "--sbatch: with --gpus-per-task a process sees one GPU"),
        (["--hosts", "a", "--nodes", "2"], "--nodes: means nothing without --slurm"),
        (["--hosts", "a", "--sbatch=--time=10"], "--sbatch: means nothing without --slurm"),
    ],
)
def test_options_that_would_be_dropped_are_refused(words, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["launch", "tiny", *words]).exception
    assert line in str(error)
    assert list(tmp_path.iterdir()) == []
