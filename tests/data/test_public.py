"""Named corpora: the table is sound, and what comes over the network ends as aligned text with its origin beside it."""

import gzip
import io
import json
import os
import signal
import tarfile
import zipfile
from contextlib import suppress
from urllib.parse import urlparse

import pytest
from origin_server import served

from dragoman.config import load_config
from dragoman.data import download, public
from dragoman.data.download import Archive
from dragoman.data.prepare import prepare
from dragoman.data.public import Corpus, Piece
from dragoman.errors import DataError, MissingExtra

SGM = """<srcset setid="newstest2013" srclang="any">
<doc docid="1" genre="news">
<hl>
<seg id="1">  A   cat &amp; more </seg>
</hl>
<seg id="2">Second.</seg> <!-- remark -->
</doc>
"""
TAGS = """<url>http://www.ted.com/talks/x.html</url>
<keywords>talks, culture</keywords>
<title>Title {lang}</title>
First sentence {lang}.
<transcriber href="x">Somebody</transcriber>
<description>TED Talk in {lang}</description>

Third {lang}, 3 < 4.
"""


def tar_of(**files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in files.items():
            content = text if isinstance(text, bytes) else text.encode()
            info = tarfile.TarInfo(f"training/{name.replace('__', '.')}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def origin(monkeypatch):
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)
    with served() as origin:
        yield origin


def corpus_at(origin, parts, **more):
    pieces = {
        part: [Piece(Archive(path.strip("/"), (origin.url(path),)), members) for path, *members in listed]
        for part, listed in parts.items()
    }
    return Corpus("toy-en-de", "a toy", ("en", "de"), "none", pieces, **more)


def test_the_table_is_sound():
    names = [corpus.name for corpus in public.listed("en", "de")]
    assert {"wmt16-en-de", "wmt14-en-de", "multi30k-en-de", "tatoeba-en-de", "europarl-en-de"} <= set(names)
    assert {"newstest2013-en-de", "newstest2014-en-de", "newstest2020-en-de"} <= set(names)
    assert "iwslt14-de-en" in names  # a training corpus has no direction
    for name in names:
        corpus = public.find(name)
        assert corpus.name == name
        assert corpus.about
        assert "see " in corpus.licence
        for archive in corpus.archives.values():
            assert all(url.startswith(("http://", "https://")) for url in archive.urls)
            algorithm, _, digits = archive.checksum.partition(":")
            assert len(digits) == {"sha256": 64, "md5": 32, "": 0}[algorithm]
        for pieces in corpus.parts.values():
            assert all(len(piece.members) == 2 for piece in pieces)
    wmt = public.find("wmt16-en-de")
    assert wmt.parts["train"][0].members[1] == "europarl-v7.de-en.de"
    assert wmt.parts["test"][0].members == ("newstest2014-deen-src.en.sgm", "newstest2014-deen-ref.de.sgm")
    assert wmt.bytes == pytest.approx(1.651e9, rel=0.01)


def test_names_that_do_not_exist():
    for name, words in [
        ("wmt16-en-dee", "did you mean wmt16-en-de"),
        ("europarl-en-xx", "no corpus"),
        ("x", "no corpus"),
    ]:
        with pytest.raises(DataError, match=words):
            public.find(name)
    assert public.find("tatoeba-en-de").archives == public.find("tatoeba-de-en").archives


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("wmt14", "wmt14-en-de"),
        ("wmt16", "wmt16-en-de"),
        ("iwslt14", "iwslt14-de-en"),
        ("multi30k", "multi30k-en-de"),
        ("tatoeba", "tatoeba-en-de"),
        ("europarl", "europarl-en-de"),
        ("newstest2014", "newstest2014-en-de"),
    ],
)
def test_a_name_without_languages(short, name):
    assert public.find(short) == public.find(name)
    assert public.find(short).name == name


def test_every_archive_has_a_second_address_and_large_ones_a_second_host():
    for name in (
        "wmt16-en-de",
        "wmt14-en-de",
        "iwslt14-de-en",
        "multi30k-en-de",
        "tatoeba-en-fr",
        "newstest2014-en-de",
    ):
        for archive in public.find(name).archives.values():
            assert len(set(archive.urls)) > 1, archive
            if archive.bytes > 10**7:
                hosts = {urlparse(url).hostname for url in (*archive.urls, *archive.instead.urls)}
                assert len(hosts) > 1


def test_a_stand_in_is_unpacked_like_the_archive_and_named_in_the_origin(origin, tmp_path):
    """A first address that is gone, the next that serves a wrong file, and a zip of the same files at another host."""
    origin.files["/b.tgz"] = b"<html>moved</html>"
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("training/a.en", "One.\n")
        archive.writestr("training/a.de", "Eins.\n")
    origin.files["/c.zip"] = zipped.getvalue()
    stand_in = Archive("a.tgz.repacked.zip", (origin.url("/c.zip"),))
    first = Archive("a.tgz", (origin.url("/a.tgz"), origin.url("/b.tgz")), 0, "md5:" + "0" * 32, stand_in)
    corpus = Corpus("toy-en-de", "a toy", ("en", "de"), "none", {"train": [Piece(first, ("a.en", "a.de"))]})
    place = public.get(corpus, tmp_path)
    assert (place / "train.de").read_text() == "Eins.\n"
    assert json.loads((place / "origin.json").read_text())["archives"]["a.tgz"]["urls"] == [origin.url("/c.zip")]
    assert [path.name for path in (tmp_path / "archives").iterdir()] == ["a.tgz.wrong"]


def test_a_corpus_of_several_archives(origin, tmp_path):
    origin.files["/a.tgz"] = tar_of(a__en="One.\nTwo.\n\n", a__de="Eins.\nZwei.\n\n")
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("LICENSE", "free")
        archive.writestr("train.en", "Three.\r\nbad \udce9 byte".encode("utf-8", "surrogateescape"))
        archive.writestr("train.de", "Drei.\nx")
    origin.files["/b.zip"] = zipped.getvalue()
    parts = {
        "train": [("/a.tgz", "a.en", "a.de"), ("/b.zip", "train.en", "train.de")],
        "test": [("/a.tgz", "a.en", "a.de")],
    }
    place = public.get(corpus_at(origin, parts), tmp_path)
    assert sorted(path.name for path in place.iterdir()) == [
        "origin.json",
        "test.de",
        "test.en",
        "train.de",
        "train.en",
    ]
    assert (place / "train.en").read_bytes() == b"One.\nTwo.\nThree.\nbad \xe9 byte\n"
    assert (place / "train.de").read_bytes() == b"Eins.\nZwei.\nDrei.\nx\n"
    facts = json.loads((place / "origin.json").read_text())
    assert facts["pairs"] == {"train": 4, "test": 2}
    assert facts["empty_pairs"] == {"train": 1, "test": 1}, "what is left out is told"
    assert facts["archives"]["a.tgz"]["bytes"] == len(origin.files["/a.tgz"])
    assert len(facts["archives"]["b.zip"]["sha256"]) == 64
    assert list((tmp_path / "archives").iterdir()) == []
    requests = len(origin.requests)
    assert public.get(corpus_at(origin, parts), tmp_path) == place
    assert len(origin.requests) == requests


def test_what_the_user_put_there_stays_and_what_a_killed_call_left_does_not(origin, tmp_path):
    mine = tmp_path / "archives" / "a.tgz"
    mine.parent.mkdir()
    mine.write_bytes(tar_of(a__en="One.\n", a__de="Eins.\n"))
    origin.files["/b.tgz"] = tar_of(b__en="Two.\n", b__de="Zwei.\n")
    corpus = corpus_at(origin, {"train": [("/a.tgz", "a.en", "a.de"), ("/b.tgz", "b.en", "b.de")]})
    child = os.fork()
    if not child:  # killed where it cannot tidy up
        with suppress(BaseException):
            public.get(
                corpus, tmp_path, lambda stage, *_: stage == "unpacking" and os.kill(os.getpid(), signal.SIGKILL)
            )
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (mine.parent / "b.tgz").unlink()  # or it would be one that was there before
    place = public.get(corpus, tmp_path)
    assert (place / "train.en").read_text() == "One.\nTwo.\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archives", "toy-en-de"]
    assert sorted(path.name for path in place.iterdir()) == ["origin.json", "train.de", "train.en"]
    assert [path.name for path in mine.parent.iterdir()] == ["a.tgz"]


def test_what_one_host_alone_has_is_asked_for_first(origin, tmp_path):
    """The test sets of WMT: hours of other downloads are not worth much without them."""
    elsewhere = origin.url("/a.tgz").replace("127.0.0.1", "localhost")
    train = Archive("a.tgz", (origin.url("/a.tgz"), elsewhere))
    test = Archive("b.tgz", (origin.url("/b.tgz"), origin.url("/b2.tgz")))
    parts = {"train": [Piece(train, ("a.en", "a.de"))], "test": [Piece(test, ("b.en", "b.de"))]}
    with pytest.raises(DataError, match=r"b\.tgz could not be downloaded"):
        public.get(Corpus("toy-en-de", "a toy", ("en", "de"), "none", parts), tmp_path)
    assert [path for path, _ in origin.requests] == ["/b.tgz", "/b2.tgz"]


def test_unequal_sides_leave_nothing_but_the_archive(origin, tmp_path):
    origin.files["/a.tgz"] = tar_of(a__en="One.\nTwo.\n", a__de="Eins.\n")
    with pytest.raises(DataError, match=r"a\.en and a\.de: not the same number of lines"):
        public.get(corpus_at(origin, {"train": [("/a.tgz", "a.en", "a.de")]}), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["archives"]


def test_a_member_that_was_cut_off_is_one_line(origin, tmp_path):
    whole = gzip.compress("".join(f"sentence {number}\n" for number in range(999)).encode())
    origin.files["/a.tgz"] = tar_of(x__en__gz=whole, x__de__gz=whole[:-20])
    corpus = corpus_at(origin, {"train": [("/a.tgz", "x.en.gz", "x.de.gz")]})
    with pytest.raises(DataError, match=r"x\.de\.gz: damaged or cut off"):
        public.get(corpus, tmp_path)
    assert not (tmp_path / "toy-en-de").exists()


def test_a_folder_of_somebody_else_is_left_alone(origin, tmp_path):
    (tmp_path / "toy-en-de").mkdir()
    (tmp_path / "toy-en-de" / "thesis.tex").write_text("precious")
    with pytest.raises(DataError, match="left alone"):
        public.get(corpus_at(origin, {}), tmp_path)


def test_test_sets_read_as_sacrebleu_reads_them(tmp_path):
    from sacrebleu.dataset import DATASETS

    (tmp_path / "a.sgm").write_text(SGM, encoding="utf-8")
    DATASETS["wmt13"]._convert_format(str(tmp_path / "a.sgm"), str(tmp_path / "theirs"))
    with (tmp_path / "a.sgm").open("rb") as stream:
        ours = list(public.sentences(tmp_path / "a.sgm", stream))
    assert ours[0] == "A cat &amp; more"
    assert ours == (tmp_path / "theirs").read_text(encoding="utf-8").splitlines()
    assert len(ours) == 2


def test_talks_lose_their_tags_and_give_a_validation_set(origin, tmp_path):
    more = {side: "".join(f"{side} {number}\n" for number in range(60)) for side in ("en", "de")}
    more["de"] = more["de"].replace("de 18\n", "\n")  # the 23rd pair: not fit for a validation set
    files = {f"train__tags__de-en__{side}": TAGS.format(lang=side) + more[side] for side in ("en", "de")}
    xml = '<?xml version="1.0"?>\n<seg id="1"> 3 &lt; {} </seg>\n'
    files |= {f"tst__{side}__xml": xml.format(side) for side in ("en", "de")}
    origin.files["/a.tgz"] = tar_of(**files)
    parts = {
        "train": [("/a.tgz", "train.tags.de-en.en", "train.tags.de-en.de")],
        "test": [("/a.tgz", "tst.en.xml", "tst.de.xml")],
    }
    place = public.get(corpus_at(origin, parts, hold_out=23), tmp_path)
    train = (place / "train.en").read_text().splitlines()
    assert train[:4] == ["Title en", "First sentence en.", "TED Talk in en", "Third en, 3 < 4."]
    assert len(train) == 63
    assert (place / "valid.de").read_text() == "de 41\n"
    assert (place / "test.de").read_text() == "3 < de\n"


def test_what_was_got_can_be_prepared(origin, tmp_path):
    """The keys that `data get` prints, and a recipe, are all that is missing."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    text = "".join(f"{words[i % 10]} {words[i // 10 % 10]} house {i}.\n" for i in range(200))
    origin.files["/a.tgz"] = tar_of(a__en=text, a__de=text.replace("house", "Haus"))
    corpus = corpus_at(origin, {part: [("/a.tgz", "a.en", "a.de")] for part in ("train", "valid", "test")})
    place = public.get(corpus, tmp_path / "corpora")
    (tmp_path / "run.toml").write_text(
        f'preset = "tiny"\n{public.data_keys(corpus, place)}\nfolder = "{tmp_path}/data"\n[subwords]\nvocab_size = 60\n'
        "[clean]\noverlap = false\n"
    )
    data = prepare(load_config(str(tmp_path / "run.toml"), for_prepare=True), "0")
    assert data.manifest["train"]["pairs"] == 200


@pytest.mark.parametrize("name", ["wmt16-en-de", "wmt14-en-de", "iwslt14-de-en"])
def test_recipes_name_the_files_that_get_makes(name, request):
    config = load_config(str(request.config.rootpath / "recipes" / f"{name}.toml"))
    corpus = public.find(name)
    for part in corpus.part_names:
        for side, lang in zip(("source", "target"), corpus.langs, strict=True):
            assert getattr(config.data, f"{part}_{side}") == f"corpora/{name}/{part}.{lang}"
            assert getattr(config.data, f"{side}_lang") == lang


INDEX = """
from collections import namedtuple
Lang, Did, Entry = namedtuple("L", "lang"), namedtuple("D", "langs"), namedtuple("E", "did url ext in_ext in_paths cols")
def entry(url, *rest, langs=("deu", "eng")): return Entry(Did([Lang(lang) for lang in langs]), url, *rest)
INDEX = type("Index", (), {"entries": {
    "G-zip-1-deu-eng": entry("ORIGIN/a.zip", "zip", "txt", ["*.de", "*.en"], None),
    "G-tsv-1-deu-eng": entry("ORIGIN/a.tsv.gz", "tsv.gz", None, None, (1, 2)),
    "G-tmx-1-deu-eng": entry("ORIGIN/b.zip", "zip", "tmx", ["x/*.tmx"], None),
    "G-table-1-deu-eng": entry("ORIGIN/a.xlsx", "xlsx", "xlsx", None, None),
}})
"""


def test_corpora_of_mtdata(origin, tmp_path, monkeypatch):
    """Beside a stand-in for its index, whose addresses lie on this machine."""
    files = {
        "__init__": "",
        "index": INDEX.replace("ORIGIN", origin.url("")),
        "entry": "class DatasetId: parse = str",
        "iso/__init__": "",
        "iso/iso639_1": 'ISO693_1_to_3 = {"de": "deu", "en": "eng"}',
    }
    for name, text in files.items():
        path = tmp_path / "fake" / "mtdata" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with monkeypatch.context() as absent:
        absent.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"pip install '\.\[mtdata\]'"):
            public.find("mtdata:G-zip-1-deu-eng")
    monkeypatch.syspath_prepend(tmp_path / "fake")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"), prepend=":")
    tmx = '<tmx><body><tu><tuv lang="en"><seg>one</seg></tuv><tuv lang="de"><seg>eins</seg></tuv></tu></body></tmx>'
    for name, members in (
        ("a", {"LICENSE": "x", "c.de-en.de": "eins\n", "c.de-en.en": "one\n"}),
        ("b", {"x/c.tmx": tmx}),
    ):
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as archive:
            for member, text in members.items():
                archive.writestr(member, text)
        origin.files[f"/{name}.zip"] = zipped.getvalue()
    origin.files["/a.tsv.gz"] = gzip.compress(b"1.2\teins\tone\tmore\n")
    for kind in ("zip", "tsv", "tmx"):
        corpus = public.find(f"mtdata:G-{kind}-1-deu-eng")
        place = public.get(corpus, tmp_path)
        assert [(place / f"train.{lang}").read_text() for lang in ("de", "en")] == ["eins\n", "one\n"], kind
    for name, words in (("G-table-1-deu-eng", "xlsx of de-en is not read here"), ("G-x", "not in the index of mtdata")):
        with pytest.raises(DataError, match=words):
            public.find(f"mtdata:{name}")
