"""A gradient that is not finite changes nothing; many of them in a row take the run back to a checkpoint."""

import json

import pytest
import torch
from support import tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.errors import TrainingError
from dragoman.training import step as step_module


@pytest.fixture
def poisoned(monkeypatch):
    """Makes the gradient of some updates, counted from 1 over the whole run, not a number."""

    def poison(updates):
        done = [0]
        clip = step_module.clip

        def clip_and_poison(model, clip_norm):
            done[0] += 1
            if done[0] in updates:
                for parameter in model.parameters():
                    parameter.grad.fill_(float("nan"))
            return clip(model, clip_norm)

        monkeypatch.setattr(step_module, "clip", clip_and_poison)

    return poison


def events(run, name):
    return [row for row in runs.read_rows(run / "events.jsonl") if row["event"] == name]


def training_numbers(run, step):
    return json.loads((runs.RunFolder(run).checkpoint(step) / "training.json").read_text(encoding="utf-8"))


def test_one_bad_step_is_left_out_and_counted(prepared, tmp_path, poisoned):
    poisoned({3})
    run = tmp_path / "run"
    train(tiny_config(prepared.folder, run, "train.max_steps=6", "train.log_every=2"))
    assert [(row["step"], row["steps"]) for row in events(run, "skipped")] == [(4, 1)]
    assert training_numbers(run, 6)["updates"] == 5
    rows = [row for row in runs.read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert all(torch.isfinite(torch.tensor([row["loss"], row["grad_norm"]])).all() for row in rows)


def test_many_in_a_row_roll_back_to_the_checkpoint_and_go_on_behind(prepared, tmp_path, poisoned):
    poisoned(range(7, 17))
    run = tmp_path / "run"
    config = tiny_config(prepared.folder, run, "train.max_steps=20", "train.log_every=2", "checkpoint.every=4")
    assert train(config) == "max_steps"
    (back,) = events(run, "roll_back")
    assert (back["from_step"], back["step"], back["checkpoint"]) == (16, 4, "step-00000004")
    rows = [row["step"] for row in runs.read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    assert rows == list(range(2, 21, 2))
    assert training_numbers(run, 20)["updates"] == 20
    train(tiny_config(prepared.folder, tmp_path / "straight", "train.max_steps=20"))
    positions = [training_numbers(each, 20)["position"][:3] for each in (tmp_path / "straight", run)]
    assert positions[0] < positions[1], "the data that was met on the way is not seen again"


def test_without_an_end_the_run_stops_in_words(prepared, tmp_path, poisoned):
    poisoned(range(5, 1000))
    run = tmp_path / "run"
    config = tiny_config(prepared.folder, run, "train.max_steps=200", "train.log_every=2", "checkpoint.every=4")
    with pytest.raises(TrainingError, match="no gradient was finite in the last 10 steps; training diverged"):
        train(config)
    assert len(events(run, "roll_back")) == 2
    assert runs.read_rows(run / "events.jsonl")[-1]["reason"] == "diverged"
    assert [runs.step_of(path) for path in runs.checkpoint_folders(runs.RunFolder(run))] == [4]
