"""Run folders: whole files or none, rows that survive a torn end."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from dragoman import runs
from dragoman.errors import RunError


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def interrupted():
        with runs.new_folder(tmp_path / "out") as fresh:
            (fresh / "half").write_text("x", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with runs.new_folder(tmp_path / "out") as fresh:
        (fresh / "file").write_text("x", encoding="utf-8")
        assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RunError, OSError])
def test_a_claimed_folder_leaves_nothing_behind_and_takes_over_what_a_killed_process_left(tmp_path, error):
    def interrupted():
        with runs.claimed_folder(tmp_path / "out") as fresh:
            (fresh / "half").write_text("x", encoding="utf-8")
            raise error

    with pytest.raises(error):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    runs.write_text(tmp_path / "out.partial" / runs.KEY, "another")
    (tmp_path / "out.partial" / "half").touch()
    with runs.claimed_folder(tmp_path / "out") as fresh:
        (fresh / "file").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["out", "out/file"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    runs.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        runs.write_json(path, {"a": object()})
    with pytest.raises(UnicodeEncodeError):
        runs.write_text(path, "\udce9")
    assert runs.read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_a_link_is_followed_and_a_pipe_is_written_into(tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "new" / "file")
    runs.check_place(link)
    runs.write_text(link, "through")
    assert (link.is_symlink(), (tmp_path / "new" / "file").read_text()) == (True, "through")
    os.mkfifo(pipe)
    runs.check_place(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    runs.write_text(pipe, "water")
    assert (os.read(reader, 9), pipe.is_fifo()) == (b"water", True)
    os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "new", "pipe"]


def test_a_place_is_tried_before_the_work(tmp_path):
    (tmp_path / "file").write_text("old")
    for wrong, words in ((tmp_path, "is a folder"), (tmp_path / "file" / "below", "cannot be written")):
        with pytest.raises(RunError, match=words):
            runs.check_place(wrong)
    runs.check_place(tmp_path / "file")
    runs.check_place(tmp_path / "new" / "deep" / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_entries_of_several_at_once_are_all_kept(tmp_path):
    path = tmp_path / "scores.json"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: runs.append_entry(path, {"number": number}), range(40)))
    assert sorted(entry["number"] for entry in runs.read_entries(path)) == list(range(40))
    path.write_text("{}")
    with pytest.raises(RunError, match="is no list of entries"):
        runs.append_entry(path, {})


def test_a_torn_last_row_is_passed_over(tmp_path):
    path = tmp_path / "rows.jsonl"
    for step in range(3):
        runs.append_row(path, {"step": step})
    path.write_text(path.read_text(encoding="utf-8")[:-4], encoding="utf-8")
    assert [row["step"] for row in runs.read_rows(path)] == [0, 1]


def test_names_of_steps():
    folder = runs.RunFolder("runs/x")
    assert runs.step_of(folder.checkpoint(400)) == 400
    assert folder.checkpoint(400).name == "step-00000400"
    assert runs.step_of(folder.path / "step-00000400.txt") == 400
    assert runs.step_of(folder.path / "notes.txt") == -1


def test_half_written_checkpoints_are_not_listed(tmp_path):
    folder = runs.RunFolder(tmp_path)
    for name in ("step-00000002", "step-00000010", "step-00000020.ab12cd34.partial", "notes"):
        (folder.checkpoints / name).mkdir(parents=True)
    assert [path.name for path in runs.checkpoint_folders(folder)] == ["step-00000002", "step-00000010"]


def test_not_a_run(tmp_path):
    with pytest.raises(RunError, match="no such run folder"):
        runs.open_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"run\.toml is missing"):
        runs.open_run(tmp_path)


def test_a_model_beside_a_run_file_is_no_checkpoint_of_it(tmp_path):
    """As in the README: run.toml in the working folder, a model in models/first."""
    (tmp_path / "run.toml").touch()
    for name in ("models", "checkpoints"):
        (tmp_path / name / "first").mkdir(parents=True)
    assert runs.run_around(tmp_path / "models" / "first") is None
    assert runs.run_around(tmp_path / "checkpoints" / "first").path == tmp_path


def test_a_file_that_was_not_written_with_the_others_is_damage(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x")
    runs.write_manifest(tmp_path, {})
    assert runs.damage(tmp_path) is None
    (tmp_path / "README.md").write_text("notes", encoding="utf-8")
    assert runs.damage(tmp_path) is None, "nobody reads it"
    for name in ("weights.safetensors", "moments-00003.safetensors", "source.model"):
        (tmp_path / name).write_bytes(b"x")
        assert runs.damage(tmp_path) == f"{name} was not written with the others"
        (tmp_path / name).unlink()


def test_scores_that_are_no_numbers_are_none(tmp_path):
    run = runs.RunFolder(tmp_path)
    for step, score in enumerate([float("nan"), 2.0, float("nan"), 1.0, float("inf"), 3.0, None, "x"]):
        runs.write_json(run.checkpoint(step) / runs.MANIFEST, {"scores": {"loss": score, "bleu": score}})
    assert [runs.step_of(path) for path in runs.best_checkpoints(run, "loss")] == [3, 1, 5]
    assert [runs.step_of(path) for path in runs.best_checkpoints(run, "bleu")] == [5, 1, 3]


@pytest.mark.parametrize("where", ["dragoman.runs.read_rows", "pathlib.Path.stat"])
def test_a_fault_that_cannot_be_written_down_ends_nobody(tmp_path, monkeypatch, where):
    """A disk of the network that is away says so to whoever only asks whether a file is there."""

    def unreadable(path, **_):
        raise OSError(errno.ESTALE, "a stale handle")

    run = runs.RunFolder(tmp_path)
    runs.write_text(run.config, "")
    monkeypatch.setattr(where, unreadable)
    runs.note_fault(run, {"kind": "killed"})


def test_a_manifest_that_cannot_be_read_has_no_score(tmp_path):
    run = runs.RunFolder(tmp_path)
    runs.write_json(run.checkpoint(1) / runs.MANIFEST, {"scores": {"loss": 1.0}})
    (run.checkpoint(2) / runs.MANIFEST).mkdir(parents=True)
    assert [runs.step_of(path) for path in runs.best_checkpoints(run, "loss")] == [1]


def test_a_last_look_comes_when_everything_is_synced_and_may_refuse(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(runs, "sync_path", synced.append)

    def overtaken():
        assert len(synced) == 2, "the file and its folder"
        raise RunError("overtaken")

    with pytest.raises(RunError, match="overtaken"), runs.new_folder(tmp_path / "out", overtaken) as fresh:
        (fresh / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_is_protected_as_the_files_are(tmp_path):
    """Its scores decide which checkpoint is the best."""
    (tmp_path / "file").write_text("content", encoding="utf-8")
    runs.write_manifest(tmp_path, {"scores": {"bleu": 27.25}})
    assert runs.damage(tmp_path) is None
    manifest = tmp_path / runs.MANIFEST
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("27.25", "97.25"), encoding="utf-8")
    assert runs.damage(tmp_path) == "manifest.json is not as it was written (checksum)"


@pytest.mark.parametrize(("number", "away"), [(errno.ESTALE, True), (errno.ETIMEDOUT, True), (errno.EIO, False)])
def test_a_disk_that_is_away_is_no_damage(number, away, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    runs.write_manifest(tmp_path, {})

    def fails(path):
        raise OSError(number, "a disk")

    monkeypatch.setattr(runs, "digest", fails)
    if away:
        with pytest.raises(OSError, match="a disk"):
            runs.damage(tmp_path)
    else:
        assert "cannot be read" in runs.damage(tmp_path)


def test_the_newest_step_is_known_between_two_rows(tmp_path):
    run = runs.RunFolder(tmp_path)
    assert runs.newest_step(run) == 0
    runs.append_row(run.metrics, {"step": 40})
    runs.append_row(run.metrics, {"stfp": 41})  # a flipped bit
    assert runs.newest_step(run) == 40
    run.reached.write_text("000000000057\n", encoding="utf-8")
    assert runs.newest_step(run) == 57
    run.reached.write_bytes(b"\xff")
    assert runs.newest_step(run) == 40
