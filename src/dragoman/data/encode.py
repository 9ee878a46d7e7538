"""Text to ids on disk, and the prepared folder that everything after reads.

data/<name>/
  train-00000.tsv ...     cleaned text                  vocabulary.model        SentencePiece
  train.source.ids        all ids end to end            train.source.ends.npy   where each sentence ends
  samples.jsonl           a few of the dropped pairs    manifest.json           counts, drops, digests, settings; last
  cleaned-<key>/          text after cleaning, for the next time that other settings change
  encoded/                ids shard by shard, gone when all is whole
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from dragoman import runs
from dragoman.config.schema import Config
from dragoman.data.clean import Block
from dragoman.data.corpus import SIDES, Pair, Text
from dragoman.data.shards import DUPLICATES, Reasons, Shard, column, read_cleaned, read_shards
from dragoman.data.subwords import UNK, VOCABULARY_FILE, Cutter, Vocabulary, cutter_for
from dragoman.errors import AWAY, DataError

Ints = npt.NDArray[np.int64]

MANIFEST_FORMAT = 1
SAMPLES_FILE = "samples.jsonl"


@dataclass
class Side:
    """One side of an encoded part: sentence i is ids[ends[i-1] : ends[i]], its last id the end-of-sentence mark."""

    ids: npt.NDArray[np.generic]
    ends: Ints

    @classmethod
    def cut(cls, text: Text, cutter: Cutter, threads: int, *place: object) -> Side:
        ids, lengths = cutter.encode(text, threads, *place)
        return cls(ids.astype(id_type(len(cutter.vocabulary))), np.cumsum(lengths))

    @property
    def lengths(self) -> Ints:
        return np.diff(self.ends, prepend=0)

    def only(self, keep: npt.NDArray[np.bool_]) -> Side:
        return self if keep.all() else Side(self.ids[np.repeat(keep, self.lengths)], np.cumsum(self.lengths[keep]))

    def sentence(self, index: int) -> Ints:
        start = self.ends[index - 1] if index else 0
        return np.asarray(self.ids[start : self.ends[index]], dtype=np.int64)


class Lengths:
    """Lengths of sentences, computed for those that are asked for: to make a list of all would take as long as the corpus is."""

    def __init__(self, ends: Ints):
        self.ends = ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, which: Ints | slice) -> Ints:
        if isinstance(which, slice):
            start, stop, _ = which.indices(len(self))
            return np.diff(self.ends[start:stop], prepend=self.ends[start - 1] if start else 0)
        return np.asarray(self.ends[which] - np.where(which > 0, self.ends[which - 1], 0))

    def sum(self) -> int:
        return int(self.ends[-1])


@dataclass
class Encoded:
    """One encoded part (train, valid or test)."""

    source: Side
    target: Side

    def __len__(self) -> int:
        return len(self.source.ends)


# --- writing -----------------------------------------------------------------------------------------------


def encode_shard(
    stage: Path, name: str, part: str, cleaned: Path, reasons: Reasons, config: Config, threads: int
) -> Shard:
    """Turn one cleaned shard into ids, without duplicates and without training pairs of more than data.max_tokens subwords.
    Its text is written again, so that text and ids agree; where there are variants, those of a pair follow each other."""
    max_tokens = config.data.max_tokens if part == "train" else None
    before = Shard(**runs.read_json(cleaned / f"{name}.json"))
    shard = Shard(name, before.corpus, read_pairs=before.pairs)
    block = read_cleaned(cleaned / f"{name}.arrow")
    path = stage.parent / VOCABULARY_FILE
    vocabulary = vocabulary_of(path, *(runs.digest(file) for file in sorted(stage.parent.glob("*.model"))))
    cutters = [cutter_for(part, config, each) for each in (vocabulary.source, vocabulary)]
    fresh = block.only(reasons == 0)
    variants = [
        [Side.cut(fresh.sides[side], cutters[side], threads, name, variant, side) for side in (0, 1)]
        for variant in range(cutters[0].variants)
    ]
    longest = np.max([side.lengths for sides in variants for side in sides], axis=0)
    fits = longest - 1 <= (max_tokens or np.inf)
    reasons = reasons.copy()
    reasons[np.flatnonzero(reasons == 0)[~fits]] = len(DUPLICATES)
    if reasons.any():
        numbers = column(cleaned / f"{name}.arrow", "line")
        names = [*DUPLICATES, f"over {max_tokens} subwords"]
        for place in np.flatnonzero(reasons).tolist():
            shard.drop(names[reasons[place]], numbers[place].as_py(), block.pair(place))
    kept = [together([sides[side].only(fits) for sides in variants]) for side in (0, 1)]
    write_shard(stage, shard, fresh.only(fits), kept)
    return shard


@lru_cache(maxsize=1)
def vocabulary_of(path: Path, *digests: str) -> Vocabulary:
    """Loaded once a process; digests tell one vocabulary from another at the same place."""
    return Vocabulary(path)


def together(variants: list[Side]) -> Side:
    """The variants of the first sentence, then those of the second, and so on."""
    if len(variants) == 1:
        return variants[0]
    lengths = np.stack([side.lengths for side in variants])
    sentence_of = np.concatenate([np.repeat(np.arange(len(of_one)), of_one) for of_one in lengths])  # of every id
    order = np.argsort(sentence_of, kind="stable")
    return Side(np.concatenate([side.ids for side in variants])[order], np.cumsum(lengths.T))


def write_shard(stage: Path, shard: Shard, block: Block, sides: list[Side]) -> None:
    """Bytes are UTF-8 with line ends, tokens include end marks."""
    shard.pairs = len(block)
    shard.sizes = {"rows": len(sides[0].ends), "unknown_tokens": 0, "longest": 0}
    for name, text, side in zip(SIDES, block.sides, sides, strict=True):
        shard.sizes[f"{name}_bytes"] = (pc.sum(pc.binary_length(text)).as_py() or 0) + len(text)
        shard.sizes[f"{name}_tokens"] = len(side.ids)
        shard.sizes["unknown_tokens"] += int((side.ids == UNK).sum())
        shard.sizes["longest"] = max(shard.sizes["longest"], int(side.lengths.max(initial=0)))
        for kind in ("ids", "ends"):
            with runs.whole(stage / f"{shard.name}.{name}.{kind}") as stream:
                stream.write(getattr(side, kind).data)
    with runs.whole(stage.parent / f"{shard.name}.tsv") as stream:
        stream.writelines(line + b"\n" for line in block.lines())
    runs.write_json(stage / f"{shard.name}.json", vars(shard))


def join(folder: Path, stage: Path, part: str, shards: list[Shard]) -> None:
    """The ids of all shards, end to end, and where each sentence ends."""
    for name in SIDES:
        joined = folder / f"{part}.{name}.ids", folder / f"{part}.{name}.ends.npy"
        with runs.whole(joined[0]) as ids, runs.whole(joined[1]) as ends:
            shape = (sum(shard.sizes["rows"] for shard in shards),)
            np.lib.format.write_array_header_1_0(ends, {"descr": "<i8", "fortran_order": False, "shape": shape})
            start = 0
            for shard in shards:
                place = stage / f"{shard.name}.{name}.ids"
                with place.open("rb") as stream:
                    shutil.copyfileobj(stream, ids, 1 << 20)
                ends.write((np.fromfile(place.with_suffix(".ends"), "<i8") + start).data)
                start += shard.sizes[f"{name}_tokens"]


def id_files(part: str) -> list[str]:
    return [f"{part}.{side}.{kind}" for side in SIDES for kind in ("ids", "ends.npy")]


# --- reading -----------------------------------------------------------------------------------------------


def id_type(vocabulary_size: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if vocabulary_size <= 2**16 else np.uint32


class PreparedData:
    """A prepared folder, opened for reading."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        if not (self.folder / runs.MANIFEST).is_file():
            raise DataError(f"{folder}: no prepared data there. Run `dragoman prepare` with the same run file first")
        self.manifest: dict[str, Any] = runs.read_json(self.folder / runs.MANIFEST)
        if self.manifest.get("format") != MANIFEST_FORMAT:
            raise DataError(
                f"{folder}: prepared data of format {self.manifest.get('format')}; this version reads {MANIFEST_FORMAT}. Prepare it again"
            )
        self.vocabulary = Vocabulary(self.folder / VOCABULARY_FILE)

    def damage(self, part: str) -> str | None:
        """Which file of a part is not as it was written. Reads all of it; ids are what training learns from, and no format
        notices a flipped bit."""
        known = self.manifest[part].get("files") or dict.fromkeys(id_files(part))
        try:
            found = {name: runs.digest(self.folder / name) for name in known}
        except OSError as error:
            if error.errno in AWAY:
                raise
            return f"cannot be read ({error})"
        wrong = [name for name, expected in known.items() if expected and found[name] != expected]
        if not wrong and runs.digest_of([found[name] for name in id_files(part)]) != self.manifest[part]["digest"]:
            wrong = [f"the {part} set"]  # prepared by a version that kept one digest for all
        return f"{wrong[0]} is not as it was written (checksum)" if wrong else None

    def check(self, *parts: str) -> None:
        """Raise an error that names the damaged file, when there is one."""
        sound = self.vocabulary.digest() == self.manifest["vocabulary"]["digest"]
        problem = None if sound else f"{VOCABULARY_FILE} is not as it was written (checksum)"
        for part in parts:
            problem = problem or self.damage(part)
        if problem:
            raise DataError(
                f"{self.folder}: {problem}; copy it anew from where it is sound, or prepare again with --force"
            )

    def encoded(self, part: str) -> Encoded:
        sides = []
        for name, vocabulary in zip(SIDES, (self.vocabulary.source, self.vocabulary), strict=True):
            path, dtype = self.folder / f"{part}.{name}.ids", id_type(len(vocabulary))
            try:
                ends = np.load(path.with_suffix(".ends.npy"), mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in AWAY:
                    raise
                raise DataError(
                    f"{self.folder}: the index of {path.name} is damaged ({error}); prepare again with --force"
                ) from None
            if not len(ends) or path.stat().st_size != ends[-1] * np.dtype(dtype).itemsize:
                raise DataError(f"{path}: not as long as its index says; prepare the data again with --force")
            sides.append(Side(np.memmap(path, dtype=dtype, mode="r"), ends))
        return Encoded(*sides)

    def has(self, part: str) -> bool:
        return part in self.manifest

    def text(self, part: str) -> list[Pair]:
        if not self.has(part):
            raise DataError(
                f"{self.folder}: was prepared without a {part} set; name two files with --source and --reference, or a set with --set"
            )
        pairs = list(read_shards(self.folder, part))
        if not self.manifest.get("tokenized"):
            return pairs
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        return list(zip(self.vocabulary.source.join(sources), self.vocabulary.join(targets), strict=True))
