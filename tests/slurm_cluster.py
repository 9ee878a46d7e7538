"""A real Slurm on the hosts of a lab: munged, slurmctld on the first host, slurmd on all. All of it lives in one folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import IO

from lab import Lab

PATIENCE_SECONDS = 60.0
# A job that is queued again waits until its credentials have expired, two minutes by default.
CONFIGURATION = """
ClusterName=lab
SlurmctldHost=a({controller})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SchedulerParameters=sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


def missing() -> str:
    """Why there can be none here; empty where there can."""
    wanted = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
    return f"needs slurm-wlm and munge ({', '.join(wanted)} not found)" if wanted else ""


class SlurmCluster:
    """Use as a context; `environment` is what commands of Slurm want."""

    def __init__(self, lab: Lab, folder: Path):
        self.lab, self.folder = lab, folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmCluster:
        self.folder.chmod(0o755)
        for name in ("state", "cgroup", *(f"spool-{host}" for host in self.lab.hosts)):
            (self.folder / name).mkdir()
        nodes = "\n".join(f"NodeName={host} NodeAddr={self.lab.address(host)} CPUs=2" for host in self.lab.hosts)
        text = CONFIGURATION.format(controller=self.lab.address("a"), folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")
        key = self.folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        try:
            self.begin(key)
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self, key: Path) -> None:
        own = [f"--{name}={self.folder}/munge{end}" for name, end in MUNGE_FILES.items()]
        self.start(["munged", "--foreground", "--force", f"--key-file={key}", *own], "munged")
        self.wait_for(lambda: (self.folder / "munge").exists(), "munged")
        self.start(self.lab.command("a", "slurmctld", "-D"), "slurmctld")
        for host in self.lab.hosts:
            self.start(self.with_control_groups(host, "slurmd", "-D"), f"slurmd-{host}")
        self.wait_for(self.all_idle, "slurmd-a")

    def with_control_groups(self, host: str, *words: str) -> list[str]:
        """slurmd wants to see them; a network namespace comes with a /sys of its own, which has none."""
        kept = str(self.folder / "cgroup")
        inside = self.lab.command(host, "sh", "-c", 'mount --rbind "$0" /sys/fs/cgroup; exec "$@"', kept, *words)
        return ["unshare", "--mount", "sh", "-c", 'mount --rbind /sys/fs/cgroup "$0"; exec "$@"', kept, *inside]

    def __exit__(self, *error: object) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            process.wait(timeout=PATIENCE_SECONDS)

    def start(self, words: list[str], name: str) -> None:
        with self.log(name) as log:
            self.processes.append(subprocess.Popen(words, env=self.environment, stdout=log, stderr=subprocess.STDOUT))

    def log(self, name: str) -> IO[bytes]:
        return (self.folder / f"{name}.log").open("wb")

    def wait_for(self, what, of: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not what():
            told = (self.folder / f"{of}.log").read_text(encoding="utf-8", errors="replace")
            assert time.monotonic() < deadline, f"{of}: {told[-2000:]}"
            time.sleep(0.1)

    def said(self, *words: str) -> str:
        """What a command says, given on the first host."""
        result = subprocess.run(
            self.lab.command("a", *words), env=self.environment, capture_output=True, text=True, check=False
        )
        return result.stdout.strip()

    def all_idle(self) -> bool:
        words = ("sinfo", "--noheader", "--Node", "--partition=all", "--format=%t")
        return self.said(*words).split() == ["idle"] * len(self.lab.hosts)

    def jobs(self) -> list[str]:
        """Numbers of those that wait or run."""
        return self.said("squeue", "--noheader", "--format=%i").split()


MUNGE_FILES = {"socket": "", "pid-file": ".pid", "log-file": ".log", "seed-file": ".seed"}
