"""What the fused kernels compute, in plain torch: the reference for their tests, and the way on machines without them.

Shapes in names: B rows, T target slots, S source slots, D model width, H heads, K width of a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # the label of an empty slot

Pair = tuple[Tensor, Tensor]
Function = Callable[..., Tensor]


class Small(NamedTuple):
    """A tensor in 8 bits. Its gradient is not in 8 bits, so it goes to `handle`, which has the shape, but may be without numbers."""

    handle: Tensor
    numbers: Tensor  # [slots, width]


def add_norm(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float) -> Pair:
    """x + dropout(update), and its layer norm."""
    x = x + F.dropout(update, dropout)
    return x, norm(x, weight, bias, epsilon)


def norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Computed in fp32, returned as it came."""
    return F.layer_norm(x.float(), weight.shape, weight, bias, epsilon).to(x.dtype)


def attend(query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    attended = F.scaled_dot_product_attention(query_BHTK, key_BHSK, value_BHSK, attn_mask=mask, dropout_p=dropout)
    return attended.transpose(1, 2).flatten(2)


def self_attention(packed_BT3D: Tensor, mask: Tensor, heads: int, dropout: float, attend: Function = attend) -> Tensor:
    query, key, value = (split_heads(part, heads) for part in packed_BT3D.chunk(3, dim=-1))
    return attend(query, key, value, mask, dropout)


def cross_attention(
    query_BTD: Tensor, key_value_BS2D: Tensor, mask: Tensor, heads: int, dropout: float, attend: Function = attend
) -> Tensor:
    key, value = (split_heads(part, heads) for part in key_value_BS2D.chunk(2, dim=-1))
    return attend(split_heads(query_BTD, heads), key, value, mask, dropout)


def search_self(packed_BK3D: Tensor, past: Pair, seen: Tensor, position: Tensor, heads: int) -> Tensor:
    """One more position of K hypotheses of every sentence. `past` [B, heads, T, K, dim] keeps what each of them had at every
    position and never moves; `seen` [B, 1, K, slots * K] is added to scores: 0 for the ancestors of a hypothesis, -inf for all
    others."""
    query, key, value = (split_heads(part, heads) for part in packed_BK3D.chunk(3, dim=-1))
    past[0].index_copy_(2, position, key[:, :, None])
    past[1].index_copy_(2, position, value[:, :, None])
    slots = seen.shape[-1] // packed_BK3D.shape[1]
    keys, values = (kept[:, :, :slots].flatten(2, 3) for kept in past)
    return attend(query, keys, values, seen, 0.0)


def search_cross(query_BKD: Tensor, memory: Pair, mask: Tensor, heads: int) -> Tensor:
    """Over keys and values of the source, [B, heads, S, dim]; `mask` [B, 1, 1, S] is added to scores, 0 or -inf."""
    return attend(split_heads(query_BKD, heads), *memory, mask.expand(-1, -1, query_BKD.shape[1], -1), 0.0)


def ancestors(ancestry_BKT: Tensor, slots: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, K, slots * K], added to scores: 0 for the ancestors of a hypothesis, -inf for everybody else."""
    everybody = torch.arange(ancestry_BKT.shape[1], dtype=torch.int8, device=ancestry_BKT.device)
    is_ancestor = (ancestry_BKT[:, :, :slots, None] == everybody).flatten(2)
    zero, never = (torch.full((), value, dtype=dtype, device=is_ancestor.device) for value in (0.0, float("-inf")))
    return torch.where(is_ancestor, zero, never)[:, None]


def split_heads(x_BTD: Tensor, heads: int) -> Tensor:
    return x_BTD.unflatten(-1, (heads, -1)).transpose(1, 2)


def visible(query_segment_BT: Tensor, key_segment_BS: Tensor, *, causal: bool) -> Tensor:
    """Who sees whom, [B, 1, T, S]: slots of the same pair; of the target, only itself and earlier ones."""
    same = query_segment_BT[:, :, None] == key_segment_BS[:, None, :]
    if causal:
        same = same & torch.ones(same.shape[1:], dtype=torch.bool, device=same.device).tril()
    else:  # empty slots may look anywhere: a row of the softmax without any key would be NaN
        same = same | (query_segment_BT == 0)[:, :, None]
    return same[:, None]


def feed_forward(
    x: Tensor, weights: Pair, biases: Pair, dropout: float, drop: Function = F.dropout, activation: str = "relu"
) -> Tensor:
    activate = F.relu if activation == "relu" else F.silu
    hidden = drop(activate(F.linear(x, weights[0], biases[0])), dropout)
    return F.linear(hidden, weights[1], biases[1])


def loss_and_gradient(logits_PV: Tensor, labels_P: Tensor, smoothing: float, gain: float) -> Pair:
    """Of the real slots: the sums of smoothed cross-entropy and negative log-likelihood, and the gradient of the first,
    times `gain`: softmax - smoothed target, subtracted in fp32 before it is rounded.

    One exponential an element: the normalizer follows from the largest logit and its share."""
    scores_PV, real_P = logits_PV.float(), labels_P != IGNORED
    labels_P1 = labels_P.clamp(min=0)[:, None]
    shares_PV = torch.softmax(scores_PV, dim=-1)
    normalizer_P = scores_PV.amax(dim=-1) - shares_PV.amax(dim=-1).log_()
    nll_P = normalizer_P - scores_PV.gather(1, labels_P1).squeeze(1)
    spread_P = normalizer_P - scores_PV.mean(dim=-1)
    nll, spread = (torch.where(real_P, value_P, 0.0).sum() for value_P in (nll_P, spread_P))
    gradient_PV = shares_PV.sub_(smoothing / scores_PV.shape[1])
    gradient_PV.scatter_add_(1, labels_P1, gradient_PV.new_full(labels_P1.shape, smoothing - 1.0))
    gradient_PV.mul_(real_P[:, None] * gain)
    return torch.stack([(1.0 - smoothing) * nll + smoothing * spread, nll]), gradient_PV.to(logits_PV.dtype)


def best_of(logits: Tensor, count: int, never: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Of every row of logits: the logarithm of the softmax's denominator, and the largest log-probabilities with their columns,
    but for two columns that are never chosen."""
    scores = logits.float()
    normalizer = scores.logsumexp(dim=-1)
    columns = torch.arange(logits.shape[-1], device=logits.device)  # no index from the host: a GPU may be recording
    left_out = (columns == never[0]) | (columns == never[1])
    values, places = scores.masked_fill(left_out, float("-inf")).topk(count, dim=-1)
    return normalizer, values - normalizer[..., None], places
