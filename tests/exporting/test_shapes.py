"""Random models of several shapes: every format computes what the model computes, or is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from dragoman.config.schema import Model, Subwords, Translate
from dragoman.data.subwords import BOS, EOS, UNK, Vocabulary, learn
from dragoman.errors import RunError
from dragoman.exporting import export
from dragoman.exporting.huggingface import import_model
from dragoman.model.folder import Description, write_model
from dragoman.model.layers import is_marian
from dragoman.model.transformer import Transformer
from dragoman.translate import Translator
from dragoman.translate.torch_engine import padded

SHAPES = {
    "deep encoder": {"encoder_layers": 3, "decoder_layers": 1},
    "deep decoder, three heads": {"encoder_layers": 1, "decoder_layers": 3, "d_model": 48, "heads": 3, "d_ff": 40},
    "swish": {"activation": "swish"},
    "marian": {"style": "marian", "activation": "swish", "encoder_layers": 2, "decoder_layers": 1},
    "two vocabularies": {"encoder_layers": 2, "decoder_layers": 1},
    "two vocabularies, marian": {"style": "marian", "activation": "swish", "encoder_layers": 2, "decoder_layers": 1},
}


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, pairs, vocabulary, tmp_path_factory) -> Path:
    """Every tensor drawn, norms and biases too."""
    folder = tmp_path_factory.mktemp(request.param.split()[0])
    learned = folder / "learned"
    learned.mkdir()
    (learned / "vocabulary.model").write_bytes(vocabulary.path.read_bytes())
    if "two vocabularies" in request.param:
        learn([pa.array([source for source, _ in pairs])], Subwords(vocab_size=60), learned / "source.model")
    both = Vocabulary(learned / "vocabulary.model")
    usual = {"d_model": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 64}
    section = Model(**usual | SHAPES[request.param])
    model = Transformer(section, len(both), both.source_size)
    model.init_weights(seed=2)
    generator = torch.Generator().manual_seed(2)
    for tensor in model.state_dict().values():
        tensor += 0.15 * torch.randn(tensor.shape, generator=generator)
    description = Description(section, len(both), "en", "de", Translate(extra_length=10), both.source_size)
    write_model(folder, model.state_dict(), description, both.path)
    return folder


@pytest.fixture(scope="module")
def translator(folder) -> Translator:
    return Translator.load(folder, "cpu", engine="torch")


def logits(translator, sentences):
    """Of any source and any target; and both of them."""
    model = translator.engine.model
    source, mask = padded(translator.vocabulary.source.encode(sentences), torch.device("cpu"))
    target = torch.randint(4, len(translator.vocabulary), (len(source), 9), generator=torch.Generator().manual_seed(1))
    target[:, 0] = BOS
    places = [torch.arange(ids.shape[1]).expand_as(ids) for ids in (source, target)]
    with torch.no_grad():
        memory = model.encode(source, places[0], mask)
        found = model.logits(model.decode(target, places[1], torch.ones_like(target), memory, mask))
    assert found.std() > 0.5, "a model that says nothing would prove nothing"
    return found, source, mask, target


def test_ctranslate2(folder, translator, sentences, tmp_path):
    """Every probability of given pieces, and the same pieces when it chooses."""
    pytest.importorskip("ctranslate2")
    other = Translator.load(export(folder, tmp_path / "ct2", kind="ctranslate2"), "cpu")
    found, _, _, target = logits(translator, sentences[:5])
    following = torch.cat([target[:, 1:], torch.full((5, 1), EOS)], dim=1)
    expected = found.log_softmax(dim=-1).gather(2, following[:, :, None])[:, :, 0]
    vocabulary = translator.vocabulary
    cut = vocabulary.source.processor.encode(sentences[:5], out_type=str)
    given = [vocabulary.processor.id_to_piece(row) for row in target[:, 1:].tolist()]
    scored = [result.log_probs for result in other.engine.translator.score_batch(cut, given)]
    torch.testing.assert_close(torch.tensor(scored), expected, rtol=1e-4, atol=1e-4)
    sources = vocabulary.source.encode(sentences[:8])
    ours, theirs = (
        each.engine.search(sources, [[] for _ in sources], translator.request(beam=1)) for each in (translator, other)
    )
    assert [found.ids for (found,) in ours] == [found.ids for (found,) in theirs]


def test_huggingface(folder, translator, sentences, tmp_path):
    transformers = pytest.importorskip("transformers")
    if translator.vocabulary.source_size and not is_marian(translator.engine.model.section):
        with pytest.raises(
            RunError, match="which transformers knows of Marian only; style tensor2tensor becomes Pegasus"
        ):
            export(folder, tmp_path / "hf", kind="huggingface")
        assert not list(tmp_path.iterdir())
        return
    out = export(folder, tmp_path / "hf", kind="huggingface")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
    expected, source, mask, target = logits(translator, sentences[:5])
    with torch.no_grad():
        found = theirs.eval()(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    batch = tokenizer(sentences[:5], return_tensors="pt", padding=True)
    assert torch.equal(batch["input_ids"], source)
    greedy = theirs.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=10)
    wanted = [found[0].text for found in translator.search(sentences[:5], translator.request(beam=1, extra_length=90))]
    told = [" ".join(text.split()) for text in tokenizer.batch_decode(greedy, skip_special_tokens=True)]
    assert all(" ".join(ours.split()).startswith(theirs) for ours, theirs in zip(wanted, told, strict=True)), (
        wanted,
        told,
    )
    back = Translator.load(import_model(out, tmp_path / "back"), "cpu", engine="torch")
    again, same, _, _ = logits(back, sentences[:5])
    assert torch.equal(same, source)
    torch.testing.assert_close(again[..., UNK:], expected[..., UNK:], rtol=1e-4, atol=1e-4)  # marks have other rows


@pytest.mark.parametrize("folder", ["marian"], indirect=True)  # torch's exporter takes ten seconds for each
def test_onnx(folder, translator, sentences, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    out = export(folder, tmp_path / "onnx", kind="onnx")
    encoder, decoder = (onnxruntime.InferenceSession(out / f"{name}.onnx") for name in ("encoder", "decoder"))
    expected, source, mask, target = logits(translator, sentences[:5])
    memory = encoder.run(None, {"source": source.numpy(), "source_mask": mask.numpy()})[0]
    inputs = {"target": target.numpy(), "memory": memory, "source_mask": mask.numpy()}
    torch.testing.assert_close(torch.tensor(decoder.run(None, inputs)[0]), expected, rtol=1e-4, atol=1e-4)
