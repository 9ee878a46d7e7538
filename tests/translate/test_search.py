"""Search: batch = single, beam 1 = greedy, scores that can be checked, order and empty lines kept."""

import copy

import pytest
import torch

from dragoman.config.schema import Model, Translate
from dragoman.data.subwords import BOS, EOS, PAD
from dragoman.errors import ConfigError, DataError
from dragoman.model.transformer import Transformer
from dragoman.translate import Request, Translator
from dragoman.translate.torch_engine import TorchEngine
from dragoman.translate.translator import batches

REQUEST = Request(beam=4, n_best=4, extra_length=6)
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


def search(model, sources, request, prefixes=None):
    return TorchEngine(model).search(sources, prefixes or [[] for _ in sources], request)


def test_batch_is_single(model, sources):
    together = search(model, sources, REQUEST)
    for source, hypotheses in zip(sources, together, strict=True):
        alone = search(model, [source], REQUEST)[0]
        assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in hypotheses]
        assert [h.score for h in alone] == pytest.approx([h.score for h in hypotheses], rel=1e-4)


def test_batches_as_on_a_gpu_give_the_same(model, sources):
    """Rows that fill a batch, tiles, looking every fourth step only, leaving for a smaller batch: all but the recording."""
    engine = TorchEngine(model)
    engine.on_gpu, engine.look_every, engine.tile = True, 4, 32
    for request in (REQUEST, Request(beam=6, groups=3, n_best=2, extra_length=6)):
        prefixes = [[5, 9]] * 3 + [[]] * (len(sources) - 3)
        assert [[h.ids for h in found] for found in engine.search(sources, prefixes, request)] == [
            [h.ids for h in found] for found in search(model, sources, request, prefixes)
        ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_same_recorded_or_not(model, sources):
    """The first call runs, the second records, the third replays; in fp32 all of them find what the CPU finds."""
    expected = [[h.ids for h in found] for found in search(model, sources, REQUEST)]
    engine = TorchEngine(copy.deepcopy(model).cuda(), "fp32")
    for _ in range(3):
        assert [[h.ids for h in found] for found in engine.search(sources, [[]] * len(sources), REQUEST)] == expected
    assert engine.recorder.recorded
    half = TorchEngine(engine.model, "fp16")
    for _ in range(3):
        found = half.search(sources, [[]] * len(sources), REQUEST)
        same = sum(mine[0].ids == theirs[0] for mine, theirs in zip(found, expected, strict=True))
        assert same > 0.8 * len(sources)


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
    section = Request(beam=1, extra_length=6)
    lengths = set()
    for source, hypotheses in zip(sources, search(model, sources, section), strict=True):
        ids, total = greedy(model, source, len(source) - 1 + section.extra_length)
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids]
        assert hypotheses[0].score == pytest.approx(total / ((5 + len(ids) + 1) / 6) ** 0.6, rel=1e-4)
        lengths.add(len(ids))
    assert len(lengths) > 3, "sentences must end at different places for this to mean anything"


def test_limits_hold_and_hypotheses_are_distinct_and_sorted(model, sources):
    for source, hypotheses in zip(sources, search(model, sources, REQUEST), strict=True):
        assert len(hypotheses) == 4
        assert all(len(h.ids) <= len(source) - 1 + 6 for h in hypotheses)
        assert len({tuple(h.ids) for h in hypotheses}) == 4
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_a_wider_beam_finds_more_probable_sentences(model, sources):
    def mean(beam):
        section = Request(beam=beam, length_penalty=0.0, extra_length=6)
        return sum(hypotheses[0].score for hypotheses in search(model, sources, section)) / len(sources)

    assert mean(8) > mean(1)


def test_order_and_empty_lines_are_kept(prepared, model):
    translator = Translator(TorchEngine(model), prepared.vocabulary, SECTION.model_copy(update={"batch_tokens": 60}))
    texts = [source for source, _ in prepared.text("valid")[:7]]
    mixed = ["", texts[0], "   ", *texts[1:], ""]
    result = translator.translate(mixed)
    assert [result[0], result[2], result[-1]] == ["", "", ""]
    assert [result[1], *result[3:-1]] == [translator.translate([text])[0] for text in texts]
    assert translator.translate([]) == []


def test_batches_hold_everything_once_within_their_budget():
    sources = [[0] * (1 + index * 7 % 23) for index in range(50)]
    lengths = [len(source) + 10 + 20 * (index % 7 == 0) for index, source in enumerate(sources)]
    made = list(batches(sources, lengths, 64, 10**9))
    assert sorted(index for batch in made for index in batch) == list(range(50))
    assert all(len(batch) * max(len(sources[index]) for index in batch) <= 64 for batch in made)
    narrow = list(batches(sources, lengths, 64, 90))
    assert sorted(index for batch in narrow for index in batch) == list(range(50))
    assert all(len(batch) * max(lengths[index] for index in batch) <= 90 for batch in narrow)
    assert len(list(batches(sources, lengths, 64, 1))) == 50, "one at a time where not even one fits"


def test_a_wide_beam_over_short_sentences_takes_no_more_memory(prepared, model, sources, monkeypatch):
    """What is kept of hypotheses grows with their number and length, not with the sources."""
    translator = Translator(TorchEngine(model), prepared.vocabulary, SECTION, ("en", "de"))
    texts = [source for source, _ in prepared.text("valid")[:24]]
    wanted = translator.translate(texts, beam=8)
    monkeypatch.setattr(TorchEngine, "cells", lambda engine: 8 * 4 * 40)
    narrow = Translator(TorchEngine(model), prepared.vocabulary, SECTION, ("en", "de"))
    assert narrow.translate(texts, beam=8) == wanted
    cells = narrow.engine.arena.flat["target key 0"].numel() // model.section.d_model
    assert cells <= 8 * 4 * 40 * 1.5, "rows are rounded up to tiles"


def test_a_broken_model_ends_too(prepared, sources):
    model = Transformer(
        Model(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16), len(prepared.vocabulary)
    )
    model.init_weights(1)
    with torch.no_grad():
        model.embedding.weight.fill_(float("nan"))
    assert [hypotheses[0].ids for hypotheses in search(model.eval(), sources[:3], REQUEST)] == [[], [], []]
    assert Translator(TorchEngine(model), prepared.vocabulary, SECTION).translate(["Anything."]) == [""]


def test_a_prefix_is_kept_and_costs_nothing(model, sources):
    free = search(model, sources, REQUEST)
    prefixes = [hypotheses[0].ids[:2] for hypotheses in free]
    for (best, *_), prefix, found in zip(free, prefixes, search(model, sources, REQUEST, prefixes), strict=True):
        assert all(hypothesis.ids[: len(prefix)] == prefix for hypothesis in found)
        assert best.ids in [hypothesis.ids for hypothesis in found]
    forced = [[7, 9, 11], [], [5]]
    mixed = search(model, sources[:3], REQUEST, forced)
    for source, prefix, found in zip(sources, forced, mixed, strict=False):
        alone = search(model, [source], REQUEST, [prefix])[0]
        assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in found]
        assert all(hypothesis.ids[: len(prefix)] == prefix for hypothesis in found)


def test_drawing_follows_the_seed_and_the_limits(model, sources):
    def draw(**options):
        request = Request(sample=True, n_best=6, extra_length=6, **options).check()
        return [[hypothesis.ids for hypothesis in found] for found in search(model, sources[:5], request)]

    assert draw(seed=1) == draw(seed=1) != draw(seed=2)
    assert any(len({tuple(ids) for ids in found}) > 1 for found in draw())
    best = [[found[0].ids] * 6 for found in search(model, sources[:5], Request(beam=1, extra_length=6))]
    assert draw(top_k=1) == draw(top_p=1e-6) == draw(temperature=1e-4) == best


def test_words_are_drawn_as_often_as_the_model_says(model, sources):
    """The first word of 2,000 drawn translations, against its probability."""
    request = Request(sample=True, n_best=100, extra_length=1)
    first = [
        hypothesis.ids[:1] or [EOS]
        for seed in range(20)
        for hypothesis in search(model, [sources[0]], Request(**{**vars(request), "seed": seed}))[0]
    ]
    row, ones = torch.tensor([sources[0]]), torch.ones(1, len(sources[0]), dtype=torch.long)
    with torch.no_grad():
        memory = model.encode(row, torch.arange(row.shape[1])[None], ones)
        begin = torch.tensor([[BOS]])
        hidden = model.decode(begin, torch.zeros_like(begin), torch.ones_like(begin), memory, ones)
        logits = model.logits(hidden)[0, 0]
        logits[[PAD, BOS]] = float("-inf")
        shares = logits.softmax(-1)
    likely = shares.topk(3)
    for share, token in zip(likely.values.tolist(), likely.indices.tolist(), strict=True):
        assert first.count([token]) / len(first) == pytest.approx(
            share, abs=4 * (share * (1 - share) / len(first)) ** 0.5
        )


def test_groups_avoid_each_other(model, sources):
    def different_starts(**options):
        found = search(model, sources, Request(beam=4, n_best=4, extra_length=6, **options).check())
        return sum(len({tuple(hypothesis.ids[:1]) for hypothesis in hypotheses}) for hypotheses in found)

    assert different_starts(groups=4, diversity=100.0) > different_starts()
    grouped = search(model, sources, Request(beam=4, groups=2, diversity=0.0, extra_length=6))
    narrow = search(model, sources, Request(beam=2, extra_length=6))
    assert [found[0].ids for found in grouped] == [found[0].ids for found in narrow]


def test_what_cannot_be_asked_is_refused_together(prepared, model):
    with pytest.raises(ConfigError, match=r"(?s)n_best = 5 is more than beam = 3.*groups = 2 does not divide"):
        Request(beam=3, n_best=5, groups=2).check()
    translator = Translator(TorchEngine(model), prepared.vocabulary, SECTION)
    with pytest.raises(DataError, match="1 prefixes for 2 texts"):
        translator.search(["a", "b"], translator.request(), prefixes=["x"])
    with pytest.raises(DataError, match="text 2: holds half of a surrogate pair"):
        translator.translate(["fine", "\ud83d"])


def test_a_copy_in_16_bits_leaves_the_model_alone(model, sources):
    engine = TorchEngine(model, "bf16")
    assert (engine.model.embedding.weight.dtype, model.embedding.weight.dtype) == (torch.bfloat16, torch.float32)
    assert engine.model.decoder_norm.weight.dtype == torch.float32
    found, exact = engine.search(sources, [[]] * len(sources), Request(beam=1)), search(model, sources, Request(beam=1))
    assert sum(a[0].ids == b[0].ids for a, b in zip(found, exact, strict=True)) > len(sources) / 2
