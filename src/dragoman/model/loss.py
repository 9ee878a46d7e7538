"""Label-smoothed cross-entropy as a SUM over target tokens. Who divides must know the tokens of all ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.model.transformer import Transformer

IGNORED = -100
# Logits that exist at once: on a CPU as many as stay in its cache, on a GPU as many as keep it busy.
PIECE_ELEMENTS = {"cpu": 2**19, "cuda": 2**28}


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
        return smoothed_sums(hidden_BTD.flatten(0, 1), self.model.embedding.weight, labels, self.label_smoothing)


@torch.compiler.disable
def smoothed_sums(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = SmoothedSums.apply(hidden_ND, weight_VD, labels_N, smoothing)
    return result


class SmoothedSums(torch.autograd.Function):
    """Output matrix, softmax and loss in one, piece by piece: the logits of all slots never exist at once.

    The gradients are made in the forward pass, while a piece of logits is still warm, and kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        learning = any(ctx.needs_input_grad)
        kind = hidden_ND.device.type
        matrix_VD = weight_VD.to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype)
        sums = torch.zeros(2, device=hidden_ND.device)
        hidden_gradient = torch.empty_like(hidden_ND) if learning else None
        weight_gradient = torch.zeros_like(weight_VD) if learning else None
        size = max(1, PIECE_ELEMENTS[kind] // weight_VD.shape[0])
        for start in range(0, hidden_ND.shape[0], size):
            piece_PD, labels_P = hidden_ND[start : start + size].to(matrix_VD.dtype), labels_N[start : start + size]
            with torch.autocast(kind, enabled=False):
                logits_PV = piece_PD @ matrix_VD.t()
                sums += sums_of(logits_PV, labels_P, smoothing)
                if hidden_gradient is not None and weight_gradient is not None:
                    gradient_PV = gradient_of(logits_PV, labels_P, smoothing)
                    hidden_gradient[start : start + size] = gradient_PV @ matrix_VD
                    weight_gradient += gradient_PV.t() @ piece_PD
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        loss, nll = sums.unbind()
        ctx.mark_non_differentiable(nll)
        return loss.clone(), nll.clone()

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * loss_gradient, weight_gradient * loss_gradient, None, None


def sums_of(logits_PV: Tensor, labels_P: Tensor, smoothing: float) -> Tensor:
    """Smoothed cross-entropy and negative log-likelihood of one piece, summed over its real slots."""
    logits_PV = logits_PV.float()
    normalizer_P = logits_PV.logsumexp(dim=-1)
    nll_P = normalizer_P - logits_PV.gather(1, labels_P.clamp(min=0)[:, None]).squeeze(1)
    spread_P = normalizer_P - logits_PV.mean(dim=-1)
    real_P = labels_P != IGNORED
    nll = torch.where(real_P, nll_P, 0.0).sum()
    return torch.stack([(1.0 - smoothing) * nll + smoothing * torch.where(real_P, spread_P, 0.0).sum(), nll])


def gradient_of(logits_PV: Tensor, labels_P: Tensor, smoothing: float) -> Tensor:
    """softmax - smoothed target, 0 in empty slots."""
    gradient_PV = logits_PV.float().softmax(dim=-1).sub_(smoothing / logits_PV.shape[1])
    gradient_PV.scatter_add_(
        1, labels_P.clamp(min=0)[:, None], gradient_PV.new_full((len(labels_P), 1), smoothing - 1.0)
    )
    return gradient_PV.mul_((labels_P != IGNORED)[:, None]).to(logits_PV.dtype)


def loss_floor(vocab_size: int, smoothing: float) -> float:
    """The lowest smoothed cross-entropy per token, in nats: the entropy of the smoothed target itself."""
    if not smoothing:
        return 0.0
    off = smoothing / vocab_size
    on = 1.0 - smoothing + off
    return -(on * math.log(on) + (vocab_size - 1) * off * math.log(off))
