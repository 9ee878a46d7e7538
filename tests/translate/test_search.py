"""Search: batch = single, beam 1 = greedy, scores that can be checked, order and empty lines kept."""

import pytest
import torch

from dragoman.config.schema import Model, Translate
from dragoman.data.subwords import BOS, EOS, PAD
from dragoman.model.transformer import Transformer
from dragoman.translate.search import beam_search
from dragoman.translate.translator import Translator, batches

SECTION = Translate(beam=4, extra_length=6)


@pytest.fixture(scope="module")
def model(prepared):
    """Random weights, made sharp enough that hypotheses differ and end at different places."""
    model = Transformer(
        Model(d_model=32, heads=4, encoder_layers=1, decoder_layers=2, d_ff=64), len(prepared.vocabulary)
    )
    model.init_weights(5)
    with torch.no_grad():
        model.decoder_norm.weight.mul_(6.0)
        model.embedding.weight[EOS].mul_(1.6)
    return model.eval()


@pytest.fixture(scope="module")
def sources(prepared):
    return prepared.vocabulary.encode([source for source, _ in prepared.text("valid")[:24]])


def test_batch_is_single(model, sources):
    together = beam_search(model, sources, SECTION)
    for source, hypotheses in zip(sources, together, strict=True):
        alone = beam_search(model, [source], SECTION)[0]
        assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in hypotheses]
        assert [h.score for h in alone] == pytest.approx([h.score for h in hypotheses], rel=1e-4)


def greedy(model, source, longest):
    """The plainest search there is: no cache, no batch."""
    ids, total = [BOS], 0.0
    row = torch.tensor([source])
    ones = torch.ones_like(row)
    memory = model.encode(row, torch.arange(len(source))[None], ones)
    while True:
        target = torch.tensor([ids])
        hidden = model.decode(target, torch.arange(len(ids))[None], torch.ones_like(target), memory, ones)
        scores = model.logits(hidden)[0, -1].log_softmax(-1)
        scores[[PAD, BOS]] = float("-inf")
        best = EOS if len(ids) > longest else int(scores.argmax())
        total += float(scores[best])
        if best == EOS:
            return ids[1:], total
        ids.append(best)


@torch.no_grad()
def test_beam_1_is_greedy_and_its_score_is_right(model, sources):
    section = SECTION.model_copy(update={"beam": 1})
    lengths = set()
    for source, hypotheses in zip(sources, beam_search(model, sources, section), strict=True):
        ids, total = greedy(model, source, len(source) - 1 + section.extra_length)
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids]
        assert hypotheses[0].score == pytest.approx(total / ((5 + len(ids) + 1) / 6) ** 0.6, rel=1e-4)
        lengths.add(len(ids))
    assert len(lengths) > 3, "sentences must end at different places for this to mean anything"


def test_limits_hold_and_hypotheses_are_distinct_and_sorted(model, sources):
    for source, hypotheses in zip(sources, beam_search(model, sources, SECTION), strict=True):
        assert len(hypotheses) == 4
        assert all(len(h.ids) <= len(source) - 1 + 6 for h in hypotheses)
        assert len({tuple(h.ids) for h in hypotheses}) == 4
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_a_wider_beam_finds_more_probable_sentences(model, sources):
    def mean(beam):
        section = SECTION.model_copy(update={"beam": beam, "length_penalty": 0.0})
        return sum(hypotheses[0].score for hypotheses in beam_search(model, sources, section)) / len(sources)

    assert mean(8) > mean(1)


def test_order_and_empty_lines_are_kept(prepared, model):
    translator = Translator(model, prepared.vocabulary, SECTION.model_copy(update={"batch_tokens": 60}))
    texts = [source for source, _ in prepared.text("valid")[:7]]
    mixed = ["", texts[0], "   ", *texts[1:], ""]
    result = translator.translate(mixed)
    assert [result[0], result[2], result[-1]] == ["", "", ""]
    assert [result[1], *result[3:-1]] == [translator.translate([text])[0] for text in texts]
    assert translator.translate([]) == []


def test_batches_hold_everything_once_within_their_budget():
    sources = {index: [0] * (1 + index * 7 % 23) for index in range(50)}
    made = list(batches(sources, 64))
    assert sorted(index for batch in made for index in batch) == list(range(50))
    assert all(len(batch) * max(len(sources[index]) for index in batch) <= 64 for batch in made)


def test_a_broken_model_ends_too(prepared, sources):
    model = Transformer(
        Model(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16), len(prepared.vocabulary)
    )
    model.init_weights(1)
    with torch.no_grad():
        model.embedding.weight.fill_(float("nan"))
    assert [hypotheses[0].ids for hypotheses in beam_search(model.eval(), sources[:3], SECTION)] == [[], [], []]
    assert Translator(model, prepared.vocabulary, SECTION).translate(["Anything."]) == [""]
