"""Models on a test set: translate it, score it, compare, and write the scores down where the run lives."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.data.corpus import Pair
from dragoman.errors import ConfigError, DataError
from dragoman.evaluation.breakdown import Cutting, write_breakdown
from dragoman.evaluation.metrics import SURFACE, check_names, compare, score, tokenizer_for
from dragoman.evaluation.sets import pair_of, test_set
from dragoman.model.folder import read_description
from dragoman.translate.models import find_model
from dragoman.translate.translator import Translator

log = logging.getLogger(__name__)

EXAMPLES = 5


@dataclass(frozen=True)
class Way:
    """How to translate and score, the same for every model."""

    metrics: Sequence[str]
    tokenize: str
    beam: int | None
    device: str
    engine: str


def evaluate(
    path: str | Path,
    *,
    source: str | None = None,
    reference: str | None = None,
    named: str | None = None,
    metrics: list[str] | None = None,
    tokenize: str | None = None,
    beam: int | None = None,
    device: str = "auto",
    engine: str = "auto",
    against: str | Path | None = None,
    html: str | Path | None = None,
    run: runs.RunFolder | None = None,
    label: str | None = None,
    known: dict[tuple[str, ...], list[str]] | None = None,
    progress: runs.Progress = runs.silent,
) -> dict[str, Any]:
    """Scores of a model on two aligned files, on a set that sacreBLEU knows (`named`), or on the test set of its run.

    `tokenize`: how BLEU cuts words, if not as the target language asks for.
    `against`: another model, or a file of its translations, for a paired bootstrap. `html`: a page with the worst sentences. `run`: whose
    test set and scores.json, if not those of the run that `path` belongs to; a model without a run has its own scores.json. `label`:
    what the model is called there, if not by its path. `known`: translations of `against` by their sources, kept from call to call."""
    metrics = metrics or ["bleu", "chrf"]
    check_names(metrics, tokenize)
    if against and not set(SURFACE).intersection(metrics):
        raise ConfigError(["--against compares bleu, chrf or ter; name one of them with --metric, too"], "evaluate")
    folder = find_model(Path(path))
    described = read_description(folder)
    languages = pair_of(named) or (described.source_lang, described.target_lang)
    way = Way(metrics, tokenize or tokenizer_for(languages[1]), beam, device, engine)
    run = run or run_of(Path(path))
    kept = run.scores if run else runs.RunFolder(folder).scores
    runs.read_entries(kept)  # what is wrong there is said before anything is translated
    name, pairs = test_set(run, source, reference, named, languages)
    sources = tuple(pair[0] for pair in pairs)
    known = {} if known is None else known
    if against and sources not in known:
        known[sources] = translations_of(Path(against), pairs, way, progress)
    others = known.get(sources) if against else None
    result, translations = measure(folder, name, pairs, way, progress)
    result["model"] = label or result["model"]
    if others:
        references = [pair[1] for pair in pairs]
        result["against"] = {"system": str(against)} | compare(others, translations, references, metrics, way.tokenize)
    if html:
        cutting = Cutting(way.tokenize, languages)
        result["html"] = str(write_breakdown(Path(html), result, pairs, translations, others, cutting))
    try:
        runs.append_entry(kept, result)
    except OSError as error:
        log.warning("%s could not be written: %s", kept, error)
    return result


def measure(
    folder: Path, name: str, pairs: list[Pair], way: Way, progress: runs.Progress
) -> tuple[dict[str, Any], list[str]]:
    translator = Translator.read(folder, way.device, engine=way.engine)
    start = time.perf_counter()
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    translations = translator.translate(sources, beam=way.beam, progress=progress)
    result = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": str(folder),
        "step": runs.step_of(folder) if runs.step_of(folder) >= 0 else None,
        "test_set": name,
        "sentences": len(pairs),
        "beam": way.beam or translator.section.beam,
        "engine": translator.engine.name,
        "scores": score(sources, translations, references, way.metrics, way.tokenize),
        "seconds": round(time.perf_counter() - start, 3),
        "examples": [
            {"source": pair[0], "reference": pair[1], "translation": text}
            for pair, text in list(zip(pairs, translations, strict=True))[:EXAMPLES]
        ],
    }
    return result, translations


def translations_of(path: Path, pairs: list[Pair], way: Way, progress: runs.Progress) -> list[str]:
    """Of another system: a model that translates now, or a file with a translation a line."""
    if path.is_dir():
        translator = Translator.read(find_model(path), way.device, engine=way.engine)
        return translator.translate([pair[0] for pair in pairs], beam=way.beam, progress=progress)
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: translations to compare with cannot be read ({error})") from None
    if len(lines) != len(pairs):
        raise DataError(f"{path}: {len(lines)} translations for {len(pairs)} sentences of the test set")
    return lines


def run_of(path: Path) -> runs.RunFolder | None:
    """The run that a path belongs to: the run itself, or the one around a checkpoint."""
    folder = runs.RunFolder(path)
    return folder if folder.exists() else runs.run_around(path)
