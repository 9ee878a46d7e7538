"""Encoder, decoder and the one matrix they share with the output.

Shapes in names: B rows, S source slots, T target slots, D model width, V vocabulary, N hypotheses (B x beam).
Segments tell which slots of a row belong to the same pair; 0 is an empty slot (see data/pack).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config.schema import Model
from dragoman.model.layers import DecoderBlock, EncoderBlock, KeyValue


@dataclass
class Cache:
    """What incremental decoding remembers: projected source, and keys and values of the target so far."""

    memory: list[KeyValue]
    cross_mask: Tensor
    past: list[KeyValue | None]
    length: int = 0

    def select(self, hypotheses: Tensor, sentences: Tensor | None = None) -> None:
        """Go on with these hypotheses (and only these sentences, when some are finished)."""
        self.past = [(key[hypotheses], value[hypotheses]) for key, value in self.past if key is not None]  # type: ignore[misc]
        if sentences is not None:
            self.memory = [(key[sentences], value[sentences]) for key, value in self.memory]
            self.cross_mask = self.cross_mask[sentences]


class Transformer(nn.Module):
    def __init__(self, section: Model, vocab_size: int):
        super().__init__()
        self.section = section
        self.embedding = nn.Embedding(vocab_size, section.d_model)
        self.encoder = nn.ModuleList(EncoderBlock(section) for _ in range(section.encoder_layers))
        self.encoder_norm = nn.LayerNorm(section.d_model)
        self.decoder = nn.ModuleList(DecoderBlock(section) for _ in range(section.decoder_layers))
        self.decoder_norm = nn.LayerNorm(section.d_model)
        self.dropout = nn.Dropout(section.dropout)
        self.register_buffer("frequencies", frequencies(section.d_model), persistent=False)

    def init_weights(self, seed: int) -> None:
        """The same weights for the same seed, whatever was drawn before."""
        generator = torch.Generator().manual_seed(seed)
        width = self.section.d_model
        nn.init.normal_(self.embedding.weight, std=width**-0.5, generator=generator)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                # Fused projections are several matrices in one: each is drawn as if it stood alone.
                fused = module.out_features // width if module.bias is None else 1
                for part in module.weight.data.chunk(fused):
                    nn.init.xavier_uniform_(part, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def embed(self, ids_BT: Tensor, position_BT: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids_BT) * math.sqrt(self.section.d_model) + self.waves(position_BT))

    def waves(self, position_BT: Tensor) -> Tensor:
        """Sinusoidal positions: no table, so no sentence is too long."""
        angles = position_BT.unsqueeze(-1) * self.frequencies  # type: ignore[operator]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def encode(self, source_BS: Tensor, position_BS: Tensor, segment_BS: Tensor) -> Tensor:
        mask = same_segment(segment_BS, segment_BS)
        x_BSD = self.embed(source_BS, position_BS)
        for block in self.encoder:
            x_BSD = block(x_BSD, mask)
        return self.encoder_norm(x_BSD)

    def decode(
        self, target_BT: Tensor, position_BT: Tensor, segment_BT: Tensor, memory_BSD: Tensor, source_segment_BS: Tensor
    ) -> Tensor:
        """The last hidden state of every target slot; `logits` turns it into scores."""
        width = target_BT.shape[1]
        past_only = torch.ones(width, width, dtype=torch.bool, device=target_BT.device).tril()
        mask = same_segment(segment_BT, segment_BT) & past_only
        # Empty slots may look anywhere: a row of the softmax without any key would be NaN.
        cross_mask = same_segment(segment_BT, source_segment_BS) | (segment_BT == 0)[:, None, :, None]
        x_BTD = self.embed(target_BT, position_BT)
        for block in self.decoder:
            x_BTD = block(x_BTD, mask, memory_BSD, cross_mask)
        return self.decoder_norm(x_BTD)

    def logits(self, x_BTD: Tensor) -> Tensor:
        return F.linear(x_BTD, self.embedding.weight)

    # --- one position at a time ---

    def start(self, source_BS: Tensor, segment_BS: Tensor) -> Cache:
        """Encode padded sources, one a row."""
        position_BS = torch.arange(source_BS.shape[1], device=source_BS.device).expand_as(source_BS)
        memory_BSD = self.encode(source_BS, position_BS, segment_BS)
        memory = [block.cross.memory(memory_BSD) for block in self.decoder]  # type: ignore[union-attr,operator]
        return Cache(memory, (segment_BS > 0)[:, None, None, :], [None] * len(self.decoder))

    def step(self, target_N: Tensor, cache: Cache) -> Tensor:
        """Logits [N, V] of the position after `target_N`, and the cache one longer."""
        x_N1D = self.embed(target_N[:, None], torch.full_like(target_N[:, None], cache.length))
        for layer, block in enumerate(self.decoder):
            x_N1D, cache.past[layer] = block.step(x_N1D, cache.past[layer], cache.memory[layer], cache.cross_mask)  # type: ignore[operator]
        cache.length += 1
        return self.logits(self.decoder_norm(x_N1D)).squeeze(1)


def same_segment(query_BT: Tensor, key_BS: Tensor) -> Tensor:
    return (query_BT[:, :, None] == key_BS[:, None, :])[:, None]


def frequencies(width: int) -> Tensor:
    """Wave lengths from 2 pi to 10,000 * 2 pi, as in tensor2tensor."""
    half = width // 2
    return torch.exp(torch.arange(half, dtype=torch.float32) * (-math.log(10_000.0) / max(1, half - 1)))
