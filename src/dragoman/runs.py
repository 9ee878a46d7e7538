"""Names inside a run folder, atomic writes, JSON lines. The run folder is the only door between training
and everything after it, so names in it are spelled here and nowhere else.

runs/<name>/
  run.toml            the resolved configuration      environment.json  hosts, GPUs, NICs, versions, model size
  data.json           manifest of the prepared data   metrics.jsonl     one row per logged step or validation
  events.jsonl        start, resume, fault, stop      telemetry/<host>.jsonl  once a second: GPU, NIC, CPU, memory
  spans.jsonl         seconds a step, by rank and phase
  owner.json          who trains in it, generation    log/rank-000.log  tensorboard/  translations/step-00010000.txt
  checkpoints/step-00010000/                          scores.json  report.html  report.md  figures/
  start.json          what was taken from the model that train.start_from names
  reached             the newest step, also between two rows of metrics
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from dragoman.errors import AWAY, DragomanError, RunError

log = logging.getLogger(__name__)

Row = dict[str, Any]

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
READ_IF_THERE = (".safetensors", ".model")  # such a file changes what is read; any other may lie there too
OURS = "dragoman"  # a tag in event files of TensorBoard: its BLEU is ours, though the tags are another system's
KEY = ".key"  # of a folder that is being filled
OLD = ".old"  # of a folder that is being replaced
LOCK_SECONDS = 30.0  # for what others do in a moment; one that was stopped there does not hold up everybody
LOWER_IS_BETTER = {"loss", "nll", "perplexity", "train_slice_loss", "train_slice_nll"}


class RunFolder:
    """The names inside one run folder."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "run.toml"
        self.environment = self.path / "environment.json"
        self.data = self.path / "data.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events.jsonl"
        self.spans = self.path / "spans.jsonl"
        self.owner = self.path / "owner.json"
        self.start = self.path / "start.json"
        self.reached = self.path / "reached"
        self.scores = self.path / "scores.json"
        self.telemetry = self.path / "telemetry"
        self.logs = self.path / "log"
        self.tensorboard = self.path / "tensorboard"
        self.translations = self.path / "translations"
        self.checkpoints = self.path / "checkpoints"
        self.figures = self.path / "figures"
        self.report_html = self.path / "report.html"
        self.report_markdown = self.path / "report.md"
        self.report_json = self.path / "report.json"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / step_name(step)

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:03d}.log"

    def stacks(self, rank: int) -> Path:
        """Where a rank stood when it hung, or when another one did; in a file for each host that had this rank."""
        return self.logs / f"rank-{rank:03d}.{socket.gethostname()}.stacks"

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
        raise RunError(
            f"{path}: no such run folder. `dragoman train run.toml` makes one, at the path of its key run.folder"
        )
    if not folder.exists():
        raise RunError(f"{path}: not a run folder (run.toml is missing)")
    return folder


def run_around(checkpoint: Path) -> RunFolder | None:
    """The run that a checkpoint belongs to; a model that merely lies in such a place belongs to none."""
    parent = checkpoint.resolve().parent
    folder = RunFolder(parent.parent)
    return folder if folder.checkpoints.name == parent.name and folder.exists() else None


def checkpoint_folders(folder: RunFolder) -> list[Path]:
    """Whole checkpoints, oldest first. Half-written ones carry another name until they are whole."""
    if not folder.checkpoints.is_dir():
        return []
    whole = [path for path in folder.checkpoints.iterdir() if step_of(path) >= 0 and "." not in path.name]
    return sorted(whole, key=step_of)


# --- checkpoints and model folders -------------------------------------------------------------------------


def write_manifest(folder: Path, facts: Row) -> int:
    """Write size and checksum of every file into manifest.json, last of all; returns the bytes of the files."""
    files: dict[str, Row] = {
        path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in sorted(folder.iterdir())
    }
    manifest = {"format": MANIFEST_FORMAT, **facts, "files": files}
    write_json(folder / MANIFEST, manifest | {"digest": digest_of(manifest)})
    return sum(file["bytes"] for file in files.values())


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that has a manifest, or None when every file is as it was written."""
    try:
        manifest = read_json(folder / MANIFEST)
        if manifest["format"] > MANIFEST_FORMAT:
            return f"format {manifest['format']} is newer than this version reads"
        own = manifest.pop("digest", None)  # of what is in it: scores say which checkpoint is the best
        if own is not None and own != digest_of(manifest):
            return f"{MANIFEST} is not as it was written (checksum)"
        for name, expected in manifest["files"].items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"] or digest(path) != expected["sha256"]:
                return f"{name} is not as it was written (size or checksum)"
        for path in sorted(folder.iterdir()):
            if path.suffix in READ_IF_THERE and path.name not in manifest["files"]:
                return f"{path.name} was not written with the others"
    except OSError as error:  # a failing disk answers with an error rather than with wrong bytes
        if error.errno in AWAY:
            raise
        return f"cannot be read ({error})"
    except (RunError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} is not readable ({error})"
    return None


def remove_folder(folder: Path) -> None:
    """Out of sight first, so that a removal that fails half way leaves no torso under the name of a checkpoint."""
    try:
        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.removed")))
    except OSError as error:
        log.warning("%s could not be removed: %s", folder, error)


def worth_keeping(checkpoints: list[Path], metric: str, last: int, best: int, every: int) -> set[Path]:
    """Of some checkpoints, oldest first: the last ones, the best ones and every one of so many steps (0: none of these)."""
    regular = [path for path in checkpoints if every and step_of(path) % every == 0]
    return {*checkpoints[-last:], *best_first(checkpoints, metric)[:best], *regular}


def best_checkpoints(run: RunFolder, metric: str) -> list[Path]:
    """Checkpoints that have a score, the best first; of equal ones the newer first."""
    return best_first(checkpoint_folders(run), metric)


def best_first(checkpoints: list[Path], metric: str) -> list[Path]:
    scored = [(score_of(path, metric), path) for path in reversed(checkpoints)]
    known = [(score, path) for score, path in scored if score is not None]
    return [path for _, path in sorted(known, key=lambda entry: entry[0] if metric in LOWER_IS_BETTER else -entry[0])]


def score_of(checkpoint: Path, metric: str) -> float | None:
    """None where there is none, or one that is no number, or where it cannot be read: that is no fault of the others."""
    try:
        score = float(read_json(checkpoint / MANIFEST)["scores"][metric])
    except (OSError, RunError, KeyError, TypeError, ValueError, OverflowError):
        return None
    return score if math.isfinite(score) else None


# --- atomic writes -----------------------------------------------------------------------------------------


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file that is written under a temporary name and renamed at the end: a reader sees the old file or the new one,
    never a torso. A link is followed; a pipe or a device is written into. An error names the file that it was about."""
    named, path = path, path.resolve()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        if named.exists() and not named.is_file():
            with named.open("wb") as stream:
                yield stream
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(named)) from None
    finally:
        temporary.unlink(missing_ok=True)


def check_place(path: Path) -> None:
    """Before long work: whether `whole` can write there. Nothing is left behind."""
    if path.is_dir():
        raise RunError(f"{path}: is a folder; name a file to write")
    if path.exists() and not path.is_file():
        return
    try:
        tempfile.TemporaryFile(dir=next(folder for folder in path.resolve().parents if folder.exists())).close()
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); nothing was done") from None


def write_text(path: Path, text: str) -> None:
    with whole(path) as stream:
        stream.write(text.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: not readable as JSON ({error})") from None


def append_entry(path: Path, entry: Row) -> None:
    """To the list in a JSON file. Of two processes that do so at once one waits."""
    with locked(path.parent, seconds=LOCK_SECONDS):
        write_json(path, [*read_entries(path), entry])


def read_entries(path: Path) -> list[Row]:
    entries = read_json(path) if path.is_file() else []
    if not isinstance(entries, list):
        raise RunError(f"{path}: is no list of entries; move it away")
    return entries


def vacant(path: Path) -> bool:
    """Whether something may be put there: nothing is there, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


Committing = Callable[[], AbstractContextManager[None]]
"""A context in which a folder takes its name; if entering it raises, the folder gets none."""


@contextmanager
def new_folder(path: Path, committing: Committing = nullcontext) -> Iterator[Path]:
    """Fill a folder under a name never used before; it takes its own name only when everything in it is whole."""
    path = replaceable(path)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")
    temporary.mkdir()
    try:
        yield temporary
        settle(temporary, path, committing)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def claimed_folder(path: Path) -> Iterator[Path]:
    """Like kept_folder, but nothing outlives an error, and the next call removes what a killed process left there."""
    with kept_folder(path, uuid.uuid4().hex) as partial:
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def kept_folder(path: Path, key: str, *stages: str) -> Iterator[Path]:
    """Like new_folder, under the one name `<path>.partial`, and what is in it outlives an interruption or an error: the next
    call with the same key finds it again. What another key left there is removed, but for these stages, whose names say all
    that they depend on."""
    path = replaceable(path)
    partial = path.with_name(f"{path.name}.partial")
    partial.mkdir(exist_ok=True)
    with locked(partial):
        claim(partial, key, *stages)
        try:
            yield partial
        except DragomanError:
            if not any(path.is_file() and not path.name.startswith(".") for path in partial.rglob("*")):
                shutil.rmtree(partial, ignore_errors=True)
            raise
        settle(partial, path)
        (path / KEY).unlink()


def claim(folder: Path, key: str, *stages: str) -> None:
    entries = list(folder.iterdir())
    if entries and not any(KEY in entry.name for entry in entries):
        raise RunError(f"{folder}: is in the way and was not made here; move it, or choose another folder")
    same = (folder / KEY).is_file() and (folder / KEY).read_text(encoding="utf-8") == key
    for entry in entries:
        if entry.name in (KEY, *stages) or (same and not entry.name.startswith(".")):  # torsos start with a dot
            continue
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if not same:
        write_text(folder / KEY, key)


@contextmanager
def locked(folder: Path, *, seconds: float = 0.0, needed: bool = True) -> Iterator[None]:
    """Have a folder for oneself; the lock ends with the process, however it ends. Another one is waited for so long; then it is an
    error, unless one can do without."""
    descriptor = os.open(folder, os.O_RDONLY)
    until = time.monotonic() + seconds
    try:
        while not is_taken(descriptor):
            if time.monotonic() >= until:
                if needed:
                    raise RunError(f"{folder}: another process is at work there; wait until it has finished")
                break
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def is_taken(descriptor: int) -> bool:
    """By us, now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network disk without locks is no reason not to work there
        pass
    return True


def replaceable(path: Path) -> Path:
    path = path.resolve()  # a link is followed, not replaced
    if path.is_mount():
        raise RunError(f"{path}: is a mount point and cannot be replaced by a new folder; name a folder inside it")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def settle(temporary: Path, path: Path, committing: Committing = nullcontext) -> None:
    """Give a whole folder its own name. What had the name goes out of the way for a moment and is removed last."""
    for file in temporary.iterdir():
        if file.is_file():
            sync_path(file)
    sync_path(temporary)
    with committing():
        old = path.rename(path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{OLD}")) if path.exists() else None
        temporary.rename(path)
    sync_path(path.parent)
    if old:
        shutil.rmtree(old, ignore_errors=True)


def sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
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
    """Append one row in a single write. A torn line that a killed process left is closed first and stays alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"time": round(time.time(), 3), **row}, ensure_ascii=False) + "\n"
    with path.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            line = line if stream.read(1) == b"\n" else "\n" + line
        stream.write(line.encode())


def note_fault(run: RunFolder, fault: Row) -> None:
    """What ended ranks, written by whoever watches them: they cannot tell it themselves."""
    try:
        if run.exists():
            append_row(run.events, {"event": "fault", "step": newest_step(run), **fault})
    except OSError as error:
        log.warning("%s could not be written: %s", run.events, error)


def newest_step(run: RunFolder) -> int:
    """That was ever done here since the last resume, in a row of metrics or after it."""
    try:
        told = int(run.reached.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        told = 0
    steps = [row.get("step") for row in read_rows(run.metrics)]
    return max([told, *(step for step in steps if isinstance(step, int))])


def write_rows(path: Path, rows: list[Row]) -> None:
    """Replace all rows at once."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_rows(path: Path) -> list[Row]:
    """All whole rows. A torn line (the process was killed while writing) is passed over."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [row for row in rows if isinstance(row, dict)]


# --- progress ----------------------------------------------------------------------------------------------

Progress = Callable[[str, int, int, str], None]
"""How long work tells how far it is: `progress(stage, done, total, detail)`; total 0 when nobody knows it."""


def silent(stage: str, done: int, total: int, detail: str = "") -> None:
    """Progress that nobody watches."""
