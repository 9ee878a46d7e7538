"""Separate vocabularies: each side is cut by its own, and so it stays in training, resuming, translating and exporting."""

import pytest
import torch
from support import SENTENCES, config_for, write_corpus

from dragoman.cli.stages import prepare, train
from dragoman.config import load_config
from dragoman.data.subwords import BOS
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
    translator = Translator.load(folder / "run", "cpu")
    assert translator.model.source_embedding.weight.shape == (60, 32)
    whole = sum(parameter.numel() for parameter in translator.model.parameters())
    joint = sum(parameter.numel() for parameter in Transformer(translator.model.section, 60).parameters())
    assert whole - joint == 60 * 32
    text = [source for source, _ in SENTENCES[:5]]
    ours = translator.translate(text, beam=2)
    again = export(folder / "run", tmp_path / "weights", kind="dragoman")
    assert Translator.load(again, "cpu").translate(text, beam=2) == ours
    (again / "source.model").unlink()
    with pytest.raises(RunError):
        export(again, tmp_path / "broken", kind="dragoman")


def test_ctranslate2_has_both(trained, tmp_path):
    library = pytest.importorskip("ctranslate2")
    folder, _ = trained
    exported = export(folder / "run", tmp_path / "ct2", kind="ctranslate2")
    translator = Translator.load(folder / "run", "cpu")
    source, target = translator.vocabulary.source, translator.vocabulary
    pieces = [
        each.processor.encode(text, out_type=str) for each, text in zip((source, target), SENTENCES[7], strict=True)
    ]
    ids = [torch.tensor(each.encode([text])) for each, text in zip((source, target), SENTENCES[7], strict=True)]
    with torch.inference_mode():
        cache = translator.model.start(ids[0], torch.ones_like(ids[0]))
        shifted = [BOS, *ids[1][0, :-1].tolist()]
        steps = [translator.model.step(torch.tensor([piece]), cache).log_softmax(-1)[0] for piece in shifted]
    ours = [float(step[piece]) for step, piece in zip(steps, ids[1][0].tolist(), strict=True)]
    (theirs,) = library.Translator(str(exported), device="cpu").score_batch(pieces[:1], pieces[1:])
    assert theirs.log_probs == pytest.approx(ours, abs=1e-4)


def test_a_given_model_is_one_for_both():
    with pytest.raises(ConfigError, match="one vocabulary for both sides"):
        load_config("tiny", ["subwords.joint=false", "subwords.model=x", "data.corpus=grammar"])
