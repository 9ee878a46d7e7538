"""`dragoman checkpoint`: what is there is shown, what is damaged is found, and the only sound one is never removed."""

import pytest
from support import dragoman, tiny_config

from dragoman import runs
from dragoman.cli.checkpoints import told
from dragoman.cli.stages import train


@pytest.fixture
def run(prepared, tmp_path):
    folder = tmp_path / "run"
    every = ["checkpoint.every=2", "validation.every=2", "checkpoint.keep_last=9"]
    train(tiny_config(prepared.folder, folder, *every))
    return runs.RunFolder(folder)


def steps(run):
    return [runs.step_of(path) for path in runs.checkpoint_folders(run)]


def test_list_and_inspect_tell_what_is_there(run):
    listed = dragoman("checkpoint", "list", str(run.path)).stdout
    assert all(f" {step} " in listed for step in (2, 4, 6))
    assert "best" in listed
    inspected = dragoman("checkpoint", "inspect", str(run.path)).stdout
    folder = run.checkpoint(6)
    assert str(folder) in inspected
    for name in ("model.safetensors", "optimizer.safetensors", "training.json"):
        assert f"{(folder / name).stat().st_size:,}" in inspected
    weights = runs.read_json(run.environment)["model"]["weight_bytes"]
    assert f"weights: {weights:,} bytes, as predicted" in inspected
    assert f"moments: {2 * weights:,} bytes, as predicted" in inspected
    numbers = 3 * weights
    rest = sum(file.stat().st_size for file in folder.iterdir()) - numbers
    assert f"descriptions): {rest:,} bytes" in inspected


def test_verify_finds_a_flipped_bit(run):
    assert dragoman("checkpoint", "verify", str(run.path)).stdout.count("sound") == 3
    path = run.checkpoint(4) / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    result = dragoman("checkpoint", "verify", str(run.path), check=False)
    assert result.returncode == 2
    assert "1 damaged (step-00000004)" in result.stderr
    assert dragoman("checkpoint", "verify", str(run.checkpoint(6))).stdout.strip().endswith("sound")


def test_prune_keeps_the_only_sound_one(run):
    would = dragoman("checkpoint", "prune", str(run.path), "--keep-last", "1", "--keep-best", "0", "--dry-run").stdout
    assert would.count("would remove") == 2
    assert steps(run) == [2, 4, 6]
    for step in (4, 6):
        (run.checkpoint(step) / "model.safetensors").write_bytes(b"torn")
    dragoman("checkpoint", "prune", str(run.path), "--keep-last", "1", "--keep-best", "0")
    assert steps(run) == [2]
    (run.checkpoint(2) / "model.safetensors").write_bytes(b"torn")
    assert dragoman("checkpoint", "prune", str(run.path), check=False).returncode == 2
    assert steps(run) == [2]


def test_what_is_no_checkpoint_is_said(tmp_path):
    result = dragoman("checkpoint", "inspect", str(tmp_path), check=False)
    assert result.returncode == 2
    assert "neither a run nor a checkpoint" in result.stderr


def test_a_flipped_bit_in_a_manifest_is_told_and_the_list_goes_on(tmp_path):
    runs.write_json(tmp_path / runs.MANIFEST, {"time": 1.5, "scores": {"loss": 2.5}, "files": {"a": {"bytes": 30}}})
    sound = (tmp_path / runs.MANIFEST).read_bytes()
    assert told(tmp_path)[1:] == ("0.0", "loss 2.5")
    for place in range(8 * len(sound)):
        flipped = bytearray(sound)
        flipped[place // 8] ^= 1 << place % 8
        (tmp_path / runs.MANIFEST).write_bytes(flipped)
        told(tmp_path)
    (tmp_path / runs.MANIFEST).write_text("[]", encoding="utf-8")
    assert told(tmp_path)[2] == "manifest.json is damaged"
