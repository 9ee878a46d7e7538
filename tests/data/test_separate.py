"""Separate vocabularies: each side is cut by its own, and so it stays in training, resuming, translating and exporting."""

import pytest
from support import SENTENCES, config_for, write_corpus

from dragoman.cli.stages import prepare, train
from dragoman.config import load_config
from dragoman.errors import ConfigError, RunError
from dragoman.exporting import export
from dragoman.model.transformer import Transformer
from dragoman.translate import Translator


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_corpus(tmp_path_factory.mktemp("separate"))
    settings = ["subwords.joint=false", "subwords.vocab_size=60", "data.shard_pairs=100", "train.max_steps=4"]
    config = config_for(folder, *settings, "validation.every=2", "checkpoint.every=2")
    data = prepare(config, workers=2)
    train(config)
    return folder, data


def test_each_side_is_cut_by_its_own(trained):
    _, data = trained
    encoded = data.encoded("train")
    for vocabulary, side, text in (
        (data.vocabulary.source, encoded.source, [source for source, _ in SENTENCES]),
        (data.vocabulary, encoded.target, [target for _, target in SENTENCES]),
    ):
        assert vocabulary.encode(text) == [side.sentence(index).tolist() for index in range(len(text))]
    assert data.vocabulary.source.digest() != data.vocabulary.digest()
    assert (data.manifest["vocabulary"]["size"], data.manifest["vocabulary"]["source_size"]) == (60, 60)
    letters = [
        "ü" in "".join(map(each.processor.id_to_piece, range(60))) for each in (data.vocabulary.source, data.vocabulary)
    ]
    assert letters == [False, True]


def test_a_model_keeps_both(trained, tmp_path):
    folder, _ = trained
    translator = Translator.load(folder / "run", "cpu", engine="torch")
    model = translator.engine.model
    assert model.source_embedding.weight.shape == (60, 32)
    whole = sum(parameter.numel() for parameter in model.parameters())
    joint = sum(parameter.numel() for parameter in Transformer(model.section, 60).parameters())
    assert whole - joint == 60 * 32
    text = [source for source, _ in SENTENCES[:5]]
    ours = translator.translate(text, beam=2)
    again = export(folder / "run", tmp_path / "weights", kind="dragoman")
    assert Translator.load(again, "cpu", engine="torch").translate(text, beam=2) == ours
    with pytest.raises(RunError, match="a vocabulary for each side"):
        export(again, tmp_path / "hf", kind="huggingface")
    (again / "source.model").unlink()
    with pytest.raises(RunError):
        export(again, tmp_path / "broken", kind="dragoman")


def test_ctranslate2_has_both(trained, tmp_path):
    pytest.importorskip("ctranslate2")
    folder, _ = trained
    exported = export(folder / "run", tmp_path / "ct2", kind="ctranslate2")
    engines = Translator.load(folder / "run", "cpu", engine="torch"), Translator.load(exported, "cpu")
    text = [source for source, _ in SENTENCES[:20]]
    ours, theirs = (each.search(text, each.request(beam=3, extra_length=200)) for each in engines)
    assert [best[0].text for best in ours] == [best[0].text for best in theirs]
    ended = [
        place for place, best in enumerate(ours) if len(best[0].text) < 100
    ]  # those that never end have another score
    assert ended
    assert [theirs[place][0].score for place in ended] == pytest.approx(
        [ours[place][0].score for place in ended], abs=1e-3
    )


def test_a_given_model_is_one_for_both():
    with pytest.raises(ConfigError, match="one vocabulary for both sides"):
        load_config("tiny", ["subwords.joint=false", "subwords.model=x", "data.corpus=grammar"])
