"""What is in a corpus: sizes, lengths, ratios, vocabulary, drops, duplicates and suspects, as sections to be shown.

Text is read twice, as a stream: once to count, once to measure. Of more than LARGEST_SAMPLE pairs a part is measured; a hash
of the pair decides, so that all copies of a pair are in or out and the share of duplicates stays true.
"""

from __future__ import annotations

import html
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nlargest
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import runs
from dragoman.data.corpus import Pair, raw_pairs
from dragoman.data.encode import SIDES, PreparedData
from dragoman.data.shards import read_shards
from dragoman.data.subwords import UNK
from dragoman.errors import DataError

LARGEST_SAMPLE = 2_000_000
TICK = 20_000
SHOWN_SUSPECTS = 20
SAMPLES_PER_REASON = 3
SUSPICIOUS = 0.7
LONGEST_SHOWN = 240  # characters
PERCENTILES = (5, 25, 50, 75, 95, 99)
LENGTH_EDGES = (0, 1, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150)
RATIO_EDGES = (0, 1 / 3, 1 / 2, 2 / 3, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3)
URL = re.compile(r"https?://[^\s\"'<>)]+|www\.[^\s\"'<>)]+")
DIGIT = re.compile(r"\d")
BAD = "\N{REPLACEMENT CHARACTER}"

Read = Callable[[], Iterator[Pair]]


@dataclass
class Section:
    """A table with an optional picture: bars of one colour per series."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    bars: list[tuple[str, list[int]]] = field(default_factory=list)
    series: list[str] = field(default_factory=list)


def inspect(path: Path, other: Path | None = None, progress: runs.Progress = runs.silent) -> list[Section]:
    """Two aligned text files, or one prepared folder."""
    if other is None and path.is_file():
        raise DataError(f"{path}: a corpus has two sides; name the other file too, or a prepared folder alone")
    prepared = PreparedData(path) if other is None else None
    names = [path.name, other.name] if other else list(SIDES)
    read: Read = (lambda: decoded(path, other)) if other else (lambda: read_shards(path, "train"))
    totals = count(read, progress)
    if not totals.pairs:
        raise DataError(f"{path}: there are no lines to look at")
    found = measure(read, totals, progress)
    sections = [size_section(totals, names), length_section(found, names), ratio_section(found)]
    if prepared:
        sections += [parts_section(prepared), vocabulary_section(prepared, totals), *dropped_sections(prepared)]
    return [*sections, oddities_section(found), suspects_section(found)]


def decoded(source: Path, target: Path) -> Iterator[Pair]:
    for one, two in raw_pairs(source, target):
        yield one.decode("utf-8", "replace"), two.decode("utf-8", "replace")


# --- counting and measuring --------------------------------------------------------------------------------


@dataclass
class Totals:
    """Of all pairs; lists hold source and target."""

    pairs: int = 0
    bytes: list[int] = field(default_factory=lambda: [0, 0])
    characters: list[int] = field(default_factory=lambda: [0, 0])
    words: list[int] = field(default_factory=lambda: [0, 0])


@dataclass
class Measured:
    """Of the sample; suspects are (score, line, reasons, source, target), the worst first."""

    totals: Totals
    one_in: int
    characters: tuple[array[int], array[int]] = field(default_factory=lambda: (array("I"), array("I")))
    words: tuple[array[int], array[int]] = field(default_factory=lambda: (array("I"), array("I")))
    digests: array[int] = field(default_factory=lambda: array("Q"))
    odd: Counter[str] = field(default_factory=Counter)
    suspects: list[tuple[float, int, str, str, str]] = field(default_factory=list)


def count(read: Read, progress: runs.Progress) -> Totals:
    totals = Totals()
    for pair in read():
        for side, text in enumerate(pair):
            totals.bytes[side] += len(text.encode()) + 1
            totals.characters[side] += len(text)
            totals.words[side] += len(text.split())
        totals.pairs += 1
        if totals.pairs % TICK == 0:
            progress("counting", totals.pairs, 0, "pairs")
    return totals


def measure(read: Read, totals: Totals, progress: runs.Progress) -> Measured:
    found = Measured(totals, one_in=math.ceil(totals.pairs / LARGEST_SAMPLE))
    typical = math.log((totals.characters[1] + 1) / (totals.characters[0] + 1))

    def suspects() -> Iterator[tuple[float, int, str, str, str]]:
        for number, (source, target) in enumerate(read(), 1):
            if number % TICK == 0:
                progress("measuring", number, totals.pairs, "pairs")
            digest = int.from_bytes(blake2b(f"{source}\t{target}".encode(), digest_size=8).digest())
            if digest % found.one_in == 0:
                add(found, source, target, digest)
                score, reasons = suspicion(source, target, typical)
                if score > SUSPICIOUS:
                    found.odd["misaligned suspects"] += 1
                    yield score, -number, reasons, source, target

    worst = {row[3:]: row for row in reversed(nlargest(SHOWN_SUSPECTS * 10, suspects()))}  # copies are shown once
    found.suspects = [*reversed(worst.values())][:SHOWN_SUSPECTS]
    progress("measuring", totals.pairs, totals.pairs, "pairs")
    return found


def add(found: Measured, source: str, target: str, digest: int) -> None:
    for side, text in enumerate((source, target)):
        found.characters[side].append(len(text))
        found.words[side].append(len(text.split()))
    found.digests.append(digest)
    found.odd["an empty side"] += not source.strip() or not target.strip()
    found.odd["both sides the same"] += source == target
    found.odd["not UTF-8, or already damaged (\N{REPLACEMENT CHARACTER})"] += BAD in source or BAD in target


def suspicion(source: str, target: str, typical: float) -> tuple[float, str]:
    """How little two sentences look like translations, and why: length, figures, addresses, marks. `typical` is the
    logarithm of the usual ratio of characters."""
    source, target = html.unescape(source), html.unescape(target)
    unequal = abs(math.log((len(target) + 8) / (len(source) + 8)) - typical)  # 8: short sentences differ by chance
    figures = [Counter(DIGIT.findall(text)) for text in (source, target)]
    differing = ((figures[0] - figures[1]) + (figures[1] - figures[0])).total()
    spelt_out = 1 if all(figures) else 2  # one side may have written the number as a word
    addresses = [{url.rstrip(".,;:") for url in URL.findall(text)} for text in (source, target)]
    asks = [any(mark in text[-3:] for mark in "?？؟;") for text in (source, target)]
    brackets = [sum(text.count(mark) for mark in "()（）") for text in (source, target)]
    reasons = {
        f"length {len(source)}:{len(target)}": 2 * unequal if unequal > math.log(2) else 0.0,
        "figures": differing / max(4, figures[0].total() + figures[1].total()) / spelt_out,
        "addresses": float(addresses[0] != addresses[1]),
        "question": 0.5 * (asks[0] != asks[1]),
        "brackets": 0.25 * (brackets[0] != brackets[1]),
    }
    return sum(reasons.values()), ", ".join(reason for reason, score in reasons.items() if score)


# --- sections ----------------------------------------------------------------------------------------------


def size_section(totals: Totals, names: list[str]) -> Section:
    columns = totals.bytes, totals.words, totals.characters
    rows = [
        [name, f"{num_bytes / 1e6:,.2f} MB", f"{totals.pairs:,}", f"{words:,}", f"{characters:,}"]
        for name, num_bytes, words, characters in zip(names, *columns, strict=True)
    ]
    return Section("Size", ["", "text", "lines", "words", "characters"], rows)


def length_section(found: Measured, names: list[str]) -> Section:
    rows = []
    for what, sides in (("words", found.words), ("characters", found.characters)):
        rows += [[what, name, *spread(np.asarray(side), "{:,.0f}")] for name, side in zip(names, sides, strict=True)]
    header = ["a sentence has", "", *spread_header()]
    counts = [np.histogram(np.asarray(side), [*LENGTH_EDGES, np.inf])[0].tolist() for side in found.words]
    labels = [f"{low}" if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(LENGTH_EDGES)]
    bars = [(f"{label} words", list(pair)) for label, *pair in zip([*labels, "150+"], *counts, strict=True)]
    while not any(bars[-1][1]):
        bars.pop()
    return Section("Lengths", header, rows, sample_note(found), bars, names)


def ratio_section(found: Measured) -> Section:
    sides = [np.maximum(1, np.asarray(side)) for side in found.characters]
    ratios = sides[1] / sides[0]
    counts = np.histogram(ratios, [*RATIO_EDGES, np.inf])[0].tolist()
    labels = [f"{low:.2f} to {high:.2f}" for low, high in pairwise(RATIO_EDGES)]
    bars = [(label, [count]) for label, count in zip([*labels, "over 3"], counts, strict=True)]
    title = "Length ratio, target to source, in characters"
    return Section(title, spread_header(), [spread(ratios, "{:.2f}")], bars=bars, series=["pairs"])


def spread_header() -> list[str]:
    return ["mean", *(f"{part} %" for part in PERCENTILES), "largest"]


def spread(values: Any, form: str) -> list[str]:
    return [form.format(value) for value in (values.mean(), *np.percentile(values, PERCENTILES), values.max())]


def parts_section(data: PreparedData) -> Section:
    keys = ("pairs", "source_tokens", "target_tokens", "longest")
    parts = [part for part in ("train", "valid", "test") if data.has(part)]
    rows = [[part, *(f"{data.manifest[part].get(key, 0):,}" for key in keys)] for part in parts]
    return Section("Prepared", ["", "pairs", "source subwords", "target subwords", "longest side"], rows)


def vocabulary_section(data: PreparedData, totals: Totals) -> Section:
    encoded, sizes, rows = data.encoded("train"), (len(data.vocabulary.source), len(data.vocabulary)), []
    for name, side, words, size in zip(SIDES, (encoded.source, encoded.target), totals.words, sizes, strict=True):
        uses = np.zeros(size, dtype=np.int64)
        for at in range(0, len(side.ids), 2**24):
            uses += np.bincount(side.ids[at : at + 2**24], minlength=size)
        tokens = len(side.ids) - len(side.ends)  # without the marks at the end of sentences
        row = [f"{np.count_nonzero(uses[UNK + 1 :]) / max(1, size - UNK - 1):.1%}", f"{1e3 * uses[UNK] / tokens:.3f}"]
        rows.append([name, *row, f"{tokens / max(1, words):.2f}", *spread(side.lengths - 1, "{:,.0f}")])
    header = ["", "pieces used", "unknown per 1,000", "subwords a word", *spread_header()]
    return Section(
        f"Vocabulary of {' and '.join(f'{size:,}' for size in dict.fromkeys(sizes))} pieces, and subwords a sentence",
        header,
        rows,
    )


def dropped_sections(data: PreparedData) -> list[Section]:
    train = data.manifest["train"]
    drops = train.get("dropped") or data.manifest.get("dropped") or {}
    read = max(1, train.get("read_pairs", train["pairs"] + sum(drops.values())))
    rows = [[reason, f"{number:,}", f"{number / read:.2%}"] for reason, number in drops.items()]
    sections = [Section("Dropped", ["reason", "pairs", "of those read"], rows or [["nothing", "0", "0.00%"]])]
    shown: Counter[str] = Counter()
    samples = []
    for row in runs.read_rows(data.folder / "samples.jsonl"):
        shown[str(row.get("reason"))] += 1
        if shown[str(row.get("reason"))] <= SAMPLES_PER_REASON:
            samples.append([clipped(str(row.get(key, ""))) for key in ("reason", "line", *SIDES)])
    return (
        [*sections, Section("Samples of what was dropped", ["reason", "line", *SIDES], samples)]
        if samples
        else sections
    )


def oddities_section(found: Measured) -> Section:
    sampled = len(found.digests)
    copies = sampled - len(np.unique(np.asarray(found.digests)))
    odd = {"copies of an earlier pair": copies, **found.odd}
    rows = [[name, f"{number:,}", f"{number / sampled:.2%}"] for name, number in odd.items()]
    return Section("Oddities", ["", "pairs", "share"], rows, sample_note(found))


def suspects_section(found: Measured) -> Section:
    rows = [
        [f"{-line:,}", f"{score:.2f}", why, clipped(source), clipped(target)]
        for score, line, why, source, target in found.suspects
    ]
    note = "A high score says: look at it. Names of units, clock times and free translations are suspected too."
    return Section("Most suspicious pairs", ["line", "score", "why", *SIDES], rows, note if rows else "none")


def clipped(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + " ..."


def sample_note(found: Measured) -> str:
    if found.one_in == 1:
        return ""
    return f"measured on a sample: {len(found.digests):,} of {found.totals.pairs:,} pairs, chosen by a hash"


def to_html(sections: list[Section], title: str) -> str:
    """One page that needs nothing but itself."""
    import jinja2

    folder = Path(__file__).parent / "templates"
    page = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True)
    return page.get_template("inspection.html.j2").render(sections=sections, title=title)
