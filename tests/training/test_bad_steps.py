"""A gradient that is not finite or far too long changes nothing; many of them, or a loss that explodes, take the run back to a
checkpoint."""

import errno
import json
import math
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from support import as_overrides, dragoman, tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.errors import TrainingError
from dragoman.parallel.mesh import Mesh
from dragoman.training import step as step_module
from dragoman.training import trainer
from dragoman.training.divergence import FAR, HISTORY, Judge
from dragoman.training.logbook import Logbook


@pytest.fixture
def poisoned(monkeypatch):
    """Makes the gradient of some updates, counted from 1 over the whole run, not a number."""

    def poison(updates, factor=float("nan")):
        done = [0]
        clip = step_module.clip

        def clip_and_poison(model, clip_norm):
            done[0] += 1
            if done[0] in updates:
                for parameter in model.parameters():
                    parameter.grad.mul_(factor)
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


def test_many_in_a_row_roll_back_to_the_checkpoint_and_go_on_behind(prepared, tmp_path, poisoned, monkeypatch):
    poisoned(range(7, 17))
    usual, counted = trainer.steps, []
    monkeypatch.setattr(trainer, "steps", lambda *what: counted.append(what[-1]) or usual(*what))
    run = tmp_path / "run"
    config = tiny_config(prepared.folder, run, "train.max_steps=20", "train.log_every=2", "checkpoint.every=4")
    assert train(config) == "max_steps"
    (back,) = events(run, "roll_back")
    assert (back["from_step"], back["step"], back["checkpoint"]) == (16, 4, "step-00000004")
    assert counted == [0, 4], "stages of the data begin at the steps that are named"
    rows = [row["step"] for row in runs.read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    assert rows == list(range(2, 21, 2))
    assert training_numbers(run, 20)["updates"] == 20
    assert int((run / "reached").read_text(encoding="utf-8")) == 20, "written on after going back"
    assert back["lost_steps"] == 12
    train(tiny_config(prepared.folder, tmp_path / "straight", "train.max_steps=20"))
    positions = [training_numbers(each, 20)["position"][:3] for each in (tmp_path / "straight", run)]
    assert positions[0] < positions[1], "the data that was met on the way is not seen again"


def test_going_back_on_a_full_disk_and_past_a_copy_that_is_wrong_elsewhere(prepared, tmp_path, poisoned, monkeypatch):
    """What cannot be written is told; what another host reads wrongly is not trained on."""
    poisoned(range(7, 17))
    usual, looked_at, times = Logbook.forget_lost_rows, [], []

    def full(logbook):
        times.append(1)
        if len(times) > 1:  # not when the run begins
            raise OSError(errno.ENOSPC, "No space left on device")
        return usual(logbook)

    monkeypatch.setattr(Logbook, "forget_lost_rows", full)
    monkeypatch.setattr(trainer.Trainer, "check_copies", lambda trainer, source: looked_at.append(source.name))
    run = tmp_path / "run"
    assert train(
        tiny_config(prepared.folder, run, "train.max_steps=20", "train.log_every=2", "checkpoint.every=4")
    ) == ("max_steps")
    assert looked_at == ["step-00000004"]
    assert training_numbers(run, 20)["updates"] == 20


def test_without_an_end_the_run_stops_in_words(prepared, tmp_path, poisoned):
    poisoned(range(5, 1000))
    run = tmp_path / "run"
    config = tiny_config(prepared.folder, run, "train.max_steps=200", "train.log_every=2", "checkpoint.every=4")
    with pytest.raises(
        TrainingError,
        match="hardly a gradient was finite and of a usual length in the last 10 steps; training diverged",
    ):
        train(config)
    assert len(events(run, "roll_back")) == 2
    assert runs.read_rows(run / "events.jsonl")[-1]["reason"] == "diverged"
    assert [runs.step_of(path) for path in runs.checkpoint_folders(runs.RunFolder(run))] == [4]


def test_a_gradient_that_explodes_is_left_out(prepared, tmp_path, poisoned):
    poisoned({25}, factor=1e4)
    run = tmp_path / "run"
    train(tiny_config(prepared.folder, run, "train.max_steps=30", "train.log_every=2"))
    assert [(row["step"], row["steps"]) for row in events(run, "skipped")] == [(26, 1)]
    assert training_numbers(run, 30)["updates"] == 29


def test_one_good_step_among_bad_ones_does_not_keep_the_run_from_going_back(prepared, tmp_path, poisoned):
    poisoned(set(range(7, 27)) - {11, 16, 21})
    run = tmp_path / "run"
    config = tiny_config(prepared.folder, run, "train.max_steps=20", "train.log_every=5", "checkpoint.every=5")
    assert train(config) == "max_steps"
    assert [row["checkpoint"] for row in events(run, "roll_back")] == ["step-00000005"]


def test_weights_that_went_wrong_are_left_for_those_of_a_checkpoint(prepared, tmp_path, monkeypatch):
    """Its gradients are finite and far too long, and it is in the newest checkpoint already."""
    usual, done = step_module.clip, [0]

    def scramble(model, clip_norm):
        done[0] += 1
        if done[0] == 60:
            for parameter in model.parameters():
                parameter.data.mul_(30)
        return usual(model, clip_norm)

    monkeypatch.setattr(step_module, "clip", scramble)
    run = runs.RunFolder(tmp_path / "run")
    quick = ("schedule.policy=fixed", "schedule.learning_rate=0.01", "schedule.warmup_steps=0")
    keep = ("checkpoint.every=20", "checkpoint.keep_last=9", "train.log_every=4")
    assert train(tiny_config(prepared.folder, run.path, "train.max_steps=100", *quick, *keep)) == "max_steps"
    back = [(row["from_step"], row["checkpoint"]) for row in events(run.path, "roll_back")]
    assert back == [(72, "step-00000060"), (72, "step-00000040")], "the newest did not help"
    assert (run.checkpoints / "step-00000060.damaged").is_dir()
    losses = [row["loss"] for row in runs.read_rows(run.metrics) if row["kind"] == "train"]
    assert len(losses) == 25
    assert max(losses[15:]) < 5


# Imported by every rank when it starts: the loss of rank 1 alone is no number in these passes, counted from 1 over the whole run.
POISON = """
import torch
import torch.distributed as dist
from dragoman.model.loss import SequenceLoss
usual, passes = SequenceLoss.forward, [0]
def forward(self, *inputs):
    loss, nll = usual(self, *inputs)
    passes[0] += self.training and torch.is_grad_enabled()
    bad = self.training and dist.is_initialized() and dist.get_rank() == 1 and passes[0] in {passes}
    return (loss * float("nan") if bad else loss), nll
SequenceLoss.forward = forward
"""


def trained_by_two(prepared, folder, passes, *overrides):
    (folder / "sitecustomize.py").write_text(POISON.replace("{passes}", str(passes)), encoding="utf-8")
    run = runs.RunFolder(folder / "run")
    every = ("train.log_every=2", "checkpoint.every=4", "train.tokens_per_gpu=512", "parallel.compare_every=2")
    config = tiny_config(prepared.folder, run.path, "train.max_steps=20", *every, *overrides)
    words = ("train", "tiny", *as_overrides(config), "--nproc", "2")
    dragoman(*words, env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"})
    assert all(tensor.isfinite().all() for tensor in load_file(run.checkpoint(20) / "model.safetensors").values())
    return run


@pytest.mark.parametrize(("strategy", "passes_before"), [("ddp", 1), ("fsdp", 0)])
def test_bad_gradients_of_one_rank_take_all_of_them_back(prepared, tmp_path, strategy, passes_before):
    """One is left out by both; ten in a row, and both go back to the same checkpoint and end together. With ddp a pass for nothing
    comes first."""
    passes = {each + passes_before for each in (3, *range(7, 17))}
    run = trained_by_two(prepared, tmp_path, passes, f"parallel.strategy={strategy}")
    first = events(run.path, "skipped")[0]
    assert (first["step"], first["steps"]) == (4, 1)
    (back,) = events(run.path, "roll_back")
    assert (back["checkpoint"], back["lost_steps"]) == ("step-00000004", back["from_step"] - 4)
    assert training_numbers(run.path, 20)["updates"] == 19
    assert not events(run.path, "drift")
    assert runs.read_rows(run.events)[-1]["reason"] == "max_steps"


def test_an_island_leaves_out_its_own_bad_gradient(prepared, tmp_path):
    """The other one learns from its own, and they agree on finite weights."""
    rare = ("parallel.strategy=local", "parallel.inner_steps=4", "parallel.ranks_per_island=1")
    run = trained_by_two(prepared, tmp_path, {3}, *rare)
    assert not events(run.path, "roll_back")
    own = [load_file(run.checkpoint(20) / f"own-{seat:05d}.safetensors") for seat in range(2)]
    assert [int(each["updates"]) for each in own] == [20, 19]


def row(loss=3.0, steps=100, skipped=0, norm=1.0):
    return SimpleNamespace(loss=loss, steps=steps, skipped=skipped, largest_norm=norm)


@pytest.fixture
def judge():
    made = Judge(32_768, one_mixture=True)
    made.learn([(3.0, 1.0)] * 20)
    return made


def test_ordinary_runs_are_never_judged_bad(judge):
    """A loss that falls from the beginning, spikes now and then, and rises for a while."""
    fresh = Judge(32_768, one_mixture=True)
    falling = [10.6, 10.9, *(10.4 * 0.97**row + 2.0 for row in range(100))]
    assert not any(fresh.look(row(loss), 100 * number) for number, loss in enumerate(falling))
    for number, loss in enumerate([3.5, 9.0, 9.0, 3.1, 5.5, 5.5, 5.5, 5.5, 5.5]):
        assert judge.look(row(loss, norm=50.0 if loss > 8 else 1.0), 100 * number) == ""
    assert judge.norm_limit == 100.0


def test_a_loss_that_explodes_and_stays_takes_the_run_back_to_before_it(judge):
    assert judge.look(row(9.0), 2100) == ""
    assert judge.doubtful
    assert judge.look(row(9.5), 2200) == ""
    assert "more than half of what was learnt is forgotten for 300 steps" in judge.look(row(8.0), 2300)
    assert judge.before(2000) == 2000, "a checkpoint of that step may hold the beginning of it"
    judge.may_roll_back(2300)
    assert judge.before(1000) == 1000, "the one that did not help is not taken again"


def test_what_is_usual_is_the_same_after_a_resume():
    """A row in which half of what was learnt is forgotten is not usual, whoever saw it."""
    rows = [(3.0, 1.0)] * 20 + [(9.0, 70.0), (9.0, 80.0)] + [(3.0, 1.1)] * 25
    straight, resumed = Judge(32_768, one_mixture=True), Judge(32_768, one_mixture=True)
    for number, (loss, norm) in enumerate(rows):
        straight.look(row(loss, norm=norm), 100 * number)
    resumed.learn(rows)
    assert resumed.norm_limit == straight.norm_limit == pytest.approx(110.0)
    assert resumed.loss_limit == straight.loss_limit


def test_other_ranks_get_what_the_main_one_keeps_of_the_rows(prepared, tmp_path, monkeypatch):
    """Not all rows: every rank would get them from every rank. Nor could they learn from what is kept: 9.9 is usual only after 10."""
    losses = [10.0] * 60 + [3.0] * 15 + [9.9] * 35
    config, mesh = tiny_config(prepared.folder, tmp_path / "run"), Mesh(0, 1, 0, torch.device("cpu"))
    main = trainer.Trainer(config, prepared, mesh, [], "test", runs.silent)
    main.folder.path.mkdir()
    rows = [{"kind": "train", "loss": loss, "largest_grad_norm": float(at)} for at, loss in enumerate(losses)]
    runs.write_rows(main.folder.metrics, rows)
    main.judge = Judge(32_768, one_mixture=True)
    sent = []
    monkeypatch.setattr(trainer, "from_main", lambda mesh, value: sent.append(value) or sent[0])
    main.learn_what_is_usual()
    main.mesh, first = replace(main.mesh, rank=1), main.judge
    main.judge = Judge(32_768, one_mixture=True)
    monkeypatch.setattr(runs, "read_rows", lambda path: pytest.fail("read by another rank"))
    main.learn_what_is_usual()
    assert [len(each) for each in sent] == [HISTORY, 0]
    assert main.judge.usual == first.usual == [(loss, float(at)) for at, loss in enumerate(losses)][-HISTORY:]


def test_nothing_is_said_before_it_is_known_what_is_usual():
    fresh = Judge(400, one_mixture=True)
    assert fresh.norm_limit > 1e38
    assert fresh.loss_limit == math.inf
    stages = Judge(400, one_mixture=False)
    stages.learn([(2.0, 1.0)] * 20)
    assert stages.loss_limit == math.inf, "a corpus that was never seen has such a loss"


def test_going_back_counts_anew_after_a_long_way(judge):
    assert [judge.may_roll_back(500) for _ in range(3)] == [True, True, False]
    judge.look(row(), 500 + FAR)
    assert not judge.may_roll_back(500)
    judge.look(row(), 501 + FAR)
    assert judge.may_roll_back(501 + FAR)
