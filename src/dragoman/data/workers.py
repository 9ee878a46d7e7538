"""Processes that share the work on shards.

A worker is a fresh interpreter that imports what its tasks need, so neither torch nor the caller's script. It takes a
function and its arguments from a socket and sends back the result. When the main process ends, however it ends, the
socket closes and the worker leaves after its task.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from dragoman.errors import Unfinished

Task = tuple[Callable[..., Any], tuple[Any, ...]]
Tasks = Callable[..., Iterable[Task]]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dragoman.data.workers", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )

    def begin(self, task: Task) -> None:
        try:
            self.connection.send(task)
        except OSError:
            raise self.lost() from None

    def result(self) -> Any:
        try:
            done, value = self.connection.recv()
        except (EOFError, OSError):
            raise self.lost() from None
        if done:
            return value
        raise value

    def lost(self) -> Unfinished:
        code = self.process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        why = ", most often for want of memory: use fewer --workers or a smaller data.shard_pairs" if code == -9 else ""
        return Unfinished(f"worker process {self.process.pid} {how}{why}")

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


class Crew:
    """Up to `size` workers, started when there is something to do for them."""

    def __init__(self, size: int):
        self.size = size
        self.workers: list[Worker] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()

    def results(self, tasks: Tasks, *arguments: Any) -> Iterator[Any]:
        """Results of all tasks(*arguments) as they finish. A single one, or a crew of one, is done here and needs no process."""
        stream = iter(tasks(*arguments))
        first = list(islice(stream, 2))
        alone = self.size == 1 or len(first) < 2
        stream = chain(iter(first), stream)
        del first  # tasks hold megabytes of text
        if alone:
            for function, given in stream:
                yield function(*given)
        else:
            yield from self.shared(stream)

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """One long task, in a worker where there may be any: Ctrl-C is heard at once, and its memory is not ours."""
        if self.size == 1:
            return function(*arguments)
        worker = self.idle({})
        assert worker is not None
        worker.begin((function, arguments))
        return worker.result()

    def shared(self, stream: Iterator[Task]) -> Iterator[Any]:
        busy: dict[Connection, Worker] = {}
        ready = next(stream, None)  # read while the workers work
        while ready or busy:
            while ready and (worker := self.idle(busy)):
                worker.begin(ready)
                busy[worker.connection] = worker
                ready = next(stream, None)
            answered = set(wait(list(busy)))
            for worker in [worker for connection, worker in busy.items() if connection in answered]:
                yield busy.pop(worker.connection).result()

    def idle(self, busy: dict[Connection, Worker]) -> Worker | None:
        free = [worker for worker in self.workers if worker.connection not in busy]
        if not free and len(self.workers) < self.size:
            free = [Worker()]
            self.workers += free
        return free[0] if free else None


def serve(connection: Connection) -> None:
    """The life of a worker. Ctrl-C is for the main process, which closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(answered(function, arguments))
        except BrokenPipeError:
            return


def answered(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Whether it went well, and the result or what went wrong."""
    try:
        return True, function(*arguments)
    except Exception as error:  # a border: it is raised again on the other side
        error.add_note(traceback.format_exc())
        return False, error


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
