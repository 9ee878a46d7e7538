"""Bad input: one line that says what is wrong, where, and what to do; and nothing is half written."""

import bz2
import gzip
import lzma
import random
import re
import zipfile
from pathlib import Path

import pytest
import zstandard
from support import as_overrides, config_for, tiny_config, write_corpus
from typer.testing import CliRunner

from dragoman.cli.main import app
from dragoman.cli.stages import prepare
from dragoman.config.schema import Data
from dragoman.data.clean import LONGEST_LINE
from dragoman.data.corpus import files_of, raw_pairs, read_pairs
from dragoman.data.encode import PreparedData
from dragoman.data.streams import TOO_LONG, seems
from dragoman.errors import DataError, DragomanError

TEXT = "".join(f"Sentence number {n} about a house.\n" for n in range(300)).encode()
GZIP = b"\x1f\x8b"
NOISE = random.Random(1).randbytes(10_000)
CASES = {
    "random bytes": ("a.en", NOISE, "seems to be binary data, not text; dragoman reads UTF-8 text"),
    "zero bytes": ("a.en", bytes(10_000), "nothing but zero bytes"),
    "UTF-16": ("a.en", TEXT.decode().encode("utf-16"), "UTF-16 text (convert it: iconv"),
    "UTF-16 without a mark": ("a.en", TEXT.decode().encode("utf-16-le"), "UTF-16 text (convert it: iconv"),
    "PDF": ("a.en", b"%PDF-1.7\n" + TEXT, "seems to be a PDF document"),
    "error page": ("a.tsv", b"\n<!DOCTYPE html><title>404</title>", "a web page (an error page"),
    "LFS": ("a.en", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "gzip named as text": (
        "a.en",
        gzip.compress(TEXT),
        "seems to be gzip, not text; unpack it or let its name end in .gz",
    ),
    "zstd named as text": ("a.txt", zstandard.compress(TEXT), "let its name end in .zst"),
    "text named as gzip": ("a.gz", TEXT, "is named .gz but seems to be plain text"),
    "xz named as gzip": ("a.gz", lzma.compress(TEXT), "is named .gz but seems to be xz"),
    "empty file named as gzip": ("a.gz", b"", "is named .gz but seems to be empty"),
    "noise in gzip": ("a.gz", gzip.compress(NOISE), "seems to be binary data"),
    "gzip in gzip": ("a.gz", gzip.compress(gzip.compress(TEXT)), "seems to be gzip, not text"),
    "cut gzip": ("a.gz", gzip.compress(TEXT)[:-20], "damaged or cut off"),
    "cut xz": ("a.xz", lzma.compress(TEXT)[:-20], "damaged or cut off"),
    "cut bzip2": ("a.bz2", bz2.compress(TEXT)[:-20], "damaged or cut off"),
    "cut zstd": ("a.zst", zstandard.compress(TEXT)[:-20], "damaged or cut off (Truncated compressed stream)"),
    "broken gzip": ("a.gz", gzip.compress(NOISE.hex().encode())[:5000] + bytes(99), "damaged or cut off"),
}


def refusal(folder, *names, **options):
    source, target = (*names, str(folder / "a.de"))[:2]
    (folder / "a.de").write_bytes(TEXT)
    with pytest.raises(DataError) as error:
        list(raw_pairs(Path(source), Path(target)))
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("case", CASES)
def test_refused_by_what_it_seems_to_be(tmp_path, case):
    name, content, words = CASES[case]
    (tmp_path / name).write_bytes(content)
    text = refusal(tmp_path, tmp_path / name)
    assert text.startswith(f"{tmp_path / name}: ")
    assert words in text


def test_archives(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.en", TEXT)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "damaged or cut off" in refusal(tmp_path, path)
    path.write_bytes(whole.replace(b"number 7 ", b"number 8 "))
    assert "damaged or cut off (Bad CRC-32" in refusal(tmp_path, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README", "hello")
    assert "a.zip: holds 2 files; name one of a.en, README as a.zip!NAME" in refusal(tmp_path, path)
    assert "holds no b.en; name one of a.en" in refusal(tmp_path, f"{path}!b.en")
    (tmp_path / "a.de").write_bytes(TEXT)
    path.write_bytes(whole)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README", "hello")
        archive.writestr("folder/a.de", TEXT.upper())
    expected = list(zip(TEXT.splitlines(), TEXT.upper().splitlines(), strict=True))
    assert list(raw_pairs(Path(f"{path}!a.en"), Path(f"{path}!folder/a.de"))) == expected
    assert list(read_pairs(files_of(Data(valid_source=str(path)), "valid"))) == expected


def test_files_that_cannot_be_read(tmp_path):
    assert "no-such.en: cannot be read (No such file or directory)" in refusal(tmp_path, tmp_path / "no-such.en")
    assert "cannot be read (Is a directory)" in refusal(tmp_path, tmp_path)
    assert "/proc/self/mem: cannot be read (Input/output error)" in refusal(tmp_path, "/proc/self/mem")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        "Ein Häuschen\n".encode() * 9,
        "日本語の文\n".encode() * 9,
        "caf\xe9\n".encode("latin-1") * 9,
        b"a\0b " * 2 + TEXT,
    ],
)
def test_text_passes(text):
    assert seems(text) is None


def test_the_mark_for_endless_lines_is_dropped_for_its_length():
    assert len(TOO_LONG) > LONGEST_LINE


@pytest.mark.parametrize("part", ["train", "valid"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (NOISE, "seems to be binary data, not text"),
        (bytes(100_000), "seems to be nothing but zero bytes"),
        (TEXT[:99] + bytes(100_000), "seems to be binary data, not text"),
        (TEXT[:9000] + bytes(100_000), "sides must be aligned one to one"),
        (gzip.compress(TEXT)[:-20], "damaged or cut off"),
        (TEXT + b"one more\n", "bad.en has 301 lines and .*train.de has 300: the sides must be aligned"),
        (b"a" * 50_000_000 + b"\n" + TEXT[TEXT.index(b"\n") + 1 :], "line 1: over 5,000 characters"),
        (None, "cannot be read"),
    ],
    ids=["random", "zeros", "zeros after text", "zeros later", "cut gz", "longer side", "50 MB line", "unreadable"],
)
def test_bad_files_are_one_line_and_exit_code_2_and_nothing_is_half_written(tmp_path, part, content, words):
    folder = write_corpus(tmp_path)
    name = f"bad.{'gz' if content and content[:2] == GZIP else 'en'}"
    (folder / name).write_bytes(content or TEXT)
    bad = "/proc/self/mem" if content is None else folder / name
    options = [f"data.{part}_source={bad}", f"data.{part}_target={folder}/train.de", "clean.overlap=false"]
    config = config_for(folder, *options)
    result = CliRunner().invoke(app, ["prepare", "tiny", *as_overrides(config), "--workers", "2"])
    if part == "train" and content and len(content) > 10_000_000:  # a training pair is dropped and counted
        assert PreparedData(folder / "out").manifest["train"]["dropped"] == {"over 5,000 characters": 1}
        return
    assert isinstance(result.exception, DragomanError)
    assert result.exception.exit_code == 2
    assert re.search(words, str(result.exception))
    assert "\n" not in str(result.exception)
    assert not (folder / "out").exists()
    left = {path.name for path in folder.glob("out.partial/**/*") if path.is_file()}
    assert left <= {".key", "valid-00000.arrow", "valid-00000.json"}, "only what was finished"


def test_a_bad_validation_file_is_found_before_the_work_begins(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a\tb\n" * 99)
    (tmp_path / "v.tsv").write_bytes(NOISE)
    stages = []
    files = [f"data.train_source={tmp_path}/a.tsv", f"data.valid_source={tmp_path}/v.tsv"]
    with pytest.raises(DataError, match=r"v\.tsv: seems to be binary data"):
        prepare(
            tiny_config(tmp_path / "out", tmp_path / "run", "data.corpus=files", *files),
            progress=lambda stage, *_: stages.append(stage),
        )
    assert stages == []


def test_a_line_of_50_megabytes_is_dropped_and_counted(tmp_path):
    pairs = [f"sentence number {n}\tSatz Nummer {n}\n".encode() for n in range(200)]
    (tmp_path / "a.tsv").write_bytes(b"".join([*pairs, b"a" * 50_000_000 + b"\tb\n"]))
    (tmp_path / "v.tsv").write_bytes(b"".join(pairs[:9]))
    files = [f"data.train_source={tmp_path}/a.tsv", f"data.valid_source={tmp_path}/v.tsv", "subwords.vocab_size=60"]
    options = ["data.corpus=files", "clean.overlap=false", *files]
    train = prepare(tiny_config(tmp_path / "out", tmp_path / "run", *options)).manifest["train"]
    assert (train["pairs"], train["dropped"]) == (200, {"over 5,000 characters": 1})
