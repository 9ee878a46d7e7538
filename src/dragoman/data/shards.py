"""Shards: a corpus cut into pieces that one process handles at a time.

<folder>/
  train-00000.tsv           text, source TAB target, one pair a line: readable with `head`
  work/cleaned/             text after cleaning, before duplicates are known: gone when all is whole
    train-00000.tsv         train-00000.keys.npy    its line number in the corpus and what makes a pair the same as another
    train-00000.json        counts, drops by reason, samples; written last, so what has one is whole
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dragoman import runs
from dragoman.config.schema import Config
from dragoman.data import clean
from dragoman.data.corpus import Pair, RawPair

Item = TypeVar("Item")
Keys = npt.NDArray[np.uint64]
Reasons = npt.NDArray[np.uint8]

CLEANED = "work/cleaned"
SAMPLES = 5  # of every reason, a shard and a corpus
SAMPLE_CHARACTERS = 300
KEYS_AT_ONCE = 1 << 21  # keys that are sorted together
CLEANERS: dict[tuple[Path, str], clean.Cleaner] = {}
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

    def drop(self, reason: str, line: int, pair: Pair) -> None:
        self.dropped[reason] += 1
        if self.dropped[reason] <= SAMPLES:
            source, target = (text[:SAMPLE_CHARACTERS] for text in pair)
            self.samples.append(
                {"reason": reason, "corpus": self.corpus, "line": line, "source": source, "target": target}
            )


def finished(path: Path) -> Shard | None:
    """The shard that was written there before, or None."""
    if not path.is_file():
        return None
    shard = Shard(**runs.read_json(path))
    shard.dropped, shard.repaired = Counter(shard.dropped), Counter(shard.repaired)
    return shard


def shard_name(part: str, number: int) -> str:
    return f"{part}-{number:05d}"


def read_shards(folder: Path, part: str) -> Iterator[Pair]:
    for path in sorted(folder.glob(f"{part}-[0-9][0-9][0-9][0-9][0-9].tsv")):
        yield from read_text(path)


def read_text(path: Path) -> Iterator[Pair]:
    with path.open(encoding="utf-8", newline="\n") as shard:
        for line in shard:
            source, _, target = line.rstrip("\n").partition("\t")
            yield source, target


# --- cleaning ----------------------------------------------------------------------------------------------


def chunks(stream: Iterable[Item], size: int) -> Iterator[list[Item]]:
    items = iter(stream)
    return iter(lambda: list(islice(items, size)), [])


def clean_chunk(
    folder: Path, name: str, corpus: str, first_line: int, raw: list[RawPair], config: Config, key: str
) -> Shard:
    """Clean one chunk of a training corpus into a shard."""
    cleaner = cleaner_of(folder, config, key)
    cleaner.repaired.clear()
    shard = Shard(name, corpus, read_pairs=len(raw))
    pairs, lines = [], []
    for line, raw_pair in enumerate(raw, first_line):
        pair, reason = cleaner(raw_pair)
        if reason:
            shard.drop(reason, line, pair)
        else:
            pairs.append(pair)
            lines.append(line)
    shard.repaired = cleaner.repaired.copy()
    return write_cleaned(folder, shard, pairs, keys_of(pairs, lines, near=config.clean.near_duplicates))


def cleaner_of(folder: Path, config: Config, key: str) -> clean.Cleaner:
    """Built once a process. The key stands for the configuration and for the text of the validation and test sets."""
    if (folder, key) not in CLEANERS:
        CLEANERS.clear()
        CLEANERS[folder, key] = new_cleaner(folder, config)
    return CLEANERS[folder, key]


def new_cleaner(folder: Path, config: Config) -> clean.Cleaner:
    if not is_cleaned(config):
        return clean.Cleaner({}, [])
    held_out = (pair for part in ("valid", "test") for pair in read_shards(folder / CLEANED, part))
    languages = config.data.source_lang, config.data.target_lang
    return clean.Cleaner(clean.repairs_of(config.clean), clean.filters_of(config.clean, languages, held_out))


def is_cleaned(config: Config) -> bool:
    """Generated text, and text that somebody has cut into pieces already, is taken as it is."""
    return config.data.corpus == "files" and not config.data.tokenized


def write_cleaned(folder: Path, shard: Shard, pairs: list[Pair], keys: Keys | None = None) -> Shard:
    shard.pairs = len(pairs)
    with runs.whole(folder / CLEANED / f"{shard.name}.tsv") as stream:
        stream.writelines(f"{source}\t{target}\n".encode() for source, target in pairs)
    if keys is not None:
        with runs.whole(folder / CLEANED / f"{shard.name}.keys.npy") as stream:
            np.save(stream, keys)
    runs.write_json(folder / CLEANED / f"{shard.name}.json", vars(shard))
    return shard


# --- duplicates --------------------------------------------------------------------------------------------


def keys_of(pairs: list[Pair], lines: list[int], *, near: bool) -> Keys:
    """One row a pair: its line, a hash of the pair and, where wanted, a hash of its letters alone."""
    columns = [np.asarray(lines, dtype=np.uint64), hashes(f"{source}\t{target}" for source, target in pairs)]
    if near:
        columns.append(hashes(f"{clean.letters(source)}\t{clean.letters(target)}" for source, target in pairs))
    return np.stack(columns)


def hashes(texts: Iterable[str]) -> Keys:
    blake = hashlib.blake2b
    return np.frombuffer(b"".join(blake(text.encode(), digest_size=8).digest() for text in texts), dtype="<u8")


def duplicates(folder: Path, shards: list[Shard], config: Config) -> list[Reasons]:
    """For every shard, which of its pairs occurred before in the corpus: numbers of DUPLICATES, 0 for the first one."""
    paths = [folder / CLEANED / f"{shard.name}.keys.npy" for shard in shards]
    starts = np.cumsum([0] + [shard.pairs for shard in shards])
    reasons = np.zeros(starts[-1], dtype=np.uint8)
    if is_cleaned(config):
        if config.clean.near_duplicates:
            reasons[seen_before(lambda: (np.load(path)[2] for path in paths), len(reasons))] = 2
        if config.clean.duplicates:
            reasons[seen_before(lambda: (np.load(path)[1] for path in paths), len(reasons))] = 1
    return np.split(reasons, starts[1:-1])


def seen_before(read: Callable[[], Iterator[Keys]], total: int) -> npt.NDArray[np.bool_]:
    """Which of all keys occur earlier. They are compared in slices of their range, so that memory is bounded."""
    again = np.zeros(total, dtype=np.bool_)
    slices = total // KEYS_AT_ONCE + 1
    for number in range(slices):
        places, keys, start = [], [], 0
        for part in read():
            inside = np.flatnonzero(part % np.uint64(slices) == number)
            places.append(inside + start)
            keys.append(part[inside])
            start += len(part)
        place, key = np.concatenate(places), np.concatenate(keys)
        order = np.argsort(key, kind="stable")  # equal keys stay in the order of the corpus
        same = key[order][1:] == key[order][:-1]
        again[place[order][1:][same]] = True
    return again
