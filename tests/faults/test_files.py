"""Files that are damaged, disks that are full, data and configurations that changed."""

import shutil
import subprocess
from contextlib import suppress

import pytest
from fault_runs import STEPS, equal, final_weights
from support import tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.errors import DataError, RunError
from dragoman.training import step as step_module

SHORT = ["checkpoint.every=2", "train.log_every=1", "checkpoint.keep_last=9"]
FILES = [
    "manifest.json",
    "model.safetensors",
    "model.toml",
    "optimizer.safetensors",
    "training.json",
    "vocabulary.model",
]


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.fixture(scope="module")
def half_done(prepared, tmp_path_factory):
    """A run of six steps, and the weights it would end with after ten."""
    folder = tmp_path_factory.mktemp("half")
    train(tiny_config(prepared.folder, folder / "straight", *SHORT, "train.max_steps=10"))
    train(tiny_config(prepared.folder, folder / "run", *SHORT, "train.max_steps=6"))
    return folder / "run", final_weights(folder / "straight")


@pytest.mark.parametrize("damage", [truncate, flip], ids=["truncated", "flipped"])
def test_each_file_of_a_checkpoint_in_turn(prepared, tmp_path, half_done, note, damage):
    source, straight = half_done
    assert sorted(path.name for path in runs.RunFolder(source).checkpoint(6).iterdir()) == FILES
    lost = []
    for name in FILES:
        run = runs.RunFolder(shutil.copytree(source, tmp_path / name))
        damage(run.checkpoint(6) / name)
        train(tiny_config(prepared.folder, run.path, *SHORT, "train.max_steps=10"), resume=True)
        assert equal(final_weights(run.path), straight), name
        resumed = next(row for row in runs.read_rows(run.events) if row["event"] == "resume")
        assert (resumed["step"], resumed["lost_steps"], resumed["damaged"]) == (4, 2, ["step-00000006"]), name
        damaged = next(row for row in runs.read_rows(run.events) if row["event"] == "damaged")
        assert (damaged["checkpoint"], damaged["lost_steps"]) == ("step-00000006", 2)
        assert name in damaged["problem"]
        assert run.checkpoint(6).with_name("step-00000006.damaged").is_dir()
        lost.append(resumed["lost_steps"])
    how = "truncated" if damage is truncate else "bit flipped in"
    note(
        f"checkpoint files, {how} each in turn",
        "named and set aside; the checkpoint before it is used",
        f"{len(FILES)} of {len(FILES)} noticed; same end to the bit",
        lost=lost,
    )


def fill(path):
    """To the last byte, with whatever is written meanwhile."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


@pytest.mark.faults
def test_full_disk(prepared, tmp_path, undisturbed, train_watched, note):
    """A small file system fills up while checkpoints are written, and is emptied before the run is resumed."""
    disk = tmp_path / "run"
    disk.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)]
    if subprocess.run(small, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        ballast = disk / "somebody-elses-file"
        with train_watched(*STEPS, f"run.folder={disk}/run", "checkpoint.keep_last=2") as watched:
            watched.run = runs.RunFolder(disk / "run")
            watched.wait_for_step(15)
            fill(ballast)
            watched.wait_for(lambda: "could not be written" in watched.said, "word to the operator")
            ballast.unlink()  # who makes room
            assert watched.finish() == 0, watched.said
        assert "No space left" in watched.said
        assert "training goes on" in watched.said
        assert all(runs.damage(path) is None for path in runs.checkpoint_folders(watched.run))
        assert equal(final_weights(watched.run.path), undisturbed(*STEPS))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    note(
        "full disk while saving",
        "the run goes on, the operator is told, older checkpoints stay",
        "not one byte was free for a while: told, and the run ended by itself; same end to the bit",
        lost=0,
    )


def test_nan_in_a_batch(prepared, tmp_path, monkeypatch, note):
    usual, seen = step_module.clip, []

    def poisoned(model, clip_norm):
        seen.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
        if len(seen) == 5:
            for parameter in model.parameters():
                parameter.grad.fill_(float("nan"))
        return usual(model, clip_norm)

    monkeypatch.setattr(step_module, "clip", poisoned)
    assert train(tiny_config(prepared.folder, tmp_path / "run", *SHORT, "train.max_steps=10")) == "max_steps"
    events = runs.read_rows(tmp_path / "run" / "events.jsonl")
    assert [(row["step"], row["steps"]) for row in events if row["event"] == "skipped"] == [(5, 1)]
    assert equal(seen[4], seen[5]), "that step changed nothing"
    assert not equal(seen[3], seen[4])
    assert not equal(seen[5], seen[6])
    assert all(tensor.isfinite().all() for tensor in final_weights(tmp_path / "run").values())
    note(
        "NaN in a batch",
        "that step changes nothing and is counted; ten without a good one roll back to a checkpoint, the third time the run stops in words",
        "one step left out: the weights after it are those from before it, and the next ones learn",
        lost=1,
    )


def test_corrupted_shard(prepared, tmp_path, half_done, note):
    source, straight = half_done
    data = shutil.copytree(prepared.folder, tmp_path / "data")
    run = shutil.copytree(source, tmp_path / "run")
    flip(data / "train.target.ids")
    longer = tiny_config(data, run, *SHORT, "train.max_steps=10")
    with pytest.raises(DataError, match=r"train\.target\.ids is not as it was written"):
        train(longer, resume=True)
    assert [runs.step_of(path) for path in runs.checkpoint_folders(runs.RunFolder(run))] == [2, 4, 6]
    shutil.copy(prepared.folder / "train.target.ids", data)
    train(longer, resume=True)
    assert equal(final_weights(run), straight)
    note(
        "corrupted shard of the prepared data",
        "the run stops and names the file; nothing learnt from it is kept",
        "no checkpoint after it; with the file put back, same end to the bit",
        lost=0,
    )


def test_changed_configuration(prepared, tmp_path, half_done, note):
    source, _ = half_done
    run = shutil.copytree(source, tmp_path / "run")
    for override, words in (
        ("train.batch_tokens=512", r"train\.batch_tokens 1024 -> 512"),
        ("model.d_ff=32", r"model\.d_ff 64 -> 32"),
        ("run.seed=9", r"run\.seed 1 -> 9"),
    ):
        with pytest.raises(RunError, match=words):
            train(tiny_config(prepared.folder, run, *SHORT, override, "train.max_steps=10"), resume=True)
    said = []
    allowed = tiny_config(prepared.folder, run, *SHORT, "train.max_steps=8", "schedule.learning_rate=0.0001")
    train(allowed, resume=True, progress=lambda *words: said.append(words[3]))
    assert "schedule.learning_rate" in said[0]
    assert "->" in said[0]
    note(
        "configuration changed on resume",
        "told what differs, key by key; refused where sentences would be lost or repeated, or the model is another one",
        "batch, model and seed refused; learning rate taken, told and written down",
        lost=0,
    )
