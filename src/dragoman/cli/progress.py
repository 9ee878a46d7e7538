"""How far long work is: bars with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dragoman.runs import Progress

PLAIN_SECONDS = 5.0  # between two plain lines of the same stage
# Said once, no bar.
SENTENCES = ("validation", "resuming", "starting", "stopping", "straggler", "rolling back", "disk", "checkpoint")


class Lossy(io.FileIO):
    """What a full disk, or a pipe or terminal without a reader, does not take is lost, and nothing else is."""

    def write(self, text: Any) -> int:
        try:
            return super().write(text)
        except OSError:
            return memoryview(text).nbytes


def need_no_reader() -> None:
    """From here on nothing that is printed can end the work."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        lossy = io.BufferedWriter(Lossy(stream.fileno(), "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(lossy, stream.encoding, stream.errors, line_buffering=True))


def sentence(stage: str, done: int, total: int, detail: str) -> str:
    return f"step {done:,} of {total:,}: {stage} {detail}"


@contextmanager
def shown() -> Iterator[Progress]:
    """Progress on standard error, so that standard output stays clean for translations and tables."""
    if sys.stderr.isatty():
        with bars() as progress:
            yield progress
    else:
        yield PlainLines()


@contextmanager
def bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    whole = Column(no_wrap=True)  # on a narrow terminal the detail is cut, never the numbers before it
    columns = [
        TextColumn("{task.description}", table_column=whole),
        BarColumn(bar_width=12, table_column=whole),
        MofNCompleteColumn(table_column=whole),
        TimeRemainingColumn(table_column=whole),
        TextColumn("left", table_column=whole),
        TextColumn("{task.fields[detail]}"),
    ]
    with RichProgress(*columns, console=Console(stderr=True)) as display:
        tasks = {}

        def progress(stage: str, done: int, total: int, detail: str) -> None:
            if stage in SENTENCES:
                display.console.print(sentence(stage, done, total, detail), highlight=False)
                return
            if stage not in tasks:
                tasks[stage] = display.add_task(stage, total=total or None, detail=detail)
            display.update(tasks[stage], completed=done, total=total or None, detail=detail)

        yield progress


class PlainLines:
    """One line now and then, with the rate and the time left as measured since the stage began."""

    def __init__(self) -> None:
        self.began: dict[str, tuple[float, int]] = {}
        self.printed: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, detail: str) -> None:
        from dragoman.report.units import duration

        if stage in SENTENCES:
            print(sentence(stage, done, total, detail), file=sys.stderr, flush=True)
            return
        now = time.monotonic()
        start, first = self.began.setdefault(stage, (now, done))
        finished = total and done >= total
        if not finished and now - self.printed.get(stage, -PLAIN_SECONDS) < PLAIN_SECONDS:
            return
        self.printed[stage] = now
        rate = (done - first) / (now - start) if now > start else 0.0
        count = f" {done:,} of {total:,}" if total else f" {done:,}" if done else ""
        left = f", {duration(round((total - done) / rate))} left" if total > done and rate > 0 else ""
        print(f"{stage}{count} {detail}{left}".rstrip(), file=sys.stderr, flush=True)
