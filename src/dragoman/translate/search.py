"""Beam search on the device. Ids in, ids out; no files, no text.

A hypothesis ends when its end-of-sentence mark is among the `beam` best continuations of its sentence; a sentence is done when
`beam` hypotheses or more have ended. With beam 1 that is greedy search. The result of a sentence does not depend on the others in its
batch: limits and ends are its own, and sentences that are done leave the batch.

All that changes lies in tensors of fixed shape and the host decides nothing about a step, so that a GPU can record one and
replay it. Keys and values are never moved: `ancestry` says for every hypothesis and slot which of the K hypotheses of then it
descends from, and attention looks at these alone.

Shapes in names: B rows (searches), K hypotheses of a row, T target slots, S source slots, C candidates, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from dragoman.data.subwords import BOS, EOS, NEVER_WRITTEN
from dragoman.model import ops
from dragoman.model.transformer import Cache, Transformer
from dragoman.translate.request import Hypothesis, Request

NEVER = float("-inf")


@dataclass
class Beams:
    """The state of a search."""

    position_1: Tensor  # the slot that is read next
    limit_B: Tensor  # most ids of a translation
    forced_BT: Tensor  # the id that must stand in a slot, -1 where any may
    token_BTK: Tensor  # what was put into every slot by its K hypotheses of then
    ancestry_BKT: Tensor  # which of them a hypothesis descends from; -1 beyond its end
    score_BK: Tensor  # log-probabilities
    ended_B: Tensor  # hypotheses that have ended: at most 2K - 1 of them, and E has a place more, for what nobody wants
    ended_score_BE: Tensor
    ended_length_BE: Tensor
    ended_ancestry_BET: Tensor
    done_B: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, hypotheses, slots = self.ancestry_BKT.shape
        return rows, hypotheses, slots

    @classmethod
    def empty(cls, rows: int, hypotheses: int, slots: int, device: torch.device) -> Beams:
        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        ended = 2 * hypotheses
        return cls(
            whole(1), whole(rows), whole(rows, slots), whole(rows, slots, hypotheses),
            torch.zeros(rows, hypotheses, slots, dtype=torch.int8, device=device),
            torch.zeros(rows, hypotheses, device=device), whole(rows), torch.zeros(rows, ended, device=device),
            whole(rows, ended), torch.zeros(rows, ended, slots, dtype=torch.int8, device=device),
            torch.zeros(rows, dtype=torch.bool, device=device),
        )  # fmt: skip

    def begin(self, limit_B: Tensor, forced_BT: Tensor) -> None:
        """One open hypothesis a row, the begin mark. Rows without a limit are there to fill the batch: they are done."""
        self.position_1.zero_()
        self.limit_B.copy_(limit_B)
        self.forced_BT.copy_(forced_BT)
        self.token_BTK.fill_(BOS)
        self.ancestry_BKT.fill_(-1)
        self.ancestry_BKT[:, :, 0] = torch.arange(self.shape[1], device=limit_B.device)
        self.score_BK.fill_(NEVER)[:, 0] = 0.0
        self.ended_B.zero_()
        self.ended_score_BE.fill_(NEVER)
        self.done_B.copy_(self.limit_B == 0)

    def taken(self, rows: Tensor) -> list[Tensor]:
        """A copy of these rows, to be put into another state."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return [each.clone() if name == "position_1" else each[rows] for name, each in tensors.items()]

    def put(self, taken: list[Tensor]) -> None:
        for field, tensor in zip(fields(self), taken, strict=True):
            getattr(self, field.name).copy_(tensor)


def advance(model: Transformer, cache: Cache, beams: Beams, request: Request, slots: int) -> None:
    """One step of all rows; `slots`: see ops.descent."""
    _, hypotheses, _ = beams.shape
    position = beams.position_1
    token_BK = beams.token_BTK.index_select(1, position).squeeze(1)
    seen = ops.descent(position, beams.ancestry_BKT, slots, cache.cross_mask, cache.past[0][0].shape[-1])
    logits_BKV = model.step(token_BK, cache, seen)
    at_limit_B = position >= beams.limit_B
    given_B = beams.forced_BT.index_select(1, position).squeeze(1)
    forced_B = torch.where(at_limit_B, EOS, given_B)
    value_BKC, id_BKC = candidates(logits_BKV, forced_B, ~at_limit_B & (given_B >= 0), request)
    rank_BC, origin_BC, id_BC = choose((beams.score_BK[:, :, None] + value_BKC), id_BKC, request)
    ends_BC = id_BC == EOS
    first = slice(0, hypotheses)
    collect(beams, rank_BC[:, first], origin_BC[:, first], ends_BC[:, first], request)
    beams.done_B |= at_limit_B | (beams.ended_B >= hypotheses)
    # The best that did not end. There are enough: of twice as many candidates no more than half can end.
    order = torch.arange(ends_BC.shape[1], device=ends_BC.device)
    chosen_BK = (order + order.numel() * ends_BC).topk(hypotheses, dim=1, largest=False).indices
    # In the last slot nobody takes the place of one that ends, as in CTranslate2: what is cut at the limit is the beam of then.
    last_B1 = (position + 1 == beams.limit_B)[:, None]
    rank_BC = rank_BC.masked_fill(ends_BC | last_B1 & (order >= hypotheses), NEVER)
    extend(beams, *(each.gather(1, chosen_BK) for each in (rank_BC, origin_BC, id_BC)))


def candidates(logits_BKV: Tensor, forced_B: Tensor, is_given_B: Tensor, request: Request) -> tuple[Tensor, Tensor]:
    """The best continuations of every hypothesis and their log-probabilities; where an id is forced, only this one. One that
    the user has given costs nothing."""
    vocabulary = logits_BKV.shape[-1]
    # Twice the beam: even if half of them end, enough are left. Groups may each take away as many again.
    count = min(vocabulary - 2, 2 * request.width + (request.beam if request.groups > 1 else 0))
    normalizer_BK, value_BKC, id_BKC = ops.best_of(logits_BKV, count, NEVER_WRITTEN)
    if request.sample:
        value_BKC, id_BKC = drawn(logits_BKV, normalizer_BK, request, count)
    is_forced = (forced_B >= 0)[:, None, None]
    forced_BK1 = forced_B.clamp(min=0)[:, None, None].expand(-1, logits_BKV.shape[1], 1)
    forced_value = logits_BKV.gather(2, forced_BK1).float() - normalizer_BK[:, :, None]
    forced_value = forced_value.masked_fill(is_given_B[:, None, None], 0.0)
    is_first = torch.arange(count, device=forced_B.device) == 0
    value_BKC = torch.where(is_forced, torch.where(is_first, forced_value, NEVER), value_BKC)
    return value_BKC, torch.where(is_forced, forced_BK1, id_BKC)


def drawn(logits_BKV: Tensor, normalizer_BK: Tensor, request: Request, count: int) -> tuple[Tensor, Tensor]:
    """One id at random as the only candidate, with its log-probability before temperature and limits."""
    scores = logits_BKV.float()
    scores[..., list(NEVER_WRITTEN)] = NEVER
    scores = scores / request.temperature
    if request.top_k:
        least = scores.topk(min(request.top_k, scores.shape[-1]), dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, NEVER)
    if request.top_p < 1.0:
        sorted_scores, order = scores.sort(dim=-1, descending=True)
        shares = sorted_scores.softmax(dim=-1)
        beyond = shares.cumsum(dim=-1) - shares >= request.top_p
        scores = scores.masked_fill(beyond.scatter(-1, order, beyond), NEVER)
    # The largest of all scores, each moved by Gumbel noise, is a draw from their softmax. A model of NaNs draws nothing.
    noise = torch.empty_like(scores).exponential_().log_()
    found = (scores - noise).argmax(dim=-1, keepdim=True)
    value = logits_BKV.gather(2, found).float() - normalizer_BK[:, :, None]
    nothing = value.new_full((*value.shape[:2], count - 1), NEVER)
    return torch.cat([value, nothing], dim=2), found.expand(-1, -1, count)


def choose(total_BKC: Tensor, id_BKC: Tensor, request: Request) -> tuple[Tensor, Tensor, Tensor]:
    """The best candidates of every row: log-probability, hypothesis they continue, id."""
    rows, _, count = total_BKC.shape
    total, ids = total_BKC.flatten(1), id_BKC.flatten(1)
    wanted = min(2 * request.width, total.shape[1])
    if request.groups == 1:
        best, flat = total.topk(wanted, dim=1)
        return best, flat // count, ids.gather(1, flat)
    by_sentence = total.view(-1, request.groups, total.shape[1]), ids.view(-1, request.groups, total.shape[1])
    flat = torch.stack(apart(*by_sentence, request, wanted), dim=1).view(rows, wanted)
    return total.gather(1, flat), flat // count, ids.gather(1, flat)


def apart(total_SGM: Tensor, id_SGM: Tensor, request: Request, wanted: int) -> list[Tensor]:
    """Diverse beam search: group after group, an id that an earlier group of the sentence has taken costs `diversity`."""
    chosen: list[Tensor] = []
    taken = id_SGM.new_empty(id_SGM.shape[0], 0)
    for group in range(request.groups):
        ids, total = id_SGM[:, group], total_SGM[:, group]
        times = (ids[:, :, None] == taken[:, None, :]).sum(dim=2)
        flat = (total - request.diversity * times).topk(wanted, dim=1).indices
        chosen.append(flat)
        taken = torch.cat([taken, ids.gather(1, flat[:, : request.width])], dim=1)
    return chosen


def collect(beams: Beams, best_BK: Tensor, origin_BK: Tensor, ends_BK: Tensor, request: Request) -> None:
    """Keep hypotheses that end. What does not end, or comes when a row is done, goes to the place that nobody reads."""
    slots, nowhere = beams.shape[2], beams.ended_score_BE.shape[1] - 1
    counts = ends_BK & best_BK.isfinite() & ~beams.done_B[:, None]
    place_BK = (beams.ended_B[:, None] + counts.cumsum(1) - 1).masked_fill(~counts, nowhere)
    beams.ended_score_BE.scatter_(1, place_BK, best_BK / penalty(beams.position_1, request))
    beams.ended_length_BE.scatter_(1, place_BK, beams.position_1.expand_as(place_BK))
    history = beams.ancestry_BKT.gather(1, origin_BK[:, :, None].expand(-1, -1, slots))
    beams.ended_ancestry_BET.scatter_(1, place_BK[:, :, None].expand(-1, -1, slots), history)
    beams.ended_B.add_(counts.sum(1))


def extend(beams: Beams, score_BK: Tensor, origin_BK: Tensor, token_BK: Tensor) -> None:
    _, hypotheses, slots = beams.shape
    position = beams.position_1.add_(1)
    beams.score_BK.copy_(score_BK)
    beams.token_BTK.index_copy_(1, position, token_BK[:, None])
    beams.ancestry_BKT.copy_(beams.ancestry_BKT.gather(1, origin_BK[:, :, None].expand(-1, -1, slots)))
    own = torch.arange(hypotheses, dtype=torch.int8, device=token_BK.device)
    beams.ancestry_BKT.index_copy_(2, position, own.expand_as(score_BK)[:, :, None])


def harvest(beams: Beams, rows: Tensor, request: Request) -> list[list[Hypothesis]]:
    """What has ended in these rows, the best first. Chosen where it lies, as all else would have to be read by the host: as many
    as the beam is wide by their log-probability, as CTranslate2 does, and of these by their score."""
    score_RE, length_RE = beams.ended_score_BE[rows, :-1], beams.ended_length_BE[rows, :-1]
    total_RE = score_RE * penalty(length_RE, request)
    likeliest = total_RE.sort(dim=1, descending=True, stable=True).indices[:, : request.width]
    best = score_RE.gather(1, likeliest).sort(dim=1, descending=True, stable=True).indices
    chosen = likeliest.gather(1, best[:, : request.n_best if request.rows == 1 else request.width])
    ancestry = beams.ended_ancestry_BET[rows[:, None], chosen].long().clamp(min=0)
    ids = beams.token_BTK[rows].transpose(1, 2).gather(1, ancestry).int().cpu().numpy()
    scores, lengths = (each.gather(1, chosen).tolist() for each in (score_RE, length_RE))
    return [
        [
            Hypothesis(ids[row, place, 1 : length + 1].tolist(), score)
            for place, (score, length) in enumerate(zip(*ended, strict=True))
            if score > NEVER
        ]
        for row, ended in enumerate(zip(scores, lengths, strict=True))
    ]


def penalty(length: Tensor, request: Request) -> Tensor:
    """As Request.penalty, of so many ids and the end mark."""
    return ((6 + length) / 6) ** request.length_penalty
