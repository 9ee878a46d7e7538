"""Training: the update does not depend on the split, a resumed run is the straight run, checkpoints are sound."""

import json
import math
import os
import subprocess
import sys
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from support import as_overrides, dragoman, tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.data import loader
from dragoman.errors import DataError, RunError, TrainingError
from dragoman.model.folder import read_model
from dragoman.model.transformer import Transformer
from dragoman.parallel.mesh import Mesh, joined
from dragoman.report import load_run
from dragoman.report.size_questions import checkpoint_bytes
from dragoman.training.checkpoint import newest_sound
from dragoman.training.trainer import Trainer
from dragoman.translate.translator import find_model


def weights(run, step):
    return load_file(runs.RunFolder(run).checkpoint(step) / "model.safetensors")


def assert_same(left, right, **tolerance):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], **tolerance)


NO_DROPOUT = ["model.dropout=0.0", "train.max_steps=4"]


def test_update_does_not_depend_on_ranks_and_micro_batches(prepared, tmp_path):
    """1 rank x 4 micro-batches = 2 x 2 = 4 x 1, through the real command line."""
    results = {}
    for ranks, tokens_per_gpu in ((1, 256), (2, 256), (4, 256), (1, 1024)):
        run = tmp_path / f"{ranks}-{tokens_per_gpu}"
        config = tiny_config(prepared.folder, run, *NO_DROPOUT, f"train.tokens_per_gpu={tokens_per_gpu}")
        dragoman("train", "tiny", *as_overrides(config), "--nproc", str(ranks))
        environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        results[ranks, environment["micro_batches"]] = weights(run, 4)
    assert sorted(results) == [(1, 1), (1, 4), (2, 2), (4, 1)]
    for result in results.values():
        assert_same(result, results[1, 1], rtol=1e-4, atol=1e-6)


def test_ten_steps_are_five_and_resume_and_five_to_the_bit(prepared, tmp_path):
    straight = tiny_config(prepared.folder, tmp_path / "straight", "train.max_steps=10")
    train(straight)
    train(tiny_config(prepared.folder, tmp_path / "halves", "train.max_steps=5"))
    train(tiny_config(prepared.folder, tmp_path / "halves", "train.max_steps=10"), resume=True)
    assert_same(weights(tmp_path / "halves", 10), weights(tmp_path / "straight", 10), rtol=0, atol=0)
    folders = [runs.RunFolder(tmp_path / name) for name in ("straight", "halves")]
    moments = [load_file(folder.checkpoint(10) / "optimizer.safetensors") for folder in folders]
    assert_same(*moments, rtol=0, atol=0)
    rows = [
        {row["step"]: row for row in runs.read_rows(folder.metrics) if row["kind"] == "train"} for folder in folders
    ]
    assert rows[0][10]["loss"] == rows[1][10]["loss"]
    assert rows[0][10]["target_tokens"] == rows[1][10]["target_tokens"]


def test_a_run_goes_on_with_another_tokens_per_gpu(prepared, tmp_path):
    """The same sentences in the same order; only how many are computed at once is another number."""
    plain = ("model.dropout=0.0", "train.log_every=1")
    train(tiny_config(prepared.folder, tmp_path / "straight", *plain, "train.max_steps=8"))
    train(tiny_config(prepared.folder, tmp_path / "halves", *plain, "train.max_steps=4"))
    other = (*plain, "train.max_steps=8", "train.tokens_per_gpu=256")
    train(tiny_config(prepared.folder, tmp_path / "halves", *other), resume=True)
    assert_same(weights(tmp_path / "halves", 8), weights(tmp_path / "straight", 8), rtol=1e-4, atol=1e-6)
    ends = [
        json.loads((runs.RunFolder(tmp_path / name).checkpoint(8) / "training.json").read_text(encoding="utf-8"))
        for name in ("straight", "halves")
    ]
    assert all(ends[0][key] == ends[1][key] for key in ("position", "pairs", "target_tokens", "updates"))
    assert runs.read_json(tmp_path / "halves" / "environment.json")["micro_batches"] == 4


def test_long_pairs_are_trained_on_and_a_resumed_run_is_still_exact(prepared, tmp_path):
    wide = ["train.tile_width=32", "train.wide_tile_width=64", "train.window_pairs=200", "train.log_every=1"]
    for name, halves in (("straight", [14]), ("halves", [7, 14])):
        for steps in halves:
            config = tiny_config(prepared.folder, tmp_path / name, *wide, f"train.max_steps={steps}")
            train(config, resume=steps != halves[0])
    assert_same(weights(tmp_path / "halves", 14), weights(tmp_path / "straight", 14), rtol=0, atol=0)
    folder = runs.RunFolder(tmp_path / "halves")
    positions = [json.loads((folder.checkpoint(at) / "training.json").read_text())["position"] for at in (7, 14)]
    assert 0 < positions[0][3] < positions[1][3], "wide steps before and after the break"
    assert all(0.4 < row["row_fill"] <= 1 for row in runs.read_rows(folder.metrics) if row["kind"] == "train")
    with pytest.raises(RunError, match=r"train\.wide_tile_width"):
        train(tiny_config(prepared.folder, folder.path, *wide, "train.wide_tile_width=128"), resume=True)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_compiled_is_passed_over_in_both_shapes_before_the_first_step(prepared, tmp_path, compiled):
    """And not in the middle of an epoch."""

    class Spy(torch.nn.Module):
        def forward(self, *inputs):
            seen.add(inputs[0].shape)
            return torch.zeros((), requires_grad=True), torch.zeros(())

    wide = ["train.tile_width=32", "train.wide_tile_width=64", "train.window_pairs=200", "train.tokens_per_gpu=512"]
    config = tiny_config(prepared.folder, tmp_path / "run", *wide)
    trainer = Trainer(config, prepared, Mesh(0, 1, 0, torch.device("cpu")), [], "test", runs.silent)
    stream = loader.steps(trainer.train_data, trainer.packing, trainer.share, trainer.state.position)
    shapes = {batch.source.shape for step in islice(stream, 14) for batch in step.micro_batches}
    seen = set()
    trainer.compiled = compiled
    trainer.settle(Spy())
    assert len(shapes) == 2
    assert seen == (shapes if compiled else set())


def test_resume_with_two_ranks_is_exact_too_and_with_torchrun(prepared, tmp_path):
    def torchrun(run, steps, *extra):
        config = tiny_config(prepared.folder, run, f"train.max_steps={steps}", "train.tokens_per_gpu=256")
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "-m",
            "dragoman",
            "train",
            "tiny",
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            [*command, *as_overrides(config), *extra], capture_output=True, text=True, env=environment, timeout=300
        )
        assert result.returncode == 0, result.stderr

    torchrun(tmp_path / "straight", 6)
    torchrun(tmp_path / "halves", 3)
    torchrun(tmp_path / "halves", 6, "--resume")
    assert_same(weights(tmp_path / "halves", 6), weights(tmp_path / "straight", 6), rtol=0, atol=0)
    events = [row["event"] for row in runs.read_rows(tmp_path / "halves" / "events.jsonl")]
    assert events.count("start") == events.count("resume") == 1


def test_a_run_folder_is_never_overwritten(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=2")
    train(config)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"up to step 2.*--resume"):
        train(config)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_resuming_a_finished_run_changes_nothing(prepared, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=2")
    train(config)
    before = {
        path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.suffix in (".jsonl", ".toml", ".json")
    }
    said = []
    assert train(config, resume=True, progress=lambda *what: said.append(what)) == "max_steps"
    assert said == [("resuming", 2, 2, f"from {tmp_path / 'run' / 'checkpoints' / 'step-00000002'}")]
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_of_somebody_else_is_left_alone(prepared, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(RunError, match="holds no run; it is left alone"):
        train(tiny_config(prepared.folder, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_weights_are_as_readable_as_the_files_beside_them(prepared, tmp_path):
    train(tiny_config(prepared.folder, tmp_path / "run", "train.max_steps=1"))
    assert len({path.stat().st_mode for path in runs.RunFolder(tmp_path / "run").checkpoint(1).iterdir()}) == 1


def test_a_flipped_bit_is_noticed_and_the_older_checkpoint_used(prepared, tmp_path):
    run = tmp_path / "run"
    train(tiny_config(prepared.folder, run, "train.max_steps=4", "checkpoint.every=2"))
    path = runs.RunFolder(run).checkpoint(4) / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    assert runs.damage(path.parent) == "optimizer.safetensors is not as it was written (size or checksum)"
    assert newest_sound(runs.RunFolder(run)).source == runs.RunFolder(run).checkpoint(2)
    train(tiny_config(prepared.folder, run, "train.max_steps=6"), resume=True)
    resumed = next(row for row in runs.read_rows(run / "events.jsonl") if row["event"] == "resume")
    assert (resumed["step"], resumed["lost_steps"]) == (2, 2)
    for checkpoint in runs.checkpoint_folders(runs.RunFolder(run)):
        (checkpoint / "model.safetensors").unlink()
    with pytest.raises(RunError, match="every checkpoint is damaged"):
        train(tiny_config(prepared.folder, run, "train.max_steps=8"), resume=True)


def test_damaged_checkpoints_do_not_push_out_sound_ones(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    keep = ["checkpoint.every=2", "checkpoint.keep_last=2", "checkpoint.keep_best=0"]
    train(tiny_config(prepared.folder, run.path, "train.max_steps=8", *keep, "checkpoint.keep_last=9"))
    for step in (6, 8):
        (run.checkpoint(step) / "model.safetensors").write_bytes(b"torn")
    (run.checkpoints / "step-00000009.abc.partial").mkdir()
    assert find_model(run.path) == run.checkpoint(4)
    train(tiny_config(prepared.folder, run.path, "train.max_steps=6", *keep), resume=True)
    assert [runs.step_of(path) for path in runs.checkpoint_folders(run)] == [4, 6]
    assert all(runs.damage(path) is None for path in runs.checkpoint_folders(run))
    assert not list(run.checkpoints.glob("*.partial"))


def test_another_corpus_or_batch_cannot_be_resumed(prepared, tmp_path):
    run = tmp_path / "run"
    train(tiny_config(prepared.folder, run, "train.max_steps=2"))
    with pytest.raises(RunError, match=r"rows_per_step = 16, now it is 8.*train\.batch_tokens"):
        train(tiny_config(prepared.folder, run, "train.batch_tokens=512", "train.max_steps=4"), resume=True)
    with pytest.raises(RunError, match=r"the section \[model\]"):
        train(tiny_config(prepared.folder, run, "model.d_ff=32", "train.max_steps=4"), resume=True)
    with pytest.raises(RunError, match=r"run\.seed"):
        train(tiny_config(prepared.folder, run, "run.seed=9", "train.max_steps=4"), resume=True)


class Scripted:
    """A task that gives the scores it was told to."""

    def __init__(self, scores):
        self.scores = scores

    def run(self, moment):
        return {"bleu": self.scores[moment.step]}


def train_with_scores(config, data, scores, *, resume=False, progress=runs.silent):
    with joined("cpu", 60) as mesh:
        trainer = Trainer(config, data, mesh, [Scripted(scores)], "test", progress)
        trainer.begin(resume=resume)
        return trainer.run()


SCORES = {2: 1.0, 4: 9.0, 6: 3.0, 8: 2.0, 10: 4.0}


@pytest.mark.parametrize(("keep_best", "kept"), [(0, [8, 10]), (1, [4, 8, 10]), (2, [4, 8, 10]), (3, [4, 6, 8, 10])])
def test_last_and_best_checkpoints_are_kept(prepared, tmp_path, keep_best, kept):
    run = runs.RunFolder(tmp_path / "run")
    keep = ["checkpoint.every=2", "validation.every=2", "checkpoint.keep_last=2", f"checkpoint.keep_best={keep_best}"]
    train_with_scores(tiny_config(prepared.folder, run.path, "train.max_steps=10", *keep), prepared, SCORES)
    assert [runs.step_of(path) for path in runs.checkpoint_folders(run)] == kept
    if keep_best:
        assert [runs.step_of(path) for path in runs.best_checkpoints(run, "bleu")][:2] == [4, 10]


def test_a_better_score_is_saved_even_when_no_checkpoint_is_due(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    keep = ["checkpoint.every=100", "validation.every=2", "checkpoint.keep_last=1"]
    train_with_scores(tiny_config(prepared.folder, run.path, "train.max_steps=10", *keep), prepared, SCORES)
    assert [runs.step_of(path) for path in runs.checkpoint_folders(run)] == [4, 10]


def test_a_checkpoint_is_whole_small_and_without_pickle(prepared, tmp_path):
    run = tmp_path / "run"
    train(tiny_config(prepared.folder, run, "train.max_steps=2"))
    folder = runs.RunFolder(run).checkpoint(2)
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json", "model.safetensors", "model.toml", "optimizer.safetensors", "training.json", "vocabulary.model",
    ]  # fmt: skip
    predicted = json.loads((run / "environment.json").read_text(encoding="utf-8"))["model"]["checkpoint_bytes"]
    tensors = sum((folder / name).stat().st_size for name in ("model.safetensors", "optimizer.safetensors"))
    assert 0 <= tensors - predicted < 20_000, "weights and two moments, and the names of the tensors"
    assert runs.damage(folder) is None


def test_patience_stops_a_run(prepared, tmp_path):
    config = tiny_config(
        prepared.folder, tmp_path / "run", "train.max_steps=10", "validation.every=2", "validation.patience=2"
    )
    assert train_with_scores(config, prepared, SCORES) == "patience"
    stop = runs.read_rows(tmp_path / "run" / "events.jsonl")[-1]
    assert (stop["event"], stop["reason"], stop["step"]) == ("stop", "patience", 8)


def test_a_run_that_ended_by_patience_is_left_alone_until_there_is_more_of_it(prepared, tmp_path):
    """Job scripts resume always; every start would go a few steps on and push a checkpoint out."""
    run = runs.RunFolder(tmp_path / "run")
    keys = ["train.max_steps=10", "train.log_every=1", "validation.every=2", "checkpoint.every=2"]
    config = tiny_config(prepared.folder, run.path, *keys, "validation.patience=2")
    assert train_with_scores(config, prepared, SCORES) == "patience"
    before = [path.name for path in runs.checkpoint_folders(run)]
    said = []
    again = train_with_scores(config, prepared, SCORES, resume=True, progress=lambda *what: said.append(what))
    assert again == "patience"
    assert said[-1] == ("stopping", 8, 10, "the run ended by validation.patience = 2; raise it to go on")
    assert [path.name for path in runs.checkpoint_folders(run)] == before
    more = tiny_config(prepared.folder, run.path, *keys, "validation.patience=3")
    train_with_scores(more, prepared, SCORES, resume=True)
    assert runs.step_of(runs.checkpoint_folders(run)[-1]) == 10


def test_patience_with_one_metric_is_counted_anew_for_another(prepared, tmp_path):
    run = runs.RunFolder(tmp_path / "run")
    keys = ["train.log_every=1", "validation.every=2", "checkpoint.every=2", "validation.patience=2"]
    config = tiny_config(prepared.folder, run.path, *keys, "train.max_steps=20")
    assert train_with_scores(config, prepared, SCORES) == "patience"
    falling = {step: -step for step in range(10, 22, 2)}  # the loss falls as well: only of BLEU is it no better
    other = tiny_config(prepared.folder, run.path, *keys, "train.max_steps=14", "checkpoint.metric=loss")
    assert train_with_scores(other, prepared, falling, resume=True) == "max_steps"
    best = json.loads((run.checkpoint(14) / "training.json").read_text(encoding="utf-8"))["best"]
    assert best["metric"] == "loss"
    back = tiny_config(prepared.folder, run.path, *keys, "train.max_steps=20")
    nothing = dict.fromkeys(range(10, 22, 2), math.nan)
    assert train_with_scores(back, prepared, nothing, resume=True) == "patience", "scores that are no numbers count too"


def test_divergence_is_said_in_words(prepared, tmp_path):
    config = tiny_config(
        prepared.folder, tmp_path / "run", "schedule.policy=fixed", "schedule.learning_rate=1e30", "schedule.warmup_steps=0",
        "train.max_steps=20", "train.log_every=1",
    )  # fmt: skip
    with pytest.raises(TrainingError, match=r"diverged\. Lower schedule\.learning_rate"):
        train(config)
    assert runs.read_rows(tmp_path / "run" / "events.jsonl")[-1]["reason"] == "diverged"


def test_metrics_say_what_happened(prepared, tmp_path):
    run = tmp_path / "run"
    config = tiny_config(prepared.folder, run, "train.max_steps=6", "validation.every=3", "train.log_every=2")
    train(config)
    rows = runs.read_rows(run / "metrics.jsonl")
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    valid = [row for row in rows if row["kind"] == "valid"]
    assert steps == [2, 3, 4, 6], "a validation always follows a row"
    assert [row["step"] for row in valid] == [3, 6]
    from dragoman.config.schedule import learning_rate

    rate = learning_rate(config)
    for row in rows:
        if row["kind"] == "train":
            assert row["learning_rate"] == rate(row["step"] - 1)
            assert row["target_tokens_per_s"] > 0
            assert 0 < row["row_fill"] <= 1
        else:
            assert row["pairs"] == 40
            assert row["perplexity"] == pytest.approx(math.exp(row["nll"]))
            assert row["bleu_signature"].startswith("nrefs:1|case:mixed")
    probes = (run / "translations" / "step-00000006.txt").read_text(encoding="utf-8")
    assert probes.count("source ") == probes.count("reference ") == probes.count("translation ") == 5
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    assert (run / "log" / "rank-000.log").stat().st_size > 0


def test_logged_loss_is_the_mean_over_all_tokens_since_the_row_before(prepared, tmp_path):
    common = ["model.dropout=0.0", "train.max_steps=4"]
    train(tiny_config(prepared.folder, tmp_path / "each", *common, "train.log_every=1"))
    train(tiny_config(prepared.folder, tmp_path / "pairs", *common, "train.log_every=4"))
    each = [row for row in runs.read_rows(tmp_path / "each" / "metrics.jsonl") if row["kind"] == "train"]
    together = next(row for row in runs.read_rows(tmp_path / "pairs" / "metrics.jsonl") if row["kind"] == "train")
    tokens = [
        row["target_tokens"] - before
        for row, before in zip(each, [0, *(r["target_tokens"] for r in each)], strict=False)
    ]
    expected = sum(row["loss"] * count for row, count in zip(each, tokens, strict=True)) / sum(tokens)
    assert together["loss"] == pytest.approx(expected, rel=1e-6)


def test_rows_that_cannot_hold_the_data_are_refused(prepared, tmp_path):
    narrow = ["train.tile_width=8", "train.wide_tile_width=0", "data.max_tokens=7"]
    with pytest.raises(DataError, match=r"Raise train\.wide_tile_width"):
        train(tiny_config(prepared.folder, tmp_path / "run", *narrow))
    assert not (tmp_path / "run").exists()


def test_averaged_weights_are_kept_and_validated_and_training_goes_on_with_its_own(prepared, tmp_path):
    plain = tiny_config(
        prepared.folder, tmp_path / "plain", "train.max_steps=6", "checkpoint.every=1", "checkpoint.keep_last=9"
    )
    train(plain)
    averaging = ["train.average_decay=0.4", "validation.every=3", "checkpoint.every=3"]
    train(tiny_config(prepared.folder, tmp_path / "straight", "train.max_steps=6", *averaging))
    train(tiny_config(prepared.folder, tmp_path / "halves", "train.max_steps=3", *averaging))
    train(tiny_config(prepared.folder, tmp_path / "halves", "train.max_steps=6", *averaging), resume=True)

    own = load_file(runs.RunFolder(tmp_path / "straight").checkpoint(6) / "weights.safetensors")
    assert_same(own, weights(tmp_path / "plain", 6), rtol=0, atol=0)
    assert_same(weights(tmp_path / "halves", 6), weights(tmp_path / "straight", 6), rtol=0, atol=0)
    model = Transformer(plain.model, len(prepared.vocabulary))
    model.init_weights(plain.run.seed)
    expected = model.state_dict()
    for step in range(1, 7):
        decay, now = min(0.4, (1 + step) / (10 + step)), weights(tmp_path / "plain", step)
        expected = {name: decay * old + (1 - decay) * now[name] for name, old in expected.items()}
    assert_same(weights(tmp_path / "straight", 6), expected, rtol=1e-5, atol=1e-7)

    losses = {name: [row["loss"] for row in runs.read_rows(tmp_path / name / "metrics.jsonl") if row["kind"] == "valid"]
              for name in ("plain", "straight")}  # fmt: skip
    assert losses["straight"][-1] != losses["plain"][-1], "the average is what is validated"
    answer = checkpoint_bytes(load_run(tmp_path / "straight"))
    assert "as 16 bytes a parameter + 16 predict" in answer.verdict
    found = weights(tmp_path / "straight", 6)
    average, _ = read_model(runs.RunFolder(tmp_path / "straight").checkpoint(6))
    assert_same(average.state_dict(), found, rtol=0, atol=0)
