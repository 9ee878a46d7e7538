"""Text to ids on disk, and the prepared folder that everything after reads.

data/<name>/
  train-00000.tsv ...     cleaned text                  vocabulary.model        SentencePiece
  train.source.ids        all ids end to end            train.source.ends.npy   where each sentence ends
  manifest.json           counts, drops by reason, digests, settings; written last
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.data.corpus import Pair
from dragoman.data.shards import read_shards
from dragoman.data.subwords import UNK, VOCABULARY_FILE, Cutter, Vocabulary
from dragoman.errors import DataError
from dragoman.runs import MANIFEST, read_json

Ints = npt.NDArray[np.int64]

SIDES = ("source", "target")
CHUNK_PAIRS = 20_000
MANIFEST_FORMAT = 1


@dataclass
class Side:
    """One side of an encoded part: sentence i is ids[ends[i-1] : ends[i]], its last id the end-of-sentence mark."""

    ids: npt.NDArray[np.generic]
    ends: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.ends, prepend=0)

    def sentence(self, index: int) -> Ints:
        start = self.ends[index - 1] if index else 0
        return np.asarray(self.ids[start : self.ends[index]], dtype=np.int64)


@dataclass
class Encoded:
    """One encoded part (train, valid or test)."""

    source: Side
    target: Side

    def __len__(self) -> int:
        return len(self.source.ends)


@dataclass
class Size:
    """What was written of one part, and what was dropped. Bytes are UTF-8 with line ends, tokens include end marks."""

    pairs: int
    source_bytes: int
    target_bytes: int
    source_tokens: int
    target_tokens: int
    longest: int
    unknown_tokens: int
    dropped: Counter[str]


def write_encoded(folder: Path, part: str, pairs: Iterator[Pair], cutter: Cutter, max_tokens: int | None) -> Size:
    """Write the ids of all pairs, each in all its variants; those with more than `max_tokens` subwords on a side are dropped
    and counted."""
    dtype = id_type(len(cutter.vocabulary))
    lengths: tuple[list[int], list[int]] = ([], [])
    text_bytes = [0, 0]
    unknown = 0
    dropped: Counter[str] = Counter()
    with (
        (folder / f"{part}.source.ids").open("wb") as source_file,
        (folder / f"{part}.target.ids").open("wb") as target_file,
    ):
        for pair, ids in encoded_pairs(pairs, cutter):
            if max_tokens is not None and max(map(len, ids)) - 1 > max_tokens:
                dropped[f"over {max_tokens:,} subwords"] += 1
                continue
            for side, file in enumerate((source_file, target_file)):
                file.write(np.asarray(ids[side], dtype=dtype).tobytes())
                lengths[side].append(len(ids[side]))
                text_bytes[side] += len(pair[side].encode()) + 1
                unknown += ids[side].count(UNK)
    for side, name in enumerate(SIDES):
        np.save(folder / f"{part}.{name}.ends.npy", np.cumsum(lengths[side], dtype=np.int64))
    longest = max(map(max, lengths), default=0) if lengths[0] else 0
    return Size(
        len(lengths[0]), text_bytes[0], text_bytes[1], sum(lengths[0]), sum(lengths[1]), longest, unknown, dropped
    )


def encoded_pairs(pairs: Iterator[Pair], cutter: Cutter) -> Iterator[tuple[Pair, tuple[list[int], list[int]]]]:
    """Every pair with its ids. Variants of a pair follow each other, so that a corpus stays in one stretch."""
    for number, chunk in enumerate(iter(lambda: list(islice(pairs, CHUNK_PAIRS)), [])):
        texts = [[pair[side] for pair in chunk] for side in (0, 1)]
        variants = [
            zip(*(cutter.encode(texts[side], variant, number, side) for side in (0, 1)), strict=True)
            for variant in range(cutter.variants)
        ]
        for pair, *cuts in zip(chunk, *variants, strict=True):
            yield from ((pair, ids) for ids in cuts)


def id_type(vocabulary_size: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if vocabulary_size <= 2**16 else np.uint32


def read_encoded(folder: Path, part: str, vocabulary_size: int) -> Encoded:
    dtype = id_type(vocabulary_size)
    sides = []
    for name in SIDES:
        path = folder / f"{part}.{name}.ids"
        try:
            ends = np.load(folder / f"{part}.{name}.ends.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder}: the index of {path.name} is damaged ({error}); prepare again with --force"
            ) from None
        if not len(ends) or path.stat().st_size != ends[-1] * np.dtype(dtype).itemsize:
            raise DataError(f"{path}: not as long as its index says; prepare the data again with --force")
        sides.append(Side(np.memmap(path, dtype=dtype, mode="r"), ends))
    return Encoded(*sides)


class PreparedData:
    """A prepared folder, opened for reading."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).is_file():
            raise DataError(f"{folder}: no prepared data there. Run `dragoman prepare` with the same run file first")
        self.manifest: dict[str, Any] = read_json(self.folder / MANIFEST)
        if self.manifest.get("format") != MANIFEST_FORMAT:
            raise DataError(
                f"{folder}: prepared data of format {self.manifest.get('format')}; this version reads {MANIFEST_FORMAT}. Prepare it again"
            )
        self.vocabulary = Vocabulary(self.folder / VOCABULARY_FILE)

    def encoded(self, part: str) -> Encoded:
        return read_encoded(self.folder, part, len(self.vocabulary))

    def has(self, part: str) -> bool:
        return part in self.manifest

    def text(self, part: str) -> list[Pair]:
        if not self.has(part):
            raise DataError(
                f"{self.folder}: holds no {part} set; name one with data.{part}_source and data.{part}_target and prepare again"
            )
        pairs = list(read_shards(self.folder, part))
        if not self.manifest.get("tokenized"):
            return pairs
        return list(zip(*(self.vocabulary.join([pair[side] for pair in pairs]) for side in (0, 1)), strict=True))
