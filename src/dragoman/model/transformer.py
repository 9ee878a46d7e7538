"""Encoder, decoder and the one matrix they share with the output; the encoder has one of its own where vocabularies are
separate.

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
from dragoman.model.layers import (
    AddNorm,
    CrossAttention,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    KeyValue,
    SelfAttention,
)
from dragoman.model.ops import sight, stream

WIDE = 1024  # models of this width use 8 bits inside their layers too
TABLE = 1024  # positions that are looked up: sines are slow to compute


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
    eight_bits = False  # of the output matrix

    def __init__(self, section: Model, vocab_size: int, source_vocab_size: int = 0):
        super().__init__()
        self.section = section
        self.embedding = nn.Embedding(vocab_size, section.d_model)
        self.source_embedding = nn.Embedding(source_vocab_size, section.d_model) if source_vocab_size else None
        self.encoder = nn.ModuleList(EncoderBlock(section) for _ in range(section.encoder_layers))
        self.encoder_norm = AddNorm(section)
        self.decoder = nn.ModuleList(DecoderBlock(section) for _ in range(section.decoder_layers))
        self.decoder_norm = AddNorm(section)
        self.register_buffer("waves", waves(torch.arange(TABLE), section.d_model), persistent=False)

    def init_weights(self, seed: int) -> None:
        """The same weights for the same seed, whatever was drawn before."""
        generator = torch.Generator().manual_seed(seed)
        width = self.section.d_model
        for embedding in filter(None, (self.embedding, self.source_embedding)):
            nn.init.normal_(embedding.weight, std=width**-0.5, generator=generator)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                # Fused projections are several matrices in one: each is drawn as if it stood alone.
                fused = module.out_features // width if module.bias is None else 1
                for part in module.weight.data.chunk(fused):
                    nn.init.xavier_uniform_(part, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def use_eight_bits(self) -> None:
        """Forward products with large matrices in fp8: always that of the output; those inside the layers where the model is
        wide enough to win more than the conversion costs."""
        self.eight_bits = True
        for module in self.modules():
            if isinstance(module, SelfAttention | CrossAttention | FeedForward):
                module.eight_bits = self.section.d_model >= WIDE

    def embed(self, ids_BT: Tensor, position_BT: Tensor, embedding: nn.Embedding | None = None) -> Tensor:
        embedded = (embedding or self.embedding)(ids_BT) * math.sqrt(self.section.d_model) + self.place(position_BT)
        return stream(embedded, self.section.dropout if self.training else 0.0)

    def place(self, position_BT: Tensor) -> Tensor:
        """Looked up where a row is no longer than the table, computed otherwise: no sentence is too long."""
        if position_BT.shape[1] <= TABLE and position_BT.shape[1] > 1:
            return F.embedding(position_BT, self.waves)  # type: ignore[arg-type]
        return waves(position_BT, self.section.d_model)

    def encode(self, source_BS: Tensor, position_BS: Tensor, segment_BS: Tensor) -> Tensor:
        seen = sight(segment_BS, segment_BS)
        x_BSD, update = self.embed(source_BS, position_BS, self.source_embedding), None
        for block in self.encoder:
            x_BSD, update = block(x_BSD, update, seen)
        return self.encoder_norm(x_BSD, update)[1]

    def decode(
        self, target_BT: Tensor, position_BT: Tensor, segment_BT: Tensor, memory_BSD: Tensor, source_segment_BS: Tensor
    ) -> Tensor:
        """The last hidden state of every target slot; `logits` turns it into scores."""
        seen, seen_source = sight(segment_BT, segment_BT, causal=True), sight(segment_BT, source_segment_BS)
        x_BTD, update = self.embed(target_BT, position_BT), None
        for block in self.decoder:
            x_BTD, update = block(x_BTD, update, seen, memory_BSD, seen_source)
        return self.decoder_norm(x_BTD, update)[1]

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
        x_N1D, update = self.embed(target_N[:, None], torch.full_like(target_N[:, None], cache.length)), None
        for layer, block in enumerate(self.decoder):
            past, memory = cache.past[layer], cache.memory[layer]
            x_N1D, update, cache.past[layer] = block.step(x_N1D, update, past, memory, cache.cross_mask)  # type: ignore[operator]
        cache.length += 1
        return self.logits(self.decoder_norm(x_N1D, update)[1]).squeeze(1)


def waves(position: Tensor, width: int) -> Tensor:
    """Sinusoidal positions, wave lengths from 2 pi to 10,000 * 2 pi, as in tensor2tensor."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=position.device)
    angles = position.unsqueeze(-1) * torch.exp(steps * (-math.log(10_000.0) / max(1, half - 1)))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
