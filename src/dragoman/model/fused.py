"""The Triton kernels as differentiable operators that torch.compile takes into its graph.

Each function has a twin of the same meaning in `model.plain`. Dropout takes a seed, a tensor of one int64: the backward
pass draws the same numbers again."""

# No `from __future__ import annotations` here: the operators' schemas are read from the annotations.
from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from dragoman.model import kernels
from dragoman.model.plain import Pair

WIDTHS = (16, 32, 64, 128)  # slots a row may have: one program holds a row's scores of one head
DIMS = (16, 32, 64, 128)  # of a head
INTERPRETED = not isinstance(kernels.kept, triton.JITFunction)  # TRITON_INTERPRET=1: on a CPU, for tests


def launch(kernel: Any) -> Any:
    return kernel if INTERPRETED else wrap_triton(kernel)


def threshold_and_gain(dropout: float) -> tuple[int, float]:
    return int(dropout * 2**31), 1.0 / (1.0 - dropout)


def draw_seed(like: Tensor, dropout: float) -> Tensor:
    if not dropout:  # nobody reads it
        return torch.empty(1, dtype=torch.int64, device=like.device)
    return torch.randint(2**62, (1,), device=like.device)


def only_first_is_differentiable(ctx: Any, output: Any) -> None:
    """Otherwise gradients of zeros, as large as the other outputs, would be made for nobody."""
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


# --- residual, dropout and layer norm ---


def add_norm(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float) -> Pair:
    return add_norm_op(x, update, weight, bias, draw_seed(x, dropout), epsilon, dropout)


@triton_op("dragoman::add_norm", mutates_args=())
def add_norm_op(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, epsilon: float, dropout: float
) -> tuple[Tensor, Tensor]:
    total, normed = torch.empty_like(x), torch.empty_like(x)
    launch_add_norm(x, update, weight, bias, seed, total, normed, epsilon, dropout)
    return total, normed


def launch_add_norm(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, total: Tensor, normed: Tensor,
    epsilon: float, dropout: float, small: float = 0.0,
) -> None:  # fmt: skip
    width = x.shape[-1]
    rows, block = x.numel() // width, triton.next_power_of_2(width)
    tile = max(1, 2048 // block)
    launch(kernels.add_norm_forward)[(triton.cdiv(rows, tile),)](
        x, update.contiguous(), weight, bias, seed, total, normed, rows, *threshold_and_gain(dropout), epsilon,
        WIDTH=width, BLOCK=block, ROWS=tile, DROPOUT=dropout > 0, SMALL=small, num_warps=4,
    )  # fmt: skip


@triton_op("dragoman::add_norm_backward", mutates_args=())
def add_norm_backward(
    total: Tensor, weight: Tensor, seed: Tensor, sum_gradient: Tensor, normed_gradient: Tensor, epsilon: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, of the update (without dropout the same: then nothing), and partial sums for [weight, bias]."""
    width = total.shape[-1]
    rows, block = total.numel() // width, triton.next_power_of_2(width)
    tile = 2 if block <= 1024 else 1
    programs = min(triton.cdiv(rows, tile), 16 * processors(total.device))
    x_gradient = torch.empty_like(total)
    update_gradient = torch.empty_like(total) if dropout else total.new_empty(1)
    partial = torch.empty(programs, 2, width, dtype=torch.float32, device=total.device)
    launch(kernels.add_norm_backward)[(programs,)](
        total, weight, seed, sum_gradient.contiguous(), normed_gradient.contiguous(),
        x_gradient, update_gradient, partial, rows, *threshold_and_gain(dropout), epsilon,
        WIDTH=width, BLOCK=block, ROWS=tile, TURNS=triton.cdiv(rows, programs * tile), STAGES=3 if block <= 4096 else 1,
        DROPOUT=dropout > 0, num_warps=max(1, block // 512),
    )  # fmt: skip
    return x_gradient, update_gradient, partial


def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def keep_for_add_norm(ctx: Any, inputs: Any, output: Any) -> None:
    _, _, weight, _, seed, ctx.epsilon, ctx.dropout = inputs
    ctx.save_for_backward(output[0], weight, seed)


def differentiate_add_norm(ctx: Any, sum_gradient: Tensor, normed_gradient: Tensor) -> Any:
    gradients = add_norm_backward(*ctx.saved_tensors, sum_gradient, normed_gradient, ctx.epsilon, ctx.dropout)
    x, update, partial = gradients
    return x, update if ctx.dropout else x, *partial.sum(0), None, None, None


add_norm_op.register_autograd(differentiate_add_norm, setup_context=keep_for_add_norm)


# --- attention ---


def fits(width: int, key_width: int, dim: int, most_dim: int) -> bool:
    return width == key_width and width in WIDTHS and dim in DIMS and dim <= most_dim


def self_attention(packed: Tensor, segment: Tensor, heads: int, dropout: float, *, causal: bool) -> Tensor:
    """`packed`: query, key and value side by side, [B, T, 3D]."""
    seed = draw_seed(packed, dropout)
    return attention_op(packed, None, segment, segment, seed, heads, causal, dropout)[0]


def cross_attention(
    query: Tensor, key_value: Tensor, query_segment: Tensor, key_segment: Tensor, heads: int, dropout: float
) -> Tensor:
    seed = draw_seed(query, dropout)
    return attention_op(query, key_value, query_segment, key_segment, seed, heads, False, dropout)[0]


def numbers_of(query: Tensor, key_value: Tensor | None, heads: int, causal: bool, dropout: float) -> dict[str, Any]:
    """What the attention kernels are compiled for."""
    together = key_value is None
    dim = query.shape[-1] // heads // (3 if together else 1)
    threshold, gain = threshold_and_gain(dropout)
    return {
        "SCALE": dim**-0.5, "THRESHOLD": threshold, "GAIN": gain, "HEADS": heads, "WIDTH": query.shape[1], "DIM": dim,
        "CAUSAL": causal, "DROPOUT": dropout > 0, "TOGETHER": together,
    }  # fmt: skip


def forward_warps(slots: int, *, causal: bool) -> int:
    """As tried out on an H200."""
    return 8 if slots == 128 and causal else 4


def backward_warps(slots: int, dropout: float) -> int:
    return 8 if dropout and slots == 128 else 4


@triton_op("dragoman::attention", mutates_args=())
def attention_op(
    query: Tensor, key_value: Tensor | None, query_segment: Tensor, key_segment: Tensor, seed: Tensor, heads: int,
    causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What was attended to, and the logarithm (base 2) of every softmax's denominator."""
    numbers = numbers_of(query, key_value, heads, causal, dropout)
    rows, slots, _ = query.shape
    out = query.new_empty(rows, slots, heads * numbers["DIM"])
    normalizer = torch.empty(rows, heads, slots, dtype=torch.float32, device=query.device)
    launch(kernels.attention_forward)[(rows * heads,)](
        query, query if key_value is None else key_value, query_segment, key_segment, seed, out, normalizer,
        **numbers, SMALL=0.0, num_warps=forward_warps(slots, causal=causal),
    )  # fmt: skip
    return out, normalizer


@triton_op("dragoman::attention_backward", mutates_args=())
def attention_backward(
    query: Tensor, key_value: Tensor | None, query_segment: Tensor, key_segment: Tensor, seed: Tensor,
    normalizer: Tensor, out_gradient: Tensor, heads: int, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of query and key_value; when they are one tensor, the second is nothing."""
    query_gradient = torch.empty_like(query)
    key_value_gradient = query.new_empty(1) if key_value is None else torch.empty_like(key_value)
    launch(kernels.attention_backward)[(query.shape[0] * heads,)](
        query, query if key_value is None else key_value, query_segment, key_segment, seed, normalizer,
        out_gradient.contiguous(), query_gradient, key_value_gradient, seed,
        **numbers_of(query, key_value, heads, causal, dropout), SMALL=False,
        num_warps=backward_warps(query.shape[1], dropout),
    )  # fmt: skip
    return query_gradient, key_value_gradient


def keep_for_attention(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.heads, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, output[1])
    only_first_is_differentiable(ctx, output)


def differentiate_attention(ctx: Any, out_gradient: Tensor, _: Any) -> Any:
    options = (ctx.heads, ctx.causal, ctx.dropout)
    query, key_value = attention_backward(*ctx.saved_tensors, out_gradient, *options)
    together = ctx.saved_tensors[1] is None
    return query, None if together else key_value, None, None, None, None, None, None


attention_op.register_autograd(differentiate_attention, setup_context=keep_for_attention)


# --- attention in a search ---

MOST_HYPOTHESES = 64  # of a sentence: one program holds them all


def searches(hypotheses: int, dim: int, most_dim: int) -> bool:
    return hypotheses <= MOST_HYPOTHESES and dim in DIMS and dim <= most_dim


def search_self(packed: Tensor, past: Pair, ancestry: Tensor, position: Tensor, heads: int) -> Tensor:
    """See plain.search_self."""
    out = packed.new_empty(*packed.shape[:2], packed.shape[2] // 3)
    kernels.search_self[(packed.shape[0] * heads,)](
        packed, *past, ancestry, position, out, past[0].shape[2], **search_numbers(out, heads), TILE=32, num_warps=1
    )
    return out


def search_cross(query: Tensor, memory: Pair, mask: Tensor, heads: int) -> Tensor:
    """See plain.search_cross."""
    out = torch.empty_like(query)
    kernels.search_cross[(query.shape[0] * heads,)](
        query, *memory, mask, out, memory[0].shape[2], **search_numbers(out, heads), TILE=32, num_warps=1
    )
    return out


def search_numbers(out: Tensor, heads: int) -> dict[str, Any]:
    dim, hypotheses = out.shape[2] // heads, out.shape[1]
    queries = max(16, triton.next_power_of_2(hypotheses))
    return {"SCALE": dim**-0.5, "HEADS": heads, "HYPOTHESES": hypotheses, "QUERIES": queries, "DIM": dim}


# --- feed-forward ---


def feed_forward(x: Tensor, weights: Pair, biases: Pair, dropout: float) -> Tensor:
    """Bias and relu in the first matrix product, both and dropout undone in one pass."""
    matrices = [tensor.to(x.dtype) for pair in zip(weights, biases, strict=True) for tensor in pair]
    out, _ = feed_forward_op(x.flatten(0, -2), *matrices, draw_seed(x, dropout), dropout)
    return out.view(x.shape)


@custom_op("dragoman::feed_forward", mutates_args=())
def feed_forward_op(
    x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, seed: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """The output, and the hidden layer for the backward pass."""
    hidden = torch._addmm_activation(inner_bias, x, inner.t())
    if dropout:
        threshold, gain = threshold_and_gain(dropout)
        kernels.activate[(triton.cdiv(hidden.numel(), 4096),)](
            hidden, seed, hidden.numel(), THRESHOLD=threshold, GAIN=gain, BLOCK=4096, num_warps=8
        )
    return torch.addmm(outer_bias, hidden, outer.t()), hidden


@feed_forward_op.register_fake
def _(x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, seed: Tensor,
      dropout: float) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape[0], outer.shape[0]), x.new_empty(x.shape[0], inner.shape[0])


@triton_op("dragoman::relu_backward", mutates_args=())
def relu_backward(hidden: Tensor, gradient: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    rows, width = hidden.shape
    columns, tile, tiles = min(256, triton.next_power_of_2(width)), 16, 16
    chunks = triton.cdiv(rows, tile * tiles)
    out = torch.empty_like(hidden)
    bias_gradient = torch.empty(chunks, width, dtype=torch.float32, device=hidden.device)
    launch(kernels.relu_backward)[(chunks, triton.cdiv(width, columns))](
        hidden, gradient.contiguous(), out, bias_gradient, rows, GAIN=threshold_and_gain(dropout)[1],
        WIDTH=width, COLUMNS=columns, ROWS=tile, TILES=tiles, num_warps=4,
    )  # fmt: skip
    return out, bias_gradient


def keep_for_feed_forward(ctx: Any, inputs: Any, output: Any) -> None:
    x, inner, _, outer, _, _, ctx.dropout = inputs
    ctx.save_for_backward(x, inner, outer, output[1])
    only_first_is_differentiable(ctx, output)


def differentiate_feed_forward(ctx: Any, gradient: Tensor, _: Any) -> Any:
    x, inner, outer, hidden = ctx.saved_tensors
    inside, bias = relu_backward(hidden, gradient @ outer, ctx.dropout)
    of_inner = (inside.t() @ x, bias.sum(0).to(x.dtype))
    of_outer = (gradient.t() @ hidden, gradient.sum(0))
    return inside @ inner, *of_inner, *of_outer, None, None


feed_forward_op.register_autograd(differentiate_feed_forward, setup_context=keep_for_feed_forward)


# --- embeddings ---


@triton_op("dragoman::embed", mutates_args=())
def embed(ids: Tensor, table: Tensor) -> Tensor:
    return torch.nn.functional.embedding(ids, table)


@custom_op("dragoman::embed_backward", mutates_args=())
def embed_backward(gradient: Tensor, ids: Tensor, count: int) -> Tensor:
    """Without a look at equal ids first, programs that add to frequent ones wait for each other: three milliseconds of a step of
    transformer-big."""
    (slots, width), run = gradient.shape, 32
    ids, order = ids.sort()
    out = torch.zeros(count, width, device=gradient.device)
    block = min(1024, triton.next_power_of_2(width))
    kernels.embedding_backward[(triton.cdiv(slots, run), triton.cdiv(width, block))](
        gradient, ids, order, out, slots, WIDTH=width, BLOCK=block, RUN=run, num_warps=4
    )
    return out


@embed_backward.register_fake
def _(gradient: Tensor, ids: Tensor, count: int) -> Tensor:
    return gradient.new_empty(count, gradient.shape[1], dtype=torch.float32)


def keep_for_embed(ctx: Any, inputs: Any, output: Any) -> None:
    ids, table = inputs
    ctx.count, ctx.dtype = table.shape[0], table.dtype
    ctx.save_for_backward(ids)


def differentiate_embed(ctx: Any, gradient: Tensor) -> Any:
    (ids,) = ctx.saved_tensors
    return None, embed_backward(gradient.flatten(0, -2).contiguous(), ids.flatten(), ctx.count).to(ctx.dtype)


embed.register_autograd(differentiate_embed, setup_context=keep_for_embed)


# --- loss ---


def loss_and_gradient(logits_PV: Tensor, labels_P: Tensor, smoothing: float, gain: float) -> Pair:
    """The logits become their own gradient."""
    return loss_sums(logits_PV, labels_P, logits_PV, smoothing, gain), logits_PV


def loss_sums(logits_PV: Tensor, labels_P: Tensor, gradient_PV: Tensor, smoothing: float, gain: float) -> Tensor:
    """Smoothed loss and likelihood; the gradient is written where it is told to, in 8 bits if that is its type."""
    slots, width = logits_PV.shape
    sums = torch.empty(2, slots, dtype=torch.float32, device=logits_PV.device)
    block = min(4096, triton.next_power_of_2(width))
    kernels.loss[(slots,)](
        logits_PV, labels_P, sums[0], sums[1], gradient_PV, SMOOTHING=smoothing, GAIN=gain, WIDTH=width, BLOCK=block,
        SMALL=gradient_PV.itemsize == 1, num_warps=8,
    )  # fmt: skip
    return sums.sum(1)


# --- the best of many logits ---

CHUNK = 128


def best_of(logits: Tensor, count: int, never: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = logits.numel() // logits.shape[-1], logits.shape[-1]
    chunks = triton.cdiv(width, CHUNK)
    normalizer, peaks, values = (
        torch.empty(rows, columns, dtype=torch.float32, device=logits.device) for columns in (1, chunks, count)
    )
    places = torch.empty(rows, count, dtype=torch.int64, device=logits.device)
    ours = {"FIRST": never[0], "SECOND": never[1], "WIDTH": width, "CHUNK": CHUNK}
    kernels.peaks[(rows,)](logits, normalizer, peaks, **ours, BLOCK=4096, num_warps=8)
    kernels.best[(rows,)](
        logits, normalizer, peaks, values, places, **ours, CHUNKS=chunks, MOST=triton.next_power_of_2(chunks),
        COUNT=count, PLACES=triton.next_power_of_2(count), num_warps=4,
    )  # fmt: skip
    shape = (*logits.shape[:-1], count)
    return normalizer.view(logits.shape[:-1]), values.view(shape), places.view(shape)
