"""The story of preparing: text -> cleaned shards -> vocabulary -> ids -> manifest, in a folder that appears when whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from dragoman import runs
from dragoman.config.schema import Config, Data
from dragoman.data import clean
from dragoman.data.corpus import Pair, raw_pairs
from dragoman.data.encode import MANIFEST_FORMAT, SIDES, PreparedData, Size, write_encoded
from dragoman.data.grammar import grammar_pairs, reversal_pairs
from dragoman.data.shards import read_shards, write_shards
from dragoman.data.subwords import VOCABULARY_FILE, Vocabulary, learn
from dragoman.errors import DataError

Item = TypeVar("Item")
PARTS = ("train", "valid", "test")
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
    with runs.new_folder(folder) as fresh:
        manifest = fill(fresh, config, progress)
        manifest |= {"dragoman": version, "settings": settings, "settings_digest": runs.digest_of(settings)}
        runs.write_json(fresh / runs.MANIFEST, manifest)
    return PreparedData(folder)


def settings_of(config: Config) -> dict[str, Any]:
    """What the prepared data depends on: the sections, the seed and the content of the input files."""
    data = config.data.model_dump(exclude={"folder"})
    inputs = {name: runs.digest(existing(name, path)) for name, path in file_inputs(config.data).items()}
    return {"data": data, "subwords": config.subwords.model_dump(), "seed": config.run.seed, "inputs": inputs}


def file_inputs(data: Data) -> dict[str, str]:
    if data.corpus != "files":
        return {}
    names = [f"{part}_{side}" for part in PARTS for side in SIDES]
    return {name: getattr(data, name) for name in names if getattr(data, name)}


def existing(name: str, path: str) -> Path:
    if not Path(path).is_file():
        what = "is a folder, not a text file" if Path(path).is_dir() else "no such file"
        raise DataError(f"data.{name} = {path!r}: {what} (paths are relative to where the command runs)")
    return Path(path)


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
        vocabulary = learn(read_shards(folder, "train"), counts["train"], config.subwords, folder / VOCABULARY_FILE)
    except DataError as error:
        left = f"{counts['train']:,} training pairs were left after cleaning, dropped: {dict(dropped) or 'none'}"
        raise DataError(f"{error} ({left})") from None
    manifest: dict[str, Any] = {
        "format": MANIFEST_FORMAT,
        "corpus": config.data.corpus,
        "source_lang": config.data.source_lang,
        "target_lang": config.data.target_lang,
        "vocabulary": {
            "kind": config.subwords.kind,
            "size": len(vocabulary),
            "digest": vocabulary.digest(),
        },
    }
    for part, count in counts.items():
        pairs = watched(read_shards(folder, part), f"encoding {part}", progress, count)
        manifest[part] = encode_part(folder, part, pairs, vocabulary, config.data, dropped)
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
    source, target = (Path(getattr(data, f"{part}_{side}")) for side in SIDES)
    if part != "train":
        return clean.checked(raw_pairs(source, target), f"{source} / {target}")
    filters = [clean.empty, clean.control_characters, clean.long_line, clean.length_ratio(data.max_ratio)]
    return clean.cleaned(raw_pairs(source, target), filters, dropped)


def encode_part(
    folder: Path, part: str, pairs: Iterator[Pair], vocabulary: Vocabulary, data: Data, dropped: Counter[str]
) -> dict[str, Any]:
    size: Size = write_encoded(folder, part, pairs, vocabulary, data.max_tokens if part == "train" else None)
    if not size.pairs:
        raise DataError(f"no {part} pair is left: all have over data.max_tokens = {data.max_tokens} subwords")
    drops = dict(sorted((dropped + size.dropped).items())) if part == "train" else {}
    files = [f"{part}.{side}.{kind}" for side in SIDES for kind in ("ids", "ends.npy")]
    return {
        **{key: value for key, value in vars(size).items() if key != "dropped"},
        "read_pairs": size.pairs + sum(drops.values()),
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
