"""Prepared data that is not as it was written is noticed, and nothing learnt from it is kept."""

import shutil

import pytest
from safetensors.torch import load_file
from support import dragoman, tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.data.encode import PreparedData
from dragoman.errors import DataError


@pytest.fixture
def data(prepared, tmp_path):
    return shutil.copytree(prepared.folder, tmp_path / "data")


def flip(path, place=-3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["train.source.ids", "train.target.ids", "valid.source.ids", "valid-00000.tsv"])
def test_a_flipped_bit_ends_the_run_before_a_checkpoint(data, tmp_path, name):
    flip(data / name)
    with pytest.raises(DataError, match=f"{name} is not as it was written"):
        train(tiny_config(data, tmp_path / "run", "train.max_steps=4", "checkpoint.every=1"))
    assert runs.checkpoint_folders(runs.RunFolder(tmp_path / "run")) == []


def test_data_that_was_damaged_meanwhile_loses_nothing(data, prepared, tmp_path):
    every = ["checkpoint.every=2"]
    train(tiny_config(data, tmp_path / "run", *every, "train.max_steps=2"))
    flip(data / "train.target.ids")
    longer = tiny_config(data, tmp_path / "run", *every, "train.max_steps=6")
    with pytest.raises(DataError, match="copy it anew"):
        train(longer, resume=True)
    shutil.copy(prepared.folder / "train.target.ids", data)
    train(longer, resume=True)
    train(tiny_config(data, tmp_path / "straight", "train.max_steps=6"))
    weights = [
        load_file(runs.RunFolder(tmp_path / name).checkpoint(6) / "model.safetensors") for name in ("run", "straight")
    ]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_verify_names_the_file(data):
    assert dragoman("data", "verify", str(data)).stdout.count("is sound") == 3
    flip(data / "test.source.ids")
    result = dragoman("data", "verify", str(data), check=False)
    assert result.returncode == 2
    assert "test.source.ids is not as it was written" in result.stderr


def test_data_of_a_version_that_kept_one_digest_a_part(data):
    manifest = runs.read_json(data / "manifest.json")
    for part in ("train", "valid", "test"):
        del manifest[part]["files"]
    runs.write_json(data / "manifest.json", manifest)
    assert PreparedData(data).damage("train") is None
    flip(data / "train.source.ids")
    assert PreparedData(data).damage("train") == "the train set is not as it was written (checksum)"


def test_another_vocabulary_is_noticed(data, tmp_path):
    manifest = runs.read_json(data / "manifest.json")
    manifest["vocabulary"]["digest"] = "0" * 64
    runs.write_json(data / "manifest.json", manifest)
    with pytest.raises(DataError, match=r"vocabulary\.model is not as it was written"):
        train(tiny_config(data, tmp_path / "run", "train.max_steps=2"))
