"""The story of preparing: text -> cleaned shards -> vocabulary -> ids -> manifest, in a folder that appears when whole.

Shards are cleaned and encoded by several processes. What they finish lies in `<data.folder>.partial`, so that preparing goes
on where it was interrupted; the result does not depend on either.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import runs
from dragoman.config.schema import Config, Subwords, missing_files
from dragoman.cores import usable_cores
from dragoman.data import clean
from dragoman.data.corpus import PARTS, RawPair, Text, check_inputs, corpora_of, files_of, input_digests, read_pairs
from dragoman.data.encode import MANIFEST_FORMAT, SAMPLES_FILE, PreparedData, encode_shard, id_files, join
from dragoman.data.grammar import grammar_pairs, reversal_pairs
from dragoman.data.languages import is_spaced
from dragoman.data.shards import (
    LISTED,
    SAMPLES,
    Reasons,
    Shard,
    check_set,
    chunks,
    clean_chunk,
    duplicates,
    forget_damaged,
    read_cleaned,
)
from dragoman.data.subwords import SOURCE_FILE, VOCABULARY_FILE, Vocabulary, beside, learn, model_bytes
from dragoman.data.workers import Crew, Task, Tasks
from dragoman.errors import ConfigError, DataError, Unfinished

Parts = dict[str, list[Shard]]

MOST_UNIGRAM = 40_000_000  # characters to learn from; SentencePiece takes up to 33 bytes for each
MOST_UNSPACED = 4_000_000  # without spaces, where a sentence is one word: up to 154 bytes, and time grows faster still
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
    same settings and inputs is used as it is; of one with others, what does not depend on them is taken over."""
    folder = Path(config.data.folder)
    if problems := [*missing_files(config.data)]:
        raise ConfigError(problems)
    settings = settings_of(config)
    key, stages = key_of(settings), stage_keys(settings, version)
    if existing := prepared_before(folder, key, force=force):
        return existing
    check_inputs(config.data)
    if config.subwords.model:
        Vocabulary(config.subwords.model).digest()  # of both sides: a damaged one is refused before hours of work
    # With our version: an upgrade does not go on with half of an older one's work.
    begun = runs.digest_of([key, stages])
    with runs.kept_folder(folder, begun, cleaned_name(stages)) as fresh, crew_of(workers, on_ray=on_ray) as crew:
        if not (fresh / runs.MANIFEST).is_file():
            take_over(folder, fresh, stages)
            forget_damaged(fresh / cleaned_name(stages))
            manifest = Preparation(fresh, fresh / cleaned_name(stages), config, crew, progress).run()
            manifest |= {"dragoman": version, "settings": settings, "settings_digest": key, "stages": stages}
            runs.write_json(fresh / runs.MANIFEST, manifest)
        shutil.rmtree(fresh / "encoded", ignore_errors=True)
    return PreparedData(folder)


def prepared_before(folder: Path, key: str, *, force: bool) -> PreparedData | None:
    """The data that is asked for, where it lies there already; what else lies there is refused, but for data to be replaced."""
    if (folder / runs.MANIFEST).is_file():
        if force:
            return None
        existing = PreparedData(folder)
        if key_of(existing.manifest["settings"]) == key:
            return existing
        raise DataError(
            f"{folder}: holds data prepared with other settings or from other text. "
            "Add --force to replace it, or choose another data.folder"
        )
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; data.folder names a folder to be made")
    if not runs.vacant(folder):
        raise DataError(
            f"{folder}: is not empty and holds no prepared data; it is left alone. Choose another data.folder"
        )
    return None


def crew_of(workers: int | None, *, on_ray: bool) -> Crew:
    if not on_ray:
        return Crew(workers or usable_cores())
    from dragoman.data.ray_crew import RayCrew

    return RayCrew(workers)


# --- what depends on what --------------------------------------------------------------------------------------


def settings_of(config: Config) -> dict[str, Any]:
    """What the prepared data depends on: the sections, the seed and the content of the input files."""
    matters_in_training: Any = {"folder": True, "temperature": True, "stages": True, "corpora": {"__all__": {"weight"}}}
    inputs = input_digests(config)
    for name in config.clean.own:
        first, *others = clean.source_files(name)
        inputs[f"clean.own {name}"] = runs.digest(first)
        inputs |= {f"clean.own {name}, {path.name}": runs.digest(path) for path in others}
    if config.subwords.model and (source := beside(Path(config.subwords.model))):
        inputs["subwords.model, source"] = runs.digest(source)
    sections = {
        "data": config.data.model_dump(exclude=matters_in_training),
        "clean": config.clean.model_dump(),
        "subwords": config.subwords.model_dump(),
    }
    return {**sections, "seed": config.run.seed, "inputs": inputs}


def key_of(settings: dict[str, Any]) -> str:
    """Digest of what matters in settings: the seed does where something is drawn."""
    drawn = settings["data"]["corpus"] != "files" or settings["subwords"].get("dropout")
    return runs.digest_of({**settings, "seed": settings["seed"] if drawn else None})


def stage_keys(settings: dict[str, Any], version: str) -> dict[str, str]:
    """Digests of what cleaned text and vocabulary depend on, our own version included. Ids depend on everything."""
    data, filters, subwords, inputs = (dict(settings[name]) for name in ("data", "clean", "subwords", "inputs"))
    del data["max_tokens"], subwords["dropout"], subwords["variants"]
    seed = settings["seed"] if data["corpus"] != "files" else None
    given = inputs.pop("subwords.model", None), inputs.pop("subwords.model, source", None)
    later = filters.pop("duplicates"), *given
    cleaned = runs.digest_of([version, data, filters, inputs, seed])
    return {"cleaned": cleaned, "vocabulary": runs.digest_of([cleaned, *later, subwords])}


def cleaned_name(stages: dict[str, str]) -> str:
    return f"cleaned-{stages['cleaned'][:16]}"


def take_over(old: Path, fresh: Path, stages: dict[str, str]) -> None:
    """What an earlier preparation in the same place made of the same text with the same settings, as far as it went."""
    if not (old / runs.MANIFEST).is_file():
        return
    name, copy = cleaned_name(stages), fresh / ".copy"  # what starts with a dot is not believed after an interruption
    if (old / name).is_dir() and not (fresh / name).exists():
        shutil.copytree(old / name, copy).rename(fresh / name)
    manifest = runs.read_json(old / runs.MANIFEST)
    same = manifest.get("stages", {}).get("vocabulary") == stages["vocabulary"]
    if same and not (fresh / VOCABULARY_FILE).exists() and vocabulary_digest(old) == manifest["vocabulary"]["digest"]:
        copy_vocabulary(old / VOCABULARY_FILE, fresh)


def vocabulary_digest(folder: Path) -> str | None:
    """None where there is no vocabulary that can be read."""
    try:
        return Vocabulary(folder / VOCABULARY_FILE).digest()
    except DataError:
        return None


# --- the story -------------------------------------------------------------------------------------------------


def corpora(part: str, config: Config) -> Iterator[tuple[str, Iterator[RawPair]]]:
    """The input side: the name of every corpus of a part, and its pairs, raw and in order."""
    data = config.data
    if data.corpus == "files":
        for spec in corpora_of(data) if part == "train" else [files_of(data, part)]:
            has_name = part == "train" and data.corpora
            yield spec.name if has_name else spec.file_names, read_pairs(spec)
    else:
        generate = grammar_pairs if data.corpus == "grammar" else reversal_pairs
        pairs = generate(getattr(data, f"{part}_pairs"), config.run.seed, part=part)
        yield data.corpus, ((source.encode(), target.encode()) for source, target in pairs)


class Preparation:
    """One folder that is being filled."""

    def __init__(self, folder: Path, cleaned: Path, config: Config, crew: Crew, progress: runs.Progress):
        self.folder, self.cleaned, self.encoded = folder, cleaned, folder / "encoded"
        self.config, self.crew, self.progress = config, crew, progress
        for stage in (self.cleaned, self.encoded):
            stage.mkdir(exist_ok=True)

    def run(self) -> dict[str, Any]:
        try:
            return self.fill()
        except (OSError, Unfinished) as error:
            what = str(error)
            if isinstance(error, OSError):
                what = f"{error.filename or self.folder}: {error.strerror or error}. Make room, or mend what is wrong there"
            raise Unfinished(
                f"{what}. Start again: finished shards are kept in {self.folder} and are not done twice"
            ) from None
        except DataError as error:
            if not (kept := len(cleaned_before(self.cleaned))):
                raise
            raise DataError(f"{error}. Finished shards ({kept}) are kept in {self.folder}") from None

    def fill(self) -> dict[str, Any]:
        data = self.config.data
        parts = [part for part in PARTS if data.corpus != "files" or part != "test" or data.test_source]
        cleaned: Parts = {part: self.checked(part) for part in parts if part != "train"}
        cleaned["train"] = self.cleaned_train()  # last, because it may hold no sentence of the others
        reasons = {part: [np.zeros(shard.pairs, np.uint8) for shard in shards] for part, shards in cleaned.items()}
        reasons["train"] = duplicates(self.cleaned, cleaned["train"], self.config)
        vocabulary, sample_sizes = self.vocabulary(cleaned["train"], reasons["train"])
        encoded: Parts = {part: self.encoded_part(part, cleaned[part], reasons[part]) for part in cleaned}
        manifest: dict[str, Any] = {
            "format": MANIFEST_FORMAT,
            **data.model_dump(include={"corpus", "source_lang", "target_lang", "tokenized"}),
            "vocabulary": {
                "kind": "given" if self.config.subwords.model else self.config.subwords.kind,
                "size": len(vocabulary),
                **({"source_size": vocabulary.source_size} if vocabulary.source_size else {}),
                **sample_sizes,
                "digest": vocabulary.digest(),
            },
        }
        for part in parts:
            self.progress(f"joining {part}", 0, 0, "")
            join(self.folder, self.encoded, part, encoded[part])
            manifest[part] = described(self.folder, part, cleaned[part], encoded[part])
            manifest[part]["variants"] = self.config.subwords.ways if part == "train" else 1
            if data.tokenized:
                check_known(part, manifest[part])
        runs.write_rows(self.folder / SAMPLES_FILE, samples([*cleaned["train"], *encoded["train"]]))
        digests = [manifest[part]["digest"] for part in parts] + [manifest["vocabulary"]["digest"]]
        return manifest | {"digest": runs.digest_of(digests)}

    # --- text ------------------------------------------------------------------------------------------------

    def checked(self, part: str) -> list[Shard]:
        """A validation or test set: taken whole, or refused."""
        (corpus, raw), name = next(corpora(part, self.config)), f"{part}-00000"
        shard = Shard.finished(self.cleaned, name) or check_set(self.cleaned, name, corpus, raw)
        self.tell(f"reading {part}", [shard])
        return some_left(part, [shard])

    def cleaned_train(self) -> list[Shard]:
        listed = self.cleaned / LISTED
        shards = cleaned_before(self.cleaned)
        names = [shard.name for shard in shards]
        if not listed.is_file() or runs.read_json(listed) != names:
            self.shared("cleaning train", shards, 0, cleaning, self.cleaned, set(names), self.config)
            # Read again from disk: Ray, where it lost a worker, may have told of a shard twice, or not at all.
            shards = cleaned_before(self.cleaned)
            runs.write_json(listed, [shard.name for shard in shards])
        return some_left("train", shards)

    def shared(self, stage: str, shards: list[Shard], total: int, tasks: Tasks, *arguments: Any) -> list[Shard]:
        """Have tasks done by the crew; every shard joins `shards` and is told."""
        self.tell(stage, shards, total)
        for shard in self.crew.results(tasks, *arguments):
            shards.append(shard)
            self.tell(stage, shards, total)
        return sorted(shards, key=lambda shard: shard.name)

    # --- ids -------------------------------------------------------------------------------------------------

    def vocabulary(self, shards: list[Shard], reasons: list[Reasons]) -> tuple[Vocabulary, dict[str, int]]:
        """The vocabulary, and how many pairs it was learnt from; each of the two, where each side has its own."""
        section, path = self.config.subwords, self.folder / VOCABULARY_FILE
        missing = vocabulary_digest(self.folder) is None
        if missing:
            self.progress("learning subwords", 0, 0, "")
        if section.model:
            if missing:
                copy_vocabulary(Path(section.model), self.folder)
            return Vocabulary(path), {}
        learnt = {VOCABULARY_FILE: (0, 1)} if section.joint else {SOURCE_FILE: (0,), VOCABULARY_FILE: (1,)}
        steps = {file: self.sample_step(shards, reasons, sides) for file, sides in learnt.items()}
        if missing:
            for file, sides in learnt.items():
                self.learn(self.folder / file, sides, steps[file], shards, reasons)
        kept = sum(map(kept_pairs, reasons))
        keys = {SOURCE_FILE: "source_sample_pairs", VOCABULARY_FILE: "sample_pairs"}
        return Vocabulary(path), {keys[file]: -(-kept // step) for file, step in steps.items()}

    def learn(self, file: Path, sides: tuple[int, ...], step: int, shards: list[Shard], reasons: list[Reasons]) -> None:
        paths = [self.cleaned / f"{shard.name}.arrow" for shard in shards]
        task = paths, reasons, self.config.subwords, file, sides, step
        try:
            learn_from(*task) if len(shards) == 1 else self.crew.apply(learn_from, *task)
        except DataError as error:
            left = f"training pairs left after cleaning: {sum(shard.pairs for shard in shards):,}"
            raise DataError(f"{error} ({left}, dropped: {drops_of(shards)})") from None

    def sample_step(self, shards: list[Shard], reasons: list[Reasons], sides: tuple[int, ...]) -> int:
        """Subwords are learnt from one of so many pairs. Where SentencePiece holds whole sentences, their characters are bounded
        too: always for unigram, else where no spaces cut them into words."""
        section, data = self.config.subwords, self.config.data
        unigram, languages = section.kind == "unigram", (data.source_lang, data.target_lang)
        held = [side for side in sides if unigram or not is_spaced(languages[side])]
        characters = self.characters(shards, reasons, held) if held else 0
        step = -(-sum(map(kept_pairs, reasons)) // section.sample_pairs)
        return max(step, -(-characters // (MOST_UNIGRAM if unigram else MOST_UNSPACED)))

    def characters(self, shards: list[Shard], reasons: list[Reasons], sides: list[int]) -> int:
        """Of all pairs that are kept. This reads all of the text."""
        total = 0
        for shard, of_shard in zip(shards, reasons, strict=True):
            lengths = read_cleaned(self.cleaned / f"{shard.name}.arrow").characters[sides]
            total += int(lengths[:, of_shard == 0].sum())
        return total

    def encoded_part(self, part: str, cleaned: list[Shard], reasons: list[Reasons]) -> list[Shard]:
        before = [Shard.finished(self.encoded, shard.name) for shard in cleaned]
        threads = self.crew.size if len(cleaned) == 1 else 1
        left = [
            (encode_shard, (self.encoded, shard.name, part, self.cleaned, drops, self.config, threads))
            for shard, drops, done in zip(cleaned, reasons, before, strict=True)
            if not done
        ]
        total = sum(shard.pairs for shard in cleaned)
        return some_left(part, self.shared(f"encoding {part}", [*filter(None, before)], total, lambda: left))

    def tell(self, stage: str, shards: list[Shard], total: int = 0) -> None:
        dropped = sum(shard.dropped.total() for shard in shards)
        done = sum(shard.read_pairs for shard in shards)
        self.progress(stage, done, total, f"pairs, {dropped:,} dropped" if dropped else "pairs")


def cleaned_before(stage: Path) -> list[Shard]:
    return [Shard(**runs.read_json(path)) for path in sorted(stage.glob("train-*.json"))]


def cleaning(stage: Path, before: set[str], config: Config) -> Iterator[Task]:
    """What is left to clean."""
    number = 0
    for corpus, pairs in corpora("train", config):
        line = 1
        for raw in chunks(pairs, config.data.shard_pairs):
            name = f"train-{number:05d}"
            # Known beforehand, not looked up on disk: Ray may list these tasks twice and wants the same number of them.
            if name not in before:
                yield clean_chunk, (stage, name, corpus, line, raw, config)
            number, line = number + 1, line + len(raw)


def learn_from(
    shards: list[Path], reasons: list[Reasons], section: Subwords, path: Path, sides: tuple[int, ...], step: int
) -> None:
    """From an even sample of the shards, without duplicates. Nothing comes back: another process may have done it."""
    learn(sampled(shards, reasons, step, sides), section, path)


def copy_vocabulary(model: Path, folder: Path) -> None:
    """As it is, with that of the source side where it has one of its own, which comes first: with the other one all is there."""
    for given, name in ((beside(model), SOURCE_FILE), (model, VOCABULARY_FILE)):
        if given:
            with runs.whole(folder / name) as stream:
                stream.write(model_bytes(given))


def kept_pairs(reasons: Reasons) -> int:
    return int(np.count_nonzero(reasons == 0))


def sampled(shards: list[Path], reasons: list[Reasons], every: int, sides: tuple[int, ...]) -> Iterator[Text]:
    before = 0
    for path, of_shard in zip(shards, reasons, strict=True):
        places = np.flatnonzero(of_shard == 0)
        chosen = places[-before % every :: every]
        before += len(places)
        block = read_cleaned(path)
        yield from (block.sides[side].take(chosen) for side in sides)


# --- accounts ------------------------------------------------------------------------------------------------


def some_left(part: str, shards: list[Shard]) -> list[Shard]:
    if not any(shard.pairs for shard in shards):
        where = ", ".join(sorted({shard.corpus for shard in shards})) or "the corpus is empty"
        raise DataError(f"{where}: no pair of the {part} set is left after cleaning (dropped: {drops_of(shards)})")
    return shards


def drops_of(shards: list[Shard]) -> str:
    """'12 too long, 3 copy', or 'none'."""
    drops = sum((shard.dropped for shard in shards), Counter[str]())
    return ", ".join(f"{count:,} {reason}" for reason, count in drops.items()) or "none"


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
        "repaired": dict(sum((shard.repaired for shard in cleaned), Counter())),
    }


def check_known(part: str, account: dict[str, Any]) -> None:
    unknown = account["unknown_tokens"] / max(1, account["source_tokens"] + account["target_tokens"])
    if unknown > MOST_UNKNOWN:
        raise DataError(
            f"{unknown:.0%} of the {part} pieces are not in subwords.model; was the text cut with it? Plain text: data.tokenized = false"
        )


def samples(shards: list[Shard]) -> list[runs.Row]:
    """A few pairs of every reason and corpus, for a look at what a filter does."""
    rows = sorted((row for shard in shards for row in shard.samples), key=itemgetter("corpus", "reason", "line"))
    return [row for _, some in groupby(rows, itemgetter("corpus", "reason")) for row in islice(some, SAMPLES)]
