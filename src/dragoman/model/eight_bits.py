"""Matrix products in 8 bits, forward and backward, as differentiable operators that torch.compile takes into its graph.

Values and weights are e4m3 with fixed scales: norms and activations are a few units large, weights a few hundredths; e4m3 has
the same precision from 2^-6 to 448, so powers of two that put both well inside need no look at the numbers. Gradients have any
size, which changes as a model learns: they are e5m2, whose range is that of fp16, and a look at one row in 61 finds a scale that
is right within that range. Nothing is remembered from step to step, so a resumed run needs no scales.

What a product of the backward pass needs of the forward pass is kept in 8 bits: half the memory of 16."""

# No `from __future__ import annotations` here: the operators' schemas are read from the annotations.
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.library import custom_op

from dragoman.model import fused, kernels
from dragoman.model.fused import (
    backward_warps,
    draw_seed,
    launch_add_norm,
    loss_sums,
    numbers_of,
    only_first_is_differentiable,
    threshold_and_gain,
)
from dragoman.model.plain import Pair, Small

ACTIVATION_SCALE, WEIGHT_SCALE = 4.0, 64.0
LOGIT_GRADIENT_SCALE = 2.0**14  # gradients of logits lie between -1 and 1, and most are some millionths
SAMPLED = 61  # one row in so many is looked at for the scale of a gradient; no multiple of a row's slots, so that all places count
VALUE, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
TILE = {"ROWS": 64, "COLUMNS": 256, "num_warps": 4}
# Of the backward pass: a program sums up the bias gradient of so many tiles.
RELU_TILE = TILE | {"TILES": 2}
# Longer sums, over all slots or the vocabulary, are as exact as can be: the quick way drops what is small beside the sum so far.
FAST_TERMS = 4096


# --- matrices, as they stand and turned ---


def grid(x: Tensor) -> tuple[int, int]:
    return triton.cdiv(x.shape[0], TILE["ROWS"]), triton.cdiv(x.shape[1], TILE["COLUMNS"])


def empty_pair(x: Tensor, dtype: torch.dtype) -> Pair:
    return torch.empty(x.shape, dtype=dtype, device=x.device), torch.empty(x.shape[::-1], dtype=dtype, device=x.device)


def words(x: Tensor) -> Tensor:
    """What kernels read and write: four numbers a word."""
    return x.view(torch.uint32 if x.itemsize == 1 else torch.int64)


def shrink(x: Tensor, peak: Tensor | None, pair: Pair, inverse: Tensor, scale: float) -> None:
    x = words(x.to(torch.bfloat16).contiguous())
    kernels.shrink[grid(pair[0])](
        x, x if peak is None else peak, *map(words, pair), inverse, *pair[0].shape, SCALE=scale,
        GRADIENT=peak is not None, **TILE,
    )  # fmt: skip


def shrunk(x: Tensor, scale: float) -> Pair:
    pair = empty_pair(x, VALUE)
    shrink(x, None, pair, x, scale)
    return pair


def turned_over(small: Tensor) -> Tensor:
    turned = torch.empty(small.shape[::-1], dtype=small.dtype, device=small.device)
    kernels.turn[grid(small)](words(small), words(turned), *small.shape, **TILE)
    return turned


def peak_of(gradient: Tensor) -> Tensor:
    """Roughly: what is a hundred times larger still has its place in e5m2."""
    return torch.linalg.vector_norm(gradient[::SAMPLED], float("inf"))


def shrunk_gradient(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """And the inverse of its scale."""
    small, turned = empty_pair(gradient, GRADIENT)
    inverse = torch.empty((), device=gradient.device)
    shrink(gradient, peak_of(gradient), (small, turned), inverse, 1.0)
    return small, turned, inverse


Inverse = Tensor | float  # of a scale


@cache
def constant(value: float, device: torch.device) -> Tensor:
    """Made once: filling in one number would be two kernels for each product."""
    return torch.full((), value, device=device)


def number(value: Inverse, like: Tensor) -> Tensor:
    return constant(value, like.device) if isinstance(value, float) else value


def product(
    left: Tensor, left_inverse: Inverse, right: Tensor, right_scale: float, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """[N, K] times [M, K], both in 8 bits."""
    return torch._scaled_mm(
        left, right.t(), scale_a=number(left_inverse, left), scale_b=number(1 / right_scale, left), bias=bias,
        out_dtype=dtype, use_fast_accum=left.shape[1] <= FAST_TERMS,
    )  # fmt: skip


def forward_product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Times a scale, if it shall be in 8 bits as well."""
    bias = None if bias is None else bias * scale
    return product(x, scale / ACTIVATION_SCALE, weight, WEIGHT_SCALE, bias, dtype)


def of_input(gradient: Tensor, inverse: Inverse, weight_turned: Tensor, dtype: torch.dtype) -> Tensor:
    return product(gradient, inverse, weight_turned, WEIGHT_SCALE, None, dtype)


def of_weight(gradient_turned: Tensor, inverse: Inverse, x_turned: Tensor) -> Tensor:
    return product(gradient_turned, inverse, x_turned, ACTIVATION_SCALE, None, torch.float32)


# --- what comes in ---


def small_of(x: Tensor | Small) -> Small:
    return x if isinstance(x, Small) else Small(x, shrink_op(x.detach().flatten(0, -2)))


@custom_op("dragoman::shrink", mutates_args=())
def shrink_op(x: Tensor) -> Tensor:
    return shrunk(x, ACTIVATION_SCALE)[0]


@shrink_op.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=VALUE)


def add_norm(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float
) -> tuple[Tensor, Small]:
    """See plain.add_norm; the norm is in 8 bits."""
    total, handle, small = add_norm_op(x, update, weight, bias, draw_seed(x, dropout), epsilon, dropout)
    return total, Small(handle, small)


def hollow(like: Tensor) -> Tensor:
    """As large as that, without memory; who reads it by mistake finds no numbers."""
    return like.new_full((1,), float("nan")).expand(like.shape)


@custom_op("dragoman::add_norm_in_eight_bits", mutates_args=())
def add_norm_op(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, epsilon: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    total, small = torch.empty_like(x), torch.empty(x.flatten(0, -2).shape, dtype=VALUE, device=x.device)
    launch_add_norm(x, update, weight, bias, seed, total, small, epsilon, dropout, small=ACTIVATION_SCALE)
    return total, hollow(x), small


@add_norm_op.register_fake
def _(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, epsilon: float,
      dropout: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x), hollow(x), x.new_empty(x.flatten(0, -2).shape, dtype=VALUE)


def keep_for_add_norm(ctx: Any, inputs: Any, output: Any) -> None:
    fused.keep_for_add_norm(ctx, inputs, output)
    ctx.mark_non_differentiable(output[2])


def differentiate_add_norm(ctx: Any, of_total: Tensor, of_handle: Tensor, _: Any) -> Any:
    return fused.differentiate_add_norm(ctx, of_total, of_handle)


add_norm_op.register_autograd(differentiate_add_norm, setup_context=keep_for_add_norm)


# --- a linear layer ---


def linear(x: Tensor | Small, weight: Tensor) -> Tensor:
    return linear_op(*small_of(x), weight)[0]


@custom_op("dragoman::linear_in_eight_bits", mutates_args=())
def linear_op(handle: Tensor, small: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return projected(handle, small, weight)


def projected(handle: Tensor, small: Tensor, weight: Tensor) -> Pair:
    """The output, and the weight turned for the backward pass."""
    weight_small, weight_turned = shrunk(weight, WEIGHT_SCALE)
    return forward_product(small, weight_small, None, handle.dtype).view(*handle.shape[:-1], -1), weight_turned


@linear_op.register_fake
def _(handle: Tensor, small: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return handle.new_empty(*handle.shape[:-1], weight.shape[0]), turned_like(weight)


def turned_like(matrix: Tensor) -> Tensor:
    return matrix.new_empty(matrix.shape[::-1], dtype=VALUE)


@custom_op("dragoman::linear_backward_in_eight_bits", mutates_args=())
def linear_backward(gradient: Tensor, small: Tensor, weight_turned: Tensor) -> tuple[Tensor, Tensor]:
    gradient_small, turned, inverse = shrunk_gradient(gradient)
    of_x = of_input(gradient_small, inverse, weight_turned, gradient.dtype)
    return of_x, of_weight(turned, inverse, turned_over(small))


@linear_backward.register_fake
def _(gradient: Tensor, small: Tensor, weight_turned: Tensor) -> tuple[Tensor, Tensor]:
    return gradient.new_empty(small.shape), gradient.new_empty(weight_turned.shape[::-1], dtype=torch.float32)


def keep_for_linear(ctx: Any, inputs: Any, output: Any) -> None:
    handle, small, weight = inputs
    ctx.shape, ctx.dtype = handle.shape, weight.dtype
    ctx.save_for_backward(small, output[1])
    only_first_is_differentiable(ctx, output)


def differentiate_linear(ctx: Any, gradient: Tensor, _: Any) -> Any:
    x, weight = linear_backward(gradient.flatten(0, -2), *ctx.saved_tensors)
    return x.view(ctx.shape), None, weight.to(ctx.dtype)


linear_op.register_autograd(differentiate_linear, setup_context=keep_for_linear)


# --- attention, with the matrices before and after it ---


class Segments(NamedTuple):
    query: Tensor
    key: Tensor
    causal: bool


def attention(
    x: Tensor | Small, memory: Tensor | Small | None, matrices: tuple[Tensor, Tensor | None, Tensor], seen: Segments,
    heads: int, dropout: float,
) -> Tensor:  # fmt: skip
    """Over x itself, which one matrix turns into query, key and value, or over a memory with a matrix for its key and value."""
    x, memory = small_of(x), None if memory is None else small_of(memory)
    seed = draw_seed(x.handle, dropout)
    return attention_op(
        *x, *(memory or (None, None)), *matrices, seen.query, seen.key, seed, heads, seen.causal, dropout
    )[0]


@custom_op("dragoman::attention_in_eight_bits", mutates_args=())
def attention_op(
    handle: Tensor, small: Tensor, memory: Tensor | None, memory_small: Tensor | None, into: Tensor,
    into_memory: Tensor | None, out_of: Tensor, query_segment: Tensor, key_segment: Tensor, seed: Tensor, heads: int,
    causal: bool, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output; for the backward pass query (without a memory with key and value), key and value of a memory, denominators, what
    was attended to, and the matrices turned."""
    query, into_turned = projected(handle, small, into)
    key_value, memory_turned = handle.new_empty(0), into.new_empty(0, dtype=VALUE)
    if memory is not None and memory_small is not None and into_memory is not None:
        key_value, memory_turned = projected(memory, memory_small, into_memory)
    attended = torch.empty(handle.shape, dtype=VALUE, device=handle.device)
    rows, slots, _ = handle.shape
    normalizer = torch.empty(rows, heads, slots, dtype=torch.float32, device=handle.device)
    other = None if memory is None else key_value
    kernels.attention_forward[(rows * heads,)](
        query, query if other is None else other, query_segment, key_segment, seed, attended, normalizer,
        **numbers_of(query, other, heads, causal, dropout), SMALL=ACTIVATION_SCALE,
        num_warps=8 if slots == 128 else 4, maxnreg=128,  # of registers: two programs a processor, where it would be one
    )  # fmt: skip
    out, out_turned = projected(handle, attended.flatten(0, 1), out_of)
    return out, query, key_value, normalizer, attended, into_turned, memory_turned, out_turned


@attention_op.register_fake
def _(handle: Tensor, small: Tensor, memory: Tensor | None, memory_small: Tensor | None, into: Tensor,
      into_memory: Tensor | None, out_of: Tensor, query_segment: Tensor, key_segment: Tensor, seed: Tensor, heads: int,
      causal: bool, dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows, slots, width = handle.shape
    key_value, memory_turned = handle.new_empty(0), into.new_empty(0, dtype=VALUE)
    if memory is not None and into_memory is not None:
        key_value, memory_turned = memory.new_empty(rows, slots, 2 * width), turned_like(into_memory)
    return (
        handle.new_empty(handle.shape), handle.new_empty(rows, slots, into.shape[0]), key_value,
        handle.new_empty(rows, heads, slots, dtype=torch.float32), handle.new_empty(handle.shape, dtype=VALUE),
        turned_like(into), memory_turned, turned_like(out_of),
    )  # fmt: skip


@custom_op("dragoman::attention_backward_in_eight_bits", mutates_args=())
def attention_backward(
    gradient: Tensor, small: Tensor, memory_small: Tensor | None, query_segment: Tensor, key_segment: Tensor,
    seed: Tensor, query: Tensor, key_value: Tensor, normalizer: Tensor, attended: Tensor, into_turned: Tensor,
    memory_turned: Tensor, out_turned: Tensor, heads: int, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, the memory, and the three matrices; without a memory two are nothing. They all have the scale of the one
    that comes in: attention hardly changes its size either."""
    gradient_small, turned, inverse = shrunk_gradient(gradient.flatten(0, 1))
    of_out_of = of_weight(turned, inverse, turned_over(attended.flatten(0, 1)))
    of_attended = of_input(gradient_small, inverse, out_turned, gradient.dtype)
    other = None if memory_small is None else key_value
    of_query, of_key_value = (
        torch.empty(each.shape, dtype=GRADIENT, device=each.device) for each in (query, key_value)
    )
    rows, slots, _ = query.shape
    numbers = numbers_of(query, other, heads, causal, dropout)
    kernels.attention_backward[(rows * heads,)](
        query, query if other is None else other, query_segment, key_segment, seed, normalizer, of_attended, of_query,
        of_key_value, inverse, **numbers, SMALL=True, num_warps=backward_warps(slots, dropout), **capped(numbers),
    )  # fmt: skip
    of_x, of_into = unprojected(of_query, inverse, small, into_turned, gradient.dtype)
    if memory_small is None:
        return of_x, gradient.new_empty(0), of_into, of_into.new_empty(0), of_out_of
    of_memory, of_into_memory = unprojected(of_key_value, inverse, memory_small, memory_turned, gradient.dtype)
    return of_x, of_memory, of_into, of_into_memory, of_out_of


def capped(numbers: dict[str, Any]) -> dict[str, int]:
    """Registers of attention's backward pass: where a few less make it four programs a processor instead of three."""
    fits = numbers["WIDTH"] == 64 and numbers["DIM"] == 64 and not numbers["DROPOUT"]
    return {"maxnreg": 128} if fits else {}


def unprojected(gradient: Tensor, inverse: Tensor, small: Tensor, turned: Tensor, dtype: torch.dtype) -> Pair:
    """Gradients of input and matrix."""
    gradient = gradient.flatten(0, 1)
    return of_input(gradient, inverse, turned, dtype), of_weight(turned_over(gradient), inverse, turned_over(small))


@attention_backward.register_fake
def _(gradient: Tensor, small: Tensor, memory_small: Tensor | None, query_segment: Tensor, key_segment: Tensor,
      seed: Tensor, query: Tensor, key_value: Tensor, normalizer: Tensor, attended: Tensor, into_turned: Tensor,
      memory_turned: Tensor, out_turned: Tensor, heads: int, causal: bool,
      dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    turned = (into_turned, memory_turned, out_turned)
    of_matrices = [gradient.new_empty(each.shape[::-1], dtype=torch.float32) for each in turned]
    of_memory = gradient.new_empty(0 if memory_small is None else memory_small.shape)
    return gradient.new_empty(small.shape), of_memory, *of_matrices  # type: ignore[return-value]


def keep_for_attention(ctx: Any, inputs: Any, output: Any) -> None:
    handle, small, memory, memory_small, into, into_memory, out_of, *tensors, ctx.heads, ctx.causal, ctx.dropout = (
        inputs
    )
    ctx.shapes = handle.shape, None if memory is None else memory.shape
    ctx.dtypes = [None if each is None else each.dtype for each in (into, into_memory, out_of)]
    ctx.save_for_backward(small, memory_small, *tensors, *output[1:])
    only_first_is_differentiable(ctx, output)


def differentiate_attention(ctx: Any, gradient: Tensor, *_: Any) -> Any:
    options = (ctx.heads, ctx.causal, ctx.dropout)
    of_x, of_memory, *of_matrices = attention_backward(gradient, *ctx.saved_tensors, *options)
    shape, memory_shape = ctx.shapes
    of_memory = None if memory_shape is None else of_memory.view(memory_shape)
    matrices = [None if dtype is None else each.to(dtype) for each, dtype in zip(of_matrices, ctx.dtypes, strict=True)]
    return of_x.view(shape), None, of_memory, None, *matrices, *6 * [None]


attention_op.register_autograd(differentiate_attention, setup_context=keep_for_attention)


# --- feed-forward ---


def feed_forward(x: Tensor | Small, weights: Pair, biases: Pair, dropout: float) -> Tensor:
    x, matrices = small_of(x), (weights[0], biases[0], weights[1], biases[1])
    return feed_forward_op(*x, *matrices, draw_seed(x.handle, dropout), dropout)[0]


@custom_op("dragoman::feed_forward_in_eight_bits", mutates_args=())
def feed_forward_op(
    handle: Tensor, small: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, seed: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output; for the backward pass both matrices and the hidden layer turned, and this also as it stands."""
    inner_small, inner_turned = shrunk(inner, WEIGHT_SCALE)
    outer_small, outer_turned = shrunk(outer, WEIGHT_SCALE)
    scale = ACTIVATION_SCALE * threshold_and_gain(dropout)[1]
    before = forward_product(small, inner_small, inner_bias.to(handle.dtype), VALUE, scale)
    hidden, hidden_turned = active(before, seed, dropout)
    out = forward_product(hidden, outer_small, outer_bias.to(handle.dtype), handle.dtype)
    return out.view(handle.shape), inner_turned, outer_turned, hidden, hidden_turned


def active(before: Tensor, seed: Tensor, dropout: float) -> Pair:
    """relu and dropout, whose gain is in the scale of `before`."""
    hidden, turned = empty_pair(before, VALUE)
    kernels.turn_active[grid(before)](
        words(before), seed, words(hidden), words(turned), *before.shape, THRESHOLD=threshold_and_gain(dropout)[0],
        DROPOUT=dropout > 0, **TILE,
    )  # fmt: skip
    return hidden, turned


@feed_forward_op.register_fake
def _(handle: Tensor, small: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor,
      seed: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    slots, width = small.shape[0], inner.shape[0]
    hidden = [small.new_empty(shape) for shape in ((slots, width), (width, slots))]
    return handle.new_empty(handle.shape), turned_like(inner), turned_like(outer), *hidden  # type: ignore[return-value]


def bias_sums(rows: int) -> int:
    return triton.cdiv(rows, RELU_TILE["ROWS"] * RELU_TILE["TILES"])


@custom_op("dragoman::feed_forward_backward_in_eight_bits", mutates_args=())
def feed_forward_backward(
    gradient: Tensor, small: Tensor, inner_turned: Tensor, outer_turned: Tensor, hidden: Tensor, hidden_turned: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, of the inner matrix and its bias (partial sums), and of the outer matrix."""
    gradient_small, turned, inverse = shrunk_gradient(gradient)
    of_outer = of_weight(turned, inverse, hidden_turned)
    # A product with weights hardly changes the size of a gradient: it stays in the same scale.
    after = of_input(gradient_small, 1.0, outer_turned, GRADIENT)
    before, turned, bias = inactive(hidden, after)
    inverse = inverse * threshold_and_gain(dropout)[1]
    of_x = of_input(before, inverse, inner_turned, gradient.dtype)
    return of_x, of_weight(turned, inverse, turned_over(small)), bias * inverse, of_outer


def inactive(hidden: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before relu and dropout in the scale of the one after, and partial sums for the bias."""
    rows, columns = after.shape
    small, turned = empty_pair(after, GRADIENT)
    bias = torch.empty(bias_sums(rows), columns, device=after.device)
    kernels.turn_relu_backward[(len(bias), triton.cdiv(columns, RELU_TILE["COLUMNS"]))](
        words(hidden), words(after), words(small), words(turned), bias, rows, columns, **RELU_TILE
    )
    return small, turned, bias


@feed_forward_backward.register_fake
def _(gradient: Tensor, small: Tensor, inner_turned: Tensor, outer_turned: Tensor, hidden: Tensor,
      hidden_turned: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    slots, inside = hidden.shape
    shapes = (inner_turned.shape[::-1], (bias_sums(slots), inside), outer_turned.shape[::-1])
    sums = [gradient.new_empty(shape, dtype=torch.float32) for shape in shapes]
    return gradient.new_empty(small.shape), *sums  # type: ignore[return-value]


def keep_for_feed_forward(ctx: Any, inputs: Any, output: Any) -> None:
    handle, small, *matrices, _, ctx.dropout = inputs
    ctx.shape, ctx.dtypes = handle.shape, [each.dtype for each in matrices]
    ctx.save_for_backward(small, *output[1:])
    only_first_is_differentiable(ctx, output)


def differentiate_feed_forward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
    gradient = gradient.flatten(0, -2)
    x, inner, bias, outer = feed_forward_backward(gradient, *ctx.saved_tensors, ctx.dropout)
    of_matrices = (inner, bias.sum(0), outer, gradient.sum(0, dtype=torch.float32))
    matrices = (each.to(dtype) for each, dtype in zip(of_matrices, ctx.dtypes, strict=True))
    return x.view(ctx.shape), None, *matrices, None, None


feed_forward_op.register_autograd(differentiate_feed_forward, setup_context=keep_for_feed_forward)


# --- output matrix and loss ---


class Output:
    """The output matrix, and what the loss of a piece of slots makes of it. See loss.Output."""

    gain = 1.0

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype):
        self.dtype, self.bias_V = dtype, None if bias_V is None else bias_V.to(dtype)
        self.small, self.turned = shrunk(weight_VD, WEIGHT_SCALE)

    def loss_and_gradients(
        self, hidden_PD: Tensor, labels_P: Tensor, smoothing: float, *, learning: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        small, turned = shrunk(hidden_PD, ACTIVATION_SCALE)
        logits_PV = forward_product(small, self.small, self.bias_V, self.dtype)
        gradient_PV = torch.empty_like(logits_PV, dtype=GRADIENT)
        sums = loss_sums(logits_PV, labels_P, gradient_PV, smoothing, LOGIT_GRADIENT_SCALE)
        del logits_PV
        inverse = 1 / LOGIT_GRADIENT_SCALE
        of_hidden = of_input(gradient_PV, inverse, self.turned, self.dtype)
        return sums, of_hidden, of_weight(turned_over(gradient_PV), inverse, turned)
