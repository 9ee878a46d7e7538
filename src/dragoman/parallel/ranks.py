"""The ranks of one host: started together, watched, ended together. The error of the one that failed first comes back as
one line. No rendezvous: who starts them knows where each stands, so there is nothing to agree on and nothing to get stale.

Every rank is a copy of one process that has imported everything and done nothing (multiprocessing's fork server): torch is
imported once a host, not once a rank, and not again when ranks are started again, which is most of what a restart would cost.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from dragoman import runs
from dragoman.cores import usable_cores, wanted_threads

RESTART = "DRAGOMAN_RESTART"  # how often this run was started again
LAUNCHED = "DRAGOMAN_LAUNCHED"  # set for ranks whose errors the launcher prints
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for an error, and we too
GRACE_SECONDS = 3.0  # for ranks that lost one: what they say in their last words may be the reason
SAVE_SECONDS = 300.0  # for those among them that are writing a checkpoint
STOPPED_EVERY = 5  # looks: whether a rank was stopped by a signal (SIGSTOP) costs more than whether it has ended
STOPPED_LOOKS = 20  # such ones, two seconds: a rank that stands still so long holds up all others
STOP_SECONDS = 300.0  # for a last checkpoint after Ctrl-C
LOOK_SECONDS = 0.02
ENDING_SECONDS = 0.2  # for ranks that were killed; most are gone much sooner, and nobody waits for the next look then
LAST_WORDS_SECONDS = 10.0  # at most, for lines that ranks wrote before they ended
HUNG = 74  # exit code of a rank that hung
FAILED = 1  # weight of an outcome that may have another one as its reason
STACKS_SIGNAL = signal.SIGUSR1  # asks a rank to write where its threads stand
STACKS_SECONDS = 0.3  # for that
STUCK_SECONDS = 30.0  # after which a rank that was killed and is still there is left to the kernel
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOST = 255  # exit code of all ranks whose fork server is gone; they may live on
NURSERY = multiprocessing.get_context("forkserver")
NURSERY.set_forkserver_preload(["dragoman.cli.nursery"])
KILLED: dict[int, str] = {signal.SIGKILL: "was killed (by somebody, or by the kernel when memory ran out: dmesg tells)"}


@dataclass(frozen=True)
class Place:
    """Where the ranks of one host stand among all."""

    first: int  # rank
    count: int  # ranks on this host
    world: int  # ranks on all hosts
    address: str  # of the host of rank 0
    port: int
    interface: str = ""  # that leads to the other hosts

    def environment(self, local: int) -> dict[str, str]:
        """What torchrun would set, and the interface by name: a guess is wrong on every second machine."""
        own = {
            "RANK": str(self.first + local),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }
        if self.interface:
            own |= {"GLOO_SOCKET_IFNAME": self.interface, "NCCL_SOCKET_IFNAME": f"={self.interface}"}
        return own


@dataclass(frozen=True)
class Outcome:
    code: int = 0
    line: str = ""  # of the rank that failed
    rank: int = -1
    kind: str = ""  # killed, stopped, hung, failed; lost, where it is a whole host
    host: str = field(default_factory=socket.gethostname)

    @property
    def weight(self) -> int:
        """Of several outcomes that with the most tells why a run has ended: a rank that only failed may have lost another one."""
        if self.code in (0, 2):
            return FAILED + 2 if self.code else 0
        return FAILED if self.kind == "failed" else FAILED + 1

    def event(self, attempt: int) -> runs.Row:
        """For the run folder. Of a traceback the last line."""
        said = self.line.removeprefix("dragoman: ").strip().splitlines() or [""]
        where = {"host": self.host, "rank": self.rank if self.rank >= 0 else None}
        return {"time": round(time.time(), 3), "kind": self.kind, **where, "error": said[-1], "attempt": attempt}


Say = Callable[[int, str], None]  # rank, line


def heed_launcher() -> None:
    """A copy of the fork server hears signals again, and ends with whoever had it made."""
    os.setsid()  # Ctrl-C at the terminal reaches it through the launcher alone, once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    die_with_parent()
    threading.Thread(target=die_with_launcher, name="launcher", daemon=True).start()


def be_rank(arguments: list[str], environment: dict[str, str], out: Connection | None) -> None:
    """`python -m dragoman ARGUMENTS`, in a copy of the process that has imported it."""
    heed_launcher()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(15, f"dragoman:{environment['RANK']}".encode())  # its name for ps, top and nvidia-smi
    os.environ.clear()
    os.environ.update(environment)
    if out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    set_threads(environment["OMP_NUM_THREADS"])
    sys.argv = ["dragoman", *arguments]
    runpy.run_module("dragoman", run_name="__main__")


def set_threads(wanted: str) -> None:
    """OMP_NUM_THREADS was read when torch was imported, before anybody knew how many ranks there would be."""
    import torch

    if threads := wanted_threads(wanted):
        torch.set_num_threads(threads)


def warm() -> None:
    """Begin to import what ranks need, beside whatever comes before them. Signals for the whole group of processes pass the
    fork server by: it has to be there while ranks save and stop."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a name that has no address is no news to a user
    multiprocessing.resource_tracker.ensure_running()  # the fork server starts it otherwise, and it lets signals in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def started_again() -> bool:
    """Whether this rank comes after others of the same run, by the count of whoever started it."""
    return any(os.environ.get(name, "0") != "0" for name in (RESTART, "TORCHELASTIC_RESTART_COUNT"))


def cool() -> None:
    """Nothing is left behind: a fork server that is still importing would notice our end only when it is done."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            child.kill()


def die_with_launcher() -> None:
    """The fork server lives as long as a copy of it does, so its end does not tell the end of whoever started it."""
    launcher = multiprocessing.parent_process()
    if launcher:
        launcher.join()
        os.kill(os.getpid(), signal.SIGTERM)


def die_with_parent() -> None:
    """Linux ends this process when the one that started it is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Crew:
    """`python -m dragoman ARGUMENTS` in several ranks of this host."""

    def __init__(self, place: Place, arguments: list[str], attempt: int, say: Say | None = None):
        self.place = place
        self.files = tempfile.TemporaryDirectory(prefix="dragoman-")
        warm()
        shared = {**os.environ, LAUNCHED: "1", RESTART: str(attempt)}
        shared.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // place.count)))
        self.readers: list[threading.Thread] = []
        self.processes: list[ForkServerProcess] = []
        self.failed: list[tuple[int, int]] = []  # rank, code; in the order in which it was noticed
        self.failed_at = float("inf")
        self.handed_on = 0
        self.looks = 0
        self.stopped: Counter[int] = Counter()  # by process: looks in a row at which it stood still
        self.reason_known = False  # a rank was killed, a host was lost: nobody's last words are waited for
        self.killed: set[int] = set()  # ranks that were ended because others had failed
        self.killed_at = float("inf")
        self.asked_at: float | None = None  # where they stand
        try:
            for local in range(place.count):
                self.processes.append(self.start(local, arguments, shared, say))
        except BaseException:  # no room for one more process, or a Ctrl-C: no rank waits for those that never come
            self.end()
            raise

    def start(self, local: int, arguments: list[str], shared: dict[str, str], say: Say | None) -> ForkServerProcess:
        own = self.place.environment(local) | {ERROR_FILE: str(self.error_file(local))}
        heard, said = NURSERY.Pipe(duplex=False) if say else (None, None)
        process = NURSERY.Process(target=be_rank, args=(arguments, shared | own, said))
        process.start()
        if heard and said and say:
            said.close()
            reader = threading.Thread(target=pass_lines, args=(heard, self.place.first + local, say), daemon=True)
            reader.start()
            self.readers.append(reader)
        return process

    def error_file(self, local: int) -> Path:
        return Path(self.files.name) / f"rank-{local}.json"

    def hand_on(self, number: int) -> None:
        self.handed_on += 1
        for process in self.alive():
            with suppress(ProcessLookupError):  # gone, and not yet noticed
                os.kill(process.pid or 0, number)
        if self.handed_on > 1:  # a rank that waits for others does not hear the second one either
            self.failed_at = min(self.failed_at, time.monotonic())

    def alive(self) -> list[ForkServerProcess]:
        return [process for process in self.processes if process.exitcode is None]

    def look(self) -> Outcome | None:
        """How it ended, or None while it goes on. Ranks that lost another are ended after a while."""
        codes = [process.exitcode for process in self.processes]  # once: one may end while we look
        for rank, code in enumerate(codes, self.place.first):
            if code and rank not in dict(self.failed):
                self.note_failure(rank, code)
        if None in codes:
            if time.monotonic() - self.killed_at > STUCK_SECONDS:
                stuck = self.place.first + codes.index(None)
                line = f"dragoman: rank {stuck} cannot be ended; it hangs in the kernel (GPU, file system)"
                return Outcome(1, line, stuck, "hung")
            self.looks += 1
            if self.looks % STOPPED_EVERY == 0:
                self.count_stopped()
            if self.failed_at < float("inf") and self.had_time() and self.wrote_stacks():
                self.kill()
                for process in self.alive():
                    process.join(ENDING_SECONDS)
                return None if self.alive() else self.look()
            return None
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        for reader in self.readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        outcome = self.verdict()
        self.files.cleanup()
        return outcome

    def note_failure(self, rank: int, code: int) -> None:
        if code == LOST:
            code = -signal.SIGKILL
            with suppress(ProcessLookupError):
                os.kill(self.processes[rank - self.place.first].pid or 0, signal.SIGKILL)
        if self.handed_on and -code in STOPS:  # it was told to stop before it could listen
            code = 128 - code
        self.failed.append((rank, code))
        self.reason_known |= code < 0 and code != -signal.SIGABRT  # NCCL aborts ranks that lost another one
        self.failed_at = min(self.failed_at, time.monotonic())

    def count_stopped(self) -> None:
        """A rank that was stopped for too long is ended: it will not go on by itself, and the others wait for it."""
        for process in self.alive():
            pid = process.pid or 0
            if self.stopped[pid] >= STOPPED_LOOKS:  # ended already, and on its way out
                continue
            self.stopped[pid] = self.stopped[pid] + 1 if stands_still(pid) else 0
            if self.stopped[pid] == STOPPED_LOOKS:
                process.kill()

    def had_time(self) -> bool:
        """Whether those that are left are to be ended."""
        waited = time.monotonic() - self.failed_at
        if all(self.stopped[process.pid or 0] for process in self.alive()):
            return True
        if self.handed_on > 1:
            return waited > GRACE_SECONDS
        if any(saving_note(self.error_file(self.processes.index(process))).exists() for process in self.alive()):
            return waited > SAVE_SECONDS
        return self.reason_known or waited > (STOP_SECONDS if self.handed_on else GRACE_SECONDS)

    def wrote_stacks(self) -> bool:
        """Where the ranks stand that are left is worth knowing when nobody was killed and nobody said what the matter is."""
        if self.reason_known or self.handed_on or 2 in dict(self.failed).values():
            return True
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            for process in self.alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid or 0, STACKS_SIGNAL)
        return time.monotonic() - self.asked_at > STACKS_SECONDS

    def verdict(self) -> Outcome:
        """A rank with something to say to the user comes before those that failed because it was gone, and so does one that
        somebody else has killed; among equals whoever wrote its error down first."""
        if not self.failed:
            return Outcome()

        def importance(entry: tuple[int, int]) -> tuple[bool, bool, float]:
            rank, code = entry
            told = written_at(self.error_file(rank - self.place.first))
            return code != 2, code != -signal.SIGKILL or rank in self.killed, told

        rank, code = min(self.failed, key=importance)
        line = read_error(self.error_file(rank - self.place.first))
        how = f"ended with code {code}" if code > 0 else KILLED.get(-code, f"was ended by signal {-code}")
        kind = "failed" if rank in self.killed else kind_of(code)  # we ended it because others had failed
        if self.stopped[self.processes[rank - self.place.first].pid or 0] >= STOPPED_LOOKS:
            how, kind = "was stopped by a signal (SIGSTOP) and held up the others", "stopped"
        missing = f"dragoman: rank {rank} {how}; see its log in the run folder"
        if kind == "hung":
            missing = f"dragoman: rank {rank} hung; where all ranks stood is in log/*.stacks of the run folder"
        return Outcome(code if code > 0 else 1, line or missing, rank, kind)

    def kill(self) -> None:
        for process in self.alive():
            self.killed.add(self.place.first + self.processes.index(process))
            self.killed_at = min(self.killed_at, time.monotonic())
            process.kill()

    def end(self) -> None:
        """Every process is gone when this returns."""
        self.kill()
        for process in self.processes:
            process.join(STUCK_SECONDS)
        self.files.cleanup()


def kind_of(code: int) -> str:
    if code == HUNG:
        return "hung"
    return "killed" if code == -signal.SIGKILL else "failed"


def stands_still(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def pass_lines(heard: Connection, rank: int, say: Say) -> None:
    with open(os.dup(heard.fileno()), encoding="utf-8", errors="replace") as stream:
        heard.close()
        for line in stream:
            say(rank, line.rstrip("\n"))


def read_error(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")


def saving_note(error_file: Path) -> Path:
    return error_file.with_suffix(".saving")


@contextmanager
def saving() -> Iterator[None]:
    """The launcher lets a rank finish what it does in here, though another one has failed."""
    if LAUNCHED not in os.environ or ERROR_FILE not in os.environ:
        yield
        return
    note = saving_note(Path(os.environ[ERROR_FILE]))
    with suppress(OSError):
        note.touch()
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()


def report_error(line: str) -> None:
    """Hand the error line of a rank to whoever shows it: to the launcher's error file, or to the terminal."""
    path = os.environ.get(ERROR_FILE)
    if path:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"message": line, "timestamp": int(time.time())}, stream)
    if not (path and os.environ.get(LAUNCHED)):
        print(line, file=sys.stderr)
