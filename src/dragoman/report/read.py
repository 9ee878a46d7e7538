"""Run folder -> RunRecord. A pure reader: what is missing, torn or half filled is left out, and `missing` says why.

Nothing here computes; numbers are derived in measures.py and put into words in questions.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from dragoman.config import Config, load_config
from dragoman.errors import ConfigError, RunError
from dragoman.runs import MANIFEST, Row, RunFolder, checkpoint_folders, open_run, read_json, read_rows, step_of

ROLES = {
    "model.safetensors": "weights, fp32",
    "weights.safetensors": "weights of training beside their average, fp32",
    "model.toml": "shape of the model, languages, format version",
    "vocabulary.model": "SentencePiece vocabulary, of both sides unless source.model is there",
    "source.model": "SentencePiece vocabulary of the source side",
    "optimizer.safetensors": "Adam's two moments, fp32",
    "training.json": "step, data position, scores so far, what must be the same on resume",
    "manifest.json": "size and SHA-256 of every file; written last",
}
OWN = "own-"  # of ranks, beside the state that all share
BY_PARTS = {  # of names: files of single ranks, and those of other systems
    "moments-": "one rank's piece of Adam's two moments, fp32",
    OWN: "what one rank has for itself",
    ".data-": "tensors, TensorFlow's",
    ".index": "which tensor lies where",
    ".meta": "the graph",
    "optimizer.": "state of the optimizer",
    "scheduler.": "state of the learning rate",
    "rng_state": "state of random numbers",
    "pytorch_model": "weights",
    "trainer_state": "step, losses and rates so far",
    ".pt": "weights and state of training, pickled",
}
MOST_SAMPLES = 6_000
LABELLED = re.compile(r"(source|reference|translation)(?:\s*:|\s{2}|\t|$)\s*(.*)", re.IGNORECASE)


class NotRecorded(Exception):
    """The run folder does not say what is asked; the message is the reason."""


Given = ParamSpec("Given")
Result = TypeVar("Result")


def once(function: Callable[Concatenate[RunRecord, Given], Result]) -> Callable[Concatenate[RunRecord, Given], Result]:
    """Of a long run many answers need the same sums: each is made once a record."""

    @wraps(function)
    def remembered(record: RunRecord, /, *args: Given.args, **options: Given.kwargs) -> Result:
        key = (function.__qualname__, args, tuple(options.items()))
        if key not in record.derived:
            record.derived[key] = function(record, *args, **options)
        result: Result = record.derived[key]
        return result

    return remembered


def known(fact: Callable[[RunRecord], Result], record: RunRecord) -> Result | None:
    """A fact about a run, or None where the record does not say enough."""
    with suppress(NotRecorded):
        return fact(record)
    return None


def collected(checks: Iterable[Callable[[RunRecord], Iterable[Result]]], record: RunRecord) -> list[Result]:
    """What all of them find, as far as the record says enough."""
    found: list[Result] = []
    for check in checks:
        with suppress(NotRecorded):  # what a check found before it came to that is kept
            found += check(record)
    return found


def load_run(path: str | Path) -> RunRecord:
    """All that is written down about a run, finished or not."""
    record = RunRecord(open_run(path))
    record.fill()
    return record


class RunRecord:
    """What is known of a run, with an empty value for everything that is not: from a run folder by `fill`, or from the logs
    of another system."""

    def __init__(self, folder: RunFolder, origin: str = ""):
        self.folder, self.origin = folder, origin
        """Empty for a run folder of our own; else what was imported."""
        self.missing: dict[str, str] = {}
        """File -> why it could not be read."""
        self.config: Config | None = None
        self.environment: Row = {}
        self.data: Row = {}
        self.train_rows: list[Row] = []
        self.valid_rows: list[Row] = []
        self.spans: dict[int, Row] = {}
        """Step -> seconds by rank."""
        self.events: list[Row] = []
        self.scores: list[Row] = []
        self.probes: dict[int, list[Sample]] = {}
        self.checkpoints: list[Checkpoint] = []
        self.telemetry: dict[str, list[Row]] = {}
        self.stated: Row = {}
        """What a person said about the run, to be checked."""
        self.notes: dict[int, list[tuple[str, str]]] = {}
        """Question -> evidence that another system's log gives beside our own."""
        self.own_average: float | None = None
        """Seconds a step, as that log itself sums it up."""
        self.clock = "UTC"
        """Whose time of day it is."""
        self.derived: dict[Any, Any] = {}
        """What `once` remembers."""

    def fill(self) -> None:
        folder = self.folder
        self.config = self.read(folder.config, load_config, None)
        self.environment = self.read(folder.environment, read_json, {})
        self.data = self.read(folder.data, read_json, {})
        metrics = self.read(folder.metrics, read_rows, [])
        self.train_rows, self.valid_rows = by_step(metrics, "train"), by_step(metrics, "valid")
        self.spans = {int(number(row, "step") or 0): row for row in self.read(folder.spans, read_rows, [])}
        self.events = [row for row in self.read(folder.events, read_rows, []) if number(row, "time") is not None]
        if folder.scores.is_file():  # no evaluation yet is nothing to tell
            self.scores = [row for row in self.read(folder.scores, read_json, []) if isinstance(row, dict)]
        self.probes = read_probes(folder.translations)
        for path in checkpoint_folders(folder):
            with suppress(OSError):  # the run deletes it while we look
                manifest = self.read(path / MANIFEST, read_json, {})
                self.checkpoints.append(Checkpoint(path.name, path.iterdir(), manifest))
        for file in sorted(folder.telemetry.glob("*.jsonl")):
            self.telemetry[file.stem] = self.aligned(file.stem, self.read(file, read_samples, []))

    @property
    def last_row(self) -> Row:
        return self.train_rows[-1] if self.train_rows else {}

    @property
    def last_valid(self) -> Row:
        return self.valid_rows[-1] if self.valid_rows else {}

    @property
    def hosts(self) -> list[Row]:
        return sections(self.environment, "hosts")

    def samples(self, host: Row) -> list[Row]:
        """Telemetry of a host."""
        return self.telemetry.get(text(host, "host"), [])

    def events_of(self, *kinds: str) -> list[Row]:
        return [row for row in self.events if row.get("event") in kinds]

    @property
    def one_host(self) -> bool:
        """Whether it is known that there was no other."""
        return len(self.hosts) == 1 and (not self.stated or "hosts" in self.stated)

    def aligned(self, host: str, rows: list[Row]) -> list[Row]:
        """Samples by the clock of the main rank's host."""
        ahead = next((number(row, "clock_offset_seconds") for row in self.hosts if row.get("host") == host), None)
        return [row | {"time": row["time"] - (ahead or 0.0)} for row in rows if number(row, "time") is not None]

    def read(self, file: Path, reader: Callable[[Path], Any], empty: Any) -> Any:
        """What the reader makes of a file, or else `empty` and a line in `missing`."""
        reason = "is empty or torn"
        try:
            found = reader(file)
            if found and (empty is None or isinstance(found, type(empty))):
                return found
        except (ConfigError, RunError, OSError) as error:
            reason = f"cannot be read ({' '.join(str(error).split())})"
        self.missing[file.name] = f"{file.name} {reason if file.exists() else 'is missing'}"
        return empty

    def lacks(self, file: str, what: str) -> NotRecorded:
        """The reason that a question has no answer: the file could not be read, or else what it lacks."""
        if self.origin:
            return NotRecorded(f"{self.origin} does not tell")
        return NotRecorded(self.missing.get(file, f"{file} {what}"))


def read_samples(path: Path) -> list[Row]:
    """Telemetry of days is thinned while it is read: counters are totals, so nothing is lost between two samples."""
    lines = path.read_bytes().split(b"\n")
    rows = []
    for line in lines[:: 1 + len(lines) // MOST_SAMPLES]:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def by_step(rows: list[Row], kind: str) -> list[Row]:
    """Rows of one kind in the order of steps, which are integers from 1; of two for a step the later one counts."""
    steps = [(int(number(row, "step") or 0), row) for row in rows if row.get("kind") == kind]
    found = {step: {**row, "step": step} for step, row in steps if step > 0}
    return [found[step] for step in sorted(found)]


def number(row: Row, *keys: str) -> float | None:
    """A finite number at `row[key][key]...`, or None: a diverged loss is NaN."""
    value: Any = section(row, *keys[:-1]).get(keys[-1])
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def column(rows: Iterable[Row], *keys: str) -> list[float]:
    """Such a number of every row that has it."""
    return [value for row in rows if (value := number(row, *keys)) is not None]


def text(row: Row, key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value)


def section(row: Row, *keys: str) -> Row:
    """The table at `row[key][key]...`, or an empty one."""
    for key in keys:
        value = row.get(key)
        row = value if isinstance(value, dict) else {}
    return row


def sections(row: Row, key: str) -> list[Row]:
    value = row.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class Checkpoint:
    """Sizes of a checkpoint on disk, and where they disagree with its manifest, which other systems do not have."""

    def __init__(self, name: str, files: Iterable[Path], manifest: Row | None = None):
        here = [file for file in sorted(files) if file.is_file()]
        found = {file.name: file.stat().st_size for file in here}
        tensors = [file for file in here if file.suffix == ".safetensors"]
        headers = {file.name: header_bytes(file) for file in tensors if not file.name.startswith(OWN)}
        self.name, self.ours = name, manifest is not None
        self.files = {name: found[name] for name in ROLES if name in found} | found
        self.bytes = sum(found.values())
        self.header_bytes = sum(headers.values())
        self.tensor_bytes = sum(found[name] for name in headers) - self.header_bytes
        self.own_bytes = sum(size for name, size in found.items() if name.startswith(OWN))
        self.rest_bytes = self.bytes - self.tensor_bytes - self.own_bytes
        listed = section(manifest or {}, "files")
        self.problems = [] if listed or not self.ours else ["manifest.json is missing or lists no files"]
        for name in listed:
            expected = number(listed, name, "bytes")
            if name not in found:
                self.problems.append(f"{name} is in the manifest and not in the folder")
            elif expected is not None and expected != found[name]:
                self.problems.append(f"{name} has {found[name]:,} bytes, its manifest says {expected:,.0f}")


def role(file: str) -> str:
    words = (words for part, words in BY_PARTS.items() if part in file)
    return ROLES.get(file) or next(words, "not described by this version")


def header_bytes(file: Path) -> int:
    """Of a safetensors file: 8 bytes that hold a length, and names and shapes of that length."""
    with file.open("rb") as stream:
        length = 8 + int.from_bytes(stream.read(8), "little")
    return min(length, file.stat().st_size)


class Sample(NamedTuple):
    source: str
    reference: str
    translation: str


def read_probes(folder: Path) -> dict[int, list[Sample]]:
    """Translations of the fixed probe sentences, by step."""
    probes = {}
    for file in sorted(folder.glob("step-*.txt")):
        with suppress(OSError):
            probes[step_of(file)] = parse_samples(file.read_text(encoding="utf-8", errors="replace"))
    return {step: samples for step, samples in probes.items() if samples and step >= 0}


def parse_samples(content: str) -> list[Sample]:
    """Blocks between empty lines, each with source, reference and translation: labelled, or else in this order."""
    samples = []
    for block in re.split(r"\n\s*\n", content):
        lines = [line.strip() for line in block.split("\n") if line.strip()]
        found = {match[1].lower(): match[2] for line in lines if (match := LABELLED.fullmatch(line))}
        if not found and len(lines) == 3:
            found = dict(zip(Sample._fields, lines, strict=True))
        if "source" in found and "translation" in found:
            samples.append(Sample(found["source"], found.get("reference", ""), found["translation"]))
    return samples
