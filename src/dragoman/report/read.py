"""Run folder -> RunRecord. A pure reader: what is missing, torn or half filled is left out, and `missing` says why.

Nothing here computes; numbers are derived in measures.py and put into words in questions.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.config import Config, load_config
from dragoman.errors import ConfigError, RunError
from dragoman.runs import Row, RunFolder, checkpoint_folders, open_run, read_json, read_rows, step_of

ROLES = {
    "model.safetensors": "weights, fp32",
    "model.toml": "shape of the model, languages, format version",
    "vocabulary.model": "SentencePiece vocabulary of both languages",
    "optimizer.safetensors": "Adam's two moments, fp32",
    "training.json": "step, data position, scores so far, digests of configuration and data",
    "manifest.json": "size and SHA-256 of every file; written last",
}


@dataclass(frozen=True)
class CheckpointFile:
    name: str
    role: str
    bytes: int
    header_bytes: int | None
    """Description at the head of a safetensors file; what follows it are the tensors. None for other files."""


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    step: int
    files: tuple[CheckpointFile, ...]
    scores: Row
    problems: tuple[str, ...]
    """Where the folder disagrees with its manifest."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Sample:
    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class RunRecord:
    folder: RunFolder
    config: Config | None
    environment: Row
    data: Row
    train_rows: list[Row]
    valid_rows: list[Row]
    events: list[Row]
    checkpoints: list[Checkpoint]
    scores: list[Row]
    probes: dict[int, list[Sample]]
    """Translations of the fixed probe sentences, by step."""
    telemetry: dict[str, list[Row]]
    """Samples by host."""
    missing: dict[str, str]
    """File -> why it could not be read."""

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    def why(self, file: str, otherwise: str) -> str:
        """The reason that an answer cannot be given: the file could not be read, or else what it lacks."""
        return self.missing.get(file, f"{file} {otherwise}")


def load_run(path: str | Path) -> RunRecord:
    """All that is written down about a run, finished or not."""
    folder = open_run(path)
    missing: dict[str, str] = {}
    metrics = rows_of(folder.metrics, missing)
    environment, data, scores = (content(file, missing) for file in (folder.environment, folder.data, folder.scores))
    return RunRecord(
        folder=folder,
        config=read_config(folder, missing),
        environment=environment if isinstance(environment, dict) else {},
        data=data if isinstance(data, dict) else {},
        train_rows=by_step(metrics, "train"),
        valid_rows=by_step(metrics, "valid"),
        events=[row for row in rows_of(folder.events, missing) if number(row, "time") is not None],
        checkpoints=[found for path in checkpoint_folders(folder) if (found := read_checkpoint(path))],
        scores=[row for row in scores if isinstance(row, dict)] if isinstance(scores, list) else [],
        probes=read_probes(folder.translations),
        telemetry={file.stem: rows_of(file, missing) for file in sorted(folder.telemetry.glob("*.jsonl"))},
        missing=missing,
    )


def number(row: Mapping[str, Any], *keys: str) -> float | None:
    """A finite number at `row[key][key]...`, or None: a diverged loss is NaN, a killed writer leaves anything."""
    value: Any = row
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value)


def section(row: Mapping[str, Any], key: str) -> Row:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


# --- files -------------------------------------------------------------------------------------------------


def read_config(folder: RunFolder, missing: dict[str, str]) -> Config | None:
    try:
        return load_config(folder.config)
    except (ConfigError, OSError) as error:  # written by another version, or torn
        missing[folder.config.name] = f"run.toml cannot be read ({' '.join(str(error).split())})"
        return None


def content(path: Path, missing: dict[str, str]) -> Any:
    try:
        return read_json(path)
    except (RunError, OSError) as error:
        missing[path.name] = f"{path.name} is missing" if not path.exists() else str(error)
        return None


def rows_of(path: Path, missing: dict[str, str]) -> list[Row]:
    try:
        rows = read_rows(path)
    except OSError as error:
        missing[path.name] = f"{path.name} cannot be read ({error.strerror})"
        return []
    if not path.is_file():
        missing[path.name] = f"{path.name} is missing"
    elif not rows:
        missing[path.name] = f"{path.name} is empty"
    return rows


def by_step(rows: list[Row], kind: str) -> list[Row]:
    """Rows of one kind in the order of steps; of two rows for a step the later one counts."""
    found = {int(step): row for row in rows if row.get("kind") == kind and (step := number(row, "step")) is not None}
    return [found[step] for step in sorted(found)]


def read_checkpoint(path: Path) -> Checkpoint | None:
    """None when the run deletes it while we look."""
    try:
        files = [describe(file) for file in sorted(path.iterdir()) if file.is_file()]
    except OSError:
        return None
    manifest = content(path / "manifest.json", {})
    manifest = manifest if isinstance(manifest, dict) else {}
    files.sort(key=lambda file: list(ROLES).index(file.name) if file.name in ROLES else len(ROLES))
    problems = tuple(disagreements(files, section(manifest, "files")))
    return Checkpoint(path, step_of(path), tuple(files), section(manifest, "scores"), problems)


def describe(file: Path) -> CheckpointFile:
    role = ROLES.get(file.name, "not described by this version")
    return CheckpointFile(file.name, role, file.stat().st_size, safetensors_header(file))


def safetensors_header(file: Path) -> int | None:
    """8 bytes that hold a length, and a description of that length."""
    if file.suffix != ".safetensors":
        return None
    with file.open("rb") as stream:
        length = 8 + int.from_bytes(stream.read(8), "little")
    return length if length <= file.stat().st_size else None


def disagreements(files: list[CheckpointFile], listed: Row) -> list[str]:
    if not listed:
        return ["manifest.json is missing or lists no files"]
    found = {file.name: file.bytes for file in files}
    problems = [f"{name} is in the manifest and not in the folder" for name in listed if name not in found]
    for name, num_bytes in found.items():
        expected = number(section(listed, name), "bytes")
        if expected is not None and expected != num_bytes:
            problems.append(f"{name} has {num_bytes:,} bytes, its manifest says {expected:,.0f}")
    return problems


# --- probe sentences ---------------------------------------------------------------------------------------

LABELLED = re.compile(r"(source|reference|translation)(?:\s*:|\s{2}|\t|$)(.*)", re.IGNORECASE)


def read_probes(folder: Path) -> dict[int, list[Sample]]:
    probes: dict[int, list[Sample]] = {}
    for file in sorted(folder.glob("step-*.txt")):
        try:
            samples = parse_samples(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if samples and step_of(file) >= 0:
            probes[step_of(file)] = samples
    return probes


def parse_samples(content: str) -> list[Sample]:
    """Blocks between empty lines, each with source, reference and translation: labelled, or else in this order."""
    samples = []
    for block in re.split(r"\n\s*\n", content):
        lines = [line.rstrip("\r") for line in block.split("\n") if line.strip()]
        found = {match[1].lower(): match[2].strip() for line in lines if (match := LABELLED.fullmatch(line))}
        if not found and len(lines) == 3:
            found = dict(zip(("source", "reference", "translation"), lines, strict=True))
        if "source" in found and "translation" in found:
            samples.append(Sample(found["source"], found.get("reference", ""), found["translation"]))
    return samples
