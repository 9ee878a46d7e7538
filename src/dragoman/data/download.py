"""Files from the network: resumed where they stopped, checked, from the first mirror that serves them.

folder/NAME appears when it is whole and its checksum is right; until then NAME.part grows, and NAME.part.json says which
version of which address it is a beginning of. Where a checksum guards the file, any address goes on with what another brought;
where none does, every address has a part of its own.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.errors import DataError, RunError

TRIES = 5  # in a row that bring nothing new; after them even a mirror that has sent something is given up
PAUSE_SECONDS = 1.0
SILENCE_SECONDS = 30.0
CHUNK_BYTES = 1 << 18
PART = re.compile(r"(\.[0-9a-f]{8})?\.part$")
NETWORK_ERRORS = (OSError, http.client.HTTPException)  # urllib's own errors are OSErrors


@dataclass(frozen=True)
class Archive:
    """A file on the network. `checksum` is like `sha256:0f3a...`, or empty where nobody published one."""

    name: str
    urls: tuple[str, ...]
    bytes: int = 0
    checksum: str = ""
    instead: Archive | None = None  # the same files packed by somebody else, when no address of this one serves it


class MirrorFailed(Exception):
    """Why this mirror did not serve the file."""


def fetch(
    archive: Archive, folder: Path, progress: runs.Progress = runs.silent, silence_s: float = SILENCE_SECONDS
) -> Path:
    """The file, whole and checked, or the one that stands in for it."""
    problems: list[str] = []
    for each in filter(None, (archive, archive.instead)):
        if path := served(each, folder, progress, silence_s, problems):
            return path
    raise DataError(
        f"{archive.name} could not be downloaded ({'; '.join(problems)}). Run the same command again when the network is "
        f"there, it goes on where it stopped; or put the file at {folder / archive.name} yourself"
    )


def served(
    archive: Archive, folder: Path, progress: runs.Progress, silence_s: float, problems: list[str]
) -> Path | None:
    """The file from the first address that has it; None, and a problem each, when none does. One that is there already is
    only checked."""
    path = folder / archive.name
    if path.is_file():
        found = checksum_of(path, archive.checksum)
        if found != archive.checksum:
            raise DataError(f"{path}: its checksum is {found}, not {archive.checksum}; remove it and run again")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    for url in archive.urls:
        part = part_of(path, url, archive.checksum)
        # What lies there came from another address, or from another version of the file: it may not fit.
        foreign = size_of(part) and not beginning(url, part)
        try:
            receive_whole(url, part, progress, silence_s, guarded=bool(archive.checksum))
            if foreign and checksum_of(part, archive.checksum) != archive.checksum:
                part.unlink()
                receive_whole(url, part, progress, silence_s, guarded=True)
            accept(part, path, archive.checksum)
        except MirrorFailed as problem:
            problems.append(f"{url}: {problem}")
            continue
        for other in (part_of(path, url, archive.checksum) for url in archive.urls):
            other.unlink(missing_ok=True)
            state_path(other).unlink(missing_ok=True)
        return path
    return None


def part_of(path: Path, url: str, checksum: str) -> Path:
    return path.with_name(f"{path.name}.part" if checksum else f"{path.name}.{runs.digest_of(url)[:8]}.part")


def receive_whole(url: str, part: Path, progress: runs.Progress, silence_s: float, *, guarded: bool) -> None:
    """The .part file with all its bytes; cut connections are taken up again as long as something new comes now and then."""
    brought, barren, furthest = False, 0, size_of(part)
    while True:
        before = size_of(part)
        try:
            return receive(url, part, progress, silence_s, guarded=guarded)
        except MirrorFailed:
            size = size_of(part)
            barren = 0 if size > furthest else barren + 1
            furthest, brought = max(furthest, size), brought or size != before
            if not brought or barren >= TRIES:
                raise
        time.sleep(PAUSE_SECONDS)


def receive(url: str, part: Path, progress: runs.Progress, silence_s: float, *, guarded: bool) -> None:
    """One request: the rest of the .part file where the server still has the same version, or where a checksum tells later
    whether it had; all of it where not."""
    state = beginning(url, part)
    request = urllib.request.Request(url, headers={"User-Agent": "dragoman", "Accept-Encoding": "identity"})
    if size_of(part) and (state or guarded):
        request.add_header("Range", f"bytes={size_of(part)}-")
    if state:
        request.add_header("If-Range", state["version"])
    try:
        response = urllib.request.urlopen(request, timeout=silence_s)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing after what we have: the file shrank, or it was whole when we were stopped
            if error.headers.get("Content-Range") == f"bytes */{size_of(part)}":
                return
            part.unlink(missing_ok=True)
        raise MirrorFailed(f"the server answers {error.code} {error.reason}") from None
    except (*NETWORK_ERRORS, ValueError) as error:
        raise MirrorFailed(reason_of(error)) from None
    with response:
        start, total = place(response)
        if start and start != size_of(part):
            raise MirrorFailed("the server sends another part of the file than the one asked for")
        runs.write_json(state_path(part), {"url": url, "version": version_of(response), "bytes": total})
        append(part, response, start, total, progress)
    size = size_of(part)
    if total and size != total:
        raise MirrorFailed(f"the connection was cut after {size:,} of {total:,} bytes")


def append(part: Path, response: Any, start: int, total: int, progress: runs.Progress) -> None:
    began, done = time.monotonic(), start
    stage = f"getting {PART.sub('', part.name)}"
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        while chunk := received(response):
            file.write(chunk)
            done += len(chunk)
            rate = (done - start) / 1e6 / max(1e-3, time.monotonic() - began)
            progress(stage, done // 10**6, max(total, 0) // 10**6, f"MB, {rate:.1f} MB/s")


def received(response: Any) -> bytes:
    """Errors of the network become MirrorFailed here, so that those of the disk stay what they are."""
    try:
        return bytes(response.read1(CHUNK_BYTES))
    except NETWORK_ERRORS as error:
        raise MirrorFailed(reason_of(error)) from None


def place(response: Any) -> tuple[int, int]:
    """Where the bytes of an answer belong: first byte, and the size of the whole file (0 when it is not told)."""
    if response.status == 206:
        told = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if not told:
            raise MirrorFailed("the server does not say which part of the file it sends")
        return int(told[1]), int(told[2])
    return 0, int(response.headers.get("Content-Length") or 0)


def version_of(response: Any) -> str:
    """What tells one version of a file from another; a weak ETag may not be used for that."""
    tag = response.headers.get("ETag", "")
    return str(tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", ""))


def beginning(url: str, part: Path) -> runs.Row | None:
    """What is known of a .part file that can be continued from this address."""
    if not size_of(part):
        return None
    try:
        state = runs.read_json(state_path(part))
    except RunError:
        return None
    return state if isinstance(state, dict) and state.get("url") == url and state.get("version") else None


def size_of(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def state_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def accept(part: Path, path: Path, expected: str) -> None:
    """Give a whole file its name. One with the wrong checksum is kept aside, where nobody takes it for the right one."""
    found = checksum_of(part, expected)
    state_path(part).unlink(missing_ok=True)
    if found != expected:
        aside = part.replace(path.with_name(path.name + ".wrong"))
        raise MirrorFailed(f"its checksum is {found}, not {expected}; kept as {aside}")
    runs.sync_path(part)
    part.replace(path)


def checksum_of(path: Path, like: str) -> str:
    """The checksum of a file by the algorithm that `like` names; empty when it names none."""
    algorithm, _, digits = like.partition(":")
    if not digits:
        return like
    with path.open("rb") as stream:
        return f"{algorithm}:{hashlib.file_digest(stream, algorithm).hexdigest()}"


def reason_of(error: BaseException) -> str:
    inner = getattr(error, "reason", error)
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    return str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
