"""Names inside a run folder, atomic writes, JSON lines. The run folder is the only door between training
and everything after it, so every name in it is spelled here and nowhere else.

runs/<name>/
  run.toml            the resolved configuration      environment.json  hosts, GPUs, NICs, versions, model size
  data.json           manifest of the prepared data   metrics.jsonl     one row per logged step or validation
  events.jsonl        start, resume, spans, end       telemetry/<host>.jsonl  once a second: GPU, NIC, CPU, memory
  log/rank-000.log    tensorboard/                    translations/step-00010000.txt
  checkpoints/step-00010000/                          scores.json  report.html  report.md
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.errors import RunError

Row = dict[str, Any]


class RunFolder:
    """The names inside one run folder."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "run.toml"
        self.environment = self.path / "environment.json"
        self.data = self.path / "data.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events.jsonl"
        self.scores = self.path / "scores.json"
        self.telemetry = self.path / "telemetry"
        self.logs = self.path / "log"
        self.tensorboard = self.path / "tensorboard"
        self.translations = self.path / "translations"
        self.checkpoints = self.path / "checkpoints"
        self.report_html = self.path / "report.html"
        self.report_markdown = self.path / "report.md"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / step_name(step)

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:03d}.log"

    def exists(self) -> bool:
        return self.config.is_file()


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The step that a name such as `step-00000400` or `step-00000400.txt` carries; -1 when it carries none."""
    digits = path.name.removeprefix("step-").split(".")[0]
    return int(digits) if path.name.startswith("step-") and digits.isdigit() else -1


def open_run(path: str | Path) -> RunFolder:
    """The run folder at `path`, or one line that says what is there instead."""
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise RunError(f"{path}: no such run folder. `dragoman train run.toml` makes one, at the path of its key run.folder")
    if not folder.exists():
        raise RunError(f"{path}: not a run folder (run.toml is missing)")
    return folder


def checkpoint_folders(folder: RunFolder) -> list[Path]:
    """Whole checkpoints, oldest first. Half-written ones carry another name until they are whole."""
    if not folder.checkpoints.is_dir():
        return []
    whole = [path for path in folder.checkpoints.iterdir() if step_of(path) >= 0 and "." not in path.name]
    return sorted(whole, key=step_of)


# --- atomic writes -----------------------------------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name, sync, rename: a reader sees the old file or the new one, never a torso."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            sync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: not readable as JSON ({error})") from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under a name never used before; it takes its own name only when everything in it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            if file.is_file():
                sync_path(file)
        sync_path(temporary)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
        sync_path(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(descriptor: int) -> None:
    os.fsync(descriptor)


def sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of(content: Any) -> str:
    """SHA-256 of any JSON-like value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


# --- JSON lines --------------------------------------------------------------------------------------------


def append_row(path: Path, row: Row) -> None:
    """Append one row; a single write of one line, so that a killed process leaves at most one torn last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"time": round(time.time(), 3), **row}, ensure_ascii=False) + "\n"
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line)


def read_rows(path: Path) -> list[Row]:
    """All whole rows. A torn line (the process was killed while writing) is passed over."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [row for row in rows if isinstance(row, dict)]
