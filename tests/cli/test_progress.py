"""What a run says: nothing of it can end the run, and what is said once is said whole."""

import errno
import os
import subprocess
import sys

import pytest
from support import as_overrides, tiny_config

from dragoman import runs
from dragoman.cli import main
from dragoman.cli.progress import PlainLines


@pytest.mark.parametrize("options", [[], ["--nproc", "2"]])
def test_a_full_disk_and_a_reader_that_left_end_no_run(prepared, tmp_path, options):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=2")
    command = [sys.executable, "-m", "dragoman", "train", "tiny", *as_overrides(config), *options]
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, stdout=write, stderr=full, check=False, timeout=600).returncode == 0
    os.close(write)
    assert runs.damage(runs.RunFolder(tmp_path / "run").checkpoint(2)) is None


def test_what_is_said_once_is_said_every_time(capsys):
    lines = PlainLines()
    for step in (2, 4):
        lines("checkpoint", step, 100, f"the checkpoint of step {step} could not be written")
    said = capsys.readouterr().err.splitlines()
    assert [line.endswith("could not be written") for line in said] == [True, True]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EACCES, 2)])
def test_a_rank_is_started_again_when_there_may_be_room_later(monkeypatch, number, code):
    codes = []

    def app():
        raise OSError(number, "bad")

    monkeypatch.setattr(main, "command", lambda: app)
    monkeypatch.setattr(main, "fail", lambda line, code: codes.append(code))
    monkeypatch.setenv("RANK", "0")
    main.main()
    assert codes == [code]
