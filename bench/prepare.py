"""How fast does raw text become ids, with how much memory, beside bare SentencePiece and beside the usual tools?

    python bench/prepare.py [SOURCE TARGET] [--pairs 500000] [--workers 2] [--keep FOLDER]

SOURCE and TARGET are aligned text files (plain, gz, xz), repeated with a number put to each sentence until there are enough
pairs; without them the embedded grammar writes the text. The peers are
- bare SentencePiece: the same text, already in memory, `encode(lines, num_threads=workers)` and nothing else;
- the usual tools in Python, on a part of the text and with the same vocabulary: a cleaning loop like Moses' clean-corpus-n,
  SentencePiece line by line to a file of pieces, and binarisation like fairseq-preprocess. One process, as they come.
Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count, islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from dragoman.config import load_config
from dragoman.data.corpus import raw_pairs
from dragoman.data.encode import PreparedData
from dragoman.data.grammar import grammar_pairs
from dragoman.data.prepare import prepare
from dragoman.data.workers import cores

MIB = 2**20
SIDES = (("source", "en"), ("target", "de"))
PEER_PAIRS = 50_000
BARE_PAIRS = 200_000


def main() -> None:
    options = parse()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="bench-prepare-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        text_bytes = write_text(folder, options)
        with PeakMemory() as memory:
            stages, data = timed_prepare(folder, options)
        figures = measured(stages, data, text_bytes, memory, options)
        figures |= against_bare(data, stages["encoding train"], options.workers)
        figures |= against_usual(folder, data, without_learning(stages))
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    for name, value in figures.items():
        print(f"{name:34s} {value}")
    print(json.dumps(figures))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--pairs", type=int, default=500_000)
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--sample", type=int, default=2_000_000, help="pairs to learn subwords from")
    parser.add_argument("--keep", help="where to leave text and data")
    return parser.parse_args()


# --- text ----------------------------------------------------------------------------------------------------


def write_text(folder: Path, options: argparse.Namespace) -> int:
    with (folder / "train.en").open("wb") as source_file, (folder / "train.de").open("wb") as target_file:
        for source, target in islice(endless(options.files), options.pairs):
            source_file.write(source + b"\n")
            target_file.write(target + b"\n")
    for number, side in enumerate(("en", "de")):
        lines = [pair[number].encode() + b"\n" for pair in grammar_pairs(1000, 1, part="valid")]
        (folder / f"valid.{side}").write_bytes(b"".join(lines))
    return sum((folder / f"train.{side}").stat().st_size for side in ("en", "de"))


def endless(files: list[Path]) -> Iterator[tuple[bytes, bytes]]:
    if not files:
        yield from ((source.encode(), target.encode()) for source, target in grammar_pairs(10**9, 1))
    for round_number in count():
        for source, target in raw_pairs(*files):
            mark = b" %d" % round_number if round_number else b""
            yield source + mark, target + mark


# --- ours ----------------------------------------------------------------------------------------------------


class PeakMemory:
    """The most resident memory that this process and each of its children ever had, looked at ten times a second."""

    def __init__(self) -> None:
        self.peaks: dict[int, int] = {}
        self.leave = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self) -> PeakMemory:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave.set()
        self.thread.join()

    def watch(self) -> None:
        me = psutil.Process()
        while not self.leave.wait(0.1):
            for process in [me, *me.children(recursive=True)]:
                try:
                    resident = process.memory_info().rss
                except psutil.Error:
                    continue
                self.peaks[process.pid] = max(self.peaks.get(process.pid, 0), resident)


class Spent(NamedTuple):
    """Time on the clock, and of all cores together. On a machine that others use too, only the second can be compared."""

    seconds: float
    core_seconds: float

    @classmethod
    def until_now(cls) -> Spent:
        me = psutil.Process()
        used = [sum(process.cpu_times()[:4]) for process in [me, *me.children()]]  # with children that have ended
        return cls(time.perf_counter(), sum(used))

    def since(self, start: Spent) -> Spent:
        return Spent(self.seconds - start.seconds, self.core_seconds - start.core_seconds)


def timed_prepare(folder: Path, options: argparse.Namespace) -> tuple[dict[str, Spent], PreparedData]:
    """What every stage took, as the progress reports tell them apart."""
    files = [f"data.{part}_{side}={folder}/{part}.{lang}" for part in ("train", "valid") for side, lang in SIDES]
    config = load_config(
        "transformer-base",
        [
            "data.corpus=files",
            f"data.folder={folder}/data",
            f"subwords.vocab_size={options.vocabulary}",
            f"subwords.sample_pairs={options.sample}",
            *files,
        ],
    )
    marks = [("hashing the input", Spent.until_now())]

    def progress(stage: str, *_: object) -> None:
        if marks[-1][0] != stage:
            marks.append((stage, Spent.until_now()))

    data = prepare(config, "bench", force=True, workers=options.workers, progress=progress)
    marks.append(("end", Spent.until_now()))
    return {stage: end.since(start) for (stage, start), (_, end) in pairwise(marks)}, data


def without_learning(stages: dict[str, Spent]) -> Spent:
    spent = [stage for name, stage in stages.items() if name != "learning subwords"]
    return Spent(sum(stage.seconds for stage in spent), sum(stage.core_seconds for stage in spent))


def measured(
    stages: dict[str, Spent], data: PreparedData, text_bytes: int, memory: PeakMemory, options: argparse.Namespace
) -> dict[str, object]:
    total, train = sum(stage.seconds for stage in stages.values()), data.manifest["train"]
    main, *workers = memory.peaks.values()
    return {
        "bench": "prepare",
        "workers": options.workers,
        "read_pairs": train["read_pairs"],
        "pairs": train["pairs"],
        "text_MB": round(text_bytes / 1e6, 1),
        "total_s": round(total, 1),
        "total_MB_per_s": round(text_bytes / 1e6 / total, 2),
        **{f"{stage.replace(' ', '_')}_s": round(spent.seconds, 1) for stage, spent in stages.items()},
        "cleaning_core_us_per_pair": round(1e6 * stages["cleaning train"].core_seconds / train["read_pairs"], 1),
        "main_peak_MiB": round(main / MIB),
        "worker_peak_MiB": round(max(workers, default=0) / MIB),
    }


# --- peers ---------------------------------------------------------------------------------------------------


def against_bare(data: PreparedData, ours: Spent, workers: int) -> dict[str, object]:
    texts = [text for pair in islice(data_text(data), BARE_PAIRS) for text in pair]
    train = data.manifest["train"]
    share = sum(len(text.encode()) + 1 for text in texts) / (train["source_bytes"] + train["target_bytes"])
    start = Spent.until_now()
    data.vocabulary.processor.encode(texts, num_threads=workers)
    bare = Spent.until_now().since(start)
    megabytes = (train["source_bytes"] + train["target_bytes"]) / 1e6
    return {
        "encoding_MB_per_s": round(megabytes / ours.seconds, 2),
        "bare_sentencepiece_MB_per_s": round(megabytes * share / bare.seconds, 2),
        "of_bare_sentencepiece": round(bare.seconds / share / ours.seconds, 3),
        "of_bare_by_core_seconds": round(bare.core_seconds / share / ours.core_seconds, 3),
    }


def data_text(data: PreparedData) -> Iterator[tuple[str, str]]:
    for path in sorted(data.folder.glob("train-*.tsv")):
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            source, _, target = line.partition("\t")
            yield source, target


def against_usual(folder: Path, data: PreparedData, ours: Spent) -> dict[str, object]:
    start = Spent.until_now()
    kept = moses_like(folder)
    for side in ("en", "de"):
        pieces_of(folder / f"clean.{side}", data)
        binarised(folder / f"clean.{side}.pieces", data)
    usual, read = Spent.until_now().since(start), data.manifest["train"]["read_pairs"]
    share = min(PEER_PAIRS, read) / read
    return {
        "usual_tools_kept_pairs": kept,
        "usual_tools_pairs_per_s": round(share * read / usual.seconds),
        "pairs_per_s_without_learning": round(read / ours.seconds),
        "times_usual_tools": round(usual.seconds / share / ours.seconds, 2),
        "times_usual_by_core_seconds": round(usual.core_seconds / share / ours.core_seconds, 2),
    }


def moses_like(folder: Path, longest: int = 100, ratio: float = 9.0) -> int:
    kept = 0
    with (
        (folder / "train.en").open(encoding="utf-8") as sources,
        (folder / "train.de").open(encoding="utf-8") as targets,
        (folder / "clean.en").open("w", encoding="utf-8") as source_file,
        (folder / "clean.de").open("w", encoding="utf-8") as target_file,
    ):
        for source, target in islice(zip(sources, targets, strict=True), PEER_PAIRS):
            source_words, target_words = source.split(), target.split()
            lengths = len(source_words), len(target_words)
            if not all(1 <= length <= longest for length in lengths) or max(lengths) > ratio * min(lengths):
                continue
            source_file.write(" ".join(source_words) + "\n")
            target_file.write(" ".join(target_words) + "\n")
            kept += 1
    return kept


def pieces_of(path: Path, data: PreparedData) -> None:
    with (
        path.open(encoding="utf-8") as lines,
        path.with_suffix(f"{path.suffix}.pieces").open("w", encoding="utf-8") as out,
    ):
        for line in lines:
            out.write(" ".join(data.vocabulary.processor.encode(line.strip(), out_type=str)) + "\n")


def binarised(path: Path, data: PreparedData) -> None:
    """fairseq's Dictionary.encode_line and IndexedDatasetBuilder: a list of numbers, an array, its bytes."""
    processor = data.vocabulary.processor
    numbers = {processor.id_to_piece(index): index for index in range(len(data.vocabulary))}
    sizes = []
    with path.open(encoding="utf-8") as lines, path.with_suffix(".bin").open("wb") as out:
        for line in lines:
            ids = [numbers.get(piece, 3) for piece in line.split()]
            ids.append(1)
            out.write(np.array(ids, dtype=np.uint16).tobytes())
            sizes.append(len(ids))
    np.save(path.with_suffix(".idx.npy"), np.array(sizes))


if __name__ == "__main__":
    main()
