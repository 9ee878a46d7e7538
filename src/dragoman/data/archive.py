"""Members out of .tar.gz and .zip archives, by the names we ask for. Paths inside an archive never become paths on disk."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from dragoman.data.streams import DAMAGE
from dragoman.errors import DataError


def unpack(archive: Path, wanted: tuple[str, ...], folder: Path) -> list[Path]:
    """Write members with these names, or the first that fits a pattern like `*.de`, into `folder`, whatever folder of the
    archive they are in (unless only that tells them apart); returns where they are."""
    found: dict[str, Path] = {}
    names = [PurePosixPath(each).name for each in wanted]
    patterns = {each: name if names.count(name) == 1 else each for each, name in zip(wanted, names, strict=True)}
    try:
        for path, stream in members(archive):
            fitting = next((each for each in wanted if each not in found and path.match(patterns[each])), None)
            if fitting:
                place = folder / path.name
                found[fitting] = place if place not in found.values() else folder / f"{len(found)}.{path.name}"
                with stream, found[fitting].open("wb") as file:
                    shutil.copyfileobj(stream, file, 1 << 20)
    except (tarfile.TarError, *DAMAGE) as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of the archive
            raise
        first = str(error).partition("\n")[0].rstrip(":")
        raise DataError(f"{archive}: damaged ({first}); remove it and run again") from None
    if missing := sorted(set(wanted) - found.keys()):
        raise DataError(f"{archive}: holds no plain file {', '.join(missing)}; its makers may have changed it")
    return [found[each] for each in wanted]


def members(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Plain files of an archive. Links and devices are passed over: what they point to is not ours to read or write."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    yield PurePosixPath(info.filename), zipped.open(info)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            if stream:
                yield PurePosixPath(member.name), stream
        while tar.fileobj and tar.fileobj.read(1 << 20):  # to the end, where the checksum of what was packed is
            pass
