"""Formats of parallel text, each an iterator of pairs of bytes: aligned lines, SGM, TSV, JSON lines, TMX."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO
from xml.sax.saxutils import unescape

from defusedxml import ElementTree

from dragoman.data.languages import code_of
from dragoman.data.streams import LONGEST_LINE_BYTES, TOO_LONG, in_words, lines, open_text
from dragoman.errors import DataError

RawPair = tuple[bytes, bytes]
Names = tuple[str, str]  # of the source side and of the target side

SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
QUOTES = {"&quot;": '"', "&apos;": "'"}
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
MARKUP = {"bpt", "ept", "it", "ph", "ut"}  # inside a TMX segment: codes of some other program, not text


# --- two files ---------------------------------------------------------------------------------------------


def segments(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """Of a test set of the WMT shared tasks: a srcset or a refset."""
    held, found = b"", False
    for line in lines(path, stream):
        held += b" " + line
        *whole, held = SEGMENT.split(held)  # what lies between segments, and every second time a segment
        for text in whole[1::2]:
            found = True
            yield unescape(text.decode("utf-8", "surrogateescape"), QUOTES).encode("utf-8", "surrogateescape")
        held = held if b"<" in held and len(held) <= LONGEST_LINE_BYTES else b""
    if not found:
        raise DataError(f"{path}: holds no <seg id=...>, so it is no SGM test set; name plain text otherwise than .sgm")


def aligned(paths: tuple[Path, ...], read: Callable[[Path, BinaryIO], Iterator[bytes]], unit: str) -> Iterator[RawPair]:
    """Pairs of what `read` finds in two files, `lines` or `segments`. Unequal numbers are refused with both counts."""
    source, target = paths
    with open_text(source) as source_stream, open_text(target) as target_stream:
        sources, targets = read(source, source_stream), read(target, target_stream)
        for count, (one, other) in enumerate(zip_longest(sources, targets)):
            if one is None or other is None:
                more = count + 1 + sum(1 for _ in sources) + sum(1 for _ in targets)  # one of them is at its end
                source_count, target_count = (count, more) if one is None else (more, count)
                raise DataError(
                    f"{source} has {source_count:,} {unit} and {target} has {target_count:,}: the sides must be aligned "
                    "one to one; find what is missing or take the corpus again from its origin"
                )
            yield one, other


# --- one file of pairs -------------------------------------------------------------------------------------


def tsv_pairs(path: Path, columns: tuple[int, int] = (0, 1)) -> Iterator[RawPair]:
    """source TAB target, or other columns; those further on are not looked at. A side that a line lacks is empty."""
    last = max(columns)
    with open_text(path) as stream:
        for number, line in enumerate(lines(path, stream)):
            cells = line.split(b"\t", last + 1) if line is not TOO_LONG else [TOO_LONG] * (last + 1)
            if number == 0 and len(cells) <= last:
                raise DataError(f"{path}: no tab in the first line; a line must be source TAB target")
            cells += [b""] * (last + 1 - len(cells))
            yield cells[columns[0]], cells[columns[1]]


def json_pairs(path: Path, keys: Names, langs: Names) -> Iterator[RawPair]:
    """JSON lines: {"source": ..., "target": ...} or {"translation": {"en": ..., "de": ...}}."""
    with open_text(path) as stream:
        for number, line in enumerate(lines(path, stream), 1):
            if line is TOO_LONG:
                yield TOO_LONG, TOO_LONG
                continue
            try:
                yield json_pair(line, keys, langs) if line.strip() else (b"", b"")
            except UnicodeDecodeError:
                yield line, line  # cleaning drops and counts it, and an empty one too
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number:,}: not a pair as JSON ({error})") from None


def json_pair(line: bytes, keys: Names, langs: Names) -> RawPair:
    row = json.loads(line.decode("utf-8"))
    if not isinstance(row, dict):
        raise ValueError(f"not an object with keys, but {type(row).__name__}")
    nested = row.get("translation")
    holder, names = (nested, langs) if isinstance(nested, dict) and keys[0] not in row else (row, keys)
    if missing := [name for name in names if name not in holder]:
        raise ValueError(f"no key {missing[0]!r} among {list(holder)[:9]}; set source_key and target_key of the corpus")
    texts = [holder[name] if holder[name] is not None else "" for name in names]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"not text: {texts}")
    source, target = (text.encode("utf-8", "surrogatepass") for text in texts)  # half a character becomes bad UTF-8
    return source, target


def tmx_pairs(path: Path, langs: Names) -> Iterator[RawPair]:
    """Translation units. One that lacks a language has an empty side there, which cleaning counts."""
    seen: set[str] = set()
    both = False
    with open_text(path, utf_16=True) as stream, in_words(path):
        for unit in tmx_units(path, stream):
            seen |= unit.keys()
            sides = [side_of(unit, written(lang)) for lang in langs]
            both = both or None not in sides
            yield sides[0] or b"", sides[1] or b""
    if not both:
        raise DataError(
            f"{path}: no unit in both {langs[0]} and {langs[1]}; its languages are {', '.join(sorted(seen)) or 'none'}"
        )


def tmx_units(path: Path, stream: BinaryIO) -> Iterator[dict[str, bytes]]:
    """Segments by language, one unit in memory at a time. Nothing is fetched from elsewhere, and entities, which a few bytes
    could blow up to any size, are refused."""
    around: list[Any] = []  # the elements that are not closed yet
    try:
        for event, element in ElementTree.iterparse(stream, events=("start", "end")):
            if event == "start":
                around.append(element)
                continue
            around.pop()
            if local_name(element) == "tu":
                yield unit_of(element)
                for holder in around[-1:]:
                    holder.clear()  # or it would hold on to every unit
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:  # LookupError: encoding
        raise DataError(f"{path}: not a whole TMX file ({error}); take it again from its origin") from None


def unit_of(element: Any) -> dict[str, bytes]:
    unit: dict[str, bytes] = {}
    for variant in element.iterfind(".//{*}tuv"):
        lang = variant.get(XML_LANG) or variant.get("lang") or ""
        text = "".join(segment_text(each) for each in variant.iterfind(".//{*}seg")).encode()
        unit.setdefault(written(lang), text if len(text) <= LONGEST_LINE_BYTES else TOO_LONG)
    return unit


def local_name(element: Any) -> str:
    """Without the namespace that a file may declare."""
    return str(element.tag).rpartition("}")[2]


def written(lang: str) -> str:
    """EN_us, eng-US -> en-us"""
    _, dash, region = lang.lower().replace("_", "-").partition("-")
    return f"{code_of(lang)}{dash}{region}"


def segment_text(element: Any) -> str:
    inside = (("" if local_name(child) in MARKUP else segment_text(child)) + (child.tail or "") for child in element)
    return (element.text or "") + "".join(inside)


def side_of(unit: dict[str, bytes], wanted: str) -> bytes | None:
    """`en` takes en, en-US, EN_GB and eng alike."""
    return next((text for lang, text in unit.items() if f"{lang}-".startswith(f"{wanted}-")), None)
