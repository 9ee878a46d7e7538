"""Cleaned text on disk: `train-00000.tsv`, one pair a line, source TAB target. Readable with `head`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from dragoman.data.corpus import Pair


def write_shards(folder: Path, part: str, pairs: Iterable[Pair], shard_pairs: int) -> int:
    """Write all pairs; returns how many there were."""
    stream = iter(pairs)
    count = 0
    for number, first in enumerate(stream):
        with shard_path(folder, part, number).open("w", encoding="utf-8", newline="\n") as shard:
            for source, target in chain([first], islice(stream, shard_pairs - 1)):
                shard.write(f"{source}\t{target}\n")
                count += 1
    return count


def read_shards(folder: Path, part: str) -> Iterator[Pair]:
    for path in shard_paths(folder, part):
        with path.open(encoding="utf-8", newline="\n") as shard:
            for line in shard:
                source, _, target = line.rstrip("\n").partition("\t")
                yield source, target


def shard_path(folder: Path, part: str, number: int) -> Path:
    return folder / f"{part}-{number:05d}.tsv"


def shard_paths(folder: Path, part: str) -> list[Path]:
    return sorted(folder.glob(f"{part}-[0-9][0-9][0-9][0-9][0-9].tsv"))
