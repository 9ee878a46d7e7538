"""The operations of a training step, each done the fastest way that fits: the Triton kernels of `fused` on a GPU in 16 bits,
`cpu` for learning on a CPU, `plain` torch everywhere else."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model import cpu, plain
from dragoman.model.plain import Function, Pair, Small

HAS_TRITON = find_spec("triton") is not None
COMPILERS = ("gcc", "clang")  # one of which Triton calls, and torch.compile through it
MOST_DIM = 128  # of a head, for the kernels
WIDE_HEAD_BYTES = 128 * 1024  # what the backward pass of such heads takes
EIGHT_BITS_MULTIPLE = 16


def look_at(device: torch.device) -> None:
    """Before a model runs there: our kernels are for GPUs from Ampere on, and attention with wide heads wants much shared memory."""
    global HAS_TRITON, MOST_DIM
    if device.type == "cuda":
        HAS_TRITON = torch.cuda.get_device_capability(device) >= (8, 0) and not cannot_compile(device)
        shared = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
        MOST_DIM = 128 if shared >= WIDE_HEAD_BYTES else 64
        if HAS_TRITON:
            keep_kernels_together()


def cannot_compile(device: torch.device) -> str:
    """Why neither torch nor Triton can compile for a GPU on this machine; "" where they can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < (7, 0):
        return f"{torch.cuda.get_device_name(device)} is older than Triton supports"
    if not (os.environ.get("CC") or any(map(shutil.which, COMPILERS))):
        return f"there is no C compiler ({' or '.join(COMPILERS)}), which Triton needs; install one"
    return ""


def keep_kernels_together() -> None:
    """torch.compile names a folder of its own for Triton's kernels, in the middle of the first start and of no other: the second one
    would compile ours again. Whoever has named a folder for what torch compiles has named it for ours too."""
    from triton import knobs

    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path(named, "triton")) if named else knobs.cache.dir)


def fusible(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and HAS_TRITON


def on_cpu(x: Tensor) -> bool:
    """Learning there, and not under a compiler, which cannot see into it."""
    return x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def product_type(x: Tensor) -> torch.dtype:
    """The type that matrix products are computed in: autocast's, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Sight(NamedTuple):
    """Which slots see which: as segments for the kernels, as a mask [B, 1, T, S] for the other ways."""

    query_segment: Tensor
    key_segment: Tensor
    causal: bool
    mask: Tensor | None


def sight(query_segment: Tensor, key_segment: Tensor, like: Tensor, dim: int, *, causal: bool = False) -> Sight:
    """`like`: a tensor of the model, whose heads are `dim` wide."""
    is_needed = not attends_fused(like, query_segment.shape[1], key_segment.shape[1], dim)
    mask = plain.visible(query_segment, key_segment, causal=causal) if is_needed else None
    return Sight(query_segment, key_segment, causal, mask)


def attends_fused(like: Tensor, slots: int, key_slots: int, dim: int) -> bool:
    """Whether there are kernels for rows and heads of these sizes."""
    if not fusible(like):
        return False
    from dragoman.model import fused

    return fused.fits(slots, key_slots, dim, MOST_DIM)


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """On a GPU with a gradient of its own, while learning: sums in fp32."""
    if table.is_cuda and HAS_TRITON and torch.is_grad_enabled():
        from dragoman.model import fused

        return fused.embed(ids, table)
    return F.embedding(ids, table)


def ready_to_add(x: Tensor) -> Tensor:
    """What all sublayers add to is on a GPU in the type of the products: nothing is read and written more."""
    return x.to(product_type(x)) if x.is_cuda else x


def stream(x: Tensor, dropout: float, *, norms_first: bool) -> tuple[Tensor, Tensor | None]:
    """What all sublayers add to, at its beginning, and what is still to be added to it. Where the first sublayer norms what comes
    in, embeddings are added to nothing, as our kernel drops, adds and norms in one pass: a compiled norm alone, with its gradient,
    takes three milliseconds of transformer-big."""
    return AddedToNothing.apply(x) if norms_first and fusible(x) else (drop(x, dropout), None)


class AddedToNothing(torch.autograd.Function):
    """The nothing wants a gradient too, which nobody gets: or what is compiled for the other blocks would not do for the first (nor
    does it where embeddings are frozen)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(x), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, of_nothing: Tensor, of_x: Tensor) -> Tensor:  # type: ignore[override]
        return of_x


def drop(x: Tensor, dropout: float) -> Tensor:
    return cpu.drop(x, dropout) if on_cpu(x) else F.dropout(x, dropout)


def attend_of(x: Tensor, dropout: float) -> Function:
    return cpu.attend if on_cpu(x) and x.dtype == torch.bfloat16 and not dropout else plain.attend


def add_norm(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float, *, eight_bits: bool
) -> tuple[Tensor, Tensor | Small]:
    if eight_bits and fits_eight_bits(x):
        from dragoman.model import eight_bits as small

        return small.add_norm(x, update, weight, bias, epsilon, dropout)
    if fusible(x):
        from dragoman.model import fused

        return fused.add_norm(x, update, weight, bias, epsilon, dropout)
    way = cpu.add_norm if on_cpu(x) else plain.add_norm
    return way(x, update, weight, bias, epsilon, dropout)


def attention_in_eight_bits(
    x_BTD: Tensor | Small, memory_BSD: Tensor | Small | None, matrices: tuple[Tensor, Tensor | None, Tensor],
    seen: Sight, heads: int, dropout: float,
) -> Tensor:  # fmt: skip
    """Attention with the matrices before and after it, where it needs no mask."""
    from dragoman.model import eight_bits as small

    segments = small.Segments(seen.query_segment, seen.key_segment, seen.causal)
    return small.attention(x_BTD, memory_BSD, matrices, segments, heads, dropout)


def self_attention(packed_BT3D: Tensor, seen: Sight, heads: int, dropout: float) -> Tensor:
    if seen.mask is not None:
        return plain.self_attention(packed_BT3D, seen.mask, heads, dropout, attend_of(packed_BT3D, dropout))
    from dragoman.model import fused

    return fused.self_attention(packed_BT3D, seen.query_segment, heads, dropout, causal=seen.causal)


def cross_attention(query_BTD: Tensor, key_value_BS2D: Tensor, seen: Sight, heads: int, dropout: float) -> Tensor:
    if seen.mask is not None:
        return plain.cross_attention(
            query_BTD, key_value_BS2D, seen.mask, heads, dropout, attend_of(query_BTD, dropout)
        )
    from dragoman.model import fused

    return fused.cross_attention(query_BTD, key_value_BS2D, seen.query_segment, seen.key_segment, heads, dropout)


class Descent(NamedTuple):
    """Which of the K hypotheses of every slot each hypothesis of a search descends from: as numbers for the kernel, as a mask
    for the other way (see plain.ancestors)."""

    position: Tensor  # the slot that is written
    ancestry_BKT: Tensor
    mask: Tensor | None


def descent(position: Tensor, ancestry_BKT: Tensor, slots: int, like: Tensor, dim: int) -> Descent:
    """`slots` are looked at, where a mask is needed: as many as are filled at least. `like`: a tensor of the model."""
    is_needed = not searches_fused(like, ancestry_BKT.shape[1], dim)
    return Descent(position, ancestry_BKT, plain.ancestors(ancestry_BKT, slots, like.dtype) if is_needed else None)


def searches_fused(like: Tensor, hypotheses: int, dim: int) -> bool:
    if not fusible(like):
        return False
    from dragoman.model import fused

    return fused.searches(hypotheses, dim, MOST_DIM)


def search_self(packed_BK3D: Tensor, past: Pair, seen: Descent, heads: int) -> Tensor:
    """See plain.search_self."""
    if seen.mask is not None:
        return plain.search_self(packed_BK3D, past, seen.mask, seen.position, heads)
    from dragoman.model import fused

    return fused.search_self(packed_BK3D, past, seen.ancestry_BKT, seen.position, heads)


def search_cross(query_BKD: Tensor, memory: Pair, mask: Tensor, heads: int) -> Tensor:
    """See plain.search_cross."""
    if searches_fused(query_BKD, query_BKD.shape[1], query_BKD.shape[2] // heads):
        from dragoman.model import fused

        return fused.search_cross(query_BKD, memory, mask, heads)
    return plain.search_cross(query_BKD, memory, mask, heads)


def feed_forward(
    x: Tensor | Small, weights: Pair, biases: Pair, dropout: float, activation: str, *, eight_bits: bool
) -> Tensor:
    if isinstance(x, Small) or (activation == "relu" and eight_bits and fits_eight_bits(x)):
        from dragoman.model import eight_bits as small

        return small.feed_forward(x, weights, biases, dropout)
    if fusible(x) and activation == "relu":
        from dragoman.model import fused

        return fused.feed_forward(x, weights, biases, dropout)
    if on_cpu(x) and activation == "relu" and not dropout:
        return cpu.feed_forward(x.to(product_type(x)), weights, biases)
    return plain.feed_forward(x, weights, biases, dropout, drop, activation)


def fits_eight_bits(x: Tensor) -> bool:
    """Products in fp8 want sizes of their own; that of all slots is summed over in the gradient of the weight. Whether those of
    matrices are of the kind is asked once, see Transformer.use_eight_bits."""
    return fusible(x) and x.dtype == torch.bfloat16 and not x.numel() // x.shape[-1] % EIGHT_BITS_MULTIPLE


def linear(x: Tensor | Small, weight: Tensor, bias: Tensor | None = None, *, eight_bits: bool) -> Tensor:
    if isinstance(x, Small) or (eight_bits and fits_eight_bits(x)):
        from dragoman.model import eight_bits as small

        product = small.linear(x, weight)
        return product if bias is None else product + bias.to(product.dtype)
    return F.linear(x, weight, bias)


def loss_and_gradient(logits_PV: Tensor, labels_P: Tensor, smoothing: float, gain: float) -> Pair:
    """The gradient may take the place of the logits."""
    if logits_PV.is_cuda and HAS_TRITON:
        from dragoman.model import fused

        return fused.loss_and_gradient(logits_PV, labels_P, smoothing, gain)
    return plain.loss_and_gradient(logits_PV, labels_P, smoothing, gain)


def best_of(logits: Tensor, count: int, never: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """See plain.best_of."""
    if fusible(logits):
        from dragoman.model import fused

        if count <= logits.shape[-1] // fused.CHUNK:
            return fused.best_of(logits, count, never)
    return plain.best_of(logits, count, never)
