"""Label-smoothed cross-entropy as a SUM over target tokens. Who divides must know the tokens of all ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.model import ops
from dragoman.model.plain import IGNORED
from dragoman.model.transformer import Transformer

# Logits that exist at once: on a CPU as many as stay in its cache, on a GPU as many as keep it busy.
PIECE_ELEMENTS = {"cpu": 2**19, "cuda": 2**30}
# Gradients of logits are small: in fp16 they would fall below the smallest number it has.
GAIN = {torch.float16: 1024.0}


class SequenceLoss(nn.Module):
    """Model and loss in one, so that wrapping and compiling see the whole of the forward pass."""

    def __init__(self, model: Transformer, label_smoothing: float):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self,
        source: Tensor,
        source_position: Tensor,
        source_segment: Tensor,
        target_in: Tensor,
        target_out: Tensor,
        target_position: Tensor,
        target_segment: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Sums over target tokens: smoothed cross-entropy, and plain negative log-likelihood (without gradient)."""
        memory_BSD = self.model.encode(source, source_position, source_segment)
        hidden_BTD = self.model.decode(target_in, target_position, target_segment, memory_BSD, source_segment)
        labels = target_out.masked_fill(target_segment == 0, IGNORED).flatten()
        weight_VD = self.model.embedding.weight
        options = (self.label_smoothing, self.model.eight_bits, self.model.output_bias)
        return smoothed_sums(hidden_BTD.flatten(0, 1), weight_VD, labels, *options)


@torch.compiler.disable
def smoothed_sums(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    smoothing: float,
    eight_bits: bool = False,
    bias_V: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    learning = torch.is_grad_enabled()
    return SmoothedSums.apply(hidden_ND, weight_VD, labels_N, smoothing, eight_bits, bias_V, learning)


class SmoothedSums(torch.autograd.Function):
    """Output matrix, softmax and loss in one, piece by piece: the logits of all slots never exist at once.

    The gradients are made in the forward pass, while a piece of logits is still warm, and kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        labels_N: Tensor,
        smoothing: float,
        eight_bits: bool,
        bias_V: Tensor | None,
        learning: bool,
    ) -> tuple[Tensor, Tensor]:
        matrix_VD = weight_VD.to(ops.product_type(hidden_ND))
        ctx.gain = GAIN.get(matrix_VD.dtype, 1.0)
        sums = torch.zeros(2, device=hidden_ND.device)
        hidden_gradient = torch.empty_like(hidden_ND) if learning else None
        weight_gradient = torch.zeros_like(weight_VD) if learning else None
        size = max(1, PIECE_ELEMENTS[hidden_ND.device.type] // weight_VD.shape[0])
        with torch.autocast(hidden_ND.device.type, enabled=False):
            for start in range(0, hidden_ND.shape[0], size):
                hidden_PD = hidden_ND[start : start + size].to(matrix_VD.dtype)
                logits_PV = ops.linear(hidden_PD, matrix_VD, eight_bits=eight_bits)
                if bias_V is not None:
                    logits_PV += bias_V.to(logits_PV.dtype)
                labels_P = labels_N[start : start + size]
                piece_sums, gradient_PV = ops.loss_and_gradient(logits_PV, labels_P, smoothing, ctx.gain)
                sums += piece_sums
                if hidden_gradient is not None and weight_gradient is not None:
                    hidden_gradient[start : start + size] = gradient_PV @ matrix_VD
                    weight_gradient += product_in_fp32(gradient_PV.t(), hidden_PD)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        loss, nll = sums[0].clone(), sums[1].clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden_gradient, weight_gradient = ctx.saved_tensors
        factor = loss_gradient / ctx.gain
        return hidden_gradient * factor, weight_gradient * factor, None, None, None, None, None


def product_in_fp32(left: Tensor, right: Tensor) -> Tensor:
    """A product of 16-bit matrices whose sums are not rounded to 16 bits (where the device can do that)."""
    return torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda and left.itemsize == 2 else left @ right


def loss_floor(vocab_size: int, smoothing: float) -> float:
    """The lowest smoothed cross-entropy per token, in nats: the entropy of the smoothed target itself."""
    if not smoothing:
        return 0.0
    off = smoothing / vocab_size
    on = 1.0 - smoothing + off
    return -(on * math.log(on) + (vocab_size - 1) * off * math.log(off))
