"""How fast does raw text become ids, with how much memory, beside bare SentencePiece and beside the usual tools?

    python bench/prepare.py [SOURCE TARGET] [--pairs 500000] [--workers 2] [--kind bpe] [--keep FOLDER]

SOURCE and TARGET are aligned text files (plain, gz, xz), repeated with a number put to each sentence until there are enough
pairs; without them the embedded grammar writes the text. The peers are
- bare SentencePiece: the same text, already in memory, `encode(lines, num_threads=workers)` and nothing else;
- the usual tools, on the first --peer-pairs of the text and with the same vocabulary, file by file as their users call them:
  1. cleaning in Python: sacremoses' punctuation normaliser, the rules of Moses' clean-corpus-n, copies of earlier pairs dropped
     (no tokeniser: with SentencePiece it is not needed);
  2. SentencePiece to a file of pieces, as spm_encode writes it (in batches, on one thread);
  3. binarisation as fairseq-preprocess does it: a dictionary counted over the pieces, then every line token by token through it
     into a tensor, and the tensor to disk.
  One process, as they come; `times_usual_by_core_seconds` compares as if they used all cores without loss.
Subwords are learnt once, by neither peer. Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch
from sacremoses import MosesPunctNormalizer

from dragoman.config import load_config
from dragoman.cores import usable_cores
from dragoman.data.corpus import raw_pairs
from dragoman.data.encode import PreparedData
from dragoman.data.grammar import grammar_pairs
from dragoman.data.prepare import prepare

MIB = 2**20
SIDES = (("source", "en"), ("target", "de"))
BARE_PAIRS = 200_000


def main() -> None:
    options = parse()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="bench-prepare-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        text_bytes = write_text(folder, options)
        with peak_memory() as peaks:
            stages, data = timed_prepare(folder, options)
        figures = measured(stages, data, text_bytes, peaks, options)
        figures |= against_bare(data, stages["encoding train"], options.workers)
        figures |= against_usual(folder, data, without_learning(stages), options.peer_pairs)
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
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--kind", default="bpe", help="of subwords: bpe, unigram, word or char")
    parser.add_argument("--sample", type=int, default=2_000_000, help="pairs to learn subwords from")
    parser.add_argument("--peer-pairs", type=int, default=50_000, help="pairs that the usual tools are given")
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


@contextmanager
def peak_memory() -> Iterator[dict[int, int]]:
    """The most resident memory that this process and each of its children ever had, looked at ten times a second."""
    peaks: dict[int, int] = {}  # by the number of the process, this one first
    leave = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not leave.wait(0.1):
            for process in [me, *me.children(recursive=True)]:
                with suppress(psutil.Error):
                    peaks[process.pid] = max(peaks.get(process.pid, 0), process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        leave.set()
        thread.join()


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
            f"subwords.kind={options.kind}",
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
    stages: dict[str, Spent], data: PreparedData, text_bytes: int, peaks: dict[int, int], options: argparse.Namespace
) -> dict[str, object]:
    total, train = sum(stage.seconds for stage in stages.values()), data.manifest["train"]
    main, *workers = peaks.values()
    return {
        "bench": "prepare",
        "workers": options.workers,
        "kind": options.kind,
        "sample_pairs": data.manifest["vocabulary"]["sample_pairs"],
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


def against_usual(folder: Path, data: PreparedData, ours: Spent, pairs: int) -> dict[str, object]:
    marks = [("", Spent.until_now())]
    kept = moses_cleaned(folder, pairs)
    marks.append(("cleaning", Spent.until_now()))
    for side in ("en", "de"):
        pieces_of(folder / f"clean.{side}", data)
    marks.append(("pieces", Spent.until_now()))
    numbers = dictionary_of([folder / f"clean.{side}.pieces" for side in ("en", "de")])
    for side in ("en", "de"):
        binarised(folder / f"clean.{side}.pieces", numbers)
    marks.append(("binarising", Spent.until_now()))
    usual, read = marks[-1][1].since(marks[0][1]), data.manifest["train"]["read_pairs"]
    share = min(pairs, read) / read
    return {
        "usual_tools_kept_pairs": kept,
        **{
            f"usual_{stage}_us_per_pair": round(1e6 * end.since(start).seconds / (share * read), 1)
            for (_, start), (stage, end) in pairwise(marks)
        },
        "usual_tools_pairs_per_s": round(share * read / usual.seconds),
        "pairs_per_s_without_learning": round(read / ours.seconds),
        "times_usual_tools": round(usual.seconds / share / ours.seconds, 2),
        "times_usual_by_core_seconds": round(usual.core_seconds / share / ours.core_seconds, 2),
    }


def moses_cleaned(folder: Path, pairs: int, longest: int = 250, ratio: float = 9.0) -> int:
    normal = [MosesPunctNormalizer(lang).normalize for _, lang in SIDES]
    seen: set[tuple[str, str]] = set()
    with ExitStack() as stack:
        opened = [stack.enter_context((folder / f"train.{lang}").open(encoding="utf-8")) for _, lang in SIDES]
        out = [stack.enter_context((folder / f"clean.{lang}").open("w", encoding="utf-8")) for _, lang in SIDES]
        for raw in islice(zip(*opened, strict=True), pairs):
            words = [normalise(line).split() for normalise, line in zip(normal, raw, strict=True)]
            lengths = [len(side) for side in words]
            if not all(1 <= length <= longest for length in lengths) or max(lengths) > ratio * min(lengths):
                continue
            pair = " ".join(words[0]), " ".join(words[1])
            if pair in seen:
                continue
            seen.add(pair)
            for file, text in zip(out, pair, strict=True):
                file.write(text + "\n")
    return len(seen)


def pieces_of(path: Path, data: PreparedData) -> None:
    with path.open(encoding="utf-8") as lines, path.with_name(f"{path.name}.pieces").open("w", encoding="utf-8") as out:
        while batch := [line.rstrip("\n") for line in islice(lines, 1000)]:
            for pieces in data.vocabulary.processor.encode(batch, out_type=str, num_threads=1):
                out.write(" ".join(pieces) + "\n")


def dictionary_of(paths: list[Path]) -> dict[str, int]:
    """The joined dictionary: the most frequent piece first."""
    counts: Counter[str] = Counter()
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                counts.update(line.split())
    return {piece: number for number, (piece, _) in enumerate(counts.most_common(), 4)}


def binarised(path: Path, numbers: dict[str, int]) -> None:
    sizes = []
    with path.open(encoding="utf-8") as lines, path.with_suffix(".bin").open("wb") as out:
        for line in lines:
            pieces = line.split()
            ids = torch.IntTensor(len(pieces) + 1)
            for place, piece in enumerate(pieces):
                ids[place] = numbers.get(piece, 3)
            ids[len(pieces)] = 2
            out.write(ids.numpy().astype(np.uint16).tobytes())
            sizes.append(len(ids))
    np.save(path.with_suffix(".idx.npy"), np.array(sizes))


if __name__ == "__main__":
    main()
