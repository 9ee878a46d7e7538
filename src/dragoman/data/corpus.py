"""Which parallel text goes in: the corpora a run file names, their formats, their digests, and their pairs one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.config.schema import Config, Corpus, Data
from dragoman.data import formats
from dragoman.data.streams import PACKED, in_words, lines, member_of, zip_members
from dragoman.errors import DataError

Pair = tuple[str, str]
RawPair = formats.RawPair
Text = Any  # pa.LargeStringArray: one line a place

PARTS = ("train", "valid", "test")
SIDES = ("source", "target")
TWO_FILES = ("lines", "sgm")
SUFFIXES = {".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl", ".tmx": "tmx", ".sgm": "sgm", ".sgml": "sgm"}


@dataclass(frozen=True)
class CorpusSpec:
    """One corpus: where it lies and how it is read."""

    name: str
    paths: tuple[Path, ...]  # source and target, or one file of pairs
    format: str  # lines, sgm, tsv, jsonl or tmx
    keys: formats.Names  # of JSON lines
    langs: formats.Names

    @property
    def file_names(self) -> str:
        return " / ".join(map(str, self.paths))


def corpora_of(data: Data) -> list[CorpusSpec]:
    """The training corpora, in order; none where the text is generated."""
    if data.corpus != "files":
        return []
    if not data.corpora:
        return [files_of(data, "train")]
    return [spec_of(data, corpus, f"data.corpora.{corpus.name} = ") for corpus in data.corpora]


def files_of(data: Data, part: str) -> CorpusSpec:
    """The corpus that data.PART_source and data.PART_target name."""
    source, target = (getattr(data, f"{part}_{side}") for side in SIDES)
    return spec_of(data, two_sides(data, part, source, target), f"data.{part}_source = ")


def two_sides(data: Data, name: str, source: str, target: str) -> Corpus:
    """A corpus that is no table of its own. Where only a source is named, it is a file of pairs."""
    fits = (data.format in TWO_FILES) == bool(target)
    reading = {"format": data.format if fits else "auto", "source_key": data.source_key, "target_key": data.target_key}
    files = {"source": source, "target": target} if target else {"pairs": source}
    return Corpus.model_validate({"name": name, **files, **reading})


def spec_of(data: Data, corpus: Corpus, where: str) -> CorpusSpec:
    corpus = unzipped(data, corpus)
    names = (corpus.pairs,) if corpus.pairs else (corpus.source, corpus.target)
    form = format_of(corpus, f"{where}{names[0]!r}" if where else names[0])
    keys, langs = (corpus.source_key, corpus.target_key), (data.source_lang, data.target_lang)
    return CorpusSpec(corpus.name, tuple(map(Path, names)), form, keys, langs)


def unzipped(data: Data, corpus: Corpus) -> Corpus:
    """One archive that holds a file of each language, as those of OPUS do, stands for the two files in it."""
    path = Path(corpus.pairs)
    if path.suffix.lower() != ".zip" or not path.is_file():
        return corpus
    names = zip_members(path)
    found = [[name for name in names if name.endswith(f".{lang}")] for lang in (data.source_lang, data.target_lang)]
    if [len(side) for side in found] != [1, 1]:
        return corpus
    return corpus.model_copy(update={"source": f"{path}!{found[0][0]}", "target": f"{path}!{found[1][0]}", "pairs": ""})


def format_of(corpus: Corpus, where: str) -> str:
    """As the file name says, unless the corpus says it. What no name says are aligned lines."""
    path = Path(corpus.pairs or corpus.source)
    inner = path.with_suffix("") if path.suffix.lower() in PACKED else path
    named = SUFFIXES.get(inner.suffix.lower(), "lines")
    if not corpus.pairs and named != "sgm":
        named = "lines"
    found = named if corpus.format == "auto" else corpus.format
    if corpus.pairs and found in TWO_FILES:
        raise DataError(
            f"{where}: one file, which would have to be .tsv, .jsonl or .tmx; name source and target otherwise"
        )
    if not corpus.pairs and found not in TWO_FILES:
        raise DataError(f"{where}: two files cannot be {found}; name one, as pairs")
    return found


def read_pairs(corpus: CorpusSpec) -> Iterator[RawPair]:
    """All pairs of a corpus as bytes, read as a stream."""
    if corpus.format == "lines":
        return formats.aligned(corpus.paths, lines, "lines")
    if corpus.format == "sgm":
        return formats.aligned(corpus.paths, formats.segments, "segments")
    (path,) = corpus.paths
    if corpus.format == "tsv":
        return formats.tsv_pairs(path)
    if corpus.format == "jsonl":
        return formats.json_pairs(path, corpus.keys, corpus.langs)
    return formats.tmx_pairs(path, corpus.langs)


def raw_pairs(source: Path, target: Path | None = None, data: Data | None = None) -> Iterator[RawPair]:
    """Pairs of two aligned files or of one that holds both sides. Their format and languages follow from `data`, or from
    the names of the files."""
    data = data or Data()
    return read_pairs(spec_of(data, two_sides(data, "text", str(source), str(target or "")), ""))


def check_inputs(data: Data) -> None:
    """Read the first pair of everything, so that a bad file or an empty one is found before hours of work on the others."""
    parts = [part for part in ("valid", "test") if data.corpus == "files" and getattr(data, f"{part}_source")]
    for corpus in [*corpora_of(data), *(files_of(data, part) for part in parts)]:
        if next(read_pairs(corpus), None) is None:
            raise DataError(
                f"{corpus.file_names}: holds no pair; take the file again from its origin, or leave the corpus out"
            )


def input_digests(config: Config) -> dict[str, str]:
    """SHA-256 of every file that goes in, by the key that names it."""
    digests = {}
    for key, name in input_files(config).items():
        path, _ = member_of(Path(name))
        if not path.is_file():
            what = "is a folder, not a file" if path.is_dir() else "no such file"
            raise DataError(f"{key} = {name!r}: {what} (paths are relative to where the command runs)")
        with in_words(path):
            digests[key] = runs.digest(path)
    return digests


def input_files(config: Config) -> dict[str, str]:
    data = config.data
    named = {"subwords.model": config.subwords.model}
    if data.corpus == "files":
        for part in PARTS:
            named |= {f"data.{part}_{side}": getattr(data, f"{part}_{side}") for side in SIDES}
        for corpus in data.corpora:
            named |= {f"data.corpora.{corpus.name}.{key}": getattr(corpus, key) for key in (*SIDES, "pairs")}
    return {key: name for key, name in named.items() if name}
