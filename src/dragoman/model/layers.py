"""Attention, feed-forward and the two kinds of block. Pre-norm: every sublayer is x + dropout(f(norm(x))).

Shapes in names: B rows, T target slots, S source slots, Q queries, D model width, H heads, K width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config.schema import Model

KeyValue = tuple[Tensor, Tensor]


class SelfAttention(nn.Module):
    """Attention of a row over itself, without biases. `query_key_value` is three d x d matrices in one."""

    def __init__(self, section: Model):
        super().__init__()
        self.heads = section.heads
        self.dropout = section.attention_dropout
        self.query_key_value = nn.Linear(section.d_model, 3 * section.d_model, bias=False)
        self.output = nn.Linear(section.d_model, section.d_model, bias=False)

    def forward(self, x_BTD: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (split_heads(part, self.heads) for part in self.query_key_value(x_BTD).chunk(3, dim=-1))
        return self.output(attend(query, key, value, mask, self.dropout if self.training else 0.0))

    def step(self, x_B1D: Tensor, past: KeyValue | None) -> tuple[Tensor, KeyValue]:
        """One more position, attending to itself and to all `past` ones."""
        query, key, value = (split_heads(part, self.heads) for part in self.query_key_value(x_B1D).chunk(3, dim=-1))
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        return self.output(attend(query, key, value, None, 0.0)), (key, value)


class CrossAttention(nn.Module):
    """Attention of the target over the encoded source, without biases."""

    def __init__(self, section: Model):
        super().__init__()
        self.heads = section.heads
        self.dropout = section.attention_dropout
        self.query = nn.Linear(section.d_model, section.d_model, bias=False)
        self.key_value = nn.Linear(section.d_model, 2 * section.d_model, bias=False)
        self.output = nn.Linear(section.d_model, section.d_model, bias=False)

    def memory(self, memory_BSD: Tensor) -> KeyValue:
        key, value = (split_heads(part, self.heads) for part in self.key_value(memory_BSD).chunk(2, dim=-1))
        return key, value

    def forward(self, x_BQD: Tensor, memory: KeyValue, mask: Tensor) -> Tensor:
        query = split_heads(self.query(x_BQD), self.heads)
        return self.output(attend(query, *memory, mask, self.dropout if self.training else 0.0))


class FeedForward(nn.Module):
    def __init__(self, section: Model):
        super().__init__()
        self.inner = nn.Linear(section.d_model, section.d_ff)
        self.outer = nn.Linear(section.d_ff, section.d_model)
        self.dropout = nn.Dropout(section.relu_dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.outer(self.dropout(F.relu(self.inner(x_BTD))))


class EncoderBlock(nn.Module):
    def __init__(self, section: Model):
        super().__init__()
        self.attention_norm = nn.LayerNorm(section.d_model)
        self.attention = SelfAttention(section)
        self.feed_forward_norm = nn.LayerNorm(section.d_model)
        self.feed_forward = FeedForward(section)
        self.dropout = nn.Dropout(section.dropout)

    def forward(self, x_BSD: Tensor, mask: Tensor) -> Tensor:
        x_BSD = x_BSD + self.dropout(self.attention(self.attention_norm(x_BSD), mask))
        return x_BSD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BSD)))


class DecoderBlock(nn.Module):
    def __init__(self, section: Model):
        super().__init__()
        self.attention_norm = nn.LayerNorm(section.d_model)
        self.attention = SelfAttention(section)
        self.cross_norm = nn.LayerNorm(section.d_model)
        self.cross = CrossAttention(section)
        self.feed_forward_norm = nn.LayerNorm(section.d_model)
        self.feed_forward = FeedForward(section)
        self.dropout = nn.Dropout(section.dropout)

    def forward(self, x_BTD: Tensor, mask: Tensor, memory_BSD: Tensor, cross_mask: Tensor) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), mask))
        memory = self.cross.memory(memory_BSD)
        x_BTD = x_BTD + self.dropout(self.cross(self.cross_norm(x_BTD), memory, cross_mask))
        return x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD)))

    def step(
        self, x_N1D: Tensor, past: KeyValue | None, memory: KeyValue, cross_mask: Tensor
    ) -> tuple[Tensor, KeyValue]:
        """One position of N = B x beam hypotheses. The beam of a sentence shares its memory: it is a row of queries."""
        attended, past = self.attention.step(self.attention_norm(x_N1D), past)
        x_N1D = x_N1D + attended
        sentences = memory[0].shape[0]
        queries = self.cross_norm(x_N1D).view(sentences, -1, x_N1D.shape[-1])
        x_N1D = x_N1D + self.cross(queries, memory, cross_mask).view_as(x_N1D)
        return x_N1D + self.feed_forward(self.feed_forward_norm(x_N1D)), past


def split_heads(x_BTD: Tensor, heads: int) -> Tensor:
    return x_BTD.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    attended = F.scaled_dot_product_attention(query_BHTK, key_BHSK, value_BHSK, attn_mask=mask, dropout_p=dropout)
    return attended.transpose(1, 2).flatten(2)
