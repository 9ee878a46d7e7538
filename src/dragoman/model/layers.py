"""Attention, feed-forward and the two kinds of block. Every sublayer is x + dropout(f(norm(x))), or in the style of Marian
norm(x + dropout(f(x))).

Adding the output of a sublayer to the stream and norming the sum for the next sublayer is one operation, `AddNorm`. So a block
takes the stream and the update that is still to be added to it, and hands on the same two. In the style of Marian nothing is
left to be added: the stream is the norm of the sum.

Shapes in names: B rows, T target slots, S source slots, D model width, K hypotheses of a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config.schema import Model
from dragoman.model import ops, plain
from dragoman.model.ops import Descent, Sight
from dragoman.model.plain import Small

KeyValue = tuple[Tensor, Tensor]
Normed = Tensor | Small  # the latter while learning alone
Stream = tuple[Tensor, Tensor | None]  # and the update that is still to be added to it
Sublayer = Callable[[Any], Tensor]  # of what a norm hands on

LOOKED_UP = 1024  # positions: sines are slow to compute


def is_marian(section: Model) -> bool:
    return section.style == "marian"


class AddNorm(nn.LayerNorm):
    """x + dropout(update), and the norm of the sum."""

    eight_bits = False  # while it learns, where all that read the norm are in 8 bits, see Transformer.use_eight_bits

    def __init__(self, section: Model):
        super().__init__(section.d_model)
        self.dropout = section.dropout

    def forward(self, x: Tensor, update: Tensor | None = None) -> tuple[Tensor, Normed]:  # type: ignore[override]
        if update is None:
            return x, plain.norm(x, self.weight, self.bias, self.eps)
        dropout, eight_bits = self.dropout if self.training else 0.0, self.eight_bits and self.training
        return ops.add_norm(x, update, self.weight, self.bias, self.eps, dropout, eight_bits=eight_bits)


class Beginning(nn.Module):
    """Embeddings in their places: what goes into the first block."""

    def __init__(self, section: Model):
        super().__init__()
        self.section = section
        self.register_buffer("table", waves(torch.arange(LOOKED_UP), section), persistent=False)

    def forward(self, ids_BT: Tensor, position_BT: Tensor, slots: int, weight_VD: Tensor) -> Tensor:
        """Positions are looked up where a row has no more slots than the table, computed otherwise: no sentence is too long."""
        few = slots <= LOOKED_UP
        place_BTD = F.embedding(position_BT, self.table) if few else waves(position_BT, self.section)  # type: ignore[arg-type]
        embedded = ops.embed(ids_BT, weight_VD) * math.sqrt(self.section.d_model) + place_BTD
        return ops.ready_to_add(embedded.to(weight_VD.dtype))


def waves(position: Tensor, section: Model) -> Tensor:
    """Sinusoidal positions, wave lengths from 2 pi to 10,000 * 2 pi, as in tensor2tensor; Marian stops one step before."""
    half = section.d_model // 2
    steps = torch.arange(half, dtype=torch.float32, device=position.device)
    last = half if is_marian(section) else max(1, half - 1)
    angles = position.unsqueeze(-1) * torch.exp(steps * (-math.log(10_000.0) / last))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class SelfAttention(nn.Module):
    """Attention of a row over itself, without biases. `query_key_value` is three d x d matrices in one."""

    eight_bits = False

    def __init__(self, section: Model):
        super().__init__()
        self.heads = section.heads
        self.dropout = section.attention_dropout
        self.query_key_value = nn.Linear(section.d_model, 3 * section.d_model, bias=is_marian(section))
        self.output = nn.Linear(section.d_model, section.d_model, bias=is_marian(section))

    def forward(self, x_BTD: Normed, seen: Sight) -> Tensor:
        dropout, eight_bits = self.dropout if self.training else 0.0, self.eight_bits and self.training
        into, out_of = self.query_key_value, self.output
        if eight_bits and into.bias is None and seen.mask is None:
            matrices = (into.weight, None, out_of.weight)
            return ops.attention_in_eight_bits(x_BTD, None, matrices, seen, self.heads, dropout)
        packed = ops.linear(x_BTD, into.weight, into.bias, eight_bits=eight_bits)
        attended = ops.self_attention(packed, seen, self.heads, dropout)
        return ops.linear(attended, out_of.weight, out_of.bias, eight_bits=eight_bits)

    def step(self, x_BKD: Tensor, past: KeyValue, seen: Descent) -> Tensor:
        """One more position of K hypotheses of every sentence."""
        return self.output(ops.search_self(self.query_key_value(x_BKD), past, seen, self.heads))


class CrossAttention(nn.Module):
    """Attention of the target over the encoded source, without biases."""

    eight_bits = False

    def __init__(self, section: Model):
        super().__init__()
        self.heads = section.heads
        self.dropout = section.attention_dropout
        self.query = nn.Linear(section.d_model, section.d_model, bias=is_marian(section))
        self.key_value = nn.Linear(section.d_model, 2 * section.d_model, bias=is_marian(section))
        self.output = nn.Linear(section.d_model, section.d_model, bias=is_marian(section))

    def forward(self, x_BTD: Normed, memory_BSD: Normed, seen: Sight) -> Tensor:
        dropout, eight_bits = self.dropout if self.training else 0.0, self.eight_bits and self.training
        if eight_bits and self.query.bias is None and seen.mask is None:
            matrices = (self.query.weight, self.key_value.weight, self.output.weight)
            return ops.attention_in_eight_bits(x_BTD, memory_BSD, matrices, seen, self.heads, dropout)
        query = ops.linear(x_BTD, self.query.weight, self.query.bias, eight_bits=eight_bits)
        key_value = ops.linear(memory_BSD, self.key_value.weight, self.key_value.bias, eight_bits=eight_bits)
        attended = ops.cross_attention(query, key_value, seen, self.heads, dropout)
        return ops.linear(attended, self.output.weight, self.output.bias, eight_bits=eight_bits)

    def memory(self, memory_BSD: Tensor) -> KeyValue:
        """Keys and values of the source, kept while its translation is searched."""
        key, value = (plain.split_heads(part, self.heads) for part in self.key_value(memory_BSD).chunk(2, dim=-1))
        return key, value

    def step(self, x_BKD: Tensor, memory: KeyValue, mask: Tensor) -> Tensor:
        return self.output(ops.search_cross(self.query(x_BKD), memory, mask, self.heads))

    def weights(self, x_BTD: Tensor, memory_BSD: Tensor, mask: Tensor) -> Tensor:
        """How much every target slot looks at every source slot, [B, T, S], on average over the heads."""
        query, key = plain.split_heads(self.query(x_BTD), self.heads), self.memory(memory_BSD)[0]
        scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
        return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1).mean(dim=1)


class FeedForward(nn.Module):
    eight_bits = False

    def __init__(self, section: Model):
        super().__init__()
        self.inner = nn.Linear(section.d_model, section.d_ff)
        self.outer = nn.Linear(section.d_ff, section.d_model)
        self.dropout = section.relu_dropout
        self.activation = section.activation

    def forward(self, x_BTD: Normed) -> Tensor:
        weights, biases = (self.inner.weight, self.outer.weight), (self.inner.bias, self.outer.bias)
        dropout = self.dropout if self.training else 0.0
        eight_bits = self.eight_bits and self.training
        return ops.feed_forward(x_BTD, weights, biases, dropout, self.activation, eight_bits=eight_bits)


class EncoderBlock(nn.Module):
    def __init__(self, section: Model):
        super().__init__()
        self.norms_last = is_marian(section)
        self.attention_norm = AddNorm(section)
        self.attention = SelfAttention(section)
        self.feed_forward_norm = AddNorm(section)
        self.feed_forward = FeedForward(section)

    def forward(self, x_BSD: Tensor, update: Tensor | None, seen: Sight) -> Stream:
        if self.norms_last:
            x_BSD = self.attention_norm(x_BSD, self.attention(x_BSD, seen))[1]
            return self.feed_forward_norm(x_BSD, self.feed_forward(x_BSD))[1], None
        x_BSD, normed = self.attention_norm(x_BSD, update)
        x_BSD, normed = self.feed_forward_norm(x_BSD, self.attention(normed, seen))
        return x_BSD, self.feed_forward(normed)


class DecoderBlock(nn.Module):
    def __init__(self, section: Model):
        super().__init__()
        self.norms_last = is_marian(section)
        self.attention_norm = AddNorm(section)
        self.attention = SelfAttention(section)
        self.cross_norm = AddNorm(section)
        self.cross = CrossAttention(section)
        self.feed_forward_norm = AddNorm(section)
        self.feed_forward = FeedForward(section)

    def forward(
        self, x_BTD: Tensor, update: Tensor | None, seen: Sight, memory_BSD: Normed, seen_source: Sight
    ) -> Stream:
        return self.sublayers(
            x_BTD, update, lambda x: self.attention(x, seen), lambda x: self.cross(x, memory_BSD, seen_source)
        )

    def step(
        self, x_BKD: Tensor, update: Tensor | None, past: KeyValue, seen: Descent, memory: KeyValue, mask: Tensor
    ) -> Stream:
        """One position of K hypotheses of every sentence, which share its memory: they are a row of queries."""
        return self.sublayers(
            x_BKD, update, lambda x: self.attention.step(x, past, seen), lambda x: self.cross.step(x, memory, mask)
        )

    def sublayers(self, x: Tensor, update: Tensor | None, attend: Sublayer, attend_source: Sublayer) -> Stream:
        if self.norms_last:
            x = self.attention_norm(x, attend(x))[1]
            x = self.cross_norm(x, attend_source(x))[1]
            return self.feed_forward_norm(x, self.feed_forward(x))[1], None
        x, normed = self.attention_norm(x, update)
        x, normed = self.cross_norm(x, attend(normed))
        x, normed = self.feed_forward_norm(x, attend_source(normed))
        return x, self.feed_forward(normed)
