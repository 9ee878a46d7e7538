"""Training on a CPU: few passes over memory, and random masks that cost little.

Each function has a twin of the same meaning in `model.plain`. The stream stays in fp32, also when products are in bf16.
Shapes in names: B rows, H heads, T queries, S keys, K width of a head.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.model.plain import Pair

SPARE = threading.local()


def keep_mask(like: Tensor, dropout: float) -> Tensor:
    """0 with probability `dropout` (to 2^-16), else what keeps the mean. Four draws come from every 64 random bits of numpy:
    torch draws its own one by one, and takes several times as long. The seed comes from torch's generator."""
    seed = int(torch.randint(2**62, (1,)))
    words = np.random.SFC64(seed).random_raw(-(-like.numel() // 4))
    dropped = round(dropout * 2**16)
    # Compared by numpy: torch takes five times as long.
    kept = (words.view(np.int16)[: like.numel()] >= dropped - 2**15).view(np.uint8)
    return torch.from_numpy(kept).view(like.shape).to(like.dtype).mul_(2**16 / (2**16 - dropped))


def drop(x: Tensor, dropout: float) -> Tensor:
    return x * keep_mask(x, dropout) if dropout else x


def add_norm(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float) -> Pair:
    return AddNorm.apply(x, update, weight, bias, epsilon, dropout)


class AddNorm(torch.autograd.Function):
    """x + dropout(update), and the layer norm of it in the type of the update."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float
    ) -> Pair:
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
    return Attention.apply(query, key, value, mask).transpose(1, 2).flatten(2)


class Attention(torch.autograd.Function):
    """Products and weights in bf16, without dropout: torch's own backward pass takes four times as long in bf16. Softmax reads and
    writes bf16 and computes in fp32."""

    @staticmethod
    def forward(ctx: Any, query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, mask: Tensor) -> Tensor:
        ctx.scale, ctx.shape = query_BHTK.shape[-1] ** -0.5, query_BHTK.shape[:2]
        query, key, value = (each.flatten(0, 1) for each in (query_BHTK, key_BHSK, value_BHSK))
        scores = torch.bmm(query, key.transpose(1, 2)).mul_(ctx.scale)
        scores.view(*ctx.shape, *scores.shape[1:]).masked_fill_(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(query, key, value, weights)
        return torch.bmm(weights, value).unflatten(0, ctx.shape)

    @staticmethod
    def backward(ctx: Any, gradient_BHTK: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, weights = ctx.saved_tensors
        gradient = gradient_BHTK.flatten(0, 1)
        of_scores = torch._softmax_backward_data(
            torch.bmm(gradient, value.transpose(1, 2)), weights, -1, weights.dtype
        ).mul_(ctx.scale)
        of_query, of_key = torch.bmm(of_scores, key), torch.bmm(of_scores.transpose(1, 2), query)
        of_value = torch.bmm(weights.transpose(1, 2), gradient)
        return *(each.unflatten(0, ctx.shape) for each in (of_query, of_key, of_value)), None


def feed_forward(x: Tensor, weights: Pair, biases: Pair) -> Tensor:
    """With relu, without dropout."""
    inner, outer = (weight.to(x.dtype) for weight in weights)
    inner_bias, outer_bias = (bias.to(x.dtype) for bias in biases)
    return FeedForward.apply(x.flatten(0, -2), inner, inner_bias, outer, outer_bias).view(x.shape)


class FeedForward(torch.autograd.Function):
    """The hidden layer is the largest tensor of a block: relu works in its place, and its gradient lies in memory that all blocks
    share. What is allocated anew at every step costs more than the product that is written there: the kernel fills it with zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor) -> Tensor:
        hidden = torch.addmm(inner_bias, x, inner.t()).relu_()
        ctx.save_for_backward(x, hidden, inner, outer)
        return torch.addmm(outer_bias, hidden, outer.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, hidden, inner, outer = ctx.saved_tensors
        inside = torch.mm(gradient, outer, out=spare(hidden))
        torch.ops.aten.threshold_backward.grad_input(inside, hidden, 0, grad_input=inside)
        return inside @ inner, inside.t() @ x, inside.sum(0), gradient.t() @ hidden, gradient.sum(0)


def spare(like: Tensor) -> Tensor:
    """Memory for a moment, of this thread."""
    kept = getattr(SPARE, "memory", None)
    if kept is None or kept.dtype != like.dtype or kept.numel() < like.numel():
        kept = SPARE.memory = torch.empty(like.numel(), dtype=like.dtype)
    return kept[: like.numel()].view(like.shape)
