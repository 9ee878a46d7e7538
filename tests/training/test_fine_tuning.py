"""A run from the weights of another: what was taken is right and told; what is frozen stays; it learns the new from the old."""

import json

import pytest
import torch
from safetensors.torch import load_file
from support import config_for, sentences, tiny_config, write_corpus

from dragoman.cli.stages import prepare, train
from dragoman.data.encode import PreparedData
from dragoman.errors import ConfigError, RunError
from dragoman.exporting import export
from dragoman.report import diagnose


@pytest.fixture(scope="module")
def first(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    train(tiny_config(prepared.folder, folder / "run", "train.max_steps=4"))
    return export(folder / "run", folder / "model")


def weights(run, step):
    return load_file(run / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def test_all_of_a_model_with_the_same_vocabulary_and_frozen_parts_stay(prepared, first, tmp_path):
    frozen = ["embedding.*", "encoder.*"]
    run = tmp_path / "run"
    config = tiny_config(
        prepared.folder, run, "train.max_steps=2", f"train.start_from={first}", f"train.freeze={frozen}"
    )
    train(config)
    report = json.loads((run / "start.json").read_text())
    before, after = load_file(first / "model.safetensors"), weights(run, 2)
    assert {*report["taken"], *report["rows"]} == before.keys()
    assert report["rows"]["embedding.weight"] == {"taken": 400, "of": 400}
    assert (report["new"], report["left"]) == ([], [])
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert kept == set(report["frozen"]) == {name for name in before if name.startswith(("embedding.", "encoder."))}
    (answer,) = (answer for answer in diagnose(run) if answer.number == 9)
    assert "that learn, + 16 predict" in answer.verdict
    train(config.model_copy(update={"train": config.train.model_copy(update={"max_steps": 4})}), resume=True)
    assert torch.equal(weights(run, 4)["embedding.weight"], before["embedding.weight"])


def test_rows_of_another_vocabulary_are_found_by_subword(prepared, first, tmp_path):
    write_corpus(tmp_path, sentences(*range(60)), sentences(60, 61))
    overrides = (
        f"train.start_from={first}",
        "train.max_steps=1",
        "schedule.learning_rate=1e-9",
        "model.decoder_layers=1",
    )
    config = config_for(tmp_path, *overrides)
    prepare(config)
    train(config)
    report = json.loads((tmp_path / "run" / "start.json").read_text())
    new, old = PreparedData(config.data.folder).vocabulary.processor, prepared.vocabulary.processor
    common = {new.id_to_piece(index) for index in range(120)} & {old.id_to_piece(index) for index in range(400)}
    assert report["rows"]["embedding.weight"] == {"taken": len(common), "of": 120}
    assert all(name.startswith("decoder.1.") for name in report["left"])
    before, after = (
        load_file(first / "model.safetensors")["embedding.weight"],
        weights(tmp_path / "run", 1)["embedding.weight"],
    )
    for piece in common:
        torch.testing.assert_close(after[new.piece_to_id(piece)], before[old.piece_to_id(piece)], rtol=0, atol=1e-6)


def test_what_cannot_start_is_refused_before_the_run(prepared, first, tmp_path):
    def start(*overrides):
        train(tiny_config(prepared.folder, tmp_path / "run", *overrides))

    with pytest.raises(RunError, match="no such folder"):
        start("train.start_from=nowhere")
    with pytest.raises(RunError, match=r'set model\.activation = "relu"'):
        start(f"train.start_from={first}", "model.activation=swish")
    with pytest.raises(RunError, match=r"set model\.heads = \d"):
        start(f"train.start_from={first}", "model.heads=1")
    with pytest.raises(RunError, match="not one of its tensors fits"):
        start(f"train.start_from={first}", "model.d_model=48", "model.d_ff=96")
    with pytest.raises(ConfigError, match=r"no tensor is called 'encodr\.\*'"):
        start('train.freeze=["encodr.*"]')
    with pytest.raises(ConfigError, match="nothing would be learnt"):
        start('train.freeze=["*"]')
    assert not (tmp_path / "run" / "run.toml").exists()
