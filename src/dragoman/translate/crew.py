"""Several processes that translate together, each with a GPU of its own where there are some."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.cores import usable_cores
from dragoman.data.subwords import Vocabulary
from dragoman.errors import DragomanError, Unfinished
from dragoman.model.folder import VOCABULARY
from dragoman.monitor import gpu
from dragoman.translate.models import is_ctranslate2
from dragoman.translate.pieces import checked
from dragoman.translate.request import Request
from dragoman.translate.translator import Translation, Translator, one_each, spelled

MOST_AT_ONCE = 4096  # texts of one task

_translator: Translator | DragomanError  # of this process, or why there is none


def search_together(
    processes: int,
    folder: Path,
    opening: dict[str, Any],
    texts: list[str],
    request: Request,
    options: dict[str, Any],
    progress: runs.Progress,
) -> list[list[Translation]]:
    """As Translator.search: `folder` and `opening` go to Translator.read, the same one in all processes; `options` go to the search;
    prefixes are dealt out with the texts."""
    prefixes = one_each(options.pop("prefixes"), texts)
    spelled(checked(prefixes), Vocabulary(folder / VOCABULARY))  # refused by their numbers here, not in a share
    context = multiprocessing.get_context("spawn")
    numbers: Queue[int] = context.Queue()
    for number in range(processes):
        numbers.put(number)
    size = max(1, min(MOST_AT_ONCE, -(-len(texts) // (4 * processes))))
    done = 0
    try:
        with ProcessPoolExecutor(processes, context, enter, (numbers, processes, folder, opening)) as pool:
            tasks = [
                pool.submit(search, texts[at : at + size], prefixes[at : at + size], request, options)
                for at in range(0, len(texts), size)
            ]
            for task in as_completed(tasks):
                done += len(task.result())
                progress("translating", done, len(texts), f"sentences, {processes} processes")
    except BrokenProcessPool:
        raise Unfinished(
            "a translating process died (out of memory?); nothing was written. Try fewer --processes"
        ) from None
    return [each for task in tasks for each in task.result()]


def enter(numbers: Queue[int], processes: int, folder: Path, opening: dict[str, Any]) -> None:
    """In a fresh process, before torch is imported: one GPU is all it sees, and its share of the cores is all it takes."""
    global _translator
    visible = gpus()
    if visible:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[numbers.get() % len(visible)]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // processes)))
    try:
        _translator = Translator.read(folder, **opening)
    except DragomanError as error:  # here it would only break the pool
        _translator = error


def search(texts: list[str], prefixes: list[str], request: Request, options: dict[str, Any]) -> list[list[Translation]]:
    if isinstance(_translator, DragomanError):
        raise _translator
    return _translator.search(texts, request, prefixes=prefixes, **options)


def usual_number(folder: Path, device: str, engine: str) -> int:
    """Of processes: one for each GPU that would be used. On CPUs one, whose engine has threads of its own."""
    on_cpu = device == "cpu" or (device == "auto" and (engine == "ctranslate2" or is_ctranslate2(folder)))
    return 1 if on_cpu else max(1, len(gpus()))


def gpus() -> list[str]:
    """Names of the GPUs that this process may use, asked of the driver: torch would take hold of them."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    return [str(number) for number in range(len(gpu.handles()))]
