"""Training on a CPU: few passes over memory, and random masks that cost little.

Each function has a twin of the same meaning in `model.plain`. The stream stays in fp32, also when products are in bf16.
Shapes in names: B rows, H heads, T queries, S keys, K width of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def keep_mask(like: Tensor, dropout: float) -> Tensor:
    """0 with probability `dropout` (to 2^-16), else what keeps the mean. Four draws come from every 64 random bits of numpy:
    torch draws its own one by one, and takes several times as long. The seed comes from torch's generator."""
    seed = int(torch.randint(2**62, (1,)))
    words = np.random.SFC64(seed).random_raw(-(-like.numel() // 4))
    draws = torch.from_numpy(words.view(np.int16))[: like.numel()].view(like.shape)
    dropped = round(dropout * 2**16)
    return (draws >= dropped - 2**15).to(like.dtype).mul_(2**16 / (2**16 - dropped))


def drop(x: Tensor, dropout: float) -> Tensor:
    return x * keep_mask(x, dropout) if dropout else x


def add_norm(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float
) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = AddNorm.apply(x, update, weight, bias, epsilon, dropout)
    return result


class AddNorm(torch.autograd.Function):
    """x + dropout(update), and the layer norm of it in the type of the update."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float
    ) -> tuple[Tensor, Tensor]:
        mask = keep_mask(x, dropout) if dropout else None
        x = x + update if mask is None else torch.addcmul(x, update.to(x.dtype), mask)
        normed, mean, scale = torch.native_layer_norm(x, weight.shape, weight, bias, epsilon)
        ctx.save_for_backward(x, mask, mean, scale, weight, bias)
        ctx.dtype = update.dtype
        return x, normed.to(update.dtype)

    @staticmethod
    def backward(ctx: Any, sum_gradient: Tensor, normed_gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, mask, mean, scale, weight, bias = ctx.saved_tensors
        gradient, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
            normed_gradient.to(x.dtype), x, weight.shape, mean, scale, weight, bias, [True, True, True]
        )
        gradient.add_(sum_gradient)
        of_update = (gradient if mask is None else gradient * mask).to(ctx.dtype)
        return gradient, of_update, of_weight, of_bias, None, None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: float) -> Tensor:
    assert not dropout, "attention weights are dropped in model.plain only"
    result: Tensor = Attention.apply(query, key, value, mask)
    return result.transpose(1, 2).flatten(2)


class Attention(torch.autograd.Function):
    """Products in bf16, softmax in fp32, without dropout: torch's own backward pass takes four times as long in bf16."""

    @staticmethod
    def forward(ctx: Any, query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, mask: Tensor) -> Tensor:
        ctx.scale = query_BHTK.shape[-1] ** -0.5
        scores = ((query_BHTK * ctx.scale) @ key_BHSK.transpose(2, 3)).float().masked_fill_(~mask, float("-inf"))
        weights_BHTS = torch.softmax(scores, dim=-1).to(query_BHTK.dtype)
        ctx.save_for_backward(query_BHTK, key_BHSK, value_BHSK, weights_BHTS)
        return weights_BHTS @ value_BHSK

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, weights = ctx.saved_tensors
        of_weights = gradient @ value.transpose(2, 3)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype).mul_(ctx.scale)
        return of_scores @ key, of_scores.transpose(2, 3) @ query, weights.transpose(2, 3) @ gradient, None
