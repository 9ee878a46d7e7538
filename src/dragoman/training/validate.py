"""Validation loss: each sentence exactly once, whatever the number of ranks, dropout off."""

from __future__ import annotations

import math

import numpy as np
import torch

from dragoman.data.encode import Encoded, Side
from dragoman.data.loader import once
from dragoman.model.loss import SequenceLoss
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import sum_over_ranks
from dragoman.training.precision import Arithmetic

SLICE_PAIRS = 2000  # of the training set, at most; no more than there are validation pairs


def even_slice(data: Encoded, count: int) -> Encoded:
    """A few pairs of a part, evenly spread, always the same: measured without dropout they say what the model remembers."""
    chosen = np.linspace(0, len(data) - 1, min(count, SLICE_PAIRS, len(data))).round().astype(np.int64)

    def of(side: Side) -> Side:
        sentences = [side.sentence(int(index)) for index in chosen]
        return Side(np.concatenate(sentences), np.cumsum([len(sentence) for sentence in sentences]))

    return Encoded(of(data.source), of(data.target))


@torch.no_grad()
def validation_loss(
    objective: SequenceLoss, data: Encoded, mesh: Mesh, width: int, slots: int, arithmetic: Arithmetic
) -> dict[str, float]:
    """`slots` at a time, in rows of `width` or as wide as the longest pair. Ranks may have different numbers of batches:
    nothing is exchanged until all have done their own."""
    sums = [torch.zeros((), device=mesh.device) for _ in range(2)]
    tokens = pairs = 0
    objective.eval()
    try:
        for batch, batch_pairs in once(data, width, slots, mesh.rank, mesh.world):
            with arithmetic():
                loss, nll = objective(*batch.to(mesh.device).tensors())
            sums = [sums[0] + loss, sums[1] + nll]
            tokens += int((batch.target_segment > 0).sum())
            pairs += batch_pairs
    finally:
        objective.train()  # when memory is full, what fits is tried as in training
    loss_sum, nll_sum, all_tokens, all_pairs = sum_over_ranks(mesh, [float(sums[0]), float(sums[1]), tokens, pairs])
    assert int(all_pairs) == len(data), f"validation saw {all_pairs} of {len(data)} pairs"
    nll_mean = nll_sum / all_tokens
    return {
        "loss": loss_sum / all_tokens,
        "nll": nll_mean,
        "perplexity": math.exp(min(nll_mean, 100.0)),
        "pairs": int(all_pairs),
        "target_tokens": int(all_tokens),
    }
