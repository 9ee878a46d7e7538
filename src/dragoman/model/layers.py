"""Attention, feed-forward and the two kinds of block. Pre-norm: every sublayer is x + dropout(f(norm(x))).

Adding the output of a sublayer to the stream and norming the sum for the next sublayer is one operation, `AddNorm`. So a block
takes the stream and the update that is still to be added to it, and hands on the same two.

Shapes in names: B rows, T target slots, S source slots, Q queries, D model width, N hypotheses.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.config.schema import Model
from dragoman.model import ops, plain
from dragoman.model.ops import Sight

KeyValue = tuple[Tensor, Tensor]


class AddNorm(nn.LayerNorm):
    """x + dropout(update), and the norm of the sum."""

    def __init__(self, section: Model):
        super().__init__(section.d_model)
        self.dropout = section.dropout

    def forward(self, x: Tensor, update: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if update is None:
            return x, plain.norm(x, self.weight, self.bias, self.eps)
        return ops.add_norm(x, update, self.weight, self.bias, self.eps, self.dropout if self.training else 0.0)


class SelfAttention(nn.Module):
    """Attention of a row over itself, without biases. `query_key_value` is three d x d matrices in one."""

    eight_bits = False  # of large matrices, see Transformer.use_eight_bits

    def __init__(self, section: Model):
        super().__init__()
        self.heads = section.heads
        self.dropout = section.attention_dropout
        self.query_key_value = nn.Linear(section.d_model, 3 * section.d_model, bias=False)
        self.output = nn.Linear(section.d_model, section.d_model, bias=False)

    def forward(self, x_BTD: Tensor, seen: Sight) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        packed = ops.linear(x_BTD, self.query_key_value.weight, eight_bits=self.eight_bits)
        return self.output(ops.self_attention(packed, seen, self.heads, dropout))

    def step(self, x_N1D: Tensor, past: KeyValue | None) -> tuple[Tensor, KeyValue]:
        """One more position, attending to itself and to all `past` ones."""
        parts = self.query_key_value(x_N1D).chunk(3, dim=-1)
        query, key, value = (plain.split_heads(part, self.heads) for part in parts)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        return self.output(plain.attend(query, key, value, None, 0.0)), (key, value)


class CrossAttention(nn.Module):
    """Attention of the target over the encoded source, without biases."""

    eight_bits = False

    def __init__(self, section: Model):
        super().__init__()
        self.heads = section.heads
        self.dropout = section.attention_dropout
        self.query = nn.Linear(section.d_model, section.d_model, bias=False)
        self.key_value = nn.Linear(section.d_model, 2 * section.d_model, bias=False)
        self.output = nn.Linear(section.d_model, section.d_model, bias=False)

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor, seen: Sight) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        key_value = ops.linear(memory_BSD, self.key_value.weight, eight_bits=self.eight_bits)
        return self.output(ops.cross_attention(self.query(x_BTD), key_value, seen, self.heads, dropout))

    def memory(self, memory_BSD: Tensor) -> KeyValue:
        """Keys and values of the source, kept while its translation is searched."""
        key, value = (plain.split_heads(part, self.heads) for part in self.key_value(memory_BSD).chunk(2, dim=-1))
        return key, value

    def step(self, x_BQD: Tensor, memory: KeyValue, mask: Tensor) -> Tensor:
        query = plain.split_heads(self.query(x_BQD), self.heads)
        return self.output(plain.attend(query, *memory, mask, 0.0))


class FeedForward(nn.Module):
    eight_bits = False

    def __init__(self, section: Model):
        super().__init__()
        self.inner = nn.Linear(section.d_model, section.d_ff)
        self.outer = nn.Linear(section.d_ff, section.d_model)
        self.dropout = section.relu_dropout

    def forward(self, x_BTD: Tensor) -> Tensor:
        weights, biases = (self.inner.weight, self.outer.weight), (self.inner.bias, self.outer.bias)
        dropout = self.dropout if self.training else 0.0
        return ops.feed_forward(x_BTD, weights, biases, dropout, eight_bits=self.eight_bits)


class EncoderBlock(nn.Module):
    def __init__(self, section: Model):
        super().__init__()
        self.attention_norm = AddNorm(section)
        self.attention = SelfAttention(section)
        self.feed_forward_norm = AddNorm(section)
        self.feed_forward = FeedForward(section)

    def forward(self, x_BSD: Tensor, update: Tensor | None, seen: Sight) -> tuple[Tensor, Tensor]:
        x_BSD, normed = self.attention_norm(x_BSD, update)
        x_BSD, normed = self.feed_forward_norm(x_BSD, self.attention(normed, seen))
        return x_BSD, self.feed_forward(normed)


class DecoderBlock(nn.Module):
    def __init__(self, section: Model):
        super().__init__()
        self.attention_norm = AddNorm(section)
        self.attention = SelfAttention(section)
        self.cross_norm = AddNorm(section)
        self.cross = CrossAttention(section)
        self.feed_forward_norm = AddNorm(section)
        self.feed_forward = FeedForward(section)

    def forward(
        self, x_BTD: Tensor, update: Tensor | None, seen: Sight, memory_BSD: Tensor, seen_source: Sight
    ) -> tuple[Tensor, Tensor]:
        x_BTD, normed = self.attention_norm(x_BTD, update)
        x_BTD, normed = self.cross_norm(x_BTD, self.attention(normed, seen))
        x_BTD, normed = self.feed_forward_norm(x_BTD, self.cross(normed, memory_BSD, seen_source))
        return x_BTD, self.feed_forward(normed)

    def step(
        self, x_N1D: Tensor, update: Tensor | None, past: KeyValue | None, memory: KeyValue, cross_mask: Tensor
    ) -> tuple[Tensor, Tensor, KeyValue]:
        """One position of N = B x beam hypotheses. The beam of a sentence shares its memory: it is a row of queries."""
        x_N1D, normed = self.attention_norm(x_N1D, update)
        attended, past = self.attention.step(normed, past)
        x_N1D, normed = self.cross_norm(x_N1D, attended)
        queries = normed.view(memory[0].shape[0], -1, x_N1D.shape[-1])
        x_N1D, normed = self.feed_forward_norm(x_N1D, self.cross.step(queries, memory, cross_mask).view_as(x_N1D))
        return x_N1D, self.feed_forward(normed), past
