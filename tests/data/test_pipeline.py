"""Preparing with several processes: the same data whatever their number, and wherever it was interrupted."""

import gzip
import os
import pickle
import signal
import subprocess
import sys
import time
from itertools import repeat
from pathlib import Path

import numpy as np
import psutil
import pytest
from sentencepiece import sentencepiece_model_pb2 as layout
from support import SENTENCES, as_overrides, config_for, dragoman, sentences, wait_until, write_corpus

from dragoman import ray_cluster, runs
from dragoman.config import to_toml
from dragoman.data import ray_crew
from dragoman.data.encode import PreparedData
from dragoman.data.prepare import prepare
from dragoman.data.shards import chunks
from dragoman.data.workers import Crew
from dragoman.errors import DataError, DragomanError, RunError, Unfinished

SHARDS = "data.shard_pairs=40"  # eight of them
BAD = [("", "x"), *sentences(1, 250), ("same same same same", "same same same same")]

KILLED_AT = """
import os, signal, sys, time
from dragoman import runs
from dragoman.config import load_config
from dragoman.data.prepare import prepare
calls = 0
def kill():
    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[4] == "9" else os.killpg(0, signal.SIGINT)
    time.sleep(5)
def progress(stage, *_):
    global calls
    calls += stage == sys.argv[2]
    if calls == int(sys.argv[3]): kill()
if sys.argv[2] == "renaming": runs.settle = lambda *_: kill()
if __name__ == "__main__": prepare(load_config(sys.argv[1]), "test", workers=2, progress=progress)
"""


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path, SENTENCES + BAD)


def expected(corpus, *more):
    return prepare(config_for(corpus, SHARDS, *more, out="undisturbed"), "test", workers=1).manifest


@pytest.mark.parametrize(("workers", "more"), [(2, []), (3, ["subwords.dropout=0.2"])])
def test_the_number_of_processes_does_not_matter(corpus, workers, more):
    manifest = prepare(config_for(corpus, SHARDS, *more), "test", workers=workers).manifest
    assert manifest == expected(corpus, *more)
    assert manifest["train"]["read_pairs"] == len(SENTENCES) + len(BAD)
    if not more:
        other = prepare(config_for(corpus, "data.shard_pairs=1000", out="one"), "test", workers=workers).manifest
        assert other["digest"] == manifest["digest"]  # nor does the size of shards


def test_a_shard_of_long_lines_is_no_larger_than_memory_allows():
    """100,000 pairs of 20 kB a side would be 4 GB."""
    pair = b"x" * 20_000, b"y" * 20_000
    sizes = [len(chunk) for chunk in chunks(repeat(pair, 10_000), 100_000)]
    assert sum(sizes) == 10_000
    assert 60e6 < 40_000 * sizes[0] < 70e6
    assert set(sizes[:-1]) == {sizes[0]}
    assert [len(chunk) for chunk in chunks(repeat((b"short", b"kurz"), 7), 3)] == [3, 3, 1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize(
    ("stage", "call"),
    [("reading valid", 1), ("cleaning train", 4), ("learning subwords", 1), ("encoding train", 4), ("joining train", 1), ("renaming", 0)],
)  # fmt: skip
def test_stopped_in_any_stage_and_started_again_gives_the_same_data(corpus, stage, call, number):
    config = config_for(corpus, SHARDS)
    (corpus / "run.toml").write_text(to_toml(config), encoding="utf-8")
    arguments = [sys.executable, "-c", KILLED_AT, str(corpus / "run.toml"), stage, str(call), str(int(number))]
    result = subprocess.run(arguments, check=False, start_new_session=True, capture_output=True)
    assert result.returncode == -number, result.stderr
    assert not (corpus / "out").exists()
    data = prepare(config, "test", workers=2)
    assert data.manifest == expected(corpus)
    assert not [path for path in corpus.iterdir() if path.suffix in (".partial", ".old")]
    assert not [path for path in data.folder.iterdir() if path.name.startswith(".") or path.name == "encoded"]


def flipped_score(path):
    """A model that loads, with another score."""
    model = layout.ModelProto.FromString(path.read_bytes())
    model.pieces[50].score -= 1
    path.write_bytes(model.SerializeToString())


class Stop(Exception):
    pass


def stop_at(stage, call):
    seen = []

    def progress(name, *_):
        seen.extend([name] * (name == stage))
        if len(seen) == call:
            raise Stop

    return progress


def test_finished_shards_are_not_done_again(corpus, monkeypatch):
    config = config_for(corpus, SHARDS)
    done = []
    for name in ("clean_chunk", "encode_shard"):
        module = "dragoman.data.prepare"
        function = getattr(sys.modules[module], name)
        monkeypatch.setattr(f"{module}.{name}", lambda *rest, f=function, n=name: done.append((n, rest[1])) or f(*rest))
    for stage, calls in (("cleaning train", 4), ("learning subwords", 1), ("encoding train", 6)):
        with pytest.raises(Stop):
            prepare(config, "test", workers=1, progress=stop_at(stage, calls))
    prepare(config, "test", workers=1)
    train = [task for task in done if task[1].startswith("train")]
    assert len(train) == len(set(train)) == 16


def test_other_settings_do_not_go_on_from_there(corpus):
    with pytest.raises(Stop):
        prepare(config_for(corpus, SHARDS), "test", workers=1, progress=stop_at("learning subwords", 1))
    changed = config_for(corpus, SHARDS, "clean.duplicates=false")
    assert "duplicate" not in prepare(changed, "test", workers=1).manifest["train"]["dropped"]


def test_another_version_does_not_go_on_from_there(corpus):
    """What it cleans, learns and encodes may differ: no vocabulary, no ids and no cleaned text of the other is used or left."""
    with pytest.raises(Stop):
        prepare(config_for(corpus, SHARDS), "older", workers=1, progress=stop_at("encoding train", 4))
    assert stages_of(config_for(corpus, SHARDS), workers=1) >= {"cleaning train", "learning subwords", "encoding train"}
    assert PreparedData(corpus / "out").manifest == expected(corpus)
    assert len(list((corpus / "out").glob("cleaned-*"))) == 1


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ("data.max_tokens=30", {"encoding train"}),
        ("subwords.dropout=0.1", {"encoding train"}),
        ("subwords.vocab_size=110", {"learning subwords", "encoding train"}),
        ("clean.duplicates=false", {"learning subwords", "encoding train"}),
        ("clean.copies=false", {"cleaning train", "learning subwords", "encoding train"}),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_only_what_depends_on_a_setting_is_done_again(corpus, change, stages, finished):
    """After a whole preparation, and after one that was interrupted before the vocabulary was learnt."""
    if finished:
        prepare(config_for(corpus, SHARDS), "test", workers=1)
    else:
        with pytest.raises(Stop):
            prepare(config_for(corpus, SHARDS), "test", workers=1, progress=stop_at("learning subwords", 1))
        stages = stages | {"learning subwords"}
    told = set()
    data = prepare(
        config_for(corpus, SHARDS, change), "test", workers=1, force=True, progress=lambda stage, *_: told.add(stage)
    )
    assert told & {"cleaning train", "learning subwords", "encoding train"} == stages
    fresh = prepare(config_for(corpus, SHARDS, change, out="fresh"), "test", workers=1)
    assert data.manifest == fresh.manifest
    assert sorted(path.name for path in data.folder.iterdir()) == sorted(path.name for path in fresh.folder.iterdir())


def flipped(path):
    """One bit in the middle is another; the disk says nothing."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["train-00003.arrow", "train-00003.json", "valid-00000.arrow"])
def test_a_damaged_shard_is_cleaned_again_and_the_sound_ones_are_not(corpus, name):
    config = config_for(corpus, SHARDS)
    (stage,) = prepare(config, "test", workers=1).folder.glob("cleaned-*")
    if name.endswith("json"):
        (stage / name).write_text("{", encoding="utf-8")
    else:
        flipped(stage / name)
    before = {path.name: path.stat().st_ino for path in stage.glob("*.arrow")}
    cleaned = []
    progress = lambda told, done, *_: cleaned.append(done) if told == "cleaning train" else None  # noqa: E731
    assert prepare(config, "test", workers=1, force=True, progress=progress).manifest == expected(corpus)
    assert len(before) == 9
    assert len(cleaned) == (2 if name.startswith("train") else 0), "seven shards were there, one was done again"
    (again,) = (corpus / "out").glob("cleaned-*")
    other = corpus / "undisturbed" / again.name
    assert {path.name: path.read_bytes() for path in again.glob("*.arrow")} == {
        path.name: path.read_bytes() for path in other.glob("*.arrow")
    }


@pytest.mark.parametrize("stage", ["cleaned-*", "encoded"])
def test_a_shard_that_went_is_made_again(corpus, stage):
    """As after an incomplete copy, or when damaged ones were being forgotten and the power went."""
    with pytest.raises(Stop):
        prepare(config_for(corpus, SHARDS), "test", workers=1, progress=stop_at("encoding train", 4))
    [folder] = (corpus / "out.partial").glob(stage)
    (folder / "train-00001.json").unlink()
    assert prepare(config_for(corpus, SHARDS), "test", workers=1).manifest == expected(corpus)


def test_what_was_made_of_a_damaged_shard_is_made_again(corpus):
    with pytest.raises(Stop):
        prepare(config_for(corpus, SHARDS), "test", workers=1, progress=stop_at("encoding train", 4))
    [cleaned] = (corpus / "out.partial").glob("cleaned-*")
    flipped(cleaned / "train-00000.arrow")
    encoded = corpus / "out.partial" / "encoded" / "train-00000.json"
    before = encoded.stat().st_ino, encoded.stat().st_mtime_ns
    with pytest.raises(Stop):
        prepare(config_for(corpus, SHARDS), "test", workers=1, progress=stop_at("encoding train", 6))
    assert (encoded.stat().st_ino, encoded.stat().st_mtime_ns) != before


@pytest.mark.parametrize("damage", [flipped_score, lambda path: path.write_bytes(b"torn"), Path.unlink])
def test_a_damaged_vocabulary_is_learnt_again(corpus, damage):
    config = config_for(corpus, SHARDS)
    data = prepare(config, "test", workers=1)
    damage(data.folder / "vocabulary.model")
    assert stages_of(config, workers=1, force=True) >= {"learning subwords", "encoding train"}
    assert PreparedData(data.folder).manifest == expected(corpus)
    PreparedData(data.folder).check("train", "valid")


def test_a_torn_vocabulary_of_an_interrupted_preparation_is_no_dead_end(corpus):
    with pytest.raises(Stop):
        prepare(config_for(corpus, SHARDS), "test", workers=1, progress=stop_at("encoding train", 2))
    (corpus / "out.partial" / "vocabulary.model").write_bytes(b"torn")
    assert prepare(config_for(corpus, SHARDS), "test", workers=1).manifest == expected(corpus)


def test_two_at_once_are_refused_and_a_foreign_folder_is_left_alone(corpus):
    config = config_for(corpus, SHARDS)
    (corpus / "out.partial").mkdir()
    with runs.locked(corpus / "out.partial"), pytest.raises(RunError, match="another process"):
        prepare(config, "test")
    (corpus / "out.partial" / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(RunError, match="not made here"):
        prepare(config, "test")
    assert (corpus / "out.partial" / "thesis.tex").exists()


def test_interrupted_from_the_keyboard(corpus):
    """Ctrl-C reaches every process of the terminal: one line, exit code 130, and the next start goes on."""
    slow = corpus / "slow.py"
    note = f"pathlib.Path({str(corpus)!r}, f'worker-{{os.getpid()}}').touch()"
    code = f"import os, pathlib, time\ndef filter(source, target):\n    {note}\n    time.sleep(0.02)\n"
    slow.write_text(code, encoding="utf-8")
    config = config_for(corpus, SHARDS, 'clean.own=["slow:filter"]')
    command = [sys.executable, "-m", "dragoman", "prepare", "tiny", *as_overrides(config), "--workers", "2"]
    with subprocess.Popen(command, cwd=corpus, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_for(corpus / "out.partial", "cleaned-*/train-00001.json")
        wait_until(lambda: len(list(corpus.glob("worker-*"))) >= 2)  # who still starts has nothing to say in one line
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.strip().splitlines()[-1].startswith("interrupted; finished shards are kept")
    assert "Traceback" not in told
    again = dragoman("prepare", "tiny", *as_overrides(config), "--workers", "2", cwd=corpus)
    assert PreparedData(corpus / "out").manifest["digest"] == expected(corpus)["digest"], again.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_while_subwords_are_learnt(corpus, monkeypatch, workers):
    """SentencePiece makes a RuntimeError of an interruption; it must not count as a mistake of the user."""
    config = config_for(corpus, SHARDS)

    def press(stage, *_):
        if stage == "learning subwords" and workers == 1:
            monkeypatch.setattr("dragoman.data.prepare.read_cleaned", lambda _: os.kill(os.getpid(), signal.SIGINT))
        elif stage == "learning subwords":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        prepare(config, "test", workers=workers, progress=press)
    monkeypatch.undo()
    assert len(list((corpus / "out.partial").glob("cleaned-*/train-*.arrow"))) == 8
    assert prepare(config, "test", workers=workers).manifest == expected(corpus)


def wait_for(folder, pattern):
    wait_until(lambda: list(folder.glob(pattern)))


def test_a_worker_that_is_killed_is_one_line_and_work_goes_on(corpus):
    (corpus / "deadly.py").write_text(
        "import os, signal, pathlib\n"
        "def filter(source, target):\n"
        "    if 'number 250' in source and not pathlib.Path('spared').exists(): os.kill(os.getpid(), signal.SIGKILL)\n",
        encoding="utf-8",
    )
    config = config_for(corpus, SHARDS, 'clean.own=["deadly:filter"]')
    result = dragoman("prepare", "tiny", *as_overrides(config), "--workers", "2", cwd=corpus, check=False)
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 2
    assert "a worker process died (SIGKILL(-9)), most often for want of memory: use fewer --workers" in last
    assert "Traceback" not in result.stderr
    assert list((corpus / "out.partial").glob("cleaned-*/train-*.json"))
    (corpus / "spared").touch()
    dragoman("prepare", "tiny", *as_overrides(config), "--workers", "2", cwd=corpus)
    assert PreparedData(corpus / "out").manifest["digest"] == expected(corpus)["digest"]


@pytest.mark.parametrize("kilobytes", [100, 160, 200])  # full sooner or later
def test_a_full_disk_is_one_line_and_finished_shards_stay(corpus, kilobytes):
    disk = corpus / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        config = config_for(corpus, SHARDS, out="disk/out")
        result = dragoman("prepare", "tiny", *as_overrides(config), "--workers", "2", check=False)
        line = result.stderr.strip().splitlines()[-1]
        assert result.returncode == 2, result.stderr
        assert "Traceback" not in result.stderr
        assert f"{disk}/out.partial" in line
        assert "No space left on device. Make room" in line
        assert list((disk / "out.partial").glob("cleaned-*/train-*.json"))
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        dragoman("prepare", "tiny", *as_overrides(config), "--workers", "2")
        assert PreparedData(disk / "out").manifest["digest"] == expected(corpus)["digest"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def stages_of(config, **options):
    told = set()
    prepare(config, "test", progress=lambda stage, *_: told.add(stage), **options)
    return told


def test_a_mistake_in_a_later_stage_keeps_the_shards_of_those_before(corpus):
    """Hours of cleaning are not lost to a wrong number in the run file."""
    with pytest.raises(DataError, match=r"vocab_size.*Finished shards \(8\) are kept in .*out\.partial"):
        prepare(config_for(corpus, SHARDS, "subwords.vocab_size=30000"), "test", workers=1)
    assert not (corpus / "out").exists()
    assert "cleaning train" not in stages_of(config_for(corpus, SHARDS), workers=1)
    assert PreparedData(corpus / "out").manifest == expected(corpus)


def test_a_disk_that_could_not_be_read_costs_no_finished_shard(corpus, monkeypatch):
    """The corpus is the same when it can be read again, and so are the shards."""
    config = config_for(corpus, SHARDS)
    read = sys.modules["dragoman.data.prepare"].read_pairs

    def failing(spec):
        for number, pair in enumerate(read(spec)):
            if number == 130 and spec.name == "train":
                raise DataError("train.en: cannot be read (Input/output error)")
            yield pair

    monkeypatch.setattr("dragoman.data.prepare.read_pairs", failing)
    with pytest.raises(DataError, match=r"Input/output error.*Finished shards \(3\) are kept"):
        prepare(config, "test", workers=1)
    monkeypatch.undo()
    before = {path.name: path.stat().st_mtime_ns for path in (corpus / "out.partial").glob("cleaned-*/train-*.arrow")}
    assert len(before) == 3
    data = prepare(config, "test", workers=1)
    after = {path.name: path.stat().st_mtime_ns for path in data.folder.glob("cleaned-*/train-*.arrow")}
    assert before.items() <= after.items()
    assert data.manifest == expected(corpus)


def test_a_cut_file_keeps_its_shards_and_a_whole_one_gives_the_same_data(tmp_path):
    corpus = write_corpus(tmp_path, sentences(*range(400, 9_400)))
    shards = "data.shard_pairs=1000"
    plain = prepare(config_for(corpus, shards, out="plain"), "test", workers=1).manifest
    whole = gzip.compress((corpus / "train.en").read_bytes())
    packed = corpus / "train.en.gz"
    packed.write_bytes(whole[:-200])
    config = config_for(corpus, shards, f"data.train_source={packed}")
    with pytest.raises(DataError, match=r"train\.en\.gz: damaged or cut off.* Finished shards \(\d+\) are kept"):
        prepare(config, "test", workers=1)
    assert list((corpus / "out.partial").glob("cleaned-*/train-*.arrow"))
    packed.write_bytes(whole)
    assert prepare(config, "test", workers=1).manifest["digest"] == plain["digest"]
    assert not (corpus / "out.partial").exists()
    assert len(list((corpus / "out").glob("cleaned-*"))) == 1, "what no longer fits is gone"


def test_where_nothing_was_finished_nothing_is_left(corpus):
    (corpus / "valid.de").write_text("one\n\n", encoding="utf-8")
    (corpus / "valid.en").write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 2: empty side"):
        prepare(config_for(corpus, SHARDS), "test", workers=2)
    assert not list(corpus.glob("out*"))


def test_workers_import_no_torch_and_share_the_work():
    with Crew(2) as crew:
        assert list(crew.results(lambda: [(imported, ("torch",))] * 4)) == [False] * 4
        assert sorted(crew.results(lambda: [(np.add, (number, 1)) for number in range(20)])) == list(range(1, 21))
        with pytest.raises(ZeroDivisionError):
            list(crew.results(lambda: [(divmod, (1, number)) for number in (2, 1, 0)]))


def imported(name):
    return name in sys.modules


@pytest.mark.parametrize("wait", [0.0, 1.0])  # before and after the crew knows
def test_a_crew_notices_a_worker_that_died_between_two_tasks(wait):
    with Crew(2) as crew:
        (worker, *_) = crew.results(lambda: [(os.getpid, ())] * 4)
        os.kill(worker, signal.SIGKILL)
        time.sleep(wait)
        with pytest.raises(Unfinished, match="SIGKILL"):
            list(crew.results(lambda: [(time.sleep, (0.1,))] * 8))


def test_workers_leave_when_nobody_is_left_to_work_for():
    script = (
        "import os, signal; from dragoman.data.workers import Crew\n"
        "print(*Crew(2).results(lambda: [(os.getpid, ())] * 4), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stdout
    assert told
    wait_until(lambda: not any(psutil.pid_exists(int(number)) for number in told.split()))


@pytest.mark.usefixtures("alone_with_ray")
def test_on_a_ray_cluster_too(corpus):
    """A real one, made on this host, through the command line."""
    pytest.importorskip("ray")
    config = config_for(corpus, SHARDS, out="ray")
    overrides = as_overrides(config)
    result = dragoman("prepare", "tiny", *overrides, "--engine", "ray", "--workers", "2")
    assert "prepared" in result.stdout
    assert PreparedData(config.data.folder).manifest["digest"] == expected(corpus)["digest"]
    wrong = [f"data.folder={config.data.folder}-wrong", "subwords.vocab_size=30000"]
    refused = dragoman("prepare", "tiny", *overrides, *wrong, "--engine", "ray", "--workers", "2", check=False)
    assert refused.returncode == 2
    assert "SentencePiece refuses" in refused.stderr


def test_workers_on_a_ray_cluster_see_paths_from_where_the_command_runs(tmp_path, monkeypatch):
    (tmp_path / "corpus.en").write_text("there", encoding="utf-8")
    monkeypatch.chdir("/")
    (row,) = ray_crew.as_rows(str(tmp_path), lambda: [(Path.read_text, (Path("corpus.en"),))], ())
    monkeypatch.chdir("/")
    answer = pickle.loads(ray_crew.done({"task": row["task"][0]})["answer"])  # noqa: S301
    assert answer == (True, "there")


def test_a_ray_cluster_that_does_not_answer_is_named(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for start in (lambda: ray_crew.RayCrew(1), ray_cluster.connect):
        with pytest.raises(DragomanError, match=r"RAY_ADDRESS=127\.0\.0\.1:1: no Ray cluster answers there"):
            start()


def test_ray_that_does_not_start_is_one_line(monkeypatch):
    """It has no name for a machine that is too busy for it."""
    ray = pytest.importorskip("ray")

    def busy(**_):
        raise Exception("The current node timed out during startup.\nThis could happen because")

    monkeypatch.setattr(ray, "init", busy)
    with pytest.raises(DragomanError, match=r"^Ray does not start: The current node timed out during startup\.$"):
        ray_cluster.connect()
