"""Public corpora by name: what there is (corpora.toml, the test sets that sacreBLEU knows, and whatever mtdata has an
address for), and how to get it.

corpora/<name>/
  train.en  train.de  valid.en ...   one sentence a line, aligned
  origin.json                        where it came from: addresses, checksums, licence, pairs
"""

from __future__ import annotations

import html
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from sacrebleu.dataset import DATASETS

from dragoman import runs
from dragoman.data.archive import unpack
from dragoman.data.corpus import PARTS, SIDES, Pair
from dragoman.data.download import Archive, fetch
from dragoman.data.formats import tmx_pairs, tsv_pairs
from dragoman.data.streams import in_words, open_text
from dragoman.errors import DataError, require_extra

TABLE = Path(__file__).parent / "corpora.toml"
ORIGIN = "origin.json"
ARCHIVES = "archives"
TEST_SET_LICENCE = "free for research, see https://www.statmt.org"
FULL_TEST_SETS = {"wmt14": "wmt14/full"}  # papers report the 3,003 sentences, not those of the first release
RAW: Any = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}  # bad UTF-8 is for `prepare` to count
SEGMENT = re.compile(r"<seg.*?>(.*)</seg>")
KEPT_TAGS = re.compile(r"</?(title|description)>")


@dataclass(frozen=True)
class Piece:
    """One aligned pair of files inside an archive, or one file of pairs, or (no members) a file of pairs by itself."""

    archive: Archive
    members: tuple[str, ...]
    columns: tuple[int, int] = (0, 1)  # of a TSV file


@dataclass(frozen=True)
class Corpus:
    name: str
    about: str
    langs: tuple[str, str]
    licence: str
    parts: dict[str, list[Piece]] = field(repr=False)
    pairs: int = 0  # of the training set, about; 0 when not known before
    hold_out: int = 0  # every so many training pairs one is for validation

    @property
    def archives(self) -> dict[str, Archive]:
        return {piece.archive.name: piece.archive for pieces in self.parts.values() for piece in pieces}

    @property
    def part_names(self) -> list[str]:
        return [*self.parts, *(["valid"] if self.hold_out else [])]

    @property
    def bytes(self) -> int:
        """To be downloaded, as far as it is known before."""
        return sum(archive.bytes for archive in self.archives.values())


# --- what there is -----------------------------------------------------------------------------------------


@cache
def table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def listed(source: str = "", target: str = "") -> list[Corpus]:
    """Named corpora of these languages; members of families and test sets only between two languages."""
    named = [from_table(name, entry) for name, entry in table()["corpus"].items()]
    found = [corpus for corpus in named if {source, target} - {""} <= set(corpus.langs)]
    if source and target:
        found += [member for name in table()["family"] if (member := from_family(name, source, target))]
        found += [test for test in test_sets() if test.langs == (source, target)]
    return found


def find(name: str) -> Corpus:
    if name.startswith("mtdata:"):
        return from_mtdata(name.removeprefix("mtdata:"))
    if found := known(name) or known(full_name(name)):
        return found
    near = get_close_matches(name, [corpus.name for corpus in listed("en", "de")], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise DataError(f"{name}: no corpus of that name{hint} `dragoman data list --from en --to de` names them")


def known(name: str) -> Corpus | None:
    if name in table()["corpus"]:
        return from_table(name, table()["corpus"][name])
    parts = re.fullmatch(r"(.+)-([a-z]{2,3})-([a-z]{2,3})", name)
    member = from_family(*parts.groups()) if parts and parts[1] in table()["family"] else None
    return member or next((test for test in test_sets() if test.name == name), None)


def full_name(short: str) -> str:
    """A name without languages stands for the only corpus that begins so, or for the English-German one."""
    longer = [name for name in table()["corpus"] if name.startswith(f"{short}-")]
    return longer[0] if len(longer) == 1 else f"{short}-en-de"


def from_table(name: str, entry: dict[str, Any]) -> Corpus:
    source, target = entry["langs"]
    parts = {part: [piece_of(text, source, target) for text in entry[part]] for part in PARTS if part in entry}
    rest = {key: value for key, value in entry.items() if key not in (*PARTS, "langs")}
    return Corpus(name=name, langs=(source, target), parts=parts, **rest)


def piece_of(text: str, source: str, target: str) -> Piece:
    archive, member = text.split(" ")
    if archive == "sacrebleu":
        return sacrebleu_piece(DATASETS[member], f"{source}-{target}")
    entry = table()["archive"][archive]
    instead = Archive(f"{archive}.repacked.zip", (entry["repacked"],)) if "repacked" in entry else None
    found = Archive(archive, tuple(entry["urls"]), entry.get("bytes", 0), entry.get("checksum", ""), instead)
    return Piece(found, (member.format(lang=source), member.format(lang=target)))


def from_family(family: str, source: str, target: str) -> Corpus | None:
    entry = table()["family"][family]
    if source == target or not {source, target} <= set(entry["langs"] or [source, target]):
        return None
    pair = "-".join(sorted((source, target)))
    archive = Archive(f"{family}-{pair}.zip", tuple(url.format(pair=pair) for url in entry["urls"]))
    members = tuple(entry["member"].format(pair=pair, lang=lang) for lang in (source, target))
    name, parts = f"{family}-{source}-{target}", {"train": [Piece(archive, members)]}
    return Corpus(name, entry["about"], (source, target), entry["licence"], parts)


ASK_MTDATA = """
import json, sys
from mtdata.entry import DatasetId
from mtdata.index import INDEX
from mtdata.iso.iso639_1 import ISO693_1_to_3
entry = INDEX.entries[DatasetId.parse(sys.argv[1])]
short = {three: two for two, three in ISO693_1_to_3.items()}
keys = {key: getattr(entry, key) for key in ("url", "ext", "in_ext", "in_paths", "cols")}
print(json.dumps({**keys, "langs": [short.get(lang.lang, lang.lang) for lang in entry.did.langs]}))
"""


def from_mtdata(identifier: str) -> Corpus:
    """A corpus of mtdata's index. It is asked in a process of its own, because it takes over logging when it is imported."""
    if not importlib.util.find_spec("mtdata"):
        require_extra("mtdata", "mtdata", f"mtdata:{identifier}")
    command = [sys.executable, "-c", ASK_MTDATA, identifier]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        reason = asked.stderr.strip().splitlines()[-1]
        raise DataError(f"mtdata:{identifier}: not in the index of mtdata ({reason}); `mtdata list -id` names them")
    entry = json.loads(asked.stdout.splitlines()[-1])
    kind, langs = entry["in_ext"] or entry["ext"].partition(".")[0], entry["langs"]
    if kind not in ("txt", "raw", "tsv", "tmx", "sgm") or len(langs) != 2 or not isinstance(entry["url"], str):
        raise DataError(f"mtdata:{identifier}: {kind} of {'-'.join(langs)} is not read here; get it with mtdata itself")
    archive = Archive(f"{identifier}.{entry['ext']}", (entry["url"],))
    piece = Piece(archive, tuple(entry["in_paths"] or ()), tuple(entry["cols"] or (0, 1)))
    about = f"{identifier} of mtdata, from {entry['url']}"
    return Corpus(identifier, about, (langs[0], langs[1]), "see its origin; mtdata lists papers", {"train": [piece]})


def test_sets() -> Iterator[Corpus]:
    """newstest2008 to newstest2020, as sacreBLEU has them."""
    for year in range(2008, 2021):
        short = f"wmt{year % 100:02d}"
        dataset = DATASETS[FULL_TEST_SETS.get(short, short)]
        for pair, files in dataset.langpairs.items():
            if len(files) == 2 and f"newstest{year}" in files[0]:
                source, target = pair.split("-")
                parts = {"test": [sacrebleu_piece(dataset, pair)]}
                about = f"WMT {year} news test set ({dataset.name} of sacreBLEU)"
                yield Corpus(f"newstest{year}-{pair}", about, (source, target), TEST_SET_LICENCE, parts)


def sacrebleu_piece(dataset: Any, pair: str) -> Piece:
    url = dataset.data[0]
    name = f"{dataset.name.replace('/', '-')}-{url.rpartition('/')[2]}"
    source, target = (Path(member).name for member in dataset.langpairs[pair])
    urls = tuple(dict.fromkeys((url, url.replace("https:", "http:"))))  # the checksum guards both
    return Piece(Archive(name, urls, 0, f"md5:{dataset.md5[0]}"), (source, target))


# --- getting it --------------------------------------------------------------------------------------------


def get(corpus: Corpus, folder: Path, progress: runs.Progress = runs.silent, *, keep: bool = False) -> Path:
    """The corpus as aligned text in folder/<name>; archives stay until all is whole, then only with `keep`, or
    if they were there before."""
    place = folder / corpus.name
    if (place / ORIGIN).is_file():
        return place
    if not runs.vacant(place):
        raise DataError(
            f"{place}: is not empty and holds no downloaded corpus; it is left alone. Name another --folder"
        )
    before = {path.name for path in (folder / ARCHIVES).glob("*")}
    rare_first = sorted(corpus.archives.items(), key=lambda entry: len(hosts_of(entry[1])))
    paths = {name: fetch(archive, folder / ARCHIVES, progress) for name, archive in rare_first}
    with runs.claimed_folder(place) as fresh:
        counts, empty = write_text(corpus, paths, fresh, progress)
        runs.write_json(fresh / ORIGIN, origin_of(corpus, paths, counts) | {"empty_pairs": empty})
    if not keep:
        for path in paths.values():
            if path.name not in before:
                path.unlink(missing_ok=True)
    return place


def hosts_of(archive: Archive) -> set[str | None]:
    """Who serves it. What one host alone has is asked for first: without it the others would be fetched in vain."""
    return {urlparse(url).hostname for each in (archive, archive.instead) if each for url in each.urls}


def origin_of(corpus: Corpus, paths: dict[str, Path], counts: Counter[str]) -> runs.Row:
    archives = {}
    for name, archive in corpus.archives.items():
        path = paths[name]
        served = archive.instead if archive.instead and path.name == archive.instead.name else archive
        archives[name] = {"urls": served.urls, "bytes": path.stat().st_size, "sha256": runs.digest(path)}
    facts = {"name": corpus.name, "about": corpus.about, "langs": corpus.langs, "licence": corpus.licence}
    return {**facts, "pairs": counts, "archives": archives}


def write_text(
    corpus: Corpus, paths: dict[str, Path], folder: Path, progress: runs.Progress
) -> tuple[Counter[str], Counter[str]]:
    """One file for each part and language, its pieces one after the other; returns how many pairs each part has, and how many
    with nothing on either side were left out: some files end with one, and `prepare` would refuse a test set for it."""
    counts: Counter[str] = Counter()
    empty: Counter[str] = Counter()
    pieces = [(part, piece) for part, pieces in corpus.parts.items() for piece in pieces]
    with ExitStack() as stack:
        files = {
            part: [stack.enter_context((folder / f"{part}.{lang}").open("w", **RAW)) for lang in corpus.langs]
            for part in corpus.part_names
        }
        for number, (part, piece) in enumerate(pieces, 1):
            progress("unpacking", number, len(pieces), piece.archive.name)
            whole = paths[piece.archive.name]
            with tempfile.TemporaryDirectory(dir=folder, prefix=".") as aside:  # for members called as one of our files
                unpacked = unpack(whole, piece.members, Path(aside)) if piece.members else [whole]
                at = 0
                for pair in pairs_of(unpacked, corpus.langs, piece.columns):
                    if not any(pair):
                        empty[part] += 1
                        continue
                    at += 1
                    held_out = corpus.hold_out and part == "train" and at % corpus.hold_out == 0
                    to = "valid" if held_out and all(pair) else part  # prepare would refuse an empty side there
                    counts[to] += 1
                    for file, text in zip(files[to], pair, strict=True):
                        file.write(text + "\n")
    return counts, empty


def pairs_of(files: list[Path], langs: tuple[str, str], columns: tuple[int, int]) -> Iterator[Pair]:
    """Pairs of two aligned files, or of files that hold both sides."""
    if len(files) == 2 and ".tmx" not in files[0].name:
        yield from aligned(files[0], files[1])
        return
    for path in files:
        raw = tmx_pairs(path, langs) if ".tmx" in path.name else tsv_pairs(path, columns)
        for pair in raw:
            source, target = (" ".join(side.decode("utf-8", "surrogateescape").split()) for side in pair)
            yield source, target


def aligned(source: Path, target: Path) -> Iterator[Pair]:
    """Pairs of two files of the same form."""
    with open_text(source) as source_stream, open_text(target) as target_stream:
        sources, targets = sentences(source, source_stream), sentences(target, target_stream)
        try:
            yield from zip(sources, targets, strict=True)
        except ValueError:
            raise DataError(
                f"{source.name} and {target.name}: not the same number of lines; the corpus is broken at its origin"
            ) from None


def sentences(path: Path, stream: Iterable[bytes]) -> Iterator[str]:
    """Text of a plain file, of the segments of an .sgm or .xml file, or between the remarks of a `train.tags` file."""
    with in_words(path):
        for line in stream:
            text = " ".join(line.decode("utf-8", "surrogateescape").split())
            if path.suffix == ".sgm":  # as sacreBLEU reads it, entities and all, because published scores are made so
                if line.startswith(b"<seg "):
                    yield SEGMENT.sub(r"\1", text).strip()
            elif path.suffix == ".xml":
                if segment := SEGMENT.search(text):
                    yield html.unescape(segment[1]).strip()
            elif not path.name.startswith("train.tags"):
                yield text
            elif not text.startswith("<") or KEPT_TAGS.match(text):
                yield KEPT_TAGS.sub("", text).strip()


def data_keys(corpus: Corpus, place: Path) -> str:
    """The lines of a run file that use the corpus."""
    sides = dict(zip(SIDES, corpus.langs, strict=True))
    keys = [f'{side}_lang = "{lang}"' for side, lang in sides.items()]
    keys += [f'{part}_{side} = "{place / part}.{lang}"' for part in corpus.part_names for side, lang in sides.items()]
    return "\n".join(["[data]", *keys])
