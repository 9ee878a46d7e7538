"""The command line as a user meets it: fast to answer, one line for a mistake, exit code 2, nothing lost."""

import errno
import os
import shlex
import signal
import subprocess
import sys

import pytest
from support import as_overrides, dragoman, started, tiny_config, wait_until

from dragoman import runs
from dragoman.cli import demo
from dragoman.cli.main import app
from dragoman.errors import DragomanError

QUICK = """
import sys
sys.argv = ["dragoman", *sys.argv[1:]]
from dragoman.cli.main import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
heavy = {"torch", "numpy", "sentencepiece", "sacrebleu", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["config"], ["config", "transformer-big"], ["train", "--help"], ["--version"]]
)
def test_quick_commands_import_nothing_heavy(arguments):
    result = subprocess.run([sys.executable, "-c", QUICK, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_report_imports_no_torch(prepared, tmp_path):
    from dragoman.cli.stages import train

    train(tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=2"))
    script = QUICK.replace('{"torch", "numpy", "sentencepiece", "sacrebleu", "matplotlib"}', '{"torch"}')
    result = subprocess.run(
        [sys.executable, "-c", script, "report", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "report.html").is_file()


def one_line(result):
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert lines[0].startswith("dragoman: ")
    return result.stderr


def test_configuration_mistakes(tmp_path):
    text = one_line(
        dragoman("train", "tiny", "train.max_stepz=3", "model.heads=3", "train.clip_norm=high", check=False)
    )
    assert "3 problems" in text
    assert "did you mean train.max_steps?" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "tiny", "data.folder=nowhere"], "no prepared data there. Run `dragoman prepare`"),
        (["prepare", "tiny"], "data.train_source is empty"),
        (
            [
                "prepare",
                "tiny",
                "data.train_source=a",
                "data.train_target=b",
                "data.valid_source=c",
                "data.valid_target=d",
            ],
            "'a': no such file",
        ),
        (["evaluate", "nowhere"], "no such folder"),
        (["report", "nowhere"], "no such run folder"),
        (["translate", ".", "nothing.txt"], "nothing.txt: cannot be read"),
        (["train", "nowhere.toml"], "no such file, nor a preset"),
    ],
)
def test_other_mistakes(arguments, words, tmp_path):
    assert words in one_line(dragoman(*arguments, check=False, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_a_rank_is_one_line_too(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.device=cuda")
    result = dragoman("train", "tiny", *as_overrides(config), "--nproc", "2", check=False)
    assert "torch sees no GPU here" in one_line(result)
    assert result.stderr.count("torch sees no GPU") == 1


def test_whole_way_and_translate_keeps_lines(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=3")
    trained = dragoman("train", "tiny", *as_overrides(config), "--nproc", "1")
    assert "dragoman report" in trained.stdout
    text = "The dog sleeps.\n\nThe woman buys three books.\n"
    piped = dragoman("translate", str(tmp_path / "run"), "--beam", "2", input=text)
    assert piped.stdout.count("\n") == 3
    assert piped.stdout.splitlines()[1] == ""
    (tmp_path / "in.txt").write_text(text, encoding="utf-8")
    dragoman(
        "translate",
        str(tmp_path / "run"),
        str(tmp_path / "in.txt"),
        "--output",
        str(tmp_path / "out.txt"),
        "--beam",
        "2",
    )
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == piped.stdout
    broken = dragoman("translate", str(tmp_path / "run"), input="caf\udce9\n", errors="surrogateescape", check=False)
    assert "line 1: not UTF-8" in one_line(broken)
    scored = dragoman("evaluate", str(tmp_path / "run"), "--beam", "1")
    assert "BLEU" in scored.stdout
    assert "tok:13a" in scored.stdout
    dragoman("report", str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.md").is_file()


@pytest.mark.usefixtures("alone_with_ray")
@pytest.mark.parametrize("launcher", [["--nproc", "1"], ["--nproc", "2"], ["--nproc", "2", "--engine", "ray"]])
def test_a_signal_keeps_what_was_learnt(prepared, tmp_path, launcher):
    """SIGTERM in the middle: a checkpoint long before the next row is due, a stop event, and a run that can be resumed by the
    command that is told."""
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=100000", "train.log_every=100000")
    command = [sys.executable, "-m", "dragoman", "train", "tiny", *as_overrides(config), *launcher]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: started(tmp_path / "run"))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    assert f"next: {shlex.join(['dragoman', *command[3:], '--resume'])}\n" in out
    assert process.returncode == 128 + signal.SIGTERM, "what a scheduler takes for an end by its own signal"
    stop = runs.read_rows(tmp_path / "run" / "events.jsonl")[-1]
    assert (stop["event"], stop["reason"]) == ("stop", "terminated")
    saved = runs.checkpoint_folders(runs.RunFolder(tmp_path / "run"))
    assert runs.step_of(saved[-1]) == stop["step"] > 0
    assert runs.damage(saved[-1]) is None


BREAK_RANK_1 = """
import os
from dragoman.training.window import Window
usual = Window.add
def fail(self, *arguments):
    if os.environ["RANK"] == "1":
        raise OSError({number}, "bad", "/a/bad/disk")
    usual(self, *arguments)
Window.add = fail
"""


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EACCES, 2), (errno.EIO, 1)]
)  # one is a mistake, the other may pass
def test_the_rank_that_failed_is_heard_not_those_that_lost_it(prepared, tmp_path, number, code):
    (tmp_path / "sitecustomize.py").write_text(BREAK_RANK_1.replace("{number}", str(number)), encoding="utf-8")
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=4")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = dragoman("train", "tiny", *as_overrides(config), "--nproc", "2", check=False, env=environment)
    assert result.returncode == code, result.stderr
    assert result.stderr.strip().splitlines()[-1] == f"dragoman: [Errno {number}] bad: '/a/bad/disk'"
    assert "Traceback" not in result.stderr
    assert "/a/bad/disk" in (tmp_path / "run" / "log" / "rank-001.log").read_text(encoding="utf-8")


def test_a_full_disk_is_one_line_and_old_checkpoints_stay(prepared, tmp_path):
    """A small file system of our own fills up while the second checkpoint is written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(disk)], check=False).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        config = tiny_config(
            prepared.folder, disk / "run", "train.max_steps=40", "checkpoint.every=1", "checkpoint.keep_last=9"
        )
        result = dragoman("train", "tiny", *as_overrides(config), "--nproc", "1", check=False)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
        assert "No space left" in result.stderr.splitlines()[-1]
        saved = runs.checkpoint_folders(runs.RunFolder(disk / "run"))
        assert saved
        assert all(runs.damage(path) is None for path in saved)
        assert not list((disk / "run" / "checkpoints").glob("*.partial"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_demo_tells_its_story_to_the_end(tmp_path, monkeypatch, capsys):
    """As `make demo`, with less of everything."""
    small = demo.RUN_FILE.replace(
        'corpus = "grammar"', 'corpus = "grammar"\ntrain_pairs = 600\nvalid_pairs = 20\ntest_pairs = 20'
    )
    small = small.replace("[train]", "[subwords]\nvocab_size = 400\n\n[train]\nmax_steps = 4\nbatch_tokens = 1024")
    monkeypatch.setattr(demo, "RUN_FILE", small)
    assert demo.run(tmp_path / "demo", 2) == 0
    told = capsys.readouterr().out
    assert "BLEU" in told
    assert f"report: {tmp_path / 'demo' / 'runs' / 'tiny' / 'report.html'}" in told


def test_a_demo_replaces_a_demo_and_nothing_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    assert "holds no demo" in one_line(dragoman("demo", str(tmp_path), check=False))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_folder_is_no_run_file_and_a_run_file_is_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpora").mkdir()
    (tmp_path / "runs").mkdir()
    for name in ("runs/run.toml", "text"):
        (tmp_path / name).touch()
    wrong = {
        ("train", "runs"): "runs: is a folder; name its run file: runs/run.toml",
        ("prepare", "corpora"): "corpora: is a folder; name a run file (TOML)",
        ("translate", "runs/run.toml", "text"): "runs/run.toml: is a file. Name the folder of a run",
        ("translate", "corpora", "text"): "corpora: holds no model. Name the folder of a run",
        ("checkpoint", "inspect", "nope"): "nope: no such folder. Name a run",
        ("data", "inspect", "nope"): "nope: no such file or folder",
        ("launch", "tiny"): "--hosts: names no host; write them with their processes, as a:2,b:2",
    }
    for words, line in wrong.items():
        with pytest.raises(DragomanError) as found:
            app(list(words), standalone_mode=False)
        assert line in str(found.value)
