"""Scores: the ones sacreBLEU gives, with signatures; misaligned files and unknown names are refused."""

import json
import sys
from types import SimpleNamespace

import pytest
import sacrebleu
from support import tiny_config

from dragoman.cli.stages import evaluate, train
from dragoman.config.schema import Translate, Validation
from dragoman.errors import ConfigError, DataError, MissingExtra
from dragoman.evaluation import metrics
from dragoman.evaluation.metrics import COMET_MODEL, check_names, score, tokenizer_for
from dragoman.evaluation.task import BleuTask

TRANSLATIONS = ["Die Katze schläft auf dem Tisch.", "Der Hund sieht das rote Haus nicht."]
REFERENCES = ["Die Katze schläft auf dem Sofa.", "Der Hund sieht das Haus nicht."]


def test_scores_are_sacrebleus_own():
    scores = score(["", ""], TRANSLATIONS, REFERENCES, ["bleu", "chrf", "ter"])
    assert scores["bleu"]["score"] == pytest.approx(sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES]).score, abs=1e-3)
    assert scores["chrf"]["score"] == pytest.approx(sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES]).score, abs=1e-3)
    assert scores["ter"]["score"] == pytest.approx(sacrebleu.corpus_ter(TRANSLATIONS, [REFERENCES]).score, abs=1e-3)
    assert f"version:{sacrebleu.__version__}" in scores["bleu"]["signature"]
    assert "tok:13a" in scores["bleu"]["signature"]


CHINESE = ["小房子在森林里", "她在花园里看一本书"], ["小房子在树林里", "她在花园里看一本书"]


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_Hant", "zho", "cmn", "yue"])
def test_chinese_is_cut_as_sacrebleu_cuts_it_while_training(language):
    translations, references = CHINESE
    pairs = [("", reference) for reference in references]
    found = BleuTask(pairs, None, Validation(), Translate(), language).scores(translations)
    own = sacrebleu.BLEU(trg_lang="zh").corpus_score(translations, [references]).score
    assert (found["bleu"], "tok:zh" in found["bleu_signature"]) == (pytest.approx(own, abs=1e-3), True)
    assert found["bleu"] > 50, "and not noise"


def test_every_language_has_its_tokenizer(monkeypatch):
    monkeypatch.setattr(metrics, "find_spec", lambda module: None)
    cut = {"de": "13a", "": "13a", "tlh": "13a", "vi": "13a"}
    cut |= dict.fromkeys(("th", "tha", "km", "lo", "my", "bo", "ja", "jpn", "ko-KR", "kor"), "char")
    assert {language: tokenizer_for(language) for language in cut} == cut
    with pytest.raises(ConfigError, match=r"'ko-mecab' needs pip install 'sacrebleu\[ko\]'"):
        check_names(["bleu"], "ko-mecab")
    monkeypatch.setattr(metrics, "find_spec", lambda module: module)
    assert [tokenizer_for(language) for language in ("ja_JP", "jpn", "kor")] == ["ja-mecab", "ja-mecab", "ko-mecab"]


def test_a_language_with_spaces_is_scored_as_before():
    found = BleuTask([("", text) for text in REFERENCES], None, Validation(), Translate(), "de").scores(TRANSLATIONS)
    expected = score(["", ""], TRANSLATIONS, REFERENCES, ["bleu"])["bleu"]
    assert {"score": found["bleu"], "signature": found["bleu_signature"]} == expected


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="2 translations for 1 references"):
        score(["", ""], TRANSLATIONS, REFERENCES[:1], ["bleu"])
    with pytest.raises(ConfigError, match="'blue' is not known"):
        score(["", ""], TRANSLATIONS, REFERENCES, ["blue"])


def test_comet_is_asked_for_what_was_translated(monkeypatch):
    """A stand-in for its library; how good its own model is, is not our business."""
    asked = {}

    class Model:
        def predict(self, rows, **options):
            asked.update(rows=rows, options=options)
            return SimpleNamespace(system_score=0.876543, scores=[0.8, 0.95])

    stub = SimpleNamespace(
        download_model=lambda name: asked.update(model=name) or "/cache/comet.ckpt",
        load_from_checkpoint=lambda path: asked.update(path=path) or Model(),
    )
    monkeypatch.setitem(sys.modules, "comet", stub)
    found = score(["The cat.", "The dog."], TRANSLATIONS, REFERENCES, ["comet", "bleu"])
    assert found["comet"] == {"score": 87.6543, "signature": f"model:{COMET_MODEL}|scale:100"}
    assert (asked["model"], asked["path"]) == (COMET_MODEL, "/cache/comet.ckpt")
    assert asked["rows"][1] == {"src": "The dog.", "mt": TRANSLATIONS[1], "ref": REFERENCES[1]}
    assert (len(asked["rows"]), asked["options"]["progress_bar"]) == (2, False)
    assert found["bleu"] == score(["", ""], TRANSLATIONS, REFERENCES, ["bleu"])["bleu"]


def test_comet_without_its_extra_names_the_pip_line():
    pytest.importorskip("sacrebleu")
    try:
        import comet  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match=r"pip install '\.\[comet\]'"):
            score(["a", "b"], TRANSLATIONS, REFERENCES, ["comet"])
    else:
        pytest.skip("the extra is installed here")


def test_evaluating_a_run_writes_scores_and_keeps_the_old_ones(prepared, tmp_path):
    run = tmp_path / "run"
    train(tiny_config(prepared.folder, run, "train.max_steps=2"))
    first = evaluate(run, beam=1)
    assert first["sentences"] == 30
    assert first["step"] == 2
    for name, side in (("s.en", 0), ("s.de", 1)):
        text = "".join(f"{pair[side]}\n" for pair in prepared.text("test")[:7])
        (tmp_path / name).write_text(text, encoding="utf-8")
    second = evaluate(
        run / "checkpoints" / "step-00000002", source=str(tmp_path / "s.en"), reference=str(tmp_path / "s.de"), beam=1
    )
    assert second["sentences"] == 7
    assert second["examples"][0]["translation"] == first["examples"][0]["translation"]
    assert [entry["test_set"] for entry in json.loads((run / "scores.json").read_text(encoding="utf-8"))] == [
        "test",
        "s.en",
    ]
    with pytest.raises(DataError, match="name both --source and --reference"):
        evaluate(run, source="s.en")
