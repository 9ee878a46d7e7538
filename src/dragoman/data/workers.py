"""Processes that share the work on shards: loky's, which are fresh interpreters and import what their tasks need, so neither
torch nor the caller's script; a dead one is noticed. When the main process ends, however it ends, they leave.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import chain, islice
from typing import Any

from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

from dragoman.errors import Unfinished

Task = tuple[Callable[..., Any], tuple[Any, ...]]
Tasks = Callable[..., Iterable[Task]]

ORPHAN_SECONDS = 1.0  # how often a worker looks whether there is still somebody to work for


class Crew:
    """Up to `size` processes, started when there is something to do for them."""

    def __init__(self, size: int):
        self.size = size
        self.pool: Any = None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool:
            self.pool.shutdown(kill_workers=True)

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
        return function(*arguments) if self.size == 1 else result(self.begin(function, arguments))

    def shared(self, stream: Iterator[Task]) -> Iterator[Any]:
        running: set[Future[Any]] = set()
        ready = next(stream, None)  # read while the workers work
        while ready or running:
            while ready and len(running) < self.size:
                running.add(self.begin(*ready))
                ready = next(stream, None)
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from map(result, done)

    def begin(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        if not self.pool:
            given = {"initializer": settle_in, "initargs": (os.getpid(),), "env": {"OMP_NUM_THREADS": "1"}}
            self.pool = ProcessPoolExecutor(self.size, **given)
        begun: Future[Any] = self.pool.submit(function, *arguments)
        return begun


def result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except TerminatedWorkerError as error:
        codes = re.search(r"\{(.*)\}", str(error))
        how = codes[1] if codes else "no exit code"
        why = (
            ", most often for want of memory: use fewer --workers or a smaller data.shard_pairs"
            if "KILL" in how
            else ""
        )
        raise Unfinished(f"a worker process died ({how}){why}") from None


def settle_in(main_process: int) -> None:
    """Ctrl-C is for the main process; and without it there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == main_process:
            threading.Event().wait(ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
