"""A model on a test set: translate it, score it, and write the scores down where the run lives."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.config import load_config
from dragoman.data.clean import checked
from dragoman.data.corpus import Pair, raw_pairs
from dragoman.data.encode import PreparedData
from dragoman.errors import DataError
from dragoman.evaluation.metrics import check_names, score
from dragoman.translate.models import find_model
from dragoman.translate.translator import Translator

EXAMPLES = 5


def evaluate(
    path: str | Path,
    *,
    source: str | None = None,
    reference: str | None = None,
    metrics: list[str] | None = None,
    tokenize: str | None = None,
    beam: int | None = None,
    device: str = "auto",
    progress: runs.Progress = runs.silent,
) -> dict[str, Any]:
    """Scores of a model on two aligned files, or on the test set that its run was prepared with."""
    names = metrics or ["bleu", "chrf"]
    check_names(names, tokenize)
    folder = find_model(Path(path))
    run = run_of(Path(path))
    name, pairs = test_set(run, source, reference)
    translator = Translator.read(folder, device)
    start = time.perf_counter()
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    translations = translator.translate(sources, beam=beam, progress=progress)
    result = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": str(folder),
        "step": runs.step_of(folder) if runs.step_of(folder) >= 0 else None,
        "test_set": name,
        "sentences": len(pairs),
        "beam": beam or translator.section.beam,
        "scores": score(sources, translations, references, names, tokenize),
        "seconds": round(time.perf_counter() - start, 3),
        "examples": [
            {"source": pair[0], "reference": pair[1], "translation": text}
            for pair, text in list(zip(pairs, translations, strict=True))[:EXAMPLES]
        ],
    }
    if run:
        before = runs.read_json(run.scores) if run.scores.is_file() else []
        runs.write_json(run.scores, [*before, result])
    return result


def run_of(path: Path) -> runs.RunFolder | None:
    """The run that a path belongs to: the run itself, or the one around a checkpoint."""
    for candidate in (path, path.resolve().parent.parent):
        folder = runs.RunFolder(candidate)
        if folder.exists():
            return folder
    return None


def test_set(run: runs.RunFolder | None, source: str | None, reference: str | None) -> tuple[str, list[Pair]]:
    if source and reference:
        pairs = list(checked(raw_pairs(Path(source), Path(reference)), f"{source} / {reference}"))
        if not pairs:
            raise DataError(f"{source}: is empty")
        return Path(source).name, pairs
    if source or reference:
        raise DataError("a test set has two files: name both --source and --reference")
    if run is None:
        raise DataError(
            "this model folder belongs to no run, so it has no test set; name one with --source and --reference"
        )
    return "test", PreparedData(load_config(run.config).data.folder).text("test")
