"""Sentences to measure with: those of the run file, or drawn ones with the lengths of WMT text.

Drawn sentences are a prepared folder like any other, so that nothing behind it knows the difference. Its vocabulary is
one of words, which SentencePiece takes at any size."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from dragoman import runs
from dragoman.config.schema import SPECIAL_TOKENS, Config, Subwords
from dragoman.data.corpus import SIDES
from dragoman.data.encode import MANIFEST_FORMAT, Ints, PreparedData, id_files, id_type
from dragoman.data.subwords import EOS, VOCABULARY_FILE, Vocabulary, learn
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import from_main, wait_for_all
from dragoman.training.facts import check_fits

DRAWN = "drawn"
DRAWN_PAIRS = {"train": 100_000, "valid": 8}


@contextmanager
def opened(config: Config, mesh: Mesh) -> Iterator[tuple[PreparedData, Path]]:
    """The data, and a temporary folder that all ranks of this host see."""
    folder = Path(from_main(mesh, tempfile.mkdtemp(prefix="dragoman-bench-") if mesh.is_main else ""))
    try:
        given = Path(config.data.folder)
        prepared = (given / runs.MANIFEST).is_file()
        if mesh.is_main and not prepared:
            draw(folder / "data", config)
        wait_for_all(mesh)
        data = PreparedData(given if prepared else folder / "data")
        check_fits(data, config)
        yield data, folder
    finally:
        if mesh.is_main:
            shutil.rmtree(folder, ignore_errors=True)


def told(data: PreparedData) -> str:
    """Which sentences these are, in words."""
    origin = "drawn with the lengths of WMT text" if data.manifest["corpus"] == DRAWN else f"of {data.folder}"
    return f"{data.manifest['train']['pairs']:,} pairs {origin}"


def draw(folder: Path, config: Config) -> None:
    """A prepared folder of random sentences over the configured vocabulary."""
    folder.mkdir()
    size = config.subwords.vocab_size
    learn_words(size, folder / VOCABULARY_FILE)
    vocabulary = {"size": size, "digest": Vocabulary(folder / VOCABULARY_FILE).digest()}
    random = np.random.default_rng(config.run.seed)
    manifest = {"format": MANIFEST_FORMAT, "corpus": DRAWN, "vocabulary": vocabulary}
    for part, pairs in DRAWN_PAIRS.items():
        lengths = draw_lengths(pairs, config.data.max_tokens, random)
        for name, side in zip(SIDES, lengths, strict=True):
            np.save(folder / f"{part}.{name}.ends.npy", np.cumsum(side))
            draw_ids(side, size, random).astype(id_type(size)).tofile(folder / f"{part}.{name}.ids")
        tokens = {f"{name}_tokens": int(side.sum()) for name, side in zip(SIDES, lengths, strict=True)}
        manifest[part] = {
            "pairs": pairs,
            **tokens,
            "longest": int(np.max(lengths)),
            "digest": runs.digest_of([runs.digest(folder / name) for name in id_files(part)]),
            "corpora": in_equal_parts(pairs, config),
        }
    runs.write_json(folder / runs.MANIFEST, manifest | {"digest": runs.digest_of(manifest)})


def in_equal_parts(pairs: int, config: Config) -> dict[str, dict[str, int]]:
    """The configured corpora, so that their weights can be kept to."""
    names = [corpus.name for corpus in config.data.corpora]
    return {name: {"pairs": pairs * (at + 1) // len(names) - pairs * at // len(names)} for at, name in enumerate(names)}


def learn_words(size: int, path: Path) -> None:
    words = [f"w{number}" for number in range(size - SPECIAL_TOKENS)]
    learn([pa.array(words)], Subwords(vocab_size=size, kind="word"), path)


def draw_lengths(count: int, max_tokens: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Tokens of both sides, end marks included: log-normal, 28 subwords on average, the target 4 % longer."""
    source = np.exp(random.normal(3.18, 0.55, count))
    target = source * np.exp(random.normal(0.03, 0.15, count))
    source_lengths, target_lengths = (side.clip(1, max_tokens).astype(np.int64) + 1 for side in (source, target))
    return source_lengths, target_lengths


def draw_ids(lengths: Ints, vocab_size: int, random: np.random.Generator) -> Ints:
    """By Zipf's law, as in real text: an embedding learns slower where one piece occurs often."""
    rank = np.exp(random.random(int(lengths.sum())) * np.log(vocab_size - SPECIAL_TOKENS + 1)).astype(np.int64)
    ids: Ints = (rank + SPECIAL_TOKENS - 1).clip(max=vocab_size - 1)
    ids[np.cumsum(lengths) - 1] = EOS
    return ids
