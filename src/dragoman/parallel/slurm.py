"""A job script for Slurm: one task a GPU, told by Slurm which one it is. A job that is preempted or runs out of time saves, and
goes on from there when it is queued again."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from dragoman.errors import ConfigError, TrainingError

SCRIPT = """#!/bin/bash
# Written by `dragoman launch --slurm`. Submit it again as it is: it goes on from the newest checkpoint.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
#SBATCH --distribution=block
#SBATCH --output={name}-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
{options}
set -euo pipefail
cd {folder}
HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${{HOSTS%%$'\n'*}}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
export MASTER_ADDR MASTER_PORT DRAGOMAN_COMMAND={again}
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi # srun does not inherit it
{interface}
JOB=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}} # one number of an array stands for all of it
JOB=${{JOB:-$SLURM_JOB_ID}}
CODES={name}-$SLURM_JOB_ID.codes # of ranks that were stopped (130, 143) or found a mistake (2), and of faults: start of the job, code
START=${{SLURM_RESTART_COUNT:-0}}
export CODES START
touch "$CODES"
# A stop from outside (time that is up, preemption) is handed on to the ranks, past srun, which would kill them on a SIGTERM: all
# save and leave. A rank that was stopped leaves with 0, or srun would end those that are saving yet. With proctrack/cgroup Slurm
# signals the shell of a rank alone; otherwise the rank too, which takes both for one.
stopped=
code=0
srun --kill-on-bad-exit=1 --label bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE={tasks}
  {command} &
  for each in INT TERM USR1; do trap "told=1; kill -$each $!" $each; done
  told=1
  while [ $told ]; do told= code=0; wait $! || code=$?; done # a signal ends the waiting, not the rank
  case $code in 2 | 130 | 143) echo "$START $code" >> "$CODES" ;; esac
  case $code in 130 | 143) exit 0 ;; *) exit $code ;; esac' &
ranks=$!
trap 'stopped=1; scancel --signal=TERM "$SLURM_JOB_ID.0" || true' TERM # it fails where Slurm is ending them already
wait "$ranks" || code=$?
if [ -n "$stopped" ]; then
  code=0
  wait "$ranks" || code=$?
fi
fault=
if [ "$code" = 0 ]; then
  code=$(sed -n "/^$START /{{s///p;q}}" "$CODES")
elif grep -qx "$START 2" "$CODES"; then
  code=2 # srun says the highest, that of ranks which were killed then
else
  fault=1
  echo "$START fault" >> "$CODES"
fi
# Queued again is a job that is being preempted and has time for that, and up to {restarts} times what ends with a fault; a mistake of
# the user is not, nor ranks that were stopped and have saved. Slurm counts all starts, preemptions too: so faults are counted here.
case "${{code:=0}}:$(scontrol show job "$JOB")" in
  0:* | 2:*) again= ;;
  *JobState=RUNNING*PreemptTime=[0-9]*) again=1 ;;
  *JobState=RUNNING*) again=; [ -n "$stopped" ] || [ "$(grep -c fault "$CODES")" -gt {restarts} ] || again=$fault ;;
esac
if [ -n "${{again:-}}" ]; then scontrol requeue "$JOB" || true; else rm "$CODES"; fi
exit "$code"
"""


def script(
    run_file: str,
    overrides: list[str],
    nodes: int,
    tasks: int,
    python: str,
    folder: str,
    interface: str,
    options: list[str],
    restarts: int,
) -> str:
    """Slurm sends SIGTERM two minutes before the end: all ranks then stop together, with a checkpoint."""
    if any(option.startswith("--gpus-per-task") for option in options):
        raise ConfigError(
            ["with --gpus-per-task a process sees one GPU and takes it for the first; use --gpus-per-node"], "--sbatch"
        )
    name = Path(run_file).stem
    command = shlex.join([python, "-m", "dragoman", "train", run_file, *overrides, "--resume"])
    return SCRIPT.format(
        name=shlex.quote(name),
        nodes=nodes,
        tasks=tasks,
        options="\n".join(f"#SBATCH {option}" for option in options),
        folder=shlex.quote(folder),
        again=shlex.quote(shlex.join(["sbatch", f"{name}.sbatch"])),
        interface=f"export GLOO_SOCKET_IFNAME={interface} NCCL_SOCKET_IFNAME=={interface}" if interface else "",
        command=command.replace("'", "'\\''"),
        restarts=restarts,
    )


def submit(text: str, path: Path) -> int:
    path.write_text(text, encoding="utf-8")
    print(f"written: {path}")
    if not shutil.which("sbatch"):
        raise TrainingError(
            f"sbatch is not on this machine; submit {path} from a login node of the cluster: sbatch {path.name}"
        )
    return subprocess.run(["sbatch", str(path)], check=False).returncode
