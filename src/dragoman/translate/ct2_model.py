"""The model as CTranslate2 reads it: build the specification from our modules, validate, optimise, save.

Both sides fuse projections in the same order (query, key, value), so every matrix goes over as it is.
A test holds the export to the same translations and, in float32, to the same log-probabilities.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn

from dragoman.data.subwords import BOS, EOS, UNK, Vocabulary
from dragoman.errors import DragomanError, require_extra
from dragoman.model import folder as model_folder
from dragoman.model.layers import DecoderBlock, EncoderBlock, is_marian, waves
from dragoman.model.transformer import Transformer
from dragoman.translate.ct2_engine import POSITIONS
from dragoman.translate.models import read_whole


def write_ctranslate2(folder: Path, fresh: Path, quantization: str | None) -> None:
    library = require_extra("ctranslate2", "export", "exporting to CTranslate2")
    accepted = library.specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization is not None and quantization not in accepted:
        raise DragomanError(f"export: quantization {quantization!r} is not known; choose one of {', '.join(accepted)}")
    model, description, vocabulary = read_whole(folder)
    spec = specification(library, model, vocabulary)
    spec.validate()
    spec.optimize(quantization=quantization)  # overwrites the weights of `model`
    spec.save(str(fresh))
    model_folder.write_description(fresh, description, vocabulary.path)


def specification(library: ModuleType, model: Transformer, vocabulary: Vocabulary) -> Any:
    section = model.section
    activations = library.specs.common_spec.Activation
    spec = library.specs.TransformerSpec.from_config(
        (section.encoder_layers, section.decoder_layers),
        section.heads,
        pre_norm=not is_marian(section),
        activation=activations.RELU if section.activation == "relu" else activations.SWISH,
        alignment_layer=model.aligning_layer,
        alignment_heads=section.heads,
    )
    set_tokens(spec, vocabulary)
    spec.config.layer_norm_epsilon = model.decoder[0].attention_norm.eps  # type: ignore[union-attr]

    spec.encoder.embeddings[0].weight = (model.source_embedding or model.embedding).weight
    spec.decoder.embeddings.weight = model.embedding.weight
    spec.decoder.projection.weight = model.embedding.weight
    for side, blocks in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        side.position_encodings.encodings = waves(torch.arange(POSITIONS), section)
        for layer, block in zip(side.layer, blocks, strict=True):
            set_layer(layer, cast(EncoderBlock | DecoderBlock, block))
    if model.encoder_norm and model.decoder_norm:
        set_norm(spec.encoder.layer_norm, model.encoder_norm)
        set_norm(spec.decoder.layer_norm, model.decoder_norm)
    if model.output_bias is not None:
        spec.decoder.projection.bias = model.output_bias
    return spec


def set_tokens(spec: Any, vocabulary: Vocabulary) -> None:
    """A source ends with the end mark and has no begin mark; a target begins with the begin mark."""
    pieces = vocabulary.pieces()
    spec.register_source_vocabulary(vocabulary.source.pieces())
    spec.register_target_vocabulary(pieces)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = pieces[BOS], pieces[EOS], pieces[UNK]
    spec.config.decoder_start_token = pieces[BOS]
    spec.config.add_source_bos, spec.config.add_source_eos = False, True


def set_layer(spec: Any, block: EncoderBlock | DecoderBlock) -> None:
    set_attention(spec.self_attention, block.attention_norm, block.attention.query_key_value, block.attention.output)
    if isinstance(block, DecoderBlock):
        set_attention(spec.attention, block.cross_norm, block.cross.query, block.cross.key_value, block.cross.output)
    set_norm(spec.ffn.layer_norm, block.feed_forward_norm)
    set_linear(spec.ffn.linear_0, block.feed_forward.inner)
    set_linear(spec.ffn.linear_1, block.feed_forward.outer)


def set_attention(spec: Any, norm: nn.LayerNorm, *linears: nn.Linear) -> None:
    set_norm(spec.layer_norm, norm)
    for part, linear in zip(spec.linear, linears, strict=True):
        set_linear(part, linear)


def set_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = linear.weight
    if linear.bias is not None:
        spec.bias = linear.bias


def set_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = norm.weight, norm.bias
