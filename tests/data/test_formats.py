"""Formats: the same pairs come out of every one, whatever packs it, and none of them trusts its file."""

import bz2
import gzip
import io
import json
import lzma
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config.schema import Corpus, Data
from dragoman.data.corpus import corpora_of, files_of, raw_pairs, read_pairs
from dragoman.data.formats import tmx_pairs
from dragoman.data.streams import OPENERS, TOO_LONG
from dragoman.errors import DataError

PAIRS = [("A house & <a> garden.", "Ein Haus & <ein> Garten."), ("She said: “no”.", "Sie sagte: „nein“."), ("x", "y")]
RAW = [(source.encode(), target.encode()) for source, target in PAIRS]


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def zipped(content):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        archive.writestr("../../escape.txt", content)
    return packed.getvalue()


PACKERS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: (
        zstandard.compress(content[:20]) + zstandard.compress(content[20:])
    ),  # several frames, as pzstd writes
    ".zip": zipped,
}
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="EN"/><body>
{units}
<tu><tuv xml:lang="en"><seg>only English</seg></tuv><tuv xml:lang="fr"><seg>et français</seg></tuv></tu>
</body></tmx>"""
UNIT = '<tu><tuv xml:lang="fr"><seg>non</seg></tuv><tuv xml:lang="DE_at"><seg>{1}</seg></tuv><tuv lang="en-US"><seg>{0}</seg></tuv></tu>'
SGM = '<{kind} setid="t" srclang="any">\n<doc docid="1">\n<hl>\n{segments}\n</hl>\n</doc>\n</{kind}>\n'
CONTENTS = {
    "tsv": "".join(f"{source}\t{target}\t0.9\tmore\n" for source, target in PAIRS),
    "jsonl": "".join(json.dumps({"id": 1, "source": source, "target": target}) + "\n" for source, target in PAIRS),
    "tmx": TMX.format(units="\n".join(UNIT.format(*map(escaped, pair)) for pair in PAIRS)),
}


def read(**keys):
    return list(read_pairs(corpora_of(Data(corpora=(Corpus(name="c", **keys),)))[0]))


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("kind", CONTENTS)
def test_one_file_of_pairs_plain_or_packed(tmp_path, kind, packed):
    path = write(tmp_path / f"c.{kind}{packed}", PACKERS[packed](CONTENTS[kind].encode()))
    found = [*RAW, (b"only English", b"")] if kind == "tmx" else RAW  # what a unit lacks is counted by cleaning
    assert read(pairs=path) == found
    assert list(tmp_path.iterdir()) == [tmp_path / f"c.{kind}{packed}"]
    assert list(read_pairs(files_of(Data(valid_source=path), "valid"))) == found


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("kind", ["sgm", "en"])
def test_two_files_plain_or_packed(tmp_path, kind, packed):
    paths = []
    for side, name in enumerate(("srcset", "refset")):
        texts = [pair[side] for pair in PAIRS]
        content = "\ufeff" + "".join(f"{text}\r\n" for text in texts)
        if kind == "sgm":
            marked = [f'<seg id="{number}"> {escaped(text)} </seg>' for number, text in enumerate(texts, 1)]
            content = SGM.format(kind=name, segments="\n".join(marked).replace("Haus", "\nHaus"))
        paths.append(write(tmp_path / f"{name}.{kind}{packed}", PACKERS[packed](content.encode())))
    found = read(source=paths[0], target=paths[1])
    assert [(source.strip(), target.strip().replace(b"  ", b" ")) for source, target in found] == RAW
    assert list(raw_pairs(*paths)) == found


def test_segments_that_do_not_belong_together_are_refused(tmp_path):
    one = write(tmp_path / "a.sgm", '<seg id="1">x</seg>')
    two = write(tmp_path / "b.sgm", '<seg id="1">x</seg><seg id="2">x</seg>')
    none = write(tmp_path / "c.sgm", "plain text")
    with pytest.raises(DataError, match=r"1 segments and .* has 2"):
        list(raw_pairs(one, two))
    with pytest.raises(DataError, match=r"c\.sgm: holds no <seg"):
        list(raw_pairs(none, none))


def test_the_format_can_be_said(tmp_path):
    assert read(pairs=write(tmp_path / "c.txt", CONTENTS["tsv"]), format="tsv") == RAW
    assert read(source=str(tmp_path / "c.txt"), target=str(tmp_path / "c.txt"))[2] == (b"x\ty\t0.9\tmore",) * 2
    for keys, words in (
        ({"pairs": "c.txt"}, "one file, which would have to be"),
        ({"pairs": "c.sgm"}, "one file, which would have to be"),
        ({"source": "a.en", "target": "a.de", "format": "tmx"}, "two files cannot be tmx"),
    ):
        with pytest.raises(DataError, match=rf"data\.corpora\.c = .*{words}"):
            read(**keys)
    with pytest.raises(DataError, match=r"data\.valid_source = 'c\.en': one file"):
        files_of(Data(valid_source="c.en"), "valid")


def test_the_format_of_held_out_sets_can_be_said_too(tmp_path):
    """For one file that holds both sides; two files beside it stay what they are."""
    tsv = write(tmp_path / "v.txt", CONTENTS["tsv"])
    rows = write(tmp_path / "t.jsonl", '{"src": "a", "tgt": "b"}')
    data = Data(train_source=tsv, train_target=tsv, valid_source=tsv, format="tsv", test_source=rows)
    assert list(read_pairs(files_of(data, "valid"))) == RAW
    assert next(read_pairs(files_of(data, "train"))) == (CONTENTS["tsv"].splitlines()[0].encode(),) * 2
    data = Data(test_source=rows, source_key="src", target_key="tgt")
    assert list(read_pairs(files_of(data, "test"))) == [(b"a", b"b")]


def test_a_blank_line_among_json_is_an_empty_pair(tmp_path):
    """Counted by cleaning, and the lines after it keep their numbers."""
    path = write(tmp_path / "c.jsonl", '{"source": "a", "target": "b"}\n\n{"source": "c", "target": "d"}\n \n')
    assert read(pairs=path) == [(b"a", b"b"), (b"", b""), (b"c", b"d"), (b"", b"")]


def test_json_keys_of_other_people(tmp_path):
    rows = [{"translation": {"de": target, "en": source}} for source, target in PAIRS]
    path = write(tmp_path / "hf.jsonl", "\n".join(map(json.dumps, rows)))
    assert read(pairs=path) == RAW
    path = write(tmp_path / "own.jsonl", '{"src": "a", "tgt": null}\n{"src": "\\ud800", "tgt": "b"}')
    assert read(pairs=path, source_key="src", target_key="tgt") == [(b"a", b""), (b"\xed\xa0\x80", b"b")]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.tsv", "no tab here\n", "no tab in the first line"),
        ("a.jsonl", '{"source": "a", "target": "b"}\n{"source": ', "line 2: not a pair as JSON"),
        ("a.jsonl", "[" * 100_000, "line 1: not a pair as JSON"),
        ("a.jsonl", "[1, 2]", "line 1: .*not an object with keys"),
        ("a.jsonl", '{"en": "a", "de": "b"}', r"no key 'source' among \['en', 'de'\]; set source_key"),
        ("a.jsonl", '{"translation": {"fr": "a", "de": "b"}}', r"no key 'en' among \['fr', 'de'\]"),
        ("a.jsonl", '{"source": 1, "target": "b"}', "line 1: .*not text"),
        ("a.tmx", CONTENTS["tmx"][:-100], "not a whole TMX file"),
        ("a.tmx", "plain text", "not a whole TMX file"),
        ("a.tmx", CONTENTS["tmx"].replace("UTF-8", "U-F-8"), "unknown encoding"),
        (
            "a.tmx",
            CONTENTS["tmx"].replace("<seg>", "<seg>" + 5000 * "<g>", 1).replace("</seg>", 5000 * "</g>" + "</seg>", 1),
            "recursion",
        ),
        ("a.tmx", TMX.format(units=""), "no unit in both en and de; its languages are en, fr"),
        (
            "a.tmx",
            '<!DOCTYPE t [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><tmx><tu><tuv lang="en"><seg>&b;</seg></tuv></tu></tmx>',
            "EntitiesForbidden",
        ),
        ("a.tmx", '<!DOCTYPE t [<!ENTITY a SYSTEM "file:///etc/passwd">]><tmx>&a;</tmx>', "EntitiesForbidden"),
    ],
)
def test_what_is_not_the_format_is_refused_in_words(tmp_path, name, content, words):
    with pytest.raises(DataError, match=words) as error:
        read(pairs=write(tmp_path / name, content))
    assert str(tmp_path / name) in str(error.value)


def test_tmx_of_other_programs(tmp_path):
    """With a namespace, with codes of three letters."""
    unit = (
        '<tu><tuv xml:lang="{}"><seg>one <ph>%s</ph>house</seg></tuv><tuv xml:lang="{}"><seg>ein Haus</seg></tuv></tu>'
    )
    for head, langs in (
        ('<tmx xmlns="http://www.lisa.org/tmx14"><header/><body>', ("en", "de")),
        ("<tmx><header/><body>", ("eng", "GER")),
        ('<t:tmx xmlns:t="http://www.lisa.org/tmx14" xmlns="http://www.lisa.org/tmx14"><body>', ("ENG_us", "deu-AT")),
        ("<tmx><body>", ("en", "de")),
    ):
        tail = "</body></t:tmx>" if head.startswith("<t:") else "</body></tmx>"
        path = write(tmp_path / "c.tmx", head + unit.format(*langs) + tail)
        assert read(pairs=path) == [(b"one house", b"ein Haus")], head
    path = write(tmp_path / "c.tmx", "<tmx><body>" + unit.format("zho-TW", "deu") + "</body></tmx>")
    assert list(tmx_pairs(Path(path), ("zh-TW", "de"))) == [(b"one house", b"ein Haus")]
    with pytest.raises(DataError, match="no unit in both zh-CN and de; its languages are de, zh-tw"):
        list(tmx_pairs(Path(path), ("zh-CN", "de")))


@pytest.mark.parametrize("around", ["body", "content"])
def test_tmx_takes_no_more_memory_for_more_units(tmp_path, around):
    unit = '<tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu>\n'
    head = f'<tmx xmlns="http://www.lisa.org/tmx14"><header/><{around}>'
    path = write(tmp_path / "c.tmx", head + unit * 5_000 + f"</{around}></tmx>")
    tracemalloc.start()
    try:
        assert sum(1 for _ in tmx_pairs(Path(path), ("en", "de"))) == 5_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_500_000  # 5,000 units that are held are more than three times that


def test_tmx_leaves_out_codes_and_takes_utf_16(tmp_path):
    unit = UNIT.format(
        'a <bpt i="1">&lt;b&gt;</bpt>bold<ept i="1">&lt;/b&gt;</ept> <hi>word</hi>', "ein <ph>%s</ph>Wort"
    )
    path = write(tmp_path / "c.tmx", TMX.replace("UTF-8", "UTF-16").format(units=unit).encode("utf-16"))
    assert read(pairs=path)[0] == (b"a bold word", b"ein Wort")


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "tmx", "en"])
def test_an_endless_line_is_one_bad_pair_and_costs_little_memory(tmp_path, kind):
    size = 50_000_000
    long = {
        "tsv": f"{'a' * size}\tb\n",
        "jsonl": f'{{"source": "{"a" * size}", "target": "b"}}\n',
        "tmx": f"{UNIT.format('a' * size, 'b')}\n",
        "en": f"{'a' * size}\n",
    }[kind]
    content = CONTENTS.get(kind, "x\nx\nx\n")
    mark = "<body>\n" if kind == "tmx" else ""
    path = write(tmp_path / f"c.{kind}.gz", gzip.compress(content.replace(mark, mark + long, 1).encode(), 1))
    keys = {"pairs": path} if kind != "en" else {"source": path, "target": write(tmp_path / "c.de", "b\ny\ny\ny\n")}
    del long, content
    tracemalloc.start()
    try:
        found = read(**keys)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 4 + (kind == "tmx")
    assert found[0][0] == TOO_LONG
    assert peak < (250_000_000 if kind == "tmx" else 12_000_000)  # a segment is held whole


@settings(deadline=None)
@given(content=st.binary(max_size=300), cut=st.integers(0, 40))
def test_zstd_is_whole_or_refused(tmp_path_factory, content, cut):
    path = tmp_path_factory.mktemp("zst") / "c.zst"
    packed = zstandard.compress(content)
    path.write_bytes(packed[: max(0, len(packed) - cut)])
    with io.BufferedReader(OPENERS["zstd"](path)) as stream:
        if cut == 0 or cut >= len(packed):
            assert stream.read() == (content if cut == 0 else b"")
        else:
            with pytest.raises(OSError, match="Truncated"):
                stream.read()


@settings(deadline=None)
@given(data=st.data())
def test_whatever_is_changed_in_a_file_it_is_read_or_refused(tmp_path_factory, data):
    kind, packed = data.draw(st.sampled_from([*CONTENTS, "en", "sgm"])), data.draw(st.sampled_from([*PACKERS]))
    content = bytearray(PACKERS[packed](CONTENTS.get(kind, '<seg id="1">x</seg>').encode()))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path = write(tmp_path_factory.mktemp("fuzz") / f"c.{kind}{packed}", bytes(content))
    keys = {"pairs": path} if kind in CONTENTS else {"source": path, "target": path}
    with suppress(DataError):
        assert all(isinstance(text, bytes) for pair in read(**keys) for text in pair)
