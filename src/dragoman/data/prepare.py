"""The story of preparing: text -> cleaned shards -> vocabulary -> ids -> manifest, in a folder that appears when whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from dragoman import runs
from dragoman.config.schema import Config, Data
from dragoman.data import clean
from dragoman.data.corpus import Pair, check_inputs, corpora_of, held_out, input_digests, read_pairs
from dragoman.data.encode import MANIFEST_FORMAT, SIDES, PreparedData, Size, write_encoded
from dragoman.data.grammar import grammar_pairs, reversal_pairs
from dragoman.data.shards import read_shards, write_shards
from dragoman.data.subwords import VOCABULARY_FILE, Cutter, Vocabulary, cutter_for, vocabulary_for
from dragoman.errors import DataError

Item = TypeVar("Item")
PARTS = ("train", "valid", "test")
MOST_UNKNOWN = 0.1  # share of pieces that text cut by another model easily exceeds
TICK = 10_000  # pairs between two signs of life


def prepare(
    config: Config, version: str, *, force: bool = False, progress: runs.Progress = runs.silent
) -> PreparedData:
    """Prepare the data of a run file. A folder with the same settings and inputs is used as it is."""
    folder = Path(config.data.folder)
    settings = settings_of(config)
    if (folder / runs.MANIFEST).is_file() and not force:
        existing = PreparedData(folder)
        if existing.manifest["settings_digest"] == runs.digest_of(settings):
            return existing
        raise DataError(
            f"{folder}: holds data prepared with other settings or from other text. "
            "Add --force to replace it, or choose another data.folder"
        )
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; data.folder names a folder to be made")
    if not runs.vacant(folder) and not (folder / runs.MANIFEST).is_file():
        raise DataError(
            f"{folder}: is not empty and holds no prepared data; it is left alone. Choose another data.folder"
        )
    check_inputs(config.data)
    if config.subwords.model:
        Vocabulary(config.subwords.model)
    with runs.new_folder(folder) as fresh:
        manifest = fill(fresh, config, progress)
        manifest |= {"dragoman": version, "settings": settings, "settings_digest": runs.digest_of(settings)}
        runs.write_json(fresh / runs.MANIFEST, manifest)
    return PreparedData(folder)


def settings_of(config: Config) -> dict[str, Any]:
    """What the prepared data depends on: the sections, the seed and the content of the input files."""
    unused: Any = {"folder": True, "temperature": True, "corpora": {"__all__": {"weight"}}}  # these matter in training
    data, subwords = config.data.model_dump(exclude=unused), config.subwords.model_dump()
    return {"data": data, "subwords": subwords, "seed": config.run.seed, "inputs": input_digests(config)}


def fill(folder: Path, config: Config, progress: runs.Progress) -> dict[str, Any]:
    dropped: Counter[str] = Counter()
    counts = {}
    for part in parts_of(config.data):
        pairs = watched(text_of(part, config, dropped), f"cleaning {part}", progress)
        counts[part] = write_shards(folder, part, pairs, config.data.shard_pairs)
        if not counts[part]:
            where = getattr(config.data, f"{part}_source") or config.data.corpus
            drops = dict(dropped) or "nothing"
            raise DataError(f"{where}: no pair of the {part} set is left after cleaning (dropped: {drops})")
    progress("learning subwords", 0, 0, "")
    try:
        text = read_shards(folder, "train")
        vocabulary = vocabulary_for(text, counts["train"], config.subwords, folder / VOCABULARY_FILE)
    except DataError as error:
        left = f"{counts['train']:,} training pairs were left after cleaning, dropped: {dict(dropped) or 'none'}"
        raise DataError(f"{error} ({left})") from None
    manifest: dict[str, Any] = {
        "format": MANIFEST_FORMAT,
        "corpus": config.data.corpus,
        "source_lang": config.data.source_lang,
        "target_lang": config.data.target_lang,
        "tokenized": config.data.tokenized,
        "vocabulary": {
            "kind": "given" if config.subwords.model else config.subwords.kind,
            "size": len(vocabulary),
            "digest": vocabulary.digest(),
        },
    }
    for part, count in counts.items():
        pairs = watched(read_shards(folder, part), f"encoding {part}", progress, count)
        manifest[part] = encode_part(folder, part, pairs, cutter_for(part, config, vocabulary), config.data, dropped)
    manifest["digest"] = runs.digest_of(
        [manifest[part]["digest"] for part in counts] + [manifest["vocabulary"]["digest"]]
    )
    return manifest


def parts_of(data: Data) -> list[str]:
    return [part for part in PARTS if data.corpus != "files" or part != "test" or data.test_source]


def text_of(part: str, config: Config, dropped: Counter[str]) -> Iterable[Pair]:
    """Clean text of one part. Only training pairs are ever dropped."""
    data = config.data
    if data.corpus != "files":
        generate = grammar_pairs if data.corpus == "grammar" else reversal_pairs
        return generate(getattr(data, f"{part}_pairs"), config.run.seed, part=part)
    if part != "train":
        spec = held_out(data, part)
        return clean.checked(read_pairs(spec), " / ".join(map(str, spec.paths)))
    filters = [clean.empty, clean.control_characters, clean.long_line, clean.length_ratio(data.max_ratio)]
    return clean.cleaned(chain.from_iterable(map(read_pairs, corpora_of(data))), filters, dropped)


def encode_part(
    folder: Path, part: str, pairs: Iterator[Pair], cutter: Cutter, data: Data, dropped: Counter[str]
) -> dict[str, Any]:
    size: Size = write_encoded(folder, part, pairs, cutter, data.max_tokens if part == "train" else None)
    if not size.pairs:
        raise DataError(f"no {part} pair is left: all have over data.max_tokens = {data.max_tokens} subwords")
    unknown = size.unknown_tokens / (size.source_tokens + size.target_tokens)
    if data.tokenized and unknown > MOST_UNKNOWN:
        raise DataError(
            f"{unknown:.0%} of the {part} pieces are not in subwords.model; was the text cut with it? Plain text: data.tokenized = false"
        )
    drops = dict(sorted((dropped + size.dropped).items())) if part == "train" else {}
    too_long = sum(size.dropped.values())  # of all variants; what cleaning dropped has none
    text_pairs = (size.pairs + too_long) // cutter.variants
    files = [f"{part}.{side}.{kind}" for side in SIDES for kind in ("ids", "ends.npy")]
    return {
        **{key: value for key, value in vars(size).items() if key != "dropped"},
        "variants": cutter.variants,
        "text_pairs": text_pairs,
        "read_pairs": text_pairs + sum(drops.values()) - too_long,
        "dropped": drops,
        "digest": runs.digest_of([runs.digest(folder / name) for name in files]),
    }


def watched(items: Iterable[Item], stage: str, progress: runs.Progress, total: int = 0) -> Iterator[Item]:
    """The same items, with a sign of life every few thousand."""
    count = 0
    for item in items:
        yield item
        count += 1
        if count % TICK == 0:
            progress(stage, count, total, "pairs")
    progress(stage, count, count, "pairs")
