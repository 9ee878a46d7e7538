"""Bytes of a text file, plain or compressed, as a stream that never holds more than one line in memory.

What a file holds is judged by its first kilobytes before anything is read: a wrong name, a picture or a web page is refused
by what it seems to be. Nothing is ever unpacked to disk.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from dragoman.errors import DataError

LONGEST_LINE_BYTES = 2**20
TOO_LONG = b"x" * 10_000  # stands for a line of more than that; cleaning always drops it
HEAD_BYTES = 4096
CONTROL_SHARE = 0.05  # of the first bytes: less is text with a few bad lines, which cleaning counts
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The last one: packed in a way that Python does not know.
DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, IndexError, NotImplementedError)
UTF_16 = "UTF-16 text (convert it: iconv -f UTF-16 -t UTF-8)"

PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".zip": "zip"}
SIGNATURES = {
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\x00",
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
    "zip": rb"PK(\x03\x04|\x05\x06)",
    "a tar archive": rb".{257}ustar",
    "a PDF document": rb"%PDF-",
    "a Parquet table": rb"PAR1[\x00-\x1f]",
    "a picture": rb"\x89PNG|\xff\xd8\xff|GIF8[79]a",
    "a web page (an error page instead of a download?)": rb"(?i:\s*<(!doctype html|html[\s>]))",
    "a Git LFS pointer (fetch the file itself: git lfs pull)": rb"version https://git-lfs",
    UTF_16: rb"\xff\xfe|\xfe\xff",
    "nothing but zero bytes (a copy that broke off?)": rb"\x00+\Z",
}


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Whatever goes wrong while reading becomes one line."""
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        raise DataError(f"{path}: damaged or cut off ({error}); take it again from its origin") from None


def open_text(path: Path, *, utf_16: bool = False) -> BinaryIO:
    """The unpacked bytes of a file, or one line that says what it is instead of text. XML may be UTF-16."""
    file, member = member_of(path)
    with in_words(path):
        with file.open("rb") as packed:
            head = packed.read(HEAD_BYTES)
        named, found = PACKED.get(file.suffix.lower()), seems(head)
        if named and named != found:
            what = found or ("plain text" if head else "empty")
            raise DataError(f"{path}: is named {file.suffix} but seems to be {what}; give it the name of what it is")
        opened = open_zip(file, member) if member else OPENERS[named](file) if named else file.open("rb")
        stream = io.BufferedReader(opened, 2**17)
        found = seems(stream.peek(HEAD_BYTES)[:HEAD_BYTES])
        if found and not (utf_16 and found == UTF_16):
            stream.close()
            raise DataError(f"{path}: seems to be {found}, not text{advice(found)}")
        if stream.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
            stream.read(len(BYTE_ORDER_MARK))
    return stream


def seems(head: bytes) -> str | None:
    """What a file that begins so seems to be; None: text."""
    for what, pattern in SIGNATURES.items():
        if re.match(pattern, head, re.DOTALL):
            return what
    zeros = sorted((head[0::2].count(0), head[1::2].count(0)))
    if zeros[1] > 0.2 * len(head) and zeros[0] < 0.02 * len(head):
        return UTF_16
    controls = sum(head.count(code) for code in range(32) if chr(code) not in "\t\n\v\f\r\x1b")
    return "binary data" if controls > CONTROL_SHARE * len(head) else None


def advice(found: str) -> str:
    suffix = next((suffix for suffix, kind in PACKED.items() if kind == found), None)
    return f"; unpack it or let its name end in {suffix}" if suffix else "; dragoman reads UTF-8 text, see docs/data.md"


def lines(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """Lines end with a line feed, and with nothing else: other separators occur inside real sentences."""
    read = partial(stream.readline, LONGEST_LINE_BYTES)
    with in_words(path):
        for line in iter(read, b""):
            if len(line) < LONGEST_LINE_BYTES or line.endswith(b"\n"):
                yield line.rstrip(b"\r\n")
                continue
            while (rest := read()) and not rest.endswith(b"\n"):
                pass
            yield TOO_LONG


def member_of(path: Path) -> tuple[Path, str]:
    """The file that `archive.zip!member` names, and the member; no member where there is no such mark."""
    archive, mark, member = str(path).partition(".zip!")
    return (Path(f"{archive}.zip"), member) if mark else (path, "")


def zip_members(path: Path) -> list[str]:
    """The plain files inside an archive."""
    with in_words(path), zipfile.ZipFile(path) as archive:
        return [info.filename for info in archive.infolist() if not info.is_dir()]


def open_zip(path: Path, member: str = "") -> Any:
    """The file of that name inside a zip archive, or the only one."""
    names = zip_members(path)
    if member not in names and (member or len(names) != 1):
        what = f"no {member}" if member else f"{len(names)} files"
        raise DataError(f"{path}: holds {what}; name one of {', '.join(names[:9])} as {path.name}!NAME")
    try:
        return zipfile.ZipFile(path).open(member or names[0])
    except RuntimeError:
        raise DataError(f"{path}: holds a file that needs a password; unpack it and name the files") from None


OPENERS: dict[str, Callable[[Path], Any]] = {
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": lzma.open,
    "zstd": lambda path: pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"),
    "zip": open_zip,
}
