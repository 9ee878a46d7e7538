"""`dragoman explain`: the exact values of the reference, before any run."""

import json
import re

import pytest
from support import dragoman
from typer.testing import CliRunner

from dragoman.cli.main import app


def told(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["explain", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_learning_rate_of_the_reference(tmp_path):
    text = told("lr", "transformer-base", "--csv", str(tmp_path / "lr.csv"), "--picture", str(tmp_path / "lr.svg"))
    rows = dict(re.findall(r"^\s+([\d,]+)  ([\d.e-]+)", text, flags=re.M))
    assert rows["0"] == "1.24e-07"
    assert rows["1,000"] == "0.000124"
    assert rows["7,999"] == "0.000988"
    assert rows["300,000"] == "0.000161"
    assert "neither on BLEU nor on a plateau" in text
    lines = (tmp_path / "lr.csv").read_text().splitlines()
    assert lines[0] == "step,learning_rate"
    assert len(lines) == 300_001
    assert float(lines[8000].split(",")[1]) == pytest.approx(9.882e-4, rel=1e-3)
    assert "<svg" in (tmp_path / "lr.svg").read_text()


def test_a_checkpoint_by_part():
    text = told("checkpoint", "transformer-base")
    assert "60,880,896 parameters" in text
    assert "730,570,768 bytes  730.6 MB (696.7 MiB)" in text
    assert "852.3 MB" in text
    assert "209,842,176 parameters" in told("checkpoint", "transformer-big")


def test_the_wire_by_strategy():
    text = told("network", "transformer-base", "--nodes", "2", "--gpus-per-node", "2")
    assert re.search(r"^ddp +365.3 MB +29.2 s \(30.8 s\) +2.92 s \(3.08 s\) +0.292 s \(0.308 s\)", text, flags=re.M)
    planned = {"ddp, int8", "two_level, bf16", "fsdp", "hybrid", "local, int8", "streaming, bf16"}
    assert planned <= set(re.findall(r"^(\w+(?:, \w+)?)  ", text, flags=re.M)), "every strategy that there is"
    steps = told("network", "transformer-base", "--gpus-per-node", "2", "--step-seconds", "0.5")
    assert re.search(r"^ddp +[\d.]+ s +3.28 s +0.5\d\d s", steps[steps.index("of computing") :], flags=re.M)
    assert "nothing crosses the network" in told("network", "transformer-base", "--nodes", "1")


def test_a_step_in_sentences_tokens_and_epochs(tmp_path):
    overrides = [
        "data.corpus=grammar",
        f"data.folder={tmp_path / 'd'}",
        "data.train_pairs=600",
        "subwords.vocab_size=400",
    ]
    assert "prepare it and ask again, or tell --pairs" in told("step", "tiny", *overrides)
    asked = told("step", "transformer-base", f"data.folder={tmp_path / 'none'}", "--pairs", "4524868")
    # 32,768 slots, 98 % full, of 28 tokens a pair: 1,147 pairs a step
    assert "An epoch of 4,524,868 pairs is 3,945 steps; the run sees every pair 76.04 times" in asked
    dragoman("prepare", "tiny", *overrides, "data.valid_pairs=20", "data.test_pairs=20")
    text = told("step", "tiny", *overrides)
    assert re.search(r"An epoch of \d+ pairs is \d+ steps; the run sees every pair [\d.]+ times", text)


def test_a_picture_that_is_none_is_one_line(tmp_path):
    result = dragoman("explain", "lr", "tiny", "--picture", str(tmp_path / "x.txt"), check=False)
    assert result.returncode == 2
    assert result.stderr.strip().endswith("x.txt: a picture ends in .svg or .png")
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_are_kept_for_good_take_room():
    assert "Up to 4 are kept" in told("checkpoint", "transformer-base")
    keys = ["train.max_steps=20000", "checkpoint.every=500", "checkpoint.keep_every=1000"]
    assert "Up to 24 are kept" in told("checkpoint", "transformer-base", *keys)


def test_a_wrong_preset_is_one_line():
    result = dragoman("explain", "lr", "transformer-bas", check=False)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_two_vocabularies_and_an_average_weigh_more():
    text = told("checkpoint", "transformer-base", "subwords.joint=false", "train.average_decay=0.999")
    parameters = 60_880_896 + 32_768 * 512
    assert f"{parameters:,} parameters" in text
    assert f"{16 * parameters + 16:,} bytes" in text


def test_what_is_frozen_has_no_moments():
    text = told("checkpoint", "transformer-base", 'train.freeze=["embedding.*"]')
    parameters, frozen = 60_880_896, 32_768 * 512
    assert f"{parameters - frozen:,} of them learn" in text
    assert f"{12 * parameters - 8 * frozen + 16:,} bytes" in text
    result = dragoman("explain", "checkpoint", "tiny", 'train.freeze=["nothing"]', check=False)
    assert result.returncode == 2
    assert "train.freeze: no tensor is called 'nothing'" in result.stderr


def test_a_pair_that_is_cut_in_several_ways_is_one_pair(tmp_path):
    train = {"pairs": 800_000, "text_pairs": 100_000, "variants": 8, "target_tokens": 800_000 * 28}
    (tmp_path / "manifest.json").write_text(json.dumps({"train": train}))
    text = told("step", "transformer-base", f"data.folder={tmp_path}")
    # 32,768 slots, 98 % full: 28 tokens x 800,000 rows / 32,113
    assert "An epoch of 100,000 pairs, each cut 8 ways, is 698 steps; the run sees every pair 3440.64 times" in text
