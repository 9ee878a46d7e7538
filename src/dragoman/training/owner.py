"""Who trains in a run folder. Every start of a run is a new generation, and only the newest may commit a checkpoint: a half that
was cut off from the others, or a process that everybody believed dead, cannot write over what came after it.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from dragoman import runs
from dragoman.errors import RunError
from dragoman.parallel.ranks import started_again

LEFTOVER_SECONDS = 90.0  # for a rank of the attempt before, whose host was cut off: its agent ends it after a minute


class Claim(NamedTuple):
    """Two that claim a run at the same moment read the same number; their words differ, and the file holds one of them."""

    generation: int
    word: str


class FencedError(RunError):
    """A newer generation of the run has begun elsewhere."""


class OvertakenError(RunError):
    """The one before committed once more while this one was starting. Starting again takes that into account."""

    exit_code = 1


def read(run: runs.RunFolder) -> dict[str, Any]:
    """Nobody where it cannot be understood: a flipped bit must not keep everybody out."""
    try:
        owner = runs.read_json(run.owner)
    except RunError:
        return {}
    return owner if isinstance(owner, dict) else {}


def check_not_alive(run: runs.RunFolder) -> None:
    """Processes of other hosts cannot be seen from here: those are fenced off when they try to commit."""
    owner = read(run)
    if owner.get("host") != socket.gethostname() or owner.get("inode") != run.path.stat().st_ino:
        return  # nobody's, or another host's, or a copy of what somebody trains elsewhere
    deadline = time.monotonic() + (LEFTOVER_SECONDS if started_again() else 0.0)
    while is_alive(owner.get("pid"), owner.get("born")):
        if time.monotonic() >= deadline:
            raise RunError(
                f"{run.path}: is being trained right now by process {owner['pid']} of this host, since {owner['since']}. "
                "Stop that one first (Ctrl-C or SIGTERM: it saves), or choose another run.folder"
            )
        time.sleep(0.2)


def is_alive(pid: int | None, born: float | None) -> bool:
    """The same process, not another that was given its number."""
    try:
        return pid is not None and pid != os.getpid() and birth(pid) == born
    except (OSError, psutil.Error):
        return False


def birth(pid: int) -> float:
    """In ticks since the host was started, where the kernel tells them: the time of day moves when a clock is set. A process that has
    ended and that nobody has buried, as in containers without an init, is none any more."""
    if (stat := Path(f"/proc/{pid}/stat")).exists():
        state, *fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        if state in "ZX":
            raise ProcessLookupError(f"process {pid} has ended")
        return int(fields[18])
    return psutil.Process(pid).create_time()


def claim(run: runs.RunFolder) -> Claim:
    """Begin a new generation, not while one before it commits."""
    since, pid = time.strftime("%Y-%m-%d %H:%M:%S %Z"), os.getpid()
    process = {"host": socket.gethostname(), "pid": pid, "born": birth(pid), "inode": run.path.stat().st_ino}
    with runs.locked(run.path, seconds=runs.LOCK_SECONDS, needed=False):
        before = read(run).get("generation", 0)
        new = Claim(before + 1 if isinstance(before, int) else 1, uuid.uuid4().hex)
        runs.write_json(run.owner, {**new._asdict(), "since": since, **process})
    return new


@contextmanager
def committing(run: runs.RunFolder, claimed: Claim) -> Iterator[None]:
    """From the last look until a checkpoint has its name nobody can claim the run."""
    with runs.locked(run.path, seconds=runs.LOCK_SECONDS, needed=False):
        require(run, claimed)
        yield


def is_ours(now: dict[str, Any], claimed: Claim) -> bool:
    return all(now.get(key, value) == value for key, value in claimed._asdict().items())


def require(run: runs.RunFolder, claimed: Claim) -> None:
    """Still ours?"""
    now = read(run)
    if not is_ours(now, claimed):
        raise FencedError(
            f"{run.path}: generation {now.get('generation')} of this run has begun on {now.get('host')} since this one, which is "
            f"number {claimed.generation}; it stops here and writes nothing more"
        )


def release(run: runs.RunFolder, claimed: Claim) -> None:
    """The run has ended by itself; its number stays used."""
    if is_ours(read(run), claimed):
        runs.write_json(run.owner, {"generation": claimed.generation})
