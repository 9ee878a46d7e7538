"""Archives from strangers: only what we ask for is written, and only where we say."""

import io
import random
import tarfile
import zipfile

import pytest

from dragoman.data.archive import unpack
from dragoman.errors import DataError


def write_tar(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def special(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def everything_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_malicious_tar_writes_only_what_was_asked_for(tmp_path):
    place = tmp_path / "in" / "here"
    place.mkdir(parents=True)
    evil = [
        ("../evil", b"evil"),
        ("../../evil", b"evil"),
        (str(tmp_path / "absolute"), b"evil"),
        (special("link", tarfile.SYMTYPE, str(tmp_path)), b""),
        ("link/through", b"evil"),
        (special("train.de", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (special("hard/train.de", tarfile.LNKTYPE, "/etc/passwd"), b""),
        (special("dev/train.de", tarfile.CHRTYPE), b""),
        (special("fifo/train.de", tarfile.FIFOTYPE), b""),
        ("a/train.en", b"good\n"),
        ("a/._train.de", b"\x00"),
        ("a/train.de", b"gut\n"),
    ]
    write_tar(tmp_path / "a.tgz", evil)
    unpack(tmp_path / "a.tgz", ["train.de", "train.en"], place)
    assert everything_under(tmp_path) == ["a.tgz", "in", "in/here", "in/here/train.de", "in/here/train.en"]
    assert (place / "train.de").read_text() == "gut\n"
    assert not (place / "train.de").is_symlink()


def test_a_wanted_name_with_an_evil_path_stays_inside(tmp_path):
    place = tmp_path / "here"
    place.mkdir()
    write_tar(tmp_path / "a.tgz", [("../../train.de", b"x")])
    unpack(tmp_path / "a.tgz", ["train.de"], place)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as zipped:
        zipped.writestr("../../train.en", "y")
    unpack(tmp_path / "b.zip", ["train.en"], place)
    assert everything_under(tmp_path) == ["a.tgz", "b.zip", "here", "here/train.de", "here/train.en"]


def test_missing_and_damaged(tmp_path):
    write_tar(
        tmp_path / "a.tgz", [(special("train.de", tarfile.SYMTYPE, "/etc/passwd"), b""), ("train.en", b"x" * 99999)]
    )
    with pytest.raises(DataError, match=r"holds no plain file train\.de"):
        unpack(tmp_path / "a.tgz", ["train.de"], tmp_path)
    (tmp_path / "cut.tgz").write_bytes((tmp_path / "a.tgz").read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cut\.tgz: damaged"):
        unpack(tmp_path / "cut.tgz", ["train.fr"], tmp_path)
    (tmp_path / "page.tgz").write_text("<html>log in</html>")
    with pytest.raises(DataError, match=r"page\.tgz: damaged"):
        unpack(tmp_path / "page.tgz", ["train.fr"], tmp_path)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.9])
def test_a_damaged_tar_xz_is_one_line(tmp_path, at):
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as tar:
        info = tarfile.TarInfo("train.de")
        info.size = 200_000
        tar.addfile(info, io.BytesIO(random.Random(1).randbytes(info.size)))
    content = bytearray((tmp_path / "a.tar.xz").read_bytes())
    start = 20 + int(at * len(content))
    content[start : start + 20] = bytes(20)
    (tmp_path / "a.tar.xz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar\.xz: damaged .*; remove it and run again"):
        unpack(tmp_path / "a.tar.xz", ["train.de"], tmp_path)


def test_members_that_only_their_folders_tell_apart(tmp_path):
    write_tar(tmp_path / "a.tgz", [("corpus/de/text.txt", b"gut\n"), ("corpus/en/text.txt", b"good\n")])
    found = unpack(tmp_path / "a.tgz", ("en/text.txt", "de/text.txt"), tmp_path)
    assert [path.read_text() for path in found] == ["good\n", "gut\n"]
