"""Label-smoothed cross-entropy as a SUM over target tokens. Who divides must know the tokens of all ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model import ops
from dragoman.model.plain import IGNORED
from dragoman.model.transformer import Transformer

# Logits that exist at once: on a CPU as many as stay in its cache, on a GPU as many as keep it busy, in a small part of its memory.
PIECE_ELEMENTS = {"cpu": 2**19, "cuda": 2**30}
GPU_BYTES_PER_ELEMENT = {
    True: 64,
    False: 256,
}  # of all its memory, with our kernels and without: plain torch takes 12 of them
# Gradients of logits are small: in fp16 they would fall below the smallest number it has.
GAIN = {torch.float16: 1024.0}


class SequenceLoss(nn.Module):
    """Model and loss in one, so that DDP and FSDP see the whole of the forward pass."""

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
        output = output_of(hidden_ND, weight_VD, bias_V, eight_bits=eight_bits and learning)
        ctx.gain = output.gain
        sums = torch.zeros(2, device=hidden_ND.device)
        hidden_gradient = torch.empty_like(hidden_ND) if learning else None
        weight_gradient = torch.zeros_like(weight_VD) if learning else None
        size = slots_at_once(hidden_ND.device, weight_VD.shape[0])
        with torch.autocast(hidden_ND.device.type, enabled=False):
            for start in range(0, hidden_ND.shape[0], size):
                hidden_PD, labels_P = (each[start : start + size] for each in (hidden_ND, labels_N))
                piece_sums, of_hidden, of_weight = output.loss_and_gradients(
                    hidden_PD.to(output.dtype), labels_P, smoothing, learning=learning
                )
                sums += piece_sums
                if hidden_gradient is not None and weight_gradient is not None:
                    hidden_gradient[start : start + size] = of_hidden
                    weight_gradient += of_weight
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        loss, nll = sums[0].clone(), sums[1].clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden_gradient, weight_gradient = ctx.saved_tensors
        factor = loss_gradient / ctx.gain
        return hidden_gradient * factor, weight_gradient * factor, None, None, None, None, None


class Output:
    """The output matrix in the type of the products, and what the loss of a piece of slots makes of it."""

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype):
        self.dtype, self.gain = dtype, GAIN.get(dtype, 1.0)
        self.matrix_VD, self.bias_V = weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype)

    def loss_and_gradients(
        self, hidden_PD: Tensor, labels_P: Tensor, smoothing: float, *, learning: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Sums of the loss, and the gradients of the hidden state and of the matrix times `gain`."""
        logits_PV = F.linear(hidden_PD, self.matrix_VD)
        if self.bias_V is not None:
            logits_PV += self.bias_V
        sums, gradient_PV = ops.loss_and_gradient(logits_PV, labels_P, smoothing, self.gain)
        if not learning:
            return sums, None, None
        return sums, gradient_PV @ self.matrix_VD, product_in_fp32(gradient_PV.t(), hidden_PD)


def output_of(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, *, eight_bits: bool) -> Any:
    dtype = ops.product_type(hidden_ND)
    if eight_bits and ops.fits_eight_bits(hidden_ND):
        from dragoman.model.eight_bits import Output as OutputInEightBits

        return OutputInEightBits(weight_VD, bias_V, dtype)
    return Output(weight_VD, bias_V, dtype)


def slots_at_once(device: torch.device, pieces: int) -> int:
    """A multiple of what products in 8 bits want, where that can be."""
    size = max(1, elements_at_once(device) // pieces)
    return size - size % ops.EIGHT_BITS_MULTIPLE if size > ops.EIGHT_BITS_MULTIPLE else size


def elements_at_once(device: torch.device) -> int:
    most = PIECE_ELEMENTS[device.type]
    if device.type != "cuda":
        return most
    memory = torch.cuda.get_device_properties(device).total_memory
    return int(min(most, memory // GPU_BYTES_PER_ELEMENT[ops.HAS_TRITON]))


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
