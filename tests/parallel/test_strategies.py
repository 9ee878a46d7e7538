"""Strategies in real runs: those that claim the same updates make them, all of them resume to the bit, and what they validate
and keep is what all ranks agree on."""

from __future__ import annotations

import shutil

import pytest
import torch
from parallel.rounds import Round, run_rounds
from safetensors.torch import load_file
from support import as_overrides, tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.config import load_config
from dragoman.errors import ConfigError, RunError
from dragoman.report import diagnose
from dragoman.training import checkpoint

SMALL = [
    "train.tokens_per_gpu=256",
    "validation.bleu_sentences=4",
    "monitor.tensorboard=false",
    "monitor.telemetry=false",
]
PAIRS = "parallel.ranks_per_island=2"
FROZEN = 'train.freeze=["encoder.0.*"]'
SHORT = ["parallel.inner_steps=4", "parallel.fragments=2"]
EXACT = {
    "ddp": [],
    "two_level": ["parallel.strategy=two_level", PAIRS],
    "fsdp": ["parallel.strategy=fsdp"],
    "hybrid": ["parallel.strategy=hybrid", PAIRS],
    "one_island": ["parallel.strategy=local", "parallel.ranks_per_island=4", "parallel.inner_steps=100"],
}
APPROXIMATE = {
    "bf16": ["parallel.wire=bf16"],
    "int8": ["parallel.wire=int8"],
    "two_level_int8": ["parallel.strategy=two_level", "parallel.wire=int8", PAIRS],
    "local": ["parallel.strategy=local", *SHORT, "parallel.ranks_per_island=1", "parallel.wire=int8"],
    "local_pairs": ["parallel.strategy=local", *SHORT, PAIRS],
    "streaming": ["parallel.strategy=streaming", *SHORT, "parallel.ranks_per_island=1", "parallel.wire=int8"],
    "streaming_pairs": ["parallel.strategy=streaming", *SHORT, PAIRS, "parallel.wire=bf16", FROZEN],
}
RESUMED = {name: EXACT[name] for name in ("ddp", "fsdp")} | APPROXIMATE
STEPS, BREAK = 10, 5  # the break is between two agreements, with a fragment on its way


def settings(prepared, run, steps, *overrides):
    return tiny_config(prepared.folder, run, *SMALL, f"train.max_steps={steps}", *overrides)


@pytest.fixture(scope="module")
def ran(prepared, tmp_path_factory):
    """A folder with all runs of this file: exact/NAME (3 steps, no dropout), straight/NAME and halves/NAME."""
    folder = tmp_path_factory.mktemp("strategies")
    rounds = []

    def add(run, steps, *overrides, resume=False):
        rounds.append(Round(as_overrides(settings(prepared, folder / run, steps, *overrides)), resume))

    for name, overrides in EXACT.items():
        add(f"exact/{name}", 3, "model.dropout=0.0", *overrides)
    for name, overrides in RESUMED.items():
        add(f"straight/{name}", STEPS, *overrides)
        add(f"halves/{name}", BREAK, *overrides)
        add(f"halves/{name}", STEPS, *overrides, resume=True)
    for steps, name in ((3, "int8"), (5, "streaming"), (7, "fsdp"), (9, "local_pairs")):
        add("switched", steps, *RESUMED[name], resume=steps > 3)
    still = ["schedule.policy=fixed", "schedule.learning_rate=1e-30", "schedule.warmup_steps=0"]
    add("patience", STEPS, *still, "validation.every=2", "validation.patience=2", "checkpoint.metric=loss")
    add("compared", 3, "parallel.compare_every=1", *EXACT["hybrid"])
    add("fewer/local", BREAK, "model.dropout=0.0", *APPROXIMATE["local"])
    run_rounds(4, rounds, folder)
    shutil.copytree(folder / "exact" / "fsdp", folder / "fewer" / "fsdp")
    rounds.clear()
    add("fewer/fsdp", 5, "model.dropout=0.0", *EXACT["fsdp"], resume=True)
    add("fewer/local", STEPS, "model.dropout=0.0", *APPROXIMATE["local"], resume=True)
    (folder / "two").mkdir()
    run_rounds(2, rounds, folder / "two")
    train(settings(prepared, folder / "alone", 3, "model.dropout=0.0"))
    train(settings(prepared, folder / "longer", 5, "model.dropout=0.0"))
    return folder


def weights(run, step, file="model.safetensors"):
    return load_file(runs.RunFolder(run).checkpoint(step) / file)


def assert_same(left, right, **tolerance):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], **tolerance)


@pytest.mark.parametrize("name", EXACT)
def test_four_ranks_learn_what_one_learns(ran, name):
    four = weights(ran / "exact" / name, 3)
    if name == "one_island":  # before the first agreement its own weights have gone on alone
        own = weights(ran / "exact" / name, 3, "own-00000.safetensors")
        four = {key.removeprefix("weights."): tensor for key, tensor in own.items() if key.startswith("weights.")}
    assert_same(weights(ran / "alone", 3), four, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_straight_one_to_the_bit(ran, name):
    straight, halves = (runs.RunFolder(ran / kind / name) for kind in ("straight", "halves"))
    for path in sorted(straight.checkpoint(STEPS).glob("*.safetensors")):
        assert_same(load_file(path), load_file(halves.checkpoint(STEPS) / path.name), rtol=0, atol=0)
    rows = [runs.read_rows(run.metrics) for run in (straight, halves)]
    losses = [[row["loss"] for row in each if row["step"] == STEPS] for each in rows]
    assert losses[0] == losses[1]
    assert runs.damage(halves.checkpoint(STEPS)) is None
    assert not list(halves.checkpoints.glob("*.partial"))


@pytest.mark.parametrize("name", APPROXIMATE)
def test_what_is_not_exact_is_near(ran, name):
    """And really another way: equal weights would mean that the strategy was not used."""
    reference, other = (weights(ran / "straight" / each, STEPS) for each in ("ddp", name))
    assert any(not reference[key].equal(other[key]) for key in reference)
    loss = [runs.read_rows(ran / "straight" / each / "metrics.jsonl")[-1]["loss"] for each in ("ddp", name)]
    assert abs(loss[0] - loss[1]) < 0.3


def test_all_ranks_lose_patience_at_the_same_step(ran):
    run = runs.RunFolder(ran / "patience")
    stop = runs.read_rows(run.events)[-1]
    assert (stop["event"], stop["reason"], stop["step"]) == ("stop", "patience", 6)
    assert runs.step_of(runs.checkpoint_folders(run)[-1]) == 6


def test_islands_of_pieces_hold_the_same(ran):
    assert runs.read_rows(ran / "compared" / "events.jsonl")[-1]["reason"] == "max_steps"


def test_pieces_of_four_ranks_go_on_as_pieces_of_two(ran):
    assert_same(weights(ran / "longer", 5), weights(ran / "fewer" / "fsdp", 5), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("run", "count"), [("straight/fsdp", 4), ("exact/hybrid", 2)])
def test_every_piece_of_the_moments_is_written_by_a_rank_that_holds_it(ran, run, count):
    """And nobody holds all of them."""
    folder = runs.checkpoint_folders(runs.RunFolder(ran / run))[-1]
    whole = runs.checkpoint_folders(runs.RunFolder(ran / "straight" / "ddp"))[-1] / checkpoint.OPTIMIZER
    pieces = sorted(folder.glob("moments-*"))
    assert [path.name for path in pieces] == [checkpoint.PIECES.format(number) for number in range(count)]
    assert not (folder / checkpoint.OPTIMIZER).exists()
    assert all(path.stat().st_size < 1.5 * whole.stat().st_size / count for path in pieces)
    assert not list(folder.parent.glob("*.partial"))


def test_a_piece_that_is_not_written_fails_the_checkpoint(tmp_path):
    there, fails = (tmp_path / checkpoint.PIECES.format(number) for number in range(2))
    checkpoint.write_pieces(there, {"exp_avg.x": torch.ones(3)})
    with pytest.raises(AttributeError):
        checkpoint.write_pieces(fails, {"exp_avg.x": None})
    with pytest.raises(RunError, match=r"moments-00001\.safetensors was not written"):
        checkpoint.wait_for([there, fails], lambda: False)
    assert not list(tmp_path.glob("*.writing"))


def test_four_islands_go_on_as_two_with_the_same_sentences(ran):
    numbers = [
        runs.read_json(runs.RunFolder(ran / run).checkpoint(STEPS) / "training.json")
        for run in ("straight/local", "fewer/local")
    ]
    assert all(numbers[0][key] == numbers[1][key] for key in ("position", "pairs", "target_tokens"))
    losses = [
        row["loss"] for row in runs.read_rows(ran / "fewer" / "local" / "metrics.jsonl") if row["kind"] == "valid"
    ]
    assert losses[0] > losses[1]
    own = sorted(path.name for path in runs.RunFolder(ran / "fewer" / "local").checkpoint(STEPS).glob("own-*"))
    assert own == ["own-00000.safetensors", "own-00001.safetensors"]
    (answer,) = (answer for answer in diagnose(ran / "fewer" / "local") if answer.number == 9)
    assert "as 12 bytes a parameter + 16 predict" in answer.verdict
    assert "that ranks have for themselves" in answer.verdict


def test_a_run_may_go_on_with_another_strategy(ran):
    losses = [row["loss"] for row in runs.read_rows(ran / "switched" / "metrics.jsonl") if row["kind"] == "valid"]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


def test_what_is_frozen_is_in_the_model_and_nobodys_own(ran):
    run = ran / "halves" / "streaming_pairs"
    kept, own = weights(run, BREAK), weights(run, BREAK, "own-00000.safetensors")
    alone = {name.removeprefix("weights.") for name in own if name.startswith("weights.")}
    assert kept.keys() == weights(ran / "straight" / "ddp", STEPS).keys()
    assert kept.keys() - alone == {name for name in kept if name.startswith("encoder.0.")} != set()
    assert own["momentum"].numel() == sum(kept[name].numel() for name in alone)


@pytest.mark.parametrize("name", ["local", "streaming"])
def test_what_is_kept_is_what_all_agree_on(ran, name):
    """Islands hold weights of their own between two agreements; those of the checkpoint are none of them."""
    agreed = weights(ran / "halves" / name, BREAK)
    own = [weights(ran / "halves" / name, BREAK, f"own-{seat:05d}.safetensors") for seat in range(4)]
    key = "embedding.weight"
    assert all(not each[f"weights.{key}"].equal(agreed[key]) for each in own)
    assert not own[0][f"weights.{key}"].equal(own[1][f"weights.{key}"])
    assert own[0]["momentum"].equal(own[1]["momentum"])
    assert ("sent.0" in own[0] or "sent.1" in own[0]) == (name == "streaming")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["parallel.strategy=fsdp", "parallel.wire=int8"], "has no meaning with"),
        (["parallel.strategy=local", "train.precision=fp16"], "scales one loss for all ranks"),
        (["parallel.strategy=streaming", "parallel.inner_steps=10", "parallel.fragments=4"], "does not divide"),
    ],
)
def test_settings_that_make_no_sense_are_refused(overrides, reason):
    with pytest.raises(ConfigError, match=reason):
        load_config("tiny", overrides)
