"""Formats of parallel text, each an iterator of pairs of bytes: aligned lines, SGM, TSV, JSON lines, TMX."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar
from xml.parsers import expat
from xml.sax.saxutils import unescape

from dragoman.data.streams import LONGEST_LINE_BYTES, TOO_LONG, in_words, lines, open_text
from dragoman.errors import DataError

Item = TypeVar("Item")
RawPair = tuple[bytes, bytes]
Names = tuple[str, str]  # of the source side and of the target side

SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
QUOTES = {"&quot;": '"', "&apos;": "'"}
XML_BYTES = 2**16  # parsed at once
MARKUP = {"bpt", "ept", "it", "ph", "ut"}  # inside a TMX segment: codes of some other program, not text


# --- two files ---------------------------------------------------------------------------------------------


def line_pairs(source: Path, target: Path) -> Iterator[RawPair]:
    """Aligned lines, without line ends. Files of unequal length are refused with both counts."""
    with open_text(source) as source_stream, open_text(target) as target_stream:
        yield from aligned(source, lines(source, source_stream), target, lines(target, target_stream), "lines")


def sgm_pairs(source: Path, target: Path) -> Iterator[RawPair]:
    """Segments of a test set of the WMT shared tasks: a srcset and a refset."""
    with open_text(source) as source_stream, open_text(target) as target_stream:
        sides = (segments(path, lines(path, file)) for path, file in ((source, source_stream), (target, target_stream)))
        yield from aligned(source, next(sides), target, next(sides), "segments")


def segments(path: Path, sgm: Iterator[bytes]) -> Iterator[bytes]:
    held, found = b"", False
    for line in sgm:
        held += b" " + line
        *whole, held = SEGMENT.split(held)  # what lies between segments, and every second time a segment
        for text in whole[1::2]:
            found = True
            yield unescape(text.decode("utf-8", "surrogateescape"), QUOTES).encode("utf-8", "surrogateescape")
        held = held if b"<" in held and len(held) <= LONGEST_LINE_BYTES else b""
    if not found:
        raise DataError(f"{path}: holds no <seg id=...>, so it is no SGM test set; name plain text otherwise than .sgm")


def aligned(
    source: Path, sources: Iterator[Item], target: Path, targets: Iterator[Item], unit: str
) -> Iterator[tuple[Item, Item]]:
    count = 0
    for source_item in sources:
        target_item = next(targets, None)
        if target_item is None:
            raise unequal(source, count + 1 + sum(1 for _ in sources), target, count, unit)
        yield source_item, target_item
        count += 1
    more = sum(1 for _ in targets)
    if more:
        raise unequal(source, count, target, count + more, unit)


def unequal(source: Path, source_count: int, target: Path, target_count: int, unit: str) -> DataError:
    return DataError(
        f"{source} has {source_count:,} {unit} and {target} has {target_count:,}: the sides must be aligned one to one. "
        "Nothing was written; find what is missing or take the corpus again from its origin"
    )


# --- one file of pairs -------------------------------------------------------------------------------------


def tsv_pairs(path: Path) -> Iterator[RawPair]:
    """source TAB target; further columns are not looked at. A line without a tab has an empty side."""
    with open_text(path) as stream:
        for number, line in enumerate(lines(path, stream)):
            source, tab, rest = line.partition(b"\t") if line is not TOO_LONG else (TOO_LONG, b"\t", TOO_LONG)
            if not (number or tab):
                raise DataError(f"{path}: no tab in the first line; a line must be source TAB target")
            yield source, rest.partition(b"\t")[0]


def json_pairs(path: Path, keys: Names, langs: Names) -> Iterator[RawPair]:
    """JSON lines: {"source": ..., "target": ...} or {"translation": {"en": ..., "de": ...}}."""
    with open_text(path) as stream:
        for number, line in enumerate(lines(path, stream), 1):
            if line is TOO_LONG:
                yield TOO_LONG, TOO_LONG
            elif line.strip():
                try:
                    yield json_pair(line, keys, langs)
                except UnicodeDecodeError:
                    yield line, line  # cleaning drops and counts it
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
    """Translation units that have both languages; others are not pairs and are passed over."""
    units = TmxUnits(langs)
    count = 0
    with open_text(path, utf_16=True) as stream, in_words(path):
        for chunk in iter(lambda: stream.read(XML_BYTES), b""):
            units.feed(path, chunk)
            yield from units.pairs
            count += len(units.pairs)
        units.feed(path, b"", last=True)
    if not count:
        raise DataError(
            f"{path}: no unit in both {langs[0]} and {langs[1]}; its languages are {', '.join(sorted(units.langs)) or 'none'}"
        )


class TmxUnits:
    """Handlers of an XML parser that keep one unit at a time. The parser itself fetches nothing from elsewhere, and
    entities, which a few bytes could blow up to any size, are refused."""

    def __init__(self, wanted: Names):
        self.wanted = wanted
        self.pairs: list[RawPair] = []  # of the chunk fed last
        self.langs: set[str] = set()
        self.lang = ""
        self.unit: dict[str, bytes] = {}
        self.text: list[str] | None = None  # of the segment we are in
        self.length = self.markup = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.EntityDeclHandler = self.entity

    def feed(self, path: Path, chunk: bytes, last: bool = False) -> None:
        self.pairs = []
        try:
            self.parser.Parse(chunk, last)
        except (expat.ExpatError, ValueError) as error:
            raise DataError(f"{path}: not a whole TMX file ({error}); take it again from its origin") from None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "tu":
            self.unit = {}
        elif tag == "tuv":
            self.lang = (attributes.get("xml:lang") or attributes.get("lang") or "").lower().replace("_", "-")
            self.langs.add(self.lang)
        elif tag == "seg":
            self.text, self.length, self.markup = [], 0, 0
        elif tag in MARKUP:
            self.markup += 1

    def characters(self, text: str) -> None:
        if self.text is not None and not self.markup:
            self.length += len(text)
            if self.length <= LONGEST_LINE_BYTES:
                self.text.append(text)

    def end(self, tag: str) -> None:
        if tag == "seg" and self.text is not None:
            whole = self.length <= LONGEST_LINE_BYTES
            self.unit.setdefault(self.lang, "".join(self.text).encode() if whole else TOO_LONG)
            self.text = None
        elif tag == "tu":
            sides = [self.side(lang.lower().replace("_", "-")) for lang in self.wanted]
            if sides[0] is not None and sides[1] is not None:
                self.pairs.append((sides[0], sides[1]))
        elif tag in MARKUP:
            self.markup -= 1

    def side(self, wanted: str) -> bytes | None:
        """`en` takes en, en-US and EN_GB alike."""
        return next((text for lang, text in self.unit.items() if f"{lang}-".startswith(f"{wanted}-")), None)

    def entity(self, name: str, *_: Any) -> None:
        raise ValueError(f"it declares an entity, {name!r}, which is refused for safety")
