"""What is in a corpus: sizes, lengths, ratios, vocabulary, drops, duplicates and suspects, as sections to be shown.

Text is read as a stream, a block at a time. Of more than LARGEST_SAMPLE pairs a part is measured; a hash of the pair decides, so
that all copies of a pair are in or out and the share of duplicates stays true.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from dragoman import runs
from dragoman.config.schema import Data
from dragoman.data.clean import DIGIT, LOST, Block, bools, either, text_of
from dragoman.data.corpus import PARTS, SIDES, Pair, RawPair, raw_pairs
from dragoman.data.encode import SAMPLES_FILE, PreparedData
from dragoman.data.shards import chunks, hashes, read_shards
from dragoman.data.subwords import UNK
from dragoman.errors import DataError

LARGEST_SAMPLE = 2_000_000
TICK = 100_000
SHOWN_SUSPECTS = 20
SAMPLES_PER_REASON = 3
SUSPICIOUS = 0.7
LONGEST_SHOWN = 240  # characters
PERCENTILES = (5, 25, 50, 75, 95, 99)
SPREAD = ["mean", *(f"{part} %" for part in PERCENTILES), "largest"]
LENGTH_EDGES = (0, 1, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150)
RATIO_EDGES = (0, 1 / 3, 1 / 2, 2 / 3, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3)
URL = re.compile(r"https?://[^\s\"'<>)]+|www\.[^\s\"'<>)]+")
ODD = ("an empty side", "both sides the same", f"not UTF-8, or already damaged ({LOST})", "misaligned suspects")


@dataclass
class Section:
    """A table with an optional picture: bars of one colour per series."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    bars: list[tuple[str, list[int]]] = field(default_factory=list)
    series: list[str] = field(default_factory=list)


def inspect(
    path: Path, other: Path | None = None, progress: runs.Progress = runs.silent, reading: Data | None = None
) -> list[Section]:
    """Two aligned text files, one file that holds both sides, or one prepared folder. `reading` has languages, format and keys."""
    prepared = PreparedData(path) if path.is_dir() and other is None else None
    names = [path.name, other.name] if other else list(SIDES)
    found = measure(read_shards(path, "train") if prepared else decoded(raw_pairs(path, other, reading)), progress)
    if not found.pairs:
        raise DataError(f"{path}: there are no lines to look at")
    sections = [size_section(found, names), length_section(found, names), ratio_section(found)]
    if prepared:
        sections += [parts_section(prepared), *vocabulary_sections(prepared, found), *dropped_sections(prepared)]
    return [*sections, oddities_section(found), suspects_section(found)]


def decoded(pairs: Iterator[RawPair]) -> Iterator[Pair]:
    for one, two in pairs:
        yield one.decode("utf-8", "replace"), two.decode("utf-8", "replace")


# --- counting and measuring --------------------------------------------------------------------------------


class Suspect(NamedTuple):
    """A pair whose sides look little like translations of each other."""

    score: float
    line: int
    reasons: str
    source: str
    target: str


class Measured:
    """Sums over all pairs, [what, side]; columns of the sample; and suspects, the worst first."""

    def __init__(self) -> None:
        self.pairs, self.one_in = 0, 1
        self.sums = np.zeros((3, 2), np.int64)  # bytes, words, characters
        self.hashes = np.zeros(0, np.uint64)
        self.lengths = np.zeros((2, 2, 0), np.int64)  # words and characters, side, pair
        self.odd = np.zeros((len(ODD), 0), np.bool_)
        self.suspects: list[Suspect] = []

    def add(self, block: Block) -> None:
        measures = pc.binary_length, partial(pc.count_substring_regex, pattern=r"\S+"), pc.utf8_length
        sizes = [[bools(measure(text)) for text in block.sides] for measure in measures]
        self.sums += np.sum(sizes, axis=2)
        self.sums[0] += len(block)  # line ends
        key, first = hashes(block), self.pairs + 1
        self.pairs += len(block)
        inside = np.flatnonzero(key % np.uint64(self.one_in) == 0)
        odd = [either([bools(pc.equal(pc.utf8_trim_whitespace(text), "")) for text in block.sides])]
        odd += [bools(pc.equal(*block.sides)), block.holds(LOST), np.zeros(len(block), np.bool_)]
        for place in inside.tolist():
            score, reasons = suspicion(*block.pair(place), self.typical)
            if score > SUSPICIOUS:
                odd[-1][place] = True
                self.suspects.append(Suspect(score, first + place, reasons, *block.pair(place)))
        self.suspects = nlargest(SHOWN_SUSPECTS * 10, self.suspects, key=lambda suspect: (suspect.score, -suspect.line))
        self.hashes = np.append(self.hashes, key[inside])
        self.lengths = np.append(self.lengths, np.array(sizes[1:])[:, :, inside], axis=2)
        self.odd = np.append(self.odd, np.array(odd)[:, inside], axis=1)
        while len(self.hashes) > LARGEST_SAMPLE:
            self.one_in *= 2
            keep = self.hashes % np.uint64(self.one_in) == 0
            self.hashes, self.lengths, self.odd = self.hashes[keep], self.lengths[:, :, keep], self.odd[:, keep]

    @property
    def typical(self) -> float:
        """The logarithm of the usual ratio of characters, so far."""
        return math.log((self.sums[2, 1] + 1) / (self.sums[2, 0] + 1))


def measure(pairs: Iterator[Pair], progress: runs.Progress) -> Measured:
    found = Measured()
    for chunk in chunks(pairs, TICK):
        found.add(Block(*map(text_of, zip(*chunk, strict=True))))
        progress("measuring", found.pairs, 0, "pairs")
    worst: dict[Pair, Suspect] = {}
    for suspect in found.suspects:
        worst.setdefault((suspect.source, suspect.target), suspect)  # copies are shown once
    found.suspects = [*worst.values()][:SHOWN_SUSPECTS]
    return found


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


def size_section(found: Measured, names: list[str]) -> Section:
    rows = [
        [name, f"{num_bytes / 1e6:,.2f} MB", f"{found.pairs:,}", f"{words:,}", f"{characters:,}"]
        for name, num_bytes, words, characters in zip(names, *found.sums.tolist(), strict=True)
    ]
    return Section("Size", ["", "text", "lines", "words", "characters"], rows)


def length_section(found: Measured, names: list[str]) -> Section:
    rows = []
    for what, sides in zip(("words", "characters"), found.lengths, strict=True):
        rows += [[what, name, *spread(side, "{:,.0f}")] for name, side in zip(names, sides, strict=True)]
    header = ["a sentence has", "", *SPREAD]
    counts = [np.histogram(side, [*LENGTH_EDGES, np.inf])[0].tolist() for side in found.lengths[0]]
    labels = [f"{low}" if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(LENGTH_EDGES)]
    bars = [(f"{label} words", list(pair)) for label, *pair in zip([*labels, "150+"], *counts, strict=True)]
    while not any(bars[-1][1]):
        bars.pop()
    return Section("Lengths", header, rows, sample_note(found), bars, names)


def ratio_section(found: Measured) -> Section:
    ratios = np.divide(*np.maximum(1, found.lengths[1, ::-1]))
    counts = np.histogram(ratios, [*RATIO_EDGES, np.inf])[0].tolist()
    labels = [f"{low:.2f} to {high:.2f}" for low, high in pairwise(RATIO_EDGES)]
    bars = [(label, [count]) for label, count in zip([*labels, "over 3"], counts, strict=True)]
    title = "Length ratio, target to source, in characters"
    return Section(title, SPREAD, [spread(ratios, "{:.2f}")], bars=bars, series=["pairs"])


def spread(values: Any, form: str) -> list[str]:
    return [form.format(value) for value in (values.mean(), *np.percentile(values, PERCENTILES), values.max())]


def parts_section(data: PreparedData) -> Section:
    keys = ("pairs", "source_tokens", "target_tokens", "longest")
    rows = [[part, *(f"{data.manifest[part].get(key, 0):,}" for key in keys)] for part in PARTS if data.has(part)]
    return Section("Prepared", ["", "pairs", "source subwords", "target subwords", "longest side"], rows)


def vocabulary_sections(data: PreparedData, found: Measured) -> list[Section]:
    encoded, sizes = data.encoded("train"), (len(data.vocabulary.source), len(data.vocabulary))
    sides, rows, lengths = (encoded.source, encoded.target), [], []
    variants = data.manifest["train"].get("variants", 1)  # of every line of text
    for name, side, words, size in zip(SIDES, sides, found.sums[1].tolist(), sizes, strict=True):
        uses = np.zeros(size, dtype=np.int64)
        for at in range(0, len(side.ids), 2**24):
            uses += np.bincount(side.ids[at : at + 2**24], minlength=size)
        tokens = len(side.ids) - len(side.ends)  # without the marks at the end of sentences
        row = [f"{np.count_nonzero(uses[UNK + 1 :]) / max(1, size - UNK - 1):.1%}", f"{1e3 * uses[UNK] / tokens:.3f}"]
        rows.append([name, *row, f"{tokens / max(1, words * variants):.2f}"])
        lengths.append([name, *spread(side.lengths - 1, "{:,.0f}")])
    title = f"Vocabulary of {' and '.join(f'{size:,}' for size in dict.fromkeys(sizes))} pieces"
    return [
        Section(title, ["", "pieces used", "unknown per 1,000", "subwords a word"], rows),
        Section("Subwords a sentence", ["", *SPREAD], lengths),
    ]


def dropped_sections(data: PreparedData) -> list[Section]:
    """What became of the training text: drops by reason, the same by corpus where there are several, repairs, and samples."""
    train = data.manifest["train"]
    rows = account(train, "dropped") or [["nothing", "0", "0.00%"]]
    sections = [Section("Dropped", ["reason", "pairs", "of those read"], rows)]
    corpora = train.get("corpora", {})
    if len(corpora) > 1:
        by_corpus = []
        for name, own in corpora.items():
            rows = [["kept", *share(own["text_pairs"], own)], *account(own, "dropped")]
            by_corpus += [[name, *row] for row in rows]
        sections.append(Section("By corpus", ["corpus", "", "pairs", "of those read"], by_corpus))
    if repaired := account(train, "repaired"):
        sections.append(Section("Repaired", ["what", "pairs", "of those read"], repaired))
    header = [*(["corpus"] if len(corpora) > 1 else []), "reason", "line", *SIDES]
    samples: list[list[str]] = []
    dropped = runs.read_rows(data.folder / SAMPLES_FILE)  # sorted by corpus and reason
    for _, some in groupby(dropped, lambda row: (row.get("corpus"), row.get("reason"))):
        samples += [[clipped(str(row.get(key, ""))) for key in header] for row in islice(some, SAMPLES_PER_REASON)]
    if samples:
        sections.append(Section("Samples of what was dropped", header, samples))
    return sections


def account(counts: runs.Row, what: str) -> list[list[str]]:
    return [[reason, *share(number, counts)] for reason, number in counts.get(what, {}).items()]


def share(number: int, counts: runs.Row) -> list[str]:
    return [f"{number:,}", f"{number / max(1, counts['read_pairs']):.2%}"]


def oddities_section(found: Measured) -> Section:
    sampled = len(found.hashes)
    odd = {"copies of an earlier pair": sampled - len(np.unique(found.hashes))}
    odd |= dict(zip(ODD, found.odd.sum(axis=1).tolist(), strict=True))
    rows = [[name, f"{number:,}", f"{number / sampled:.2%}"] for name, number in odd.items()]
    return Section("Oddities", ["", "pairs", "share"], rows, sample_note(found))


def suspects_section(found: Measured) -> Section:
    rows = [
        [f"{line:,}", f"{score:.2f}", why, clipped(source), clipped(target)]
        for score, line, why, source, target in found.suspects
    ]
    note = "A high score says: look at it. Names of units, clock times and free translations are suspected too."
    return Section("Most suspicious pairs", ["line", "score", "why", *SIDES], rows, note if rows else "none")


def clipped(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + " ..."


def sample_note(found: Measured) -> str:
    if found.one_in == 1:
        return ""
    return f"measured on a sample: {len(found.hashes):,} of {found.pairs:,} pairs, chosen by a hash"


def to_html(sections: list[Section], title: str) -> str:
    """One page that needs nothing but itself."""
    import jinja2

    folder = Path(__file__).parent / "templates"
    page = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True)
    return page.get_template("inspection.html.j2").render(sections=sections, title=title)
