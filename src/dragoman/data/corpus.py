"""Parallel text in: two aligned files, plain or compressed, read line by line without ever holding a file in memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from dragoman.errors import DataError

Pair = tuple[str, str]
RawPair = tuple[bytes, bytes]

OPENERS: dict[str, Callable[[Path], object]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def raw_pairs(source: Path, target: Path) -> Iterator[RawPair]:
    """Aligned lines as bytes, without line ends. Files of unequal length are refused with both counts."""
    with open_text(source) as source_stream, open_text(target) as target_stream:
        sources, targets = lines(source, source_stream), lines(target, target_stream)
        count = 0
        for source_line in sources:
            target_line = next(targets, None)
            if target_line is None:
                raise unequal(source, count + 1 + sum(1 for _ in sources), target, count)
            yield source_line, target_line
            count += 1
        if next(targets, None) is not None:
            raise unequal(source, count, target, count + 1 + sum(1 for _ in targets))


def unequal(source: Path, source_count: int, target: Path, target_count: int) -> DataError:
    return DataError(
        f"{source} has {source_count:,} lines and {target} has {target_count:,}: the sides must be aligned line by line. "
        "Nothing was written; find the missing line or take the corpus again from its origin"
    )


def open_text(path: Path) -> BinaryIO:
    try:
        opener = OPENERS.get(path.suffix)
        return cast(BinaryIO, opener(path)) if opener else path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def lines(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """Lines end with a line feed, and with nothing else: other separators occur inside real sentences."""
    try:
        for number, line in enumerate(stream):
            yield (line.removeprefix(BYTE_ORDER_MARK) if number == 0 else line).rstrip(b"\r\n")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: damaged or not readable to its end ({error}). Nothing was written") from None
