"""Matrix products in 8 bits, forward and backward, as differentiable operators that torch.compile takes into its graph.

Values and weights are e4m3 with fixed scales: norms and activations are a few units large, weights a few hundredths; e4m3 has
the same precision from 2^-6 to 448, so powers of two that put both well inside need no look at the numbers. Gradients have any
size, which changes as a model learns: they are e5m2, whose range is that of fp16, and a look at one row in 61 finds a scale that
is right within that range. Nothing is remembered from step to step, so a resumed run needs no scales.

What a product of the backward pass needs of the forward pass is kept in 8 bits: half the memory of 16."""

# No `from __future__ import annotations` here: the operators' schemas are read from the annotations.
from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import custom_op

from dragoman.model import kernels
from dragoman.model.fused import draw_seed, loss_sums, only_first_is_differentiable, threshold_and_gain
from dragoman.model.plain import Pair

ACTIVATION_SCALE, WEIGHT_SCALE = 4.0, 64.0
LOGIT_GRADIENT_SCALE = 2.0**14  # gradients of logits lie between -1 and 1, and most are some millionths
SAMPLED = 61  # one row in so many is looked at for the scale of a gradient; no multiple of a row's slots, so that all places count
VALUE, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
TILE = {"ROWS": 64, "COLUMNS": 256, "num_warps": 4}
# Of the backward pass: a program sums up the bias gradient of so many tiles.
RELU_TILE = TILE | {"ROWS": 32, "TILES": 16}


# --- matrices, as they stand and turned ---


def grid(x: Tensor) -> tuple[int, int]:
    return triton.cdiv(x.shape[0], TILE["ROWS"]), triton.cdiv(x.shape[1], TILE["COLUMNS"])


def empty_pair(x: Tensor, dtype: torch.dtype) -> Pair:
    return torch.empty(x.shape, dtype=dtype, device=x.device), torch.empty(x.shape[::-1], dtype=dtype, device=x.device)


def shrunk(x: Tensor, scale: float) -> Pair:
    x = x.to(torch.bfloat16).contiguous() if x.is_cuda else x  # tiles are turned in 16 bits, so they are read in 16
    small, turned = empty_pair(x, VALUE)
    kernels.shrink[grid(x)](x, x, small, turned, x, *x.shape, SCALE=scale, GRADIENT=False, **TILE)
    return small, turned


def turned_over(small: Tensor) -> Tensor:
    turned = torch.empty(small.shape[::-1], dtype=small.dtype, device=small.device)
    kernels.turn[grid(small)](small.view(torch.uint8), turned.view(torch.uint8), *small.shape, **TILE)
    return turned


def peak_of(gradient: Tensor) -> Tensor:
    """Roughly: what is a hundred times larger still has its place in e5m2."""
    return gradient[::SAMPLED].abs().amax()


def shrunk_gradient(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """And the inverse of its scale."""
    gradient = gradient.contiguous()
    small, turned = empty_pair(gradient, GRADIENT)
    inverse = torch.empty((), device=gradient.device)
    kernels.shrink[grid(gradient)](
        gradient, peak_of(gradient), small, turned, inverse, *gradient.shape, SCALE=1.0, GRADIENT=True, **TILE
    )
    return small, turned, inverse


Inverse = Tensor | float  # of a scale


def product(
    left: Tensor, left_inverse: Inverse, right: Tensor, right_scale: float, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """[N, K] times [M, K], both in 8 bits. Sums of gradients are as exact as can be: they have more terms than a forward product,
    and errors of the quick way would add up."""
    if isinstance(left_inverse, float):
        left_inverse = torch.full((), left_inverse, device=left.device)
    return torch._scaled_mm(
        left, right.t(), scale_a=left_inverse, scale_b=torch.full((), 1 / right_scale, device=left.device), bias=bias,
        out_dtype=dtype, use_fast_accum=left.dtype == VALUE,
    )  # fmt: skip


def forward_product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return product(x, 1 / ACTIVATION_SCALE, weight, WEIGHT_SCALE, bias, dtype)


def of_input(gradient: Tensor, inverse: Inverse, weight_turned: Tensor, dtype: torch.dtype) -> Tensor:
    return product(gradient, inverse, weight_turned, WEIGHT_SCALE, None, dtype)


def of_weight(gradient_turned: Tensor, inverse: Inverse, x_turned: Tensor) -> Tensor:
    return product(gradient_turned, inverse, x_turned, ACTIVATION_SCALE, None, torch.float32)


# --- a linear layer ---


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return linear_op(x.flatten(0, -2), weight)[0].view(*x.shape[:-1], -1)


@custom_op("dragoman::linear_in_eight_bits", mutates_args=())
def linear_op(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and both factors turned for the backward pass."""
    (small, turned), (weight_small, weight_turned) = shrunk(x, ACTIVATION_SCALE), shrunk(weight, WEIGHT_SCALE)
    return forward_product(small, weight_small, None, x.dtype), turned, weight_turned


@linear_op.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    turned, weight_turned = (each.new_empty(each.shape[::-1], dtype=VALUE) for each in (x, weight))
    return x.new_empty(x.shape[0], weight.shape[0]), turned, weight_turned


@custom_op("dragoman::linear_backward_in_eight_bits", mutates_args=())
def linear_backward(gradient: Tensor, x_turned: Tensor, weight_turned: Tensor) -> tuple[Tensor, Tensor]:
    small, turned, inverse = shrunk_gradient(gradient)
    return of_input(small, inverse, weight_turned, gradient.dtype), of_weight(turned, inverse, x_turned)


@linear_backward.register_fake
def _(gradient: Tensor, x_turned: Tensor, weight_turned: Tensor) -> tuple[Tensor, Tensor]:
    of_weight = gradient.new_empty(gradient.shape[1], x_turned.shape[0], dtype=torch.float32)
    return gradient.new_empty(gradient.shape[0], weight_turned.shape[0]), of_weight


def keep_for_linear(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.dtype = inputs[1].dtype
    ctx.save_for_backward(*output[1:])
    only_first_is_differentiable(ctx, output)


def differentiate_linear(ctx: Any, gradient: Tensor, *_: Any) -> Any:
    x, weight = linear_backward(gradient, *ctx.saved_tensors)
    return x, weight.to(ctx.dtype)


linear_op.register_autograd(differentiate_linear, setup_context=keep_for_linear)


# --- feed-forward ---


def feed_forward(x: Tensor, weights: Pair, biases: Pair, dropout: float) -> Tensor:
    matrices = (weights[0], biases[0], weights[1], biases[1])
    return feed_forward_op(x.flatten(0, -2), *matrices, draw_seed(x, dropout), dropout)[0].view(x.shape)


@custom_op("dragoman::feed_forward_in_eight_bits", mutates_args=())
def feed_forward_op(
    x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, seed: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output; for the backward pass x, both matrices and the hidden layer turned, and this also as it stands."""
    small, turned = shrunk(x, ACTIVATION_SCALE)
    inner_small, inner_turned = shrunk(inner, WEIGHT_SCALE)
    outer_small, outer_turned = shrunk(outer, WEIGHT_SCALE)
    before = forward_product(small, inner_small, inner_bias.to(x.dtype), x.dtype)
    hidden, hidden_turned = active(before, seed, dropout)
    out = forward_product(hidden, outer_small, outer_bias.to(x.dtype), x.dtype)
    return out, turned, inner_turned, outer_turned, hidden, hidden_turned


def active(before: Tensor, seed: Tensor, dropout: float) -> Pair:
    hidden, turned = empty_pair(before, VALUE)
    threshold, gain = threshold_and_gain(dropout)
    kernels.shrink_active[grid(before)](
        before, seed, hidden, turned, *before.shape, THRESHOLD=threshold, GAIN=gain, SCALE=ACTIVATION_SCALE,
        DROPOUT=dropout > 0, **TILE,
    )  # fmt: skip
    return hidden, turned


@feed_forward_op.register_fake
def _(x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, seed: Tensor,
      dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    turned = [each.new_empty(each.shape[::-1], dtype=VALUE) for each in (x, inner, outer)]
    slots, width = x.shape[0], inner.shape[0]
    hidden = [x.new_empty(shape, dtype=VALUE) for shape in ((slots, width), (width, slots))]
    return x.new_empty(slots, outer.shape[0]), *turned, *hidden  # type: ignore[return-value]


def bias_sums(rows: int) -> int:
    return triton.cdiv(rows, RELU_TILE["ROWS"] * RELU_TILE["TILES"])


@custom_op("dragoman::feed_forward_backward_in_eight_bits", mutates_args=())
def feed_forward_backward(
    gradient: Tensor, x_turned: Tensor, inner_turned: Tensor, outer_turned: Tensor, hidden: Tensor,
    hidden_turned: Tensor, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, of the inner matrix and its bias (partial sums), and of the outer matrix."""
    small, turned, inverse = shrunk_gradient(gradient)
    of_outer = of_weight(turned, inverse, hidden_turned)
    after = of_input(small, inverse, outer_turned, gradient.dtype)
    small, turned, inverse, bias = inactive(hidden, after, dropout)
    return of_input(small, inverse, inner_turned, gradient.dtype), of_weight(turned, inverse, x_turned), bias, of_outer


def inactive(hidden: Tensor, after: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient before relu, with the inverse of its scale, and partial sums for the bias."""
    rows, columns = after.shape
    small, turned = empty_pair(after, GRADIENT)
    inverse, bias = torch.empty((), device=after.device), torch.empty(bias_sums(rows), columns, device=after.device)
    kernels.shrink_relu_backward[(len(bias), triton.cdiv(columns, RELU_TILE["COLUMNS"]))](
        hidden, after, peak_of(after), small, turned, inverse, bias, rows, columns,
        GAIN=threshold_and_gain(dropout)[1], **RELU_TILE,
    )  # fmt: skip
    return small, turned, inverse, bias


@feed_forward_backward.register_fake
def _(gradient: Tensor, x_turned: Tensor, inner_turned: Tensor, outer_turned: Tensor, hidden: Tensor,
      hidden_turned: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    slots, width, inside = gradient.shape[0], x_turned.shape[0], hidden.shape[1]
    shapes = ((inside, width), (bias_sums(slots), inside), (gradient.shape[1], inside))
    sums = [gradient.new_empty(shape, dtype=torch.float32) for shape in shapes]
    return gradient.new_empty(slots, width), *sums  # type: ignore[return-value]


def keep_for_feed_forward(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.dropout, ctx.dtypes = inputs[-1], [each.dtype for each in inputs[1:5]]
    ctx.save_for_backward(*output[1:])
    only_first_is_differentiable(ctx, output)


def differentiate_feed_forward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
    x, inner, bias, outer = feed_forward_backward(gradient, *ctx.saved_tensors, ctx.dropout)
    of_matrices = (inner, bias.sum(0), outer, gradient.sum(0, dtype=torch.float32))
    return x, *(each.to(dtype) for each, dtype in zip(of_matrices, ctx.dtypes, strict=True)), None, None


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
