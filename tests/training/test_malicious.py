"""Files from strangers run nothing: a pickle under any name of a checkpoint, a model folder or prepared data is an error in words."""

import pickle
import shutil

import numpy as np
import pytest
from support import tiny_config

from dragoman import runs
from dragoman.cli.stages import train
from dragoman.data.encode import PreparedData
from dragoman.errors import DragomanError
from dragoman.translate import Translator


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


@pytest.fixture
def poison(tmp_path):
    content = pickle.dumps(Evil(tmp_path / "it-ran"))
    yield content
    assert not (tmp_path / "it-ran").exists()
    pickle.loads(content).close()  # noqa: S301  and it would have run
    assert (tmp_path / "it-ran").exists()


NAMES = [
    "model.safetensors",
    "optimizer.safetensors",
    "training.json",
    "model.toml",
    "vocabulary.model",
    "manifest.json",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_runs_nothing(prepared, tmp_path, poison, name):
    run = runs.RunFolder(tmp_path / "run")
    train(tiny_config(prepared.folder, run.path, "train.max_steps=2"))
    folder = run.checkpoint(2)
    (folder / name).write_bytes(poison)
    if name != "manifest.json":  # a manifest that vouches for it
        facts = {key: value for key, value in runs.read_json(folder / "manifest.json").items() if key != "files"}
        (folder / "manifest.json").unlink()
        runs.write_manifest(folder, facts)
    if name not in ("model.toml", "vocabulary.model"):  # training reads these two elsewhere
        with pytest.raises(DragomanError):
            train(tiny_config(prepared.folder, run.path, "train.max_steps=4"), resume=True)
    if name in ("model.safetensors", "model.toml", "vocabulary.model"):
        with pytest.raises(DragomanError):
            Translator.load(folder, "cpu")


def test_prepared_data_runs_nothing(prepared, tmp_path, poison):
    data = shutil.copytree(prepared.folder, tmp_path / "data")
    np.save(data / "train.source.ends.npy", np.array([Evil(tmp_path / "it-ran")]), allow_pickle=True)
    with pytest.raises(DragomanError, match=r"index of train\.source\.ids is damaged"):
        train(tiny_config(data, tmp_path / "run"))
    (data / "vocabulary.model").write_bytes(poison)
    with pytest.raises(DragomanError):
        PreparedData(data)
