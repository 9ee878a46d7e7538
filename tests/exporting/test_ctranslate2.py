"""What CTranslate2 computes from an export is what we compute from the original."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

from dragoman.data.subwords import BOS, EOS, PAD
from dragoman.errors import ConfigError, DragomanError, MissingExtra, RunError
from dragoman.exporting import export
from dragoman.model.folder import write_model
from dragoman.runs import damage
from dragoman.translate import Translator, ct2_engine
from dragoman.translate.ct2_engine import CTranslate2Engine
from dragoman.translate.models import read_whole
from dragoman.translate.torch_engine import padded

ctranslate2 = pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def original(checkpoint):
    return Translator.load(checkpoint, "cpu", engine="torch")


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    return export(checkpoint, tmp_path_factory.mktemp("exports") / "ct2", kind="ctranslate2")


def opened(folder: Path, **options):
    return ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=1, **options)


def ours(original, sentences, **settings):
    """Pieces and scores of the best hypotheses."""
    sources = original.vocabulary.encode(sentences)
    found = original.engine.search(sources, [[] for _ in sources], original.request(**settings))
    best = [hypotheses[0] for hypotheses in found]
    return [original.vocabulary.processor.id_to_piece(hypothesis.ids) for hypothesis in best], [
        hypothesis.score for hypothesis in best
    ]


def theirs(translator, pieces, **settings):
    results = translator.translate_batch(pieces, min_decoding_length=0, return_scores=True, **settings)
    return [result.hypotheses[0] for result in results], [result.scores[0] for result in results]


def our_log_probabilities(original, sources, targets):
    """Of every target piece and of the end mark, with the target given."""
    source, source_segment = padded(original.vocabulary.encode(sources), torch.device("cpu"))
    target, segment = padded(original.vocabulary.encode(targets), torch.device("cpu"))
    shifted = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], dim=1)
    positions = [torch.arange(ids.shape[1]).expand_as(ids) for ids in (source, target)]
    with torch.inference_mode():
        memory = original.engine.model.encode(source, positions[0], source_segment)
        hidden = original.engine.model.decode(shifted, positions[1], segment, memory, source_segment)
        table = original.engine.model.logits(hidden).log_softmax(dim=-1).gather(2, target[:, :, None])[:, :, 0]
    return [row[: int(length)].tolist() for row, length in zip(table, segment.sum(dim=1), strict=True)]


def test_folder(exported, original):
    assert {path.name for path in exported.iterdir()} == {
        "model.bin",
        "config.json",
        "shared_vocabulary.json",
        "vocabulary.model",
        "model.toml",
        "manifest.json",
        "README.md",
    }
    assert damage(exported) is None
    config = json.loads((exported / "config.json").read_text())
    assert (config["decoder_start_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert (config["add_source_bos"], config["add_source_eos"]) == (False, True)
    assert json.loads((exported / "shared_vocabulary.json").read_text())[:4] == ["<pad>", "</s>", "<s>", "<unk>"]
    assert contains_once(exported / "model.bin", original.engine.model.embedding.weight), (
        "the tied matrix is stored once"
    )


def contains_once(file: Path, tensor: torch.Tensor) -> bool:
    return file.read_bytes().count(tensor.detach().numpy().tobytes()) == 1


def test_same_log_probabilities(original, exported, sentences):
    targets = sentences[::-1]  # any text will do: every probability of every position is compared
    expected = our_log_probabilities(original, sentences, targets)
    encode = original.vocabulary.processor.encode
    results = opened(exported).score_batch(encode(sentences, out_type=str), encode(targets, out_type=str))
    assert [len(row) for row in expected] == [len(result.log_probs) for result in results]
    worst = max(
        abs(a - b)
        for row, result in zip(expected, results, strict=True)
        for a, b in zip(row, result.log_probs, strict=True)
    )
    print(f"largest difference of {sum(map(len, expected))} log-probabilities: {worst:.2e}")
    assert worst < 1e-4
    assert min(map(min, expected)) < -5, "a uniform model would prove nothing"


def test_same_greedy_translations(original, exported, sentences):
    """One by one, because our limit of the length is a sentence's own and theirs is for all."""
    expected, _ = ours(original, sentences, beam=1)
    translator = opened(exported)
    for sentence, wanted in zip(sentences, expected, strict=True):
        pieces = original.vocabulary.processor.encode(sentence, out_type=str)
        limit = len(pieces) + original.section.extra_length
        assert theirs(translator, [pieces], beam_size=1, max_decoding_length=limit)[0] == [wanted]
    assert len({tuple(pieces) for pieces in expected}) > 10


def test_same_beam_search_without_length_penalty(original, exported, sentences):
    """The formulas of the penalty differ, the search does not. With exactly 0 CTranslate2 would stop earlier."""
    expected, scores = ours(original, sentences[:-1], beam=4, length_penalty=0.0)
    pieces = original.vocabulary.processor.encode(sentences[:-1], out_type=str)
    found, their_scores = theirs(opened(exported), pieces, beam_size=4, length_penalty=1e-9)
    assert found == expected
    assert their_scores == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("quantization", ["int8", "int8_float16", "float16", "bfloat16"])
def test_quantized_export_is_smaller_and_close(
    original, exported, checkpoint, sentences, tmp_path, quantization, caplog
):
    folder = export(checkpoint, tmp_path / "small", kind="ctranslate2", quantization=quantization)
    assert (folder / "model.bin").stat().st_size < (exported / "model.bin").stat().st_size
    encode = original.vocabulary.processor.encode
    results = opened(folder).score_batch(encode(sentences, out_type=str), encode(sentences, out_type=str))
    expected = our_log_probabilities(original, sentences, sentences)
    means = [abs(sum(row) - sum(result.log_probs)) / len(row) for row, result in zip(expected, results, strict=True)]
    print(f"{quantization}: largest difference of a sentence's mean log-probability {max(means):.1e}")
    assert max(means) < 0.2
    here = ctranslate2.get_supported_compute_types("cpu")
    translator = Translator.load(folder, "cpu")
    told = f"{folder}: holds {quantization}, which this machine computes as {translator.engine.translator.compute_type}"
    assert caplog.messages == ([] if quantization in here else [told])
    assert all(translator.translate(sentences[:4])), "it translates all the same"


def test_refusals_in_words(checkpoint, tmp_path, monkeypatch):
    with pytest.raises(DragomanError, match="quantization 'int7' is not known; choose one of int8"):
        export(checkpoint, tmp_path / "out", kind="ctranslate2", quantization="int7")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[export\]'"):
        export(checkpoint, tmp_path / "out", kind="ctranslate2")
    assert not list(tmp_path.iterdir())


def test_the_engine_is_the_model(original, exported, checkpoint, sentences):
    """Through the same door: n-best lists, scores, prefixes, alignments; from the export, and converted on the way."""
    request = original.request(n_best=3)
    prefixes = ["die" if number % 3 else "" for number in range(len(sentences))]
    for path, options in product((exported, checkpoint), ({"alignment": True}, {"prefixes": prefixes})):
        expected = original.search(sentences, request, **options)
        translator = Translator.load(path, "cpu")
        assert translator.engine.name == "ctranslate2"
        found = translator.search(sentences, request, **options)
        for ours, theirs in zip(expected[:-1], found[:-1], strict=True):  # the last one is longer than its limit
            assert [each.text for each in theirs] == [each.text for each in ours]
            assert [each.score for each in theirs] == pytest.approx([each.score for each in ours], abs=1e-3)
        if "alignment" in options:
            assert_same_attention(original, translator, sentences[:-1])


def assert_same_attention(original, translator, sentences):
    """Numbers, not words: in a model that has hardly learnt anything two words may be looked at equally much."""
    sources = original.vocabulary.encode(sentences)
    nothing = [[] for _ in sources]
    ours, theirs = (
        each.engine.search(sources, nothing, each.request(), attention=True) for each in (original, translator)
    )
    for (mine,), (other,) in zip(ours, theirs, strict=True):
        assert mine.ids == other.ids
        for row, same in zip(mine.attention, other.attention, strict=True):
            assert row[:-1] == pytest.approx(same, abs=1e-4)  # CTranslate2 leaves the end mark out


def test_what_the_engine_cannot_do_is_said(exported):
    translator = Translator.load(exported, "cpu")
    with pytest.raises(DragomanError, match="choose engine torch"):
        translator.translate(["the cat sees bread."], groups=2)
    with pytest.raises(DragomanError, match="engine torch needs the model it was made from"):
        Translator.load(exported, engine="torch")
    with pytest.raises(DragomanError, match="holds no weights to go on from"):
        export(exported, exported.parent / "again")


@pytest.mark.parametrize(
    ("wanted", "workers", "threads"),
    [("3", 3, 1), ("4,2", 4, 1), ("6", 4, 2), ("8", 4, 2), ("0", 4, 2), ("", 4, 2), ("two", 4, 2)],
)
def test_every_core_has_a_thread(original, exported, monkeypatch, wanted, workers, threads):
    """On a machine of seven cores, with OMP_NUM_THREADS in every spelling."""
    opened = []

    def translator(folder, **options):
        opened.append((options["inter_threads"], options["intra_threads"]))
        return SimpleNamespace(compute_type="float32")

    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    monkeypatch.setattr(ct2_engine, "usable_cores", lambda: 7)
    monkeypatch.setattr(ctranslate2, "Translator", translator)
    CTranslate2Engine(exported, original.vocabulary)
    assert opened == [(workers, threads)]


GUIDE = Path(__file__).parents[2] / "docs" / "small-machines.md"


def missing_after(lines: list[str]) -> set[str]:
    """Modules of this environment that these pip lines of the guide do not install, themselves or as something they need."""
    waiting = [canonical(name) for line in lines for name in line.split()]
    installed = {"dragoman"}
    while waiting:
        if (name := waiting.pop()) not in installed:
            installed.add(name)
            with suppress(PackageNotFoundError):  # needed on another system only
                needs = [Requirement(line) for line in requires(name) or []]
                waiting += [
                    canonical(each.name) for each in needs if not each.marker or each.marker.evaluate({"extra": ""})
                ]
    found = packages_distributions().items()
    return {module for module, names in found if not installed & set(map(canonical, names))}


@pytest.mark.parametrize(("count", "start"), [(1, "dragoman.cli.main"), (2, "dragoman.serve.server")])
def test_an_export_needs_what_the_guide_installs(exported, count, start):
    """On a small machine there is nothing else: the command line, the translator and the server start without torch."""
    lines = re.findall(r"^pip install ([a-z].*)", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    missing = missing_after(lines[:count])
    assert missing >= {"torch", "sacrebleu", "psutil"}
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({missing | {'numpy.testing'}}))\n"
        f"import {start}\n"
        f"sys.argv = ['dragoman', 'translate', {str(exported)!r}]; runpy.run_module('dragoman', run_name='__main__')"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, input="the cat sees bread.\n", capture_output=True, text=True, check=False, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def changed(checkpoint, folder, change):
    """A copy of a model with other embeddings."""
    model, description, vocabulary = read_whole(checkpoint)
    with torch.no_grad():
        change(model.embedding.weight)
    folder.mkdir()
    write_model(folder, model.state_dict(), description, vocabulary.path)
    return folder


@pytest.fixture
def marked(checkpoint, tmp_path):
    """A model that would write nothing but marks, were it allowed to; as OPUS-MT models often would."""

    def change(weight):
        weight[[PAD, BOS]] = 30 * weight[EOS]

    return changed(checkpoint, tmp_path / "marked", change)


@pytest.fixture
def endless(checkpoint, tmp_path):
    """A model that never writes an end."""
    return changed(checkpoint, tmp_path / "endless", lambda weight: weight[EOS].mul_(-1))


def test_marks_are_never_written(marked, sentences):
    for engine in ("torch", "ctranslate2"):
        translator = Translator.load(marked, "cpu", engine=engine)
        sources = translator.vocabulary.encode(sentences)
        found = translator.engine.search(sources, [[] for _ in sources], translator.request(n_best=4))
        assert not [mark for hypotheses in found for each in hypotheses for mark in each.ids if mark in (PAD, BOS)]
        assert all(any(each.ids for each in hypotheses) for hypotheses in found), "and something else is"


def assert_same(ours, theirs):
    assert [[each.ids for each in found] for found in ours] == [[each.ids for each in found] for found in theirs]
    for found, other in zip(ours, theirs, strict=True):
        assert [each.score for each in found] == pytest.approx([each.score for each in other], abs=1e-4)


def test_marks_are_forbidden_to_those_that_would_write_them(original, checkpoint, pairs, tmp_path):
    """Forbidding changes scores, so the others are searched as ever; and scores are those of the model, as in torch."""
    sources = original.vocabulary.encode([source for source, _ in pairs])
    nothing, request = [[] for _ in sources], original.request(beam=1)
    usual = [set(found[0].ids) for found in original.engine.search(sources, nothing, request)]
    some = min(set.union(*usual), key=lambda number: abs(sum(number in ids for ids in usual) - len(usual) // 2))

    def change(weight):
        weight[PAD] = 1.3 * weight[some]

    folder = changed(checkpoint, tmp_path / "marked", change)
    in_torch, translator = (Translator.load(folder, "cpu", engine=name) for name in ("torch", "ctranslate2"))
    written, asked = [], translator.engine.search_batch

    def search_batch(tasks, *how):
        found = asked(tasks, *how)
        written.append(sum(PAD in each.ids for hypotheses in found for each in hypotheses))
        return found

    translator.engine.search_batch = search_batch
    together = translator.engine.search(sources, nothing, request)
    assert 0 < written[0] < len(sources)
    assert written[1:] == [0]
    assert_same(together, in_torch.engine.search(sources, nothing, request))
    assert_same(together, [translator.engine.search([source], [[]], request)[0] for source in sources])


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("length_penalty", [0.0, 1.5])
def test_what_is_cut_at_the_limit_has_ended_there(original, exported, pairs, beam, length_penalty):
    """All hypotheses and their scores, in a batch of several limits, alone and in torch."""
    translator = Translator.load(exported, "cpu")
    sources = original.vocabulary.encode([source for source, _ in pairs])
    for extra_length in (1, 2):
        request = original.request(beam=beam, n_best=beam, extra_length=extra_length, length_penalty=length_penalty)
        together = translator.engine.search(sources, [[] for _ in sources], request)
        limits = [request.most_ids(source, []) for source in sources]
        cut = [len(found[0].ids) == limit for found, limit in zip(together, limits, strict=True)]
        assert extra_length > 1 or 5 < sum(cut) < len(cut) - 5
        assert_same(together, [translator.engine.search([source], [[]], request)[0] for source in sources])
        assert_same(together, original.engine.search(sources, [[] for _ in sources], request))


def test_a_drawn_translation_is_cut_at_its_own_limit(endless, sentences, monkeypatch):
    """Not drawn again: that would prefer short ones."""
    monkeypatch.setattr(CTranslate2Engine, "seed", None)
    translator = Translator.load(endless, "cpu", engine="ctranslate2")
    sources = translator.vocabulary.encode(sentences[:6])
    request = translator.request(sample=True, n_best=3, extra_length=1, seed=3)
    asked, batches = translator.engine.search_batch, []
    translator.engine.search_batch = lambda *how: batches.append(how) or asked(*how)
    found = translator.engine.search(sources, [[] for _ in sources], request)
    limits = [request.most_ids(source, []) for source in sources]
    assert [max(len(each.ids) for each in drawn) for drawn in found] == limits
    assert len(set(limits)) > 1
    assert len(batches) == 1
    for source, drawn in zip(sources, found, strict=True):
        pieces = [translator.vocabulary.processor.id_to_piece(each.ids) for each in drawn]
        scored = translator.engine.translator.score_batch(
            [translator.vocabulary.processor.id_to_piece(source[:-1])] * 3, pieces
        )
        totals = [sum(each.log_probs) / request.penalty(len(each.log_probs)) for each in scored]
        assert [each.score for each in drawn] == pytest.approx(totals, abs=1e-4)


def test_a_prefix_may_be_longer_than_the_limit(checkpoint, original, sentences):
    begin = " ".join(sentences[:8])
    short = Translator.load(checkpoint, "cpu", engine="ctranslate2")
    for translator in (original, short):
        (found,) = translator.search(["ja"], translator.request(extra_length=5), prefixes=[begin])
        assert found[0].text.startswith(begin)


def test_the_seed_of_a_process(checkpoint, sentences, monkeypatch):
    monkeypatch.setattr(CTranslate2Engine, "seed", None)
    translator = Translator.load(checkpoint, "cpu", engine="ctranslate2")
    translator.translate(sentences[:2], sample=True, seed=3)
    with pytest.raises(ConfigError, match="one seed a process, here 3; choose engine torch"):
        translator.translate(sentences[:2], sample=True, seed=4)


def test_a_checkpoint_that_is_gone_before_the_first_drawing(checkpoint, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr(CTranslate2Engine, "seed", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    translator = Translator.load(folder, "cpu", engine="ctranslate2")
    shutil.rmtree(folder)
    assert translator.translate(sentences[:2])
    with pytest.raises(RunError, match=f"{folder}: is gone since it was read, and drawing reads it again"):
        translator.translate(sentences[:2], sample=True, seed=3)


DRAW = """
import sys
from dragoman import Translator
translator = Translator.load(sys.argv[1], "cpu", engine="ctranslate2")
texts = sys.stdin.read().splitlines()
translator.translate(texts)  # by all workers
found = [translator.translate(texts[start : start + 4], sample=True, seed=7, top_k=0) for start in range(0, len(texts), 4)]
print(translator.engine.workers, found)
"""


def test_several_workers_draw_the_same_in_every_process(checkpoint, sentences):
    """Who of them would come first is chance, so one draws for all."""
    command = [sys.executable, "-c", DRAW, str(checkpoint)]
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    found = {
        subprocess.run(
            command, input="\n".join(sentences), capture_output=True, text=True, check=True, env=environment
        ).stdout
        for _ in range(3)
    }
    assert len(found) == 1
    assert found.pop().startswith("3 [[")


def test_sentences_of_many_limits_are_searched_as_each_alone(endless, sentences):
    """CTranslate2 has one limit for a batch. A model that does not end reaches every one of them."""
    translator = Translator.load(endless, "cpu", engine="ctranslate2")
    request = translator.request(extra_length=1)
    sources = translator.vocabulary.encode([" ".join(sentences[:count]) for count in (1, 3, 1, 2)] + sentences)
    for attention in (False, True):
        together = translator.engine.search(sources, [[] for _ in sources], request, attention=attention)
        alone = [translator.engine.search([source], [[]], request, attention=attention)[0] for source in sources]
        assert_same(together, alone)
        limits = [request.most_ids(source, []) for source in sources]
        at_limit = sum(len(found[0].ids) == limit for found, limit in zip(together, limits, strict=True))
        assert at_limit >= len(sources) - 2, "an end costs so much here that a short translation may win"
