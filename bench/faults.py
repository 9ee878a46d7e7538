"""What the fault matrix (tests/faults) and the soak (bench/soak.py) share: a run that is watched from outside, and the table.

python bench/faults.py        # docs/reliability.json -> the table in docs/reliability.md
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from dragoman import runs

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, PAGE = DOCS / "reliability.json", DOCS / "reliability.md"
BEGIN, END = "<!-- the fault matrix: written by make test-faults -->", "<!-- end of the fault matrix -->"
PATIENCE = 300.0  # seconds for anything to happen: a busy machine is no failure
LOOK_SECONDS = 0.02


class Watched:
    """A command that trains into a run folder, with the time of every line it says."""

    def __init__(self, command: list[str], run: Path, *, own_group: bool = False, **environment: str):
        self.run = runs.RunFolder(run)
        self.lines: list[tuple[float, str]] = []
        self.killed_at = 0.0
        own = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=own,
            errors="replace",
            process_group=0 if own_group else None,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            for child in [*self.children(), self.process]:
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    continue
        self.process.wait()

    def read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append((time.time(), line.rstrip()))

    @property
    def said(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def ranks(self) -> dict[int, psutil.Process]:
        """Living ranks by their number."""
        found = {}
        for child in self.children():
            try:
                name, _, rank = child.name().partition(":")
                if name == "dragoman" and child.status() != psutil.STATUS_ZOMBIE:
                    found[int(rank)] = child
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}:\n{self.said}"
            assert time.monotonic() < deadline, f"no {what} within {seconds:.0f} s:\n{self.said}"
            time.sleep(LOOK_SECONDS)
        return found

    def step(self) -> int:
        rows = runs.read_rows(self.run.metrics)
        return int(rows[-1]["step"]) if rows else 0

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: self.step() >= step, f"step {step}")

    def finish(self, seconds: float = PATIENCE) -> int:
        code = self.process.wait(timeout=seconds)
        self.reader.join(timeout=10.0)
        return code

    # --- what came of a fault ---

    def events(self, *names: str, since: float = 0.0) -> list[runs.Row]:
        return [row for row in runs.read_rows(self.run.events) if row["event"] in names and row["time"] >= since]

    def detected(self, since: float, words: str = "starting again") -> float:
        """Seconds until the launcher said so."""
        return next(at for at, line in self.lines if at >= since and words in line) - since

    def at_the_latest(self, noticed: float) -> float:
        """When a fault happened that whoever waited for a step before it may have noticed late."""
        return min([noticed, *(at for at, line in self.lines if "starting again" in line)])

    def trained_again(self, since: float) -> float:
        """Seconds until the first step after the next start."""
        return float(self.events("first_step", since=since)[0]["time"]) - since

    def lost_steps(self, since: float) -> int:
        begun = self.events("start", "resume", since=since)[0]
        return int(begun.get("lost_steps", 0))

    def went_on_from_newest(self, since: float) -> bool:
        """From the last checkpoint whose writing had ended, or from one that nobody could note any more."""
        begun = self.events("start", "resume", since=since)[0]
        written = [row["step"] for row in self.events("checkpoint") if row["time"] <= begun["time"]]
        return bool(begun["step"] >= max(written, default=0))

    def stood_still(self, since: float) -> float:
        """Seconds until training went on, in a run that was not started again: the end of the longest pause."""
        times = [since, *(row["time"] for row in runs.read_rows(self.run.metrics) if row["time"] > since)]
        pauses = [(later - earlier, later - since) for earlier, later in pairwise(times)]
        return float(max(pauses, default=(0.0, 0.0))[1])


class Notes:
    """Rows of the matrix. A subset of the tests renews its own rows only."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def __call__(
        self, fault: str, expected: str, observed: str, detect: Any = (), again: Any = (), lost: Any = ()
    ) -> None:
        spent = {"detect_seconds": numbers(detect), "again_seconds": numbers(again), "lost_steps": numbers(lost)}
        load = {"load_average": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}
        self.rows[fault] = {"expected": expected, "observed": observed, **spent, **load}
        runs.write_text(self.path, json.dumps(self.rows, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def numbers(found: Any) -> list[float]:
    values = found if isinstance(found, list | tuple) else [found]
    return [round(float(value), 2) for value in values]


def percentiles(values: list[float], unit: str) -> str:
    """The middle, and the 95th of a hundred where there are enough to tell."""
    if not values:
        return ""
    middle = f"{statistics.median(values):.3g}{unit}"
    if len(values) < 3:
        return middle
    return f"{middle}; p95 {statistics.quantiles(values, n=20, method='inclusive')[-1]:.3g}{unit}"


def table(rows: dict[str, dict[str, Any]]) -> str:
    head = ["fault", "expected", "observed", "time to detect", "time to train again", "steps lost"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for fault, row in sorted(rows.items()):
        cells = [fault, row["expected"], row["observed"], percentiles(row["detect_seconds"], " s")]
        cells += [percentiles(row["again_seconds"], " s"), percentiles(row["lost_steps"], "")]
        lines.append("| " + " | ".join(cells) + " |")
    loads, cores = [row["load_average"] for row in rows.values()], {row["cores"] for row in rows.values()}
    busy = f"Load average of the machine meanwhile: {min(loads):g} to {max(loads):g}, on {max(cores)} cores."
    return "\n".join([*lines, "", busy])


def main() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")
    print(f"{PAGE}: {len(rows)} rows")


if __name__ == "__main__":
    main()
