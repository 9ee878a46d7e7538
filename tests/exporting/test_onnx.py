"""Greedy search around the two ONNX graphs gives the translations of the model."""

import pytest
import torch

from dragoman.data.subwords import BOS, EOS, PAD
from dragoman.exporting import export
from dragoman.translate import Translator
from dragoman.translate.torch_engine import padded

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


def test_the_graphs_translate_as_the_model_does(checkpoint, sentences, tmp_path):
    folder = export(checkpoint, tmp_path / "onnx", kind="onnx")
    encoder, decoder = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    translator = Translator.load(checkpoint, "cpu", engine="torch")
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
