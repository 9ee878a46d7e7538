"""The model as two ONNX graphs, through torch's exporter: whoever runs them keeps the loop of the search.

encoder.onnx   source [B, S], source_mask [B, S]                                 ->  memory [B, S, D]
decoder.onnx   target [B, T], memory [B, S, D], source_mask [B, S]               ->  logits [B, T, V]
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.errors import require_extra
from dragoman.model import folder as model_folder
from dragoman.model.transformer import Transformer
from dragoman.translate.models import read_whole


class Part(nn.Module):
    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model


class Encoder(Part):
    def forward(self, source: Tensor, source_mask: Tensor) -> Tensor:
        memory = self.model.encode(source, positions(source), source_mask)
        assert isinstance(memory, Tensor), "8 bits are for learning"
        return memory


class Decoder(Part):
    def forward(self, target: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
        hidden = self.model.decode(target, positions(target), torch.ones_like(target), memory, source_mask)
        return self.model.logits(hidden)


def positions(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def write_onnx(folder: Path, fresh: Path) -> None:
    for module in ("onnx", "onnxscript"):
        require_extra(module, "onnx", "exporting to ONNX")
    model, description, vocabulary = read_whole(folder)
    source, target = torch.ones(2, 9, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)
    memory = torch.zeros(2, 9, description.model.d_model)
    sizes = {"rows": 4096, "slots": 1024, "target_slots": 1024}
    rows, slots, target_slots = (torch.export.Dim(name, min=1, max=most) for name, most in sizes.items())
    by_source, by_target = {0: rows, 1: slots}, {0: rows, 1: target_slots}
    write(fresh / "encoder.onnx", Encoder(model), (source, source.clone()), (by_source, by_source), "memory")
    shapes = (by_target, by_source, by_source)
    write(fresh / "decoder.onnx", Decoder(model), (target, memory, source), shapes, "logits")
    model_folder.write_description(fresh, description, vocabulary.path)


def write(
    path: Path, module: nn.Module, inputs: tuple[Tensor, ...], shapes: tuple[dict[int, torch.export.Dim], ...], out: str
) -> None:
    names = list(module.forward.__annotations__)[: len(inputs)]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            inputs,
            path,
            input_names=names,
            output_names=[out],
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
