"""Downloads against a server that fails as real ones do: nothing wrong is ever taken for the file, little is fetched twice."""

import hashlib
import random
import socket
from dataclasses import replace

import pytest
from origin_server import served

from dragoman.data import download
from dragoman.data.download import Archive, fetch
from dragoman.errors import DataError

BODY = random.Random(7).randbytes(300_000)
SHA = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


@pytest.fixture
def origin(monkeypatch):
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)
    with served() as origin:
        origin.files["/a.tgz"] = BODY
        yield origin


CUT_OFF = [100_000, 0]  # something comes, and then the line is dead


def archive(origin, *paths, checksum=SHA):
    return Archive("a.tgz", tuple(origin.url(path) for path in paths or ["/a.tgz"]), len(BODY), checksum)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file_is_checked_and_not_fetched_again(origin, tmp_path):
    seen = []
    path = fetch(archive(origin), tmp_path / "new", lambda *told: seen.append(told))
    assert path.read_bytes() == BODY
    assert names(path.parent) == ["a.tgz"]
    stage, _, _, detail = seen[-1]
    assert stage == "getting a.tgz"
    assert "MB/s" in detail
    fetch(archive(origin), tmp_path / "new")
    assert len(origin.requests) == 1


def test_a_cut_connection_is_resumed_within_one_run(origin, tmp_path):
    origin.cut_after = [100_000, 50_000]
    assert fetch(archive(origin), tmp_path).read_bytes() == BODY
    assert [asked for _, asked in origin.requests] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_line_that_keeps_cutting_brings_the_file_in_the_end(origin, tmp_path):
    """However often, and with pauses in which nothing comes: only tries that bring nothing count."""
    origin.cut_after = [20_000, 0, 0, 0] * 14
    assert fetch(archive(origin), tmp_path).read_bytes() == BODY
    assert len(origin.requests) == 57


@pytest.mark.parametrize("checksum", [SHA, ""])
def test_it_does_so_by_any_of_two_addresses(origin, tmp_path, monkeypatch, checksum):
    """Runs that stop early, each after a little more: nothing that came is lost to the other address."""
    monkeypatch.setattr(download, "TRIES", 1)
    origin.files["/b.tgz"] = BODY
    both = archive(origin, "/a.tgz", "/b.tgz", checksum=checksum)
    for _ in range(3):
        origin.cut_after = [40_000, 0, 40_000, 0]
        with pytest.raises(DataError, match="goes on where it stopped"):
            fetch(both, tmp_path)
    assert fetch(both, tmp_path).read_bytes() == BODY
    assert origin.requests[-1] == ("/a.tgz", f"bytes={6 * 40_000 if checksum else 3 * 40_000}-")
    assert names(tmp_path) == ["a.tgz"]


def test_a_later_run_goes_on_where_the_first_stopped(origin, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TRIES", 1)
    origin.cut_after = CUT_OFF[:]
    with pytest.raises(DataError, match=r"cut after 100,000 of 300,000 bytes.*goes on where it stopped"):
        fetch(archive(origin), tmp_path)
    assert names(tmp_path) == ["a.tgz.part", "a.tgz.part.json"]
    assert fetch(archive(origin), tmp_path).read_bytes() == BODY
    assert origin.requests[-1][1] == "bytes=100000-"
    assert names(tmp_path) == ["a.tgz"]


def test_a_file_that_changed_in_between_begins_anew(origin, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TRIES", 1)
    origin.files["/a.tgz"] = BODY[::-1]
    origin.cut_after = CUT_OFF[:]
    with pytest.raises(DataError):
        fetch(archive(origin), tmp_path)
    origin.files["/a.tgz"], origin.etag = BODY, '"two"'
    assert fetch(archive(origin), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_a_version_that_cannot_be_told_begins_anew(origin, tmp_path, etag):
    origin.etag = etag
    origin.cut_after = [100_000]
    assert fetch(archive(origin, checksum=""), tmp_path).read_bytes() == BODY
    assert [asked for _, asked in origin.requests] == [None, None]
    origin.cut_after = [100_000]
    assert fetch(archive(origin), tmp_path / "guarded").read_bytes() == BODY
    assert origin.requests[-1][1] == "bytes=100000-", "its checksum tells"


def test_a_server_without_ranges_sends_all_again(origin, tmp_path):
    origin.ranges = False
    origin.cut_after = [100_000]
    assert fetch(archive(origin), tmp_path).read_bytes() == BODY
    assert len(origin.requests) == 2


def test_a_server_that_always_cuts_is_given_up(origin, tmp_path):
    origin.ranges = False
    origin.cut_after = [100_000] * 50
    with pytest.raises(DataError, match="cut after 100,000"):
        fetch(archive(origin), tmp_path)
    assert len(origin.requests) == 1 + download.TRIES


def test_a_part_that_is_whole_already_is_accepted(origin, tmp_path, monkeypatch):
    """Killed between the last byte and the renaming."""
    accept = download.accept
    monkeypatch.setattr(download, "accept", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fetch(archive(origin), tmp_path)
    monkeypatch.setattr(download, "accept", accept)
    assert fetch(archive(origin), tmp_path).read_bytes() == BODY
    assert [asked for _, asked in origin.requests] == [None, f"bytes={len(BODY)}-"]


def test_a_part_longer_than_the_file_is_thrown_away(origin, tmp_path):
    (tmp_path / "a.tgz.part").write_bytes(BODY + b"more")
    (tmp_path / "a.tgz.part.json").write_text(f'{{"url": "{origin.url("/a.tgz")}", "version": "\\"one\\""}}')
    assert fetch(archive(origin), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_names_both_and_keeps_the_file_aside(origin, tmp_path):
    origin.files["/a.tgz"] = b"<html>Please log in</html>"
    found = hashlib.sha256(origin.files["/a.tgz"]).hexdigest()
    with pytest.raises(DataError, match=f"(?s){found}.*{SHA}.*a.tgz.wrong"):
        fetch(archive(origin), tmp_path)
    assert names(tmp_path) == ["a.tgz.wrong"]


def test_the_next_mirror_is_asked(origin, tmp_path):
    origin.files["/wrong.tgz"] = b"not it"
    assert fetch(archive(origin, "/gone.tgz", "/wrong.tgz", "/a.tgz"), tmp_path).read_bytes() == BODY
    assert [path for path, _ in origin.requests] == ["/gone.tgz", "/wrong.tgz", "/a.tgz"]


@pytest.mark.parametrize("failure", ["404", "cut", "wrong"])
def test_the_same_files_packed_by_somebody_else(origin, tmp_path, failure, monkeypatch):
    """Asked last; it has a name of its own, so that nobody takes it for the first, and all problems are told together."""
    monkeypatch.setattr(download, "TRIES", 1)
    paths = {"404": "/gone.tgz", "cut": "/a.tgz", "wrong": "/wrong.tgz"}
    origin.files |= {"/wrong.tgz": b"not it", "/other.zip": b"the same files"}
    origin.cut_after = CUT_OFF * (failure == "cut")
    stand_in = Archive("a.tgz.repacked.zip", (origin.url("/other.zip"),))
    path = fetch(replace(archive(origin, paths[failure]), instead=stand_in), tmp_path)
    assert (path.name, path.read_bytes()) == ("a.tgz.repacked.zip", b"the same files")
    assert not (tmp_path / "a.tgz").exists()
    del origin.files["/other.zip"]
    with pytest.raises(DataError, match=r"gone\.tgz: .*404.*other\.zip: .*404") as error:
        fetch(replace(archive(origin, "/gone.tgz"), instead=stand_in), tmp_path / "new")
    assert str(error.value).count("Run the same command again") == 1


def test_a_failing_first_mirror_does_not_cost_what_the_second_brought(origin, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TRIES", 1)
    origin.cut_after = CUT_OFF[:]
    with pytest.raises(DataError, match="404"):
        fetch(archive(origin, "/gone.tgz", "/a.tgz"), tmp_path)
    fetch(archive(origin, "/gone.tgz", "/a.tgz"), tmp_path)
    assert origin.requests[-1] == ("/a.tgz", "bytes=100000-")


@pytest.mark.parametrize("checksum", [SHA, ""])
def test_what_another_mirror_brought_spoils_nothing(origin, tmp_path, monkeypatch, checksum):
    """Where a checksum tells, it is gone on with, and left when it turns out to be another file's; else it is not touched."""
    monkeypatch.setattr(download, "TRIES", 1)
    origin.files["/other.tgz"] = BODY[::-1]
    origin.cut_after = CUT_OFF[:]
    assert fetch(archive(origin, "/other.tgz", "/a.tgz", checksum=checksum), tmp_path).read_bytes() == BODY
    taken_up = [("/a.tgz", "bytes=100000-")] if checksum else []
    assert origin.requests[2:] == [*taken_up, ("/a.tgz", None)]
    assert names(tmp_path) == ["a.tgz"]


def test_redirects_are_followed(origin, tmp_path):
    origin.redirects["/old.tgz"] = origin.url("/a.tgz")
    assert fetch(archive(origin, "/old.tgz"), tmp_path).read_bytes() == BODY


def test_a_redirect_to_a_local_file_is_not(origin, tmp_path):
    (tmp_path / "secret").write_text("secret")
    origin.redirects["/old.tgz"] = f"file://{tmp_path}/secret"
    with pytest.raises(DataError, match="302"):
        fetch(archive(origin, "/old.tgz", checksum=""), tmp_path / "new")
    assert names(tmp_path / "new") == []


def test_a_silent_server_is_left(origin, tmp_path):
    assert fetch(archive(origin, "/hangs", "/a.tgz"), tmp_path, silence_s=3.0).read_bytes() == BODY
    with pytest.raises(DataError, match="hangs: no answer in time"):
        fetch(archive(origin, "/hangs"), tmp_path / "other", silence_s=0.3)


def test_nobody_there(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.tgz"
        with pytest.raises(DataError, match=r"Connection refused.*when the network is there.*or put the file at"):
            fetch(Archive("a.tgz", (url,)), tmp_path)


def test_a_file_put_there_by_hand_is_checked(origin, tmp_path):
    (tmp_path / "a.tgz").write_bytes(BODY[:-1])
    with pytest.raises(DataError, match="its checksum is"):
        fetch(archive(origin), tmp_path)
    (tmp_path / "a.tgz").write_bytes(BODY)
    fetch(archive(origin), tmp_path)
    assert origin.requests == []
