"""Scores: the ones sacreBLEU gives, with signatures; misaligned files and unknown names are refused."""

import json

import pytest
import sacrebleu
from support import tiny_config

from dragoman.cli.stages import evaluate, train
from dragoman.errors import ConfigError, DataError, MissingExtra
from dragoman.evaluation.metrics import score

TRANSLATIONS = ["Die Katze schläft auf dem Tisch.", "Der Hund sieht das rote Haus nicht."]
REFERENCES = ["Die Katze schläft auf dem Sofa.", "Der Hund sieht das Haus nicht."]


def test_scores_are_sacrebleus_own():
    scores = score(["", ""], TRANSLATIONS, REFERENCES, ["bleu", "chrf", "ter"])
    assert scores["bleu"]["score"] == pytest.approx(sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES]).score, abs=1e-3)
    assert scores["chrf"]["score"] == pytest.approx(sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES]).score, abs=1e-3)
    assert scores["ter"]["score"] == pytest.approx(sacrebleu.corpus_ter(TRANSLATIONS, [REFERENCES]).score, abs=1e-3)
    assert f"version:{sacrebleu.__version__}" in scores["bleu"]["signature"]
    assert "tok:13a" in scores["bleu"]["signature"]


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="2 translations for 1 references"):
        score(["", ""], TRANSLATIONS, REFERENCES[:1], ["bleu"])
    with pytest.raises(ConfigError, match="'blue' is not known"):
        score(["", ""], TRANSLATIONS, REFERENCES, ["blue"])


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
