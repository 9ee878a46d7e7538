"""Beam search over an incremental decoder. Ids in, ids out; no files, no text.

A hypothesis ends when its end-of-sentence mark is among the `beam` best continuations of its sentence; a sentence is
done when `beam` hypotheses have ended. With beam 1 that is greedy search. The result of a sentence does not depend on
the others in its batch: limits and ends are its own, and sentences that are done leave the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.config.schema import Translate
from dragoman.data.subwords import BOS, EOS, PAD
from dragoman.model.transformer import Cache, Transformer

NEVER = float("-inf")


@dataclass(frozen=True)
class Hypothesis:
    ids: list[int]  # without the end-of-sentence mark
    score: float  # log-probability divided by the length penalty


@dataclass
class Beams:
    """The open hypotheses: A sentences x K hypotheses."""

    sentences: Tensor  # [A] which sentence of the batch
    scores: Tensor  # [A, K] log-probabilities
    ids: Tensor  # [A, K, length], the first one the begin mark


@torch.inference_mode()
def beam_search(model: Transformer, sources: list[list[int]], section: Translate) -> list[list[Hypothesis]]:
    """For every source (ids with end mark) its ended hypotheses, the best first."""
    device = model.embedding.weight.device
    cache = model.start(*padded(sources, device))
    limits = torch.tensor([len(source) - 1 + section.extra_length for source in sources], device=device)
    beams = Beams(
        torch.arange(len(sources), device=device),
        torch.tensor([0.0] + [NEVER] * (section.beam - 1), device=device).repeat(len(sources), 1),
        torch.full((len(sources), section.beam, 1), BOS, device=device),
    )
    ended: list[list[Hypothesis]] = [[] for _ in sources]
    while len(beams.sentences):
        at_limit = beams.ids.shape[2] > limits[beams.sentences]
        log_probabilities = next_log_probabilities(model, cache, beams, at_limit)
        collect_and_extend(beams, cache, log_probabilities, at_limit, ended, section)
    # A model of NaNs ends nothing: an empty translation, not an endless search.
    nothing = [Hypothesis([], NEVER)]
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) or nothing for hypotheses in ended]


def padded(sources: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(map(len, sources))
    ids = torch.tensor([source + [PAD] * (width - len(source)) for source in sources], device=device)
    lengths = torch.tensor([len(source) for source in sources], device=device)
    return ids, (torch.arange(width, device=device) < lengths[:, None]).long()


def next_log_probabilities(model: Transformer, cache: Cache, beams: Beams, at_limit: Tensor) -> Tensor:
    """[A, K, V] of the next position. At its limit a sentence can only end."""
    logits = model.step(beams.ids[:, :, -1].flatten(), cache).float()
    log_probabilities = logits.log_softmax(dim=-1).view(*beams.scores.shape, -1)
    log_probabilities[:, :, [PAD, BOS]] = NEVER
    ending = log_probabilities[:, :, EOS].clone()
    log_probabilities[at_limit] = NEVER
    log_probabilities[:, :, EOS] = ending
    return log_probabilities


def collect_and_extend(
    beams: Beams,
    cache: Cache,
    log_probabilities: Tensor,
    at_limit: Tensor,
    ended: list[list[Hypothesis]],
    section: Translate,
) -> None:
    """Move hypotheses that end into `ended`; go on with the best `beam` others of every sentence that is not done."""
    count, beam, vocabulary = log_probabilities.shape
    totals = (beams.scores[:, :, None] + log_probabilities).view(count, -1)
    # Twice the beam: even if half of the candidates end, enough are left to go on with.
    best, flat = totals.topk(min(2 * beam, beam * vocabulary), dim=1)
    origin, token = flat // vocabulary, flat % vocabulary
    ends = token == EOS
    collect(beams, best[:, :beam], origin[:, :beam], ends[:, :beam], ended, section)

    open_best = best.masked_fill(ends, NEVER)
    scores, chosen = open_best.topk(beam, dim=1)
    enough = [len(ended[sentence]) >= section.beam for sentence in beams.sentences.tolist()]
    keep = (~(at_limit | torch.tensor(enough, device=best.device))).nonzero().squeeze(1)
    origin, token = origin.gather(1, chosen)[keep], token.gather(1, chosen)[keep]
    history = beams.ids[keep].gather(1, origin[:, :, None].expand(-1, -1, beams.ids.shape[2]))
    beams.ids = torch.cat([history, token[:, :, None]], dim=2)
    beams.scores, beams.sentences = scores[keep], beams.sentences[keep]
    hypotheses = (keep[:, None] * beam + origin).flatten()
    cache.select(hypotheses, keep if len(keep) < count else None)


def collect(
    beams: Beams, best: Tensor, origin: Tensor, ends: Tensor, ended: list[list[Hypothesis]], section: Translate
) -> None:
    for row, candidate in (ends & best.isfinite()).nonzero().tolist():
        hypotheses = ended[int(beams.sentences[row])]
        if len(hypotheses) < section.beam:
            ids = beams.ids[row, int(origin[row, candidate]), 1:].tolist()
            penalty = ((5 + len(ids) + 1) / 6) ** section.length_penalty
            hypotheses.append(Hypothesis(ids, float(best[row, candidate]) / penalty))
