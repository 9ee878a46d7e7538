"""Shards: a corpus cut into pieces that one process handles at a time, and duplicates among them.

<folder>/
  train-00000.tsv         text, source TAB target, one pair a line: readable with `head`
  cleaned-<key>/          text after cleaning, before duplicates are known; the key stands for all that it depends on
    train-00000.arrow     source, target, line number in the corpus, and hashes of what makes a pair the same as another
    train-00000.json      counts, drops by reason, samples, digest; written last, so what has one is whole
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import feather

from dragoman import runs
from dragoman.config.schema import Config
from dragoman.data import clean
from dragoman.data.clean import Block
from dragoman.data.corpus import SIDES, Pair, RawPair
from dragoman.errors import RunError

AnyPair = TypeVar("AnyPair", Pair, RawPair)
Keys = npt.NDArray[np.uint64]
Reasons = npt.NDArray[np.uint8]

SAMPLES = 5  # of every reason, a shard and a corpus
SAMPLE_CHARACTERS = 300
CHUNK_BYTES = 1 << 26  # of text that one process handles at a time, about
KEYS_AT_ONCE = 1 << 21  # keys that are sorted together
CLEANERS: dict[Path, clean.Cleaner] = {}
LISTED = "train.json"  # names of all shards of the corpus, once all have been cleaned
DUPLICATES = ("", "duplicate", "near duplicate")  # by number in an array of reasons


@dataclass
class Shard:
    """What happened to one shard in one stage."""

    name: str
    corpus: str = ""
    read_pairs: int = 0
    pairs: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    samples: list[runs.Row] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    digest: str = ""  # of its .arrow

    def __post_init__(self) -> None:
        self.dropped, self.repaired = Counter(self.dropped), Counter(self.repaired)

    def drop(self, reason: str, line: int, pair: Pair) -> None:
        self.dropped[reason] += 1
        if self.dropped[reason] <= SAMPLES:
            texts = {side: text[:SAMPLE_CHARACTERS] for side, text in zip(SIDES, pair, strict=True)}
            self.samples.append({"reason": reason, "corpus": self.corpus, "line": line, **texts})

    @classmethod
    def finished(cls, stage: Path, name: str) -> Shard | None:
        """The shard that was written there before, or None."""
        path = stage / f"{name}.json"
        return cls(**runs.read_json(path)) if path.is_file() else None


def chunks(pairs: Iterable[AnyPair], size: int) -> Iterator[list[AnyPair]]:
    """So many pairs, or fewer where they are so long that they would take too much memory."""
    chunk: list[AnyPair] = []
    held = 0
    for pair in pairs:
        chunk.append(pair)
        held += len(pair[0]) + len(pair[1])
        if len(chunk) == size or held >= CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def read_shards(folder: Path, part: str) -> Iterator[Pair]:
    """The text of a prepared folder."""
    for path in sorted(folder.glob(f"{part}-[0-9][0-9][0-9][0-9][0-9].tsv")):
        with path.open(encoding="utf-8", newline="\n") as shard:
            for line in shard:
                source, _, target = line.rstrip("\n").partition("\t")
                yield source, target


# --- cleaned ones ------------------------------------------------------------------------------------------


def check_set(stage: Path, name: str, corpus: str, raw: Iterable[RawPair]) -> Shard:
    """A validation or test set as one shard: taken whole, or refused."""
    block = clean.checked(raw, corpus)
    shard = Shard(name, corpus, read_pairs=len(block))
    return write_cleaned(stage, shard, block, np.arange(1, len(block) + 1))


def clean_chunk(stage: Path, name: str, corpus: str, first_line: int, raw: list[RawPair], config: Config) -> Shard:
    """Clean one chunk of a training corpus into a shard."""
    block, reasons, repaired = cleaner_of(stage, config)(raw)
    shard = Shard(name, corpus, read_pairs=len(raw), repaired=repaired)
    keep = np.ones(len(raw), np.bool_)
    for place, reason in sorted(reasons.items()):
        shard.drop(reason, first_line + place, block.pair(place))
        keep[place] = False
    lines = np.flatnonzero(keep) + first_line
    return write_cleaned(stage, shard, block.only(keep), lines, near=config.clean.near_duplicates)


def cleaner_of(stage: Path, config: Config) -> clean.Cleaner:
    """Built once a process. The name of the stage stands for the settings and for the text of the validation and test sets."""
    if stage not in CLEANERS:
        CLEANERS.clear()
        CLEANERS[stage] = new_cleaner(stage, config)
    return CLEANERS[stage]


def new_cleaner(stage: Path, config: Config) -> clean.Cleaner:
    if not is_cleaned(config):
        return clean.Cleaner({}, dict([clean.EMPTY, clean.LONG]))
    blocks = (read_cleaned(path) for part in ("valid", "test") for path in sorted(stage.glob(f"{part}-*.arrow")))
    held_out = (pair for block in blocks for pair in block.pairs())
    return clean.cleaner_for(config.clean, (config.data.source_lang, config.data.target_lang), held_out)


def is_cleaned(config: Config) -> bool:
    """Generated text, and text that somebody has cut into pieces already, is taken as it is, but for
    what is no sentence at all."""
    return config.data.corpus == "files" and not config.data.tokenized


def write_cleaned(stage: Path, shard: Shard, block: Block, lines: Any, *, near: bool = False) -> Shard:
    shard.pairs = len(block)
    columns = {"source": block.sides[0], "target": block.sides[1], "line": lines, "key": hashes(block)}
    if near:
        columns["near"] = hashes(Block(*map(clean.letters, block.sides)))
    with runs.whole(stage / f"{shard.name}.arrow") as stream:
        feather.write_feather(pa.table(columns), stream, compression="lz4")
    shard.digest = runs.digest(stage / f"{shard.name}.arrow")
    runs.write_json(stage / f"{shard.name}.json", vars(shard))
    return shard


def forget_damaged(stage: Path) -> None:
    """A shard that is not as it was written is cleaned again: what is made of it would be declared sound."""
    for path in stage.glob("*-[0-9]*.json"):
        if not is_sound(path):
            (stage.parent / "encoded" / path.name).unlink(missing_ok=True)
            path.unlink()


def is_sound(path: Path) -> bool:
    try:
        return Shard(**runs.read_json(path)).digest == runs.digest(path.with_suffix(".arrow"))
    except (RunError, TypeError, ValueError, FileNotFoundError):
        return False


def read_cleaned(path: Path) -> Block:
    return Block(*(column(path, side) for side in SIDES))


def column(path: Path, name: str) -> Any:
    return feather.read_table(path, columns=[name], use_threads=False, memory_map=False)[name].combine_chunks()


# --- duplicates --------------------------------------------------------------------------------------------


def hashes(block: Block) -> Keys:
    blake = hashlib.blake2b
    return np.frombuffer(b"".join([blake(line, digest_size=8).digest() for line in block.lines()]), dtype="<u8")


def duplicates(stage: Path, shards: list[Shard], config: Config) -> list[Reasons]:
    """For every shard, which of its pairs occurred before in the corpus: numbers of DUPLICATES, 0 for the first one."""
    paths = [stage / f"{shard.name}.arrow" for shard in shards]
    starts = np.cumsum([0] + [shard.pairs for shard in shards])
    reasons = np.zeros(starts[-1], dtype=np.uint8)
    if is_cleaned(config) and config.clean.near_duplicates:
        reasons[seen_before(paths, "near", len(reasons))] = 2
    if is_cleaned(config) and config.clean.duplicates:
        reasons[seen_before(paths, "key", len(reasons))] = 1
    return np.split(reasons, starts[1:-1])


def seen_before(paths: list[Path], key_name: str, total: int) -> clean.Bools:
    """Which of all keys occur earlier. They are compared in slices of their range, so that memory is bounded."""
    again = np.ones(total, dtype=np.bool_)
    slices = total // KEYS_AT_ONCE + 1
    for number in range(slices):
        places, keys, start = [], [], 0
        for part in (column(path, key_name).to_numpy() for path in paths):
            inside = np.flatnonzero(part % np.uint64(slices) == number)
            places.append(inside + start)
            keys.append(part[inside])
            start += len(part)
        _, first = np.unique(np.concatenate(keys), return_index=True)  # of equal keys, the first in the corpus
        again[np.concatenate(places)[first]] = False
    return again
