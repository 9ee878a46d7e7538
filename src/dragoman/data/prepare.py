"""The story of preparing: text -> cleaned shards -> vocabulary -> ids -> manifest, in a folder that appears when whole.

Shards are cleaned and encoded by several processes. What they finish lies in `<data.folder>.partial`, so that preparing goes
on where it was interrupted; the result does not depend on either.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import runs
from dragoman.config.schema import Config, Data, Subwords
from dragoman.data import clean
from dragoman.data.corpus import RawPair, check_inputs, corpora_of, held_out, input_digests, read_pairs
from dragoman.data.encode import ENCODED, MANIFEST_FORMAT, PreparedData, encode_shard, id_files, join
from dragoman.data.grammar import grammar_pairs, reversal_pairs
from dragoman.data.shards import (
    CLEANED,
    SAMPLES,
    Reasons,
    Shard,
    chunks,
    clean_chunk,
    duplicates,
    finished,
    read_text,
    shard_name,
    write_cleaned,
)
from dragoman.data.subwords import VOCABULARY_FILE, Vocabulary, vocabulary_for
from dragoman.data.workers import Crew, Task, cores
from dragoman.errors import DataError, Unfinished

Parts = dict[str, list[Shard]]

PARTS = ("train", "valid", "test")
SAMPLES_FILE = "samples.jsonl"
MOST_UNKNOWN = 0.1  # share of pieces that text cut by another model easily exceeds


def prepare(
    config: Config,
    version: str,
    *,
    force: bool = False,
    workers: int | None = None,
    on_ray: bool = False,
    progress: runs.Progress = runs.silent,
) -> PreparedData:
    """Prepare the data of a run file with `workers` processes, by default one a core, or on a Ray cluster. A folder with the
    same settings and inputs is used as it is."""
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
    key = runs.digest_of(settings)
    with runs.kept_folder(folder, key) as fresh, crew_of(workers, on_ray=on_ray) as crew:
        if not (fresh / runs.MANIFEST).is_file():
            manifest = Preparation(fresh, config, key, crew, progress).run()
            manifest |= {"dragoman": version, "settings": settings, "settings_digest": key}
            runs.write_json(fresh / runs.MANIFEST, manifest)
        shutil.rmtree(fresh / "work", ignore_errors=True)
    return PreparedData(folder)


def crew_of(workers: int | None, *, on_ray: bool) -> Crew:
    if not on_ray:
        return Crew(workers or cores())
    from dragoman.data.ray_crew import RayCrew

    return RayCrew(workers)


def settings_of(config: Config) -> dict[str, Any]:
    """What the prepared data depends on: the sections, the seed and the content of the input files."""
    unused: Any = {
        "folder": True,
        "temperature": True,
        "stages": True,
        "corpora": {"__all__": {"weight"}},
    }  # these matter in training
    inputs = input_digests(config)
    inputs |= {f"clean.own {name}": runs.digest(clean.source_file(name)) for name in config.clean.own}
    sections = {
        "data": config.data.model_dump(exclude=unused),
        "clean": config.clean.model_dump(),
        "subwords": config.subwords.model_dump(),
    }
    return {**sections, "seed": config.run.seed, "inputs": inputs}


def parts_of(data: Data) -> list[str]:
    return [part for part in PARTS if data.corpus != "files" or part != "test" or data.test_source]


def corpora(part: str, config: Config) -> Iterator[tuple[str, Iterator[RawPair]]]:
    """The input side: the name of every corpus of a part, and its pairs, raw and in order."""
    data = config.data
    if data.corpus == "files":
        for spec in corpora_of(data) if part == "train" else [held_out(data, part)]:
            yield spec.name if data.corpora and part == "train" else " / ".join(map(str, spec.paths)), read_pairs(spec)
    else:
        generate = grammar_pairs if data.corpus == "grammar" else reversal_pairs
        pairs = generate(getattr(data, f"{part}_pairs"), config.run.seed, part=part)
        yield data.corpus, ((source.encode(), target.encode()) for source, target in pairs)


class Preparation:
    """One folder that is being filled."""

    def __init__(self, folder: Path, config: Config, key: str, crew: Crew, progress: runs.Progress):
        self.folder = folder
        self.config = config
        self.key = key
        self.crew = crew
        self.progress = progress
        for name in (CLEANED, ENCODED):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def run(self) -> dict[str, Any]:
        try:
            return self.fill()
        except OSError as error:
            raise Unfinished(
                f"{error.filename or self.folder}: {error.strerror or error}. Make room, or mend what is wrong there, and start "
                f"again: finished shards are kept in {self.folder} and are not done twice"
            ) from None
        except Unfinished as error:
            raise Unfinished(f"{error}. Finished shards are kept in {self.folder} and are not done twice") from None

    def fill(self) -> dict[str, Any]:
        parts = parts_of(self.config.data)
        cleaned: Parts = {part: self.checked(part) for part in parts if part != "train"}
        cleaned["train"] = self.cleaned_train()  # last, because it may hold no sentence of the others
        reasons = duplicates(self.folder, cleaned["train"], self.config)
        vocabulary = self.vocabulary(cleaned["train"], reasons)
        encoded: Parts = {part: self.encoded_held_out(part, cleaned[part]) for part in parts if part != "train"}
        encoded["train"] = self.encoded_train(cleaned["train"], reasons)
        manifest: dict[str, Any] = {
            "format": MANIFEST_FORMAT,
            "corpus": self.config.data.corpus,
            "source_lang": self.config.data.source_lang,
            "target_lang": self.config.data.target_lang,
            "tokenized": self.config.data.tokenized,
            "vocabulary": {
                "kind": "given" if self.config.subwords.model else self.config.subwords.kind,
                "size": len(vocabulary),
                "digest": vocabulary.digest(),
            },
        }
        for part in parts:
            self.progress(f"joining {part}", 0, 0, "")
            join(self.folder, part, encoded[part])
            manifest[part] = described(self.folder, part, cleaned[part], encoded[part])
            manifest[part]["variants"] = self.config.subwords.variants if part == "train" else 1
            if self.config.data.tokenized:
                check_known(part, manifest[part])
        runs.write_rows(self.folder / SAMPLES_FILE, samples([*cleaned["train"], *encoded["train"]]))
        digests = [manifest[part]["digest"] for part in parts] + [manifest["vocabulary"]["digest"]]
        return manifest | {"digest": runs.digest_of(digests)}

    # --- text ------------------------------------------------------------------------------------------------

    def checked(self, part: str) -> list[Shard]:
        """A validation or test set: taken whole, or refused."""
        shards: list[Shard] = []
        for corpus, raw in corpora(part, self.config):
            for pairs in chunks(clean.checked(raw, corpus), self.config.data.shard_pairs):
                shard = Shard(shard_name(part, len(shards)), corpus, read_pairs=len(pairs))
                shards.append(write_cleaned(self.folder, shard, pairs))
                self.tell(f"reading {part}", shards)
        return some_left(part, shards)

    def cleaned_train(self) -> list[Shard]:
        listed = self.folder / CLEANED / "train.json"  # once it is there, the corpus need not be read again
        if listed.is_file():
            names = runs.read_json(listed)
            return [shard for name in names if (shard := finished(self.folder / CLEANED / f"{name}.json"))]
        shards: list[Shard] = []
        self.tell("cleaning train", shards)
        for shard in self.crew.results(self.cleaning(shards)):
            shards.append(shard)
            self.tell("cleaning train", shards)
        shards.sort(key=lambda shard: shard.name)
        runs.write_json(listed, [shard.name for shard in shards])
        return some_left("train", shards)

    def cleaning(self, shards: list[Shard]) -> Iterator[Task]:
        """What is left to clean; `shards` gets what was cleaned before an interruption."""
        number = 0
        for corpus, pairs in corpora("train", self.config):
            line = 1
            for raw in chunks(pairs, self.config.data.shard_pairs):
                name = shard_name("train", number)
                if shard := finished(self.folder / CLEANED / f"{name}.json"):
                    shards.append(shard)
                else:
                    yield clean_chunk, (self.folder, name, corpus, line, raw, self.config, self.key)
                number, line = number + 1, line + len(raw)

    # --- ids -------------------------------------------------------------------------------------------------

    def vocabulary(self, shards: list[Shard], reasons: list[Reasons]) -> Vocabulary:
        path = self.folder / VOCABULARY_FILE
        if not path.is_file():
            self.progress("learning subwords", 0, 0, "")
            texts = [self.folder / CLEANED / f"{shard.name}.tsv" for shard in shards]
            try:
                if len(shards) == 1:
                    learn_from(texts, reasons, self.config.subwords, path)
                else:
                    self.crew.apply(learn_from, texts, reasons, self.config.subwords, path)
            except DataError as error:
                drops = dict(sum((shard.dropped for shard in shards), Counter()))
                left = f"{sum(shard.pairs for shard in shards):,} training pairs were left after cleaning"
                raise DataError(f"{error} ({left}, dropped: {drops or 'none'})") from None
        return Vocabulary(path)

    def encoded_held_out(self, part: str, shards: list[Shard]) -> list[Shard]:
        self.tell(f"encoding {part}", shards)
        none = {shard.name: np.zeros(shard.pairs, np.uint8) for shard in shards}
        threads = self.crew.size
        return [encode_shard(self.folder, name, part, kept, self.config, threads) for name, kept in none.items()]

    def encoded_train(self, cleaned: list[Shard], reasons: list[Reasons]) -> list[Shard]:
        before = [finished(self.folder / ENCODED / f"{shard.name}.json") for shard in cleaned]
        shards = [shard for shard in before if shard]
        threads = self.crew.size if len(cleaned) == 1 else 1
        tasks: list[Task] = [
            (encode_shard, (self.folder, shard.name, "train", drops, self.config, threads))
            for shard, drops, done in zip(cleaned, reasons, before, strict=True)
            if not done
        ]
        total = sum(shard.pairs for shard in cleaned)
        self.tell("encoding train", shards, total)
        for shard in self.crew.results(tasks):
            shards.append(shard)
            self.tell("encoding train", shards, total)
        return some_left("train", sorted(shards, key=lambda shard: shard.name))

    def tell(self, stage: str, shards: list[Shard], total: int = 0) -> None:
        dropped = sum(shard.dropped.total() for shard in shards)
        done = sum(shard.read_pairs for shard in shards)
        self.progress(stage, done, total, f"pairs, {dropped:,} dropped" if dropped else "pairs")


def learn_from(texts: list[Path], reasons: list[Reasons], section: Subwords, path: Path) -> None:
    """Learn the vocabulary from shards, without duplicates."""
    total = sum(int((of_shard == 0).sum()) for of_shard in reasons)
    pairs = (compress(read_text(text), of_shard == 0) for text, of_shard in zip(texts, reasons, strict=True))
    temporary = runs.temporary_name(path)
    vocabulary_for(chain.from_iterable(pairs), total, section, temporary)
    temporary.replace(path)


# --- accounts ------------------------------------------------------------------------------------------------


def some_left(part: str, shards: list[Shard]) -> list[Shard]:
    if not any(shard.pairs for shard in shards):
        where = ", ".join(sorted({shard.corpus for shard in shards})) or "the corpus is empty"
        drops = dict(sum((shard.dropped for shard in shards), Counter())) or "nothing"
        raise DataError(f"{where}: no pair of the {part} set is left after cleaning (dropped: {drops})")
    return shards


def described(folder: Path, part: str, cleaned: list[Shard], encoded: list[Shard]) -> dict[str, Any]:
    """Every pair that was read is among the pairs or among the drops; so it is for every corpus."""
    names = list(dict.fromkeys(shard.corpus for shard in cleaned))
    files = {name: runs.digest(folder / name) for name in id_files(part)}
    texts = [] if part == "train" else [f"{shard.name}.tsv" for shard in encoded]  # read while training, for BLEU
    sizes = [shard.sizes for shard in encoded]
    return {
        **counted(cleaned, encoded),
        **{key: sum(size[key] for size in sizes) for key in sizes[0] if key not in ("longest", "rows")},
        "longest": max(size["longest"] for size in sizes),
        "repaired": dict(sum((shard.repaired for shard in cleaned), Counter())),
        "corpora": {
            name: counted(*([shard for shard in stage if shard.corpus == name] for stage in (cleaned, encoded)))
            for name in names
        },
        "digest": runs.digest_of(list(files.values())),
        "files": files | {name: runs.digest(folder / name) for name in texts},
    }


def counted(cleaned: list[Shard], encoded: list[Shard]) -> dict[str, Any]:
    return {
        "pairs": sum(shard.sizes["rows"] for shard in encoded),  # with all variants
        "text_pairs": sum(shard.pairs for shard in encoded),
        "read_pairs": sum(shard.read_pairs for shard in cleaned),
        "dropped": dict(sorted(sum((shard.dropped for shard in [*cleaned, *encoded]), Counter()).items())),
    }


def check_known(part: str, account: dict[str, Any]) -> None:
    unknown = account["unknown_tokens"] / max(1, account["source_tokens"] + account["target_tokens"])
    if unknown > MOST_UNKNOWN:
        raise DataError(
            f"{unknown:.0%} of the {part} pieces are not in subwords.model; was the text cut with it? Plain text: data.tokenized = false"
        )


def samples(shards: list[Shard]) -> list[runs.Row]:
    """A few pairs of every reason and corpus, for a look at what a filter does."""
    seen: Counter[tuple[str, str]] = Counter()
    rows = []
    for row in (row for shard in shards for row in shard.samples):
        kind = row["corpus"], row["reason"]
        seen[kind] += 1
        if seen[kind] <= SAMPLES:
            rows.append(row)
    return sorted(rows, key=lambda row: (row["corpus"], row["reason"], row["line"]))
