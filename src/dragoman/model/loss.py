"""Label-smoothed cross-entropy as a SUM over target tokens. Who divides must know the tokens of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.model.transformer import Transformer

IGNORED = -100
# Logits that exist at once: on a CPU as many as stay in its cache, on a GPU as many as keep it busy.
PIECE_ELEMENTS = {"cpu": 2**19, "cuda": 2**29}

Piece = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


class SequenceLoss(nn.Module):
    """Model and loss in one, so that wrapping and compiling see the whole of the forward pass."""

    def __init__(self, model: Transformer, label_smoothing: float, *, compiled: bool = False):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.compiled = compiled

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
        return smoothed_sums(hidden_BTD.flatten(0, 1), weight_VD, labels, self.label_smoothing, self.compiled)


@torch.compiler.disable
def smoothed_sums(
    hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, smoothing: float, compiled: bool
) -> tuple[Tensor, Tensor]:
    learning = torch.is_grad_enabled()
    result: tuple[Tensor, Tensor] = SmoothedSums.apply(hidden_ND, weight_VD, labels_N, smoothing, compiled, learning)
    return result


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
        compiled: bool,
        learning: bool,
    ) -> tuple[Tensor, Tensor]:
        kind = hidden_ND.device.type
        piece = compiled_piece() if compiled else sums_and_gradient
        matrix_VD = weight_VD.to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype)
        sums = torch.zeros(2, device=hidden_ND.device)
        hidden_gradient = torch.empty_like(hidden_ND) if learning else None
        weight_gradient = torch.zeros_like(weight_VD) if learning else None
        size = max(1, PIECE_ELEMENTS[kind] // weight_VD.shape[0])
        with torch.autocast(kind, enabled=False):
            for start in range(0, hidden_ND.shape[0], size):
                hidden_PD = hidden_ND[start : start + size].to(matrix_VD.dtype)
                labels_P = labels_N[start : start + size]
                piece_sums, gradient_PV = piece(hidden_PD @ matrix_VD.t(), labels_P, smoothing)
                sums += piece_sums
                if hidden_gradient is not None and weight_gradient is not None:
                    hidden_gradient[start : start + size] = gradient_PV @ matrix_VD
                    weight_gradient += gradient_PV.t() @ hidden_PD
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        loss, nll = sums[0].clone(), sums[1].clone()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * loss_gradient, weight_gradient * loss_gradient, None, None, None, None


def sums_and_gradient(logits_PV: Tensor, labels_P: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Of the real slots of one piece: the sums of smoothed cross-entropy and negative log-likelihood, and the gradient of
    the first: softmax - smoothed target, subtracted in fp32 before it is rounded."""
    scores_PV, real_P = logits_PV.float(), labels_P != IGNORED
    labels_P1 = labels_P.clamp(min=0)[:, None]
    normalizer_P1 = scores_PV.logsumexp(dim=-1, keepdim=True)
    nll_P = (normalizer_P1 - scores_PV.gather(1, labels_P1)).squeeze(1)
    spread_P = normalizer_P1.squeeze(1) - scores_PV.mean(dim=-1)
    nll, spread = (torch.where(real_P, value_P, 0.0).sum() for value_P in (nll_P, spread_P))
    gradient_PV = (scores_PV - normalizer_P1).exp_().sub_(smoothing / scores_PV.shape[1])
    if torch.compiler.is_compiling():  # one kernel; eagerly, the comparison would be one more pass over P x V
        target_PV = torch.arange(scores_PV.shape[1], device=scores_PV.device) == labels_P1
        gradient_PV = torch.where(target_PV, gradient_PV - (1.0 - smoothing), gradient_PV)
    else:
        gradient_PV.scatter_add_(1, labels_P1, gradient_PV.new_full(labels_P1.shape, smoothing - 1.0))
    gradient_PV = gradient_PV.mul_(real_P[:, None])
    return torch.stack([(1.0 - smoothing) * nll + smoothing * spread, nll]), gradient_PV.to(logits_PV.dtype)


@cache
def compiled_piece() -> Piece:
    """Looked up here, not handed through `SequenceLoss.forward`: a compiler that traces it would unwrap it again."""
    return torch.compile(sums_and_gradient, dynamic=False)


def loss_floor(vocab_size: int, smoothing: float) -> float:
    """The lowest smoothed cross-entropy per token, in nats: the entropy of the smoothed target itself."""
    if not smoothing:
        return 0.0
    off = smoothing / vocab_size
    on = 1.0 - smoothing + off
    return -(on * math.log(on) + (vocab_size - 1) * off * math.log(off))
