"""What an int8 model needs on a small machine: disk, memory, seconds until the first translation, tokens a second on one core.

    python bench/small.py                                # random weights of transformer-base and tiny
    python bench/small.py models/first-int8              # an export of your own, on the board itself; needs no torch

Everything runs in processes as a user starts them (`dragoman translate`, OMP_NUM_THREADS=1): one with one sentence, one with many, whose
speed counts after the start is taken off, by the clock and by processor time, which does not mind what else the machine does. Memory is
the most that such a process ever held; Linux only. Random weights never end by themselves, so their translations are as long as the
sources. Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import border
from rich.console import Console
from rich.table import Table

from dragoman.data.subwords import Vocabulary
from dragoman.errors import DragomanError
from dragoman.model.folder import VOCABULARY

PRESETS = ("transformer-base", "tiny")


@dataclass(frozen=True)
class Process:
    """`dragoman translate`, from start to end."""

    seconds: float
    processor_seconds: float
    megabytes: float  # the most it ever held
    lines: list[str]


def translated(folder: Path, texts: list[str], how: list[str], scratch: Path) -> Process:
    given, written = scratch / "in.txt", scratch / "out.txt"
    given.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    command = [sys.executable, "-m", "dragoman", "translate", str(folder), str(given), "-o", str(written)]
    command += ["--device", "cpu", *how]
    start = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    megabytes, ended, status, usage = 0.0, 0, 0, resource.getrusage(resource.RUSAGE_SELF)
    while not ended:
        time.sleep(0.01)
        megabytes = max(megabytes, most_held(process.pid))
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise DragomanError(f"{folder}: translating failed; try dragoman translate {folder}")
    lines = written.read_text(encoding="utf-8").splitlines()
    return Process(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, megabytes, lines)


def most_held(pid: int) -> float:
    """The kernel's own high-water mark. Not ru_maxrss: a child begins with that of the process that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else 0.0  # none: it has just ended


def measure(folder: Path, texts: list[str], how: list[str], scratch: Path) -> dict[str, Any]:
    cold = min((translated(folder, texts[:1], how, scratch) for _ in range(3)), key=lambda process: process.seconds)
    many = translated(folder, texts, how, scratch)
    tokens = sum(map(len, Vocabulary(folder / VOCABULARY).encode(many.lines)))
    return {
        "disk_megabytes": round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6, 1),
        "peak_megabytes": round(many.megabytes, 1),
        "cold_seconds": round(cold.seconds, 2),
        "tokens_per_s": round(tokens / (many.seconds - cold.seconds), 1),
        "tokens_per_processor_s": round(tokens / (many.processor_seconds - cold.processor_seconds), 1),
    }


def main() -> None:
    options = parse()
    rows: dict[str, dict[str, Any]] = {}
    how = ["--beam", str(options.beam), "--batch-tokens", str(options.batch_tokens)]
    texts = Path(options.source).read_text(encoding="utf-8").splitlines()[: options.sentences] if options.source else []
    if options.model and not texts:
        raise DragomanError("a model of your own needs sentences: --source FILE")
    with tempfile.TemporaryDirectory(prefix="dragoman-") as temporary:
        scratch = Path(temporary)
        if options.model:
            rows[options.model] = measure(Path(options.model), texts, how, scratch)
        for preset in [] if options.model else options.presets:
            rows[preset] = measure(*exported(preset, options.sentences, scratch), how, scratch)
    heads = ("disk, MB", "memory, MB", "first translation, s", "tokens/s", "tokens a processor second")
    table = Table(f"int8, beam {options.beam}, one core", *heads)
    for name, row in rows.items():
        table.add_row(name, *map(str, row.values()))
    Console(highlight=False).print(table)
    facts = {"bench": "small", "machine": platform.machine(), "beam": options.beam}
    print(json.dumps(facts | {"batch_tokens": options.batch_tokens, "models": rows}))


def exported(preset: str, count: int, scratch: Path) -> tuple[Path, list[str]]:
    """Random weights, and sentences that mean nothing. Torch is needed here, and in none of the processes that are measured."""
    from decode import drawn, random_folder

    from dragoman.exporting import export

    weights = random_folder(preset, scratch / f"{preset}-random")
    folder = export(weights, scratch / preset, kind="ctranslate2", quantization="int8")
    vocabulary = Vocabulary(folder / VOCABULARY)
    return folder, vocabulary.decode(drawn(count, len(vocabulary)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="an export to CTranslate2; without it random weights of the presets")
    parser.add_argument("--source", help="sentences, one a line; for a model of your own")
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--sentences", type=int, default=100, help="at most")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=256, help="source subwords at once; more take more memory")
    return parser.parse_args()


if __name__ == "__main__":
    border.run(main)
