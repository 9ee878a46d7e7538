"""Asked to stop, all ranks stop at the same step: soon, whatever a step takes. Time limits stop a run like everything else."""

import pytest
import torch
from support import as_overrides, dragoman, tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.errors import DataError, RunError
from dragoman.parallel.mesh import Mesh
from dragoman.training import stopping
from dragoman.training import trainer as trainer_module
from dragoman.training.data_check import DataCheck
from dragoman.training.logbook import Logbook
from dragoman.training.stopping import Stopping
from dragoman.training.trainer import Trainer


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stopping.time, "perf_counter", lambda: now[0])
    return now


def two_ranks(monkeypatch, *, other=""):
    """This rank, and another one that takes as long and may have been told to stop."""
    asked = []

    def doubled(mesh, own):
        votes = [float(other == reason) for reason in stopping.REASONS]
        asked.append(own)
        return [mine + theirs for mine, theirs in zip(own, [*votes, 0.0, own[-1]], strict=True)]

    monkeypatch.setattr(stopping, "sum_over_ranks", doubled)
    check = DataCheck(None, alone=False)
    return Stopping(Mesh(0, 2, 0, torch.device("cpu")), check), check, asked


@pytest.mark.parametrize(("seconds", "questions"), [(0.01, 7), (0.3, 17), (5.0, 50)])
def test_slow_steps_are_asked_after_at_once_and_quick_ones_now_and_then(monkeypatch, clock, seconds, questions):
    stop, _, asked = two_ranks(monkeypatch)
    for step in range(101, 151):
        clock[0] += seconds
        assert stop.asked(step, time_is_up=False) == ""
    assert abs(len(asked) - questions) <= 1


def test_what_one_rank_was_told_all_do(monkeypatch, clock):
    stop, _, _ = two_ranks(monkeypatch, other="terminated")
    assert stop.asked(1, time_is_up=False) == "terminated"
    assert two_ranks(monkeypatch)[0].asked(1, time_is_up=True) == "max_hours"


def test_no_checkpoint_before_every_host_is_sure_of_its_data(monkeypatch, clock):
    stop, check, _ = two_ranks(monkeypatch)
    check.error = DataError("a flipped bit")
    stop.asked(1, time_is_up=False)
    assert check.pending
    with pytest.raises(DataError, match="flipped"):
        check.wait_for_all_hosts()
    check.error = None
    check.give_up()
    with pytest.raises(RunError, match="before all hosts"):
        check.wait_for_all_hosts()
    stop, check, _ = two_ranks(monkeypatch)
    stop.asked(1, time_is_up=False)
    check.wait_for_all_hosts()
    check.give_up()  # a run that ends after that keeps what it writes
    check.wait_for_all_hosts()


def test_a_time_limit_stops_with_a_checkpoint_and_counts_over_all_starts(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    steps = ("train.max_steps=4", "train.log_every=1")
    assert train(tiny_config(prepared.folder, run.path, *steps, "train.max_hours=1e-9")) == "max_hours"
    assert [runs.step_of(path) for path in runs.checkpoint_folders(run)] == [1]
    assert train(tiny_config(prepared.folder, run.path, *steps, "train.max_hours=1e-9"), resume=True) == "max_hours"
    assert [runs.step_of(path) for path in runs.checkpoint_folders(run)] == [1], "its time was up before"
    assert train(tiny_config(prepared.folder, run.path, *steps, "train.max_hours=9"), resume=True) == "max_steps"
    resumed = [row["after"] for row in runs.read_rows(run.events) if row["event"] == "resume"]
    assert resumed == ["stop: max_hours"] * 2, "no fault, though the second start took no step"


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_stop_waits_for_no_validation_and_the_resumed_run_makes_up_for_it(prepared, tmp_path, monkeypatch, when):
    """A stop at a step that is validated, or between two parts of that validation."""
    keys = ("train.max_steps=6", "train.log_every=1", "validation.every=2", "checkpoint.every=2", "model.dropout=0.1")
    straight, stopped = (runs.RunFolder(tmp_path / name) for name in ("straight", "stopped"))
    train(tiny_config(prepared.folder, straight.path, *keys))

    def ask(trainer):
        if trainer.state.step == 4:
            trainer.stopping.wanted = "terminated"

    usual_loop, usual_note, usual_loss = Trainer.loop, Logbook.note_step, trainer_module.validation_loss
    running = []

    def loop(trainer):
        running[:] = [trainer]
        return usual_loop(trainer)

    def note_step(logbook):
        if when == "before":
            ask(running[0])
        usual_note(logbook)

    def loss(*arguments):
        if when == "within":
            ask(running[0])
        return usual_loss(*arguments)

    monkeypatch.setattr(Trainer, "loop", loop)
    monkeypatch.setattr(Logbook, "note_step", note_step)
    monkeypatch.setattr(trainer_module, "validation_loss", loss)
    assert train(tiny_config(prepared.folder, stopped.path, *keys)) == "terminated"
    assert [row["step"] for row in runs.read_rows(stopped.metrics) if row["kind"] == "valid"] == [2]
    assert runs.step_of(runs.checkpoint_folders(stopped)[-1]) == 4
    monkeypatch.undo()
    assert train(tiny_config(prepared.folder, stopped.path, *keys), resume=True) == "max_steps"
    rows = [
        [(row["step"], row["loss"], row["bleu"]) for row in runs.read_rows(run.metrics) if row["kind"] == "valid"]
        for run in (straight, stopped)
    ]
    assert rows[0] == rows[1]
    numbers = [runs.read_json(run.checkpoint(6) / "training.json") for run in (straight, stopped)]
    assert [each["best"] for each in numbers] == [numbers[0]["best"]] * 2
    scores = [runs.read_json(run.checkpoint(4) / "manifest.json")["scores"] for run in (straight, stopped)]
    assert scores[0] == scores[1]


def test_two_ranks_leave_together_when_time_is_up(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=100000", "train.max_hours=1e-9")
    dragoman("train", "tiny", *as_overrides(config), "--nproc", "2")
    run = runs.RunFolder(tmp_path / "run")
    [stop] = [row for row in runs.read_rows(run.events) if row["event"] == "stop"]
    assert (stop["reason"], runs.step_of(runs.checkpoint_folders(run)[-1])) == ("max_hours", stop["step"])
    told = [run.log(rank).read_text(encoding="utf-8") for rank in range(2)]
    assert all(f"stop at step {stop['step']} " in each for each in told)
