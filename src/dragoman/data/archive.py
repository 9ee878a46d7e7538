"""Members out of .tar.gz and .zip archives, by the names we ask for. Paths inside an archive never become paths on disk."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from dragoman.errors import DataError


def unpack(archive: Path, wanted: list[str], folder: Path) -> None:
    """Write members with these file names into `folder`, whatever folder of the archive they are in."""
    missing = set(wanted)
    try:
        for name, stream in members(archive):
            if name in missing:
                with stream, (folder / name).open("wb") as file:
                    shutil.copyfileobj(stream, file, 1 << 20)
                missing.remove(name)
            if not missing:
                return
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of the archive
            raise
        raise DataError(f"{archive}: damaged ({error}); remove it and run again") from None
    raise DataError(f"{archive}: holds no plain file {', '.join(sorted(missing))}; its makers may have changed it")


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Plain files of an archive. Links and devices are passed over: what they point to is not ours to read or write."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    yield PurePosixPath(info.filename).name, zipped.open(info)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            if stream:
                yield PurePosixPath(member.name).name, stream
