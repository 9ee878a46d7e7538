"""The two ONNX graphs have the logits of the model, and greedy search around them gives its translations."""

import pytest
import torch

from dragoman.data.subwords import BOS, EOS, PAD
from dragoman.exporting import export
from dragoman.translate import Translator
from dragoman.translate.torch_engine import padded

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def graphs(checkpoint, tmp_path_factory):
    folder = export(checkpoint, tmp_path_factory.mktemp("exports") / "onnx", kind="onnx")
    return [onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder")]


@pytest.fixture(scope="module")
def translator(checkpoint):
    return Translator.load(checkpoint, "cpu", engine="torch")


def test_the_graphs_have_the_logits_of_the_model(graphs, translator, sentences):
    model, (encoder, decoder) = translator.engine.model, graphs
    source, mask = padded(translator.vocabulary.encode(sentences[:-1]), torch.device("cpu"))
    target = torch.randint(4, len(translator.vocabulary), (len(source), 17), generator=torch.Generator().manual_seed(1))
    places = [torch.arange(ids.shape[1]).expand_as(ids) for ids in (source, target)]
    with torch.no_grad():
        memory = model.encode(source, places[0], mask)
        expected = model.logits(model.decode(target, places[1], torch.ones_like(target), memory, mask))
    theirs = encoder.run(None, {"source": source.numpy(), "source_mask": mask.numpy()})[0]
    inputs = {"target": target.numpy(), "memory": theirs, "source_mask": mask.numpy()}
    torch.testing.assert_close(torch.tensor(decoder.run(None, inputs)[0]), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.5, "a model that says nothing would prove nothing"


def test_the_graphs_translate_as_the_model_does(graphs, translator, sentences):
    encoder, decoder = graphs
    texts = sentences[:6]
    source, mask = (tensor.numpy() for tensor in padded(translator.vocabulary.encode(texts), torch.device("cpu")))
    memory = encoder.run(None, {"source": source, "source_mask": mask})[0]
    target = torch.full((len(texts), 1), BOS)
    for _ in range(30):
        inputs = {"target": target.numpy(), "memory": memory, "source_mask": mask}
        logits = torch.tensor(decoder.run(None, inputs)[0][:, -1])
        logits[:, [PAD, BOS]] = float("-inf")
        target = torch.cat([target, logits.argmax(-1, keepdim=True)], dim=1)
    found = [row[1 : row.index(EOS)] if EOS in row else row[1:] for row in target.tolist()]
    assert translator.vocabulary.decode(found) == translator.translate(texts, beam=1)
