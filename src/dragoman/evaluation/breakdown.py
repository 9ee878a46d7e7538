"""One page about a translated test set: scores by length, and every sentence, the worst first, with differences marked."""

from __future__ import annotations

from difflib import SequenceMatcher
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape
from sacrebleu.metrics import BLEU, CHRF

from dragoman.data.corpus import Pair
from dragoman.runs import write_text

LENGTHS = ((1, 10), (11, 20), (21, 30), (31, 50), (51, 10**6))  # words of the source
MOST_SHOWN = 500  # sentences


def write_breakdown(
    path: Path, result: dict[str, Any], pairs: list[Pair], translations: list[str], others: list[str] | None
) -> Path:
    text = files("dragoman.evaluation").joinpath("breakdown.html").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(text)
    rows = sentences(pairs, translations, others)
    page = template.render(
        result=result, lengths=by_length(pairs, translations), rows=rows[:MOST_SHOWN], total=len(rows), others=others
    )
    write_text(path, page)
    return path


def by_length(pairs: list[Pair], translations: list[str]) -> list[dict[str, Any]]:
    rows = []
    for low, high in LENGTHS:
        inside = [index for index, (source, _) in enumerate(pairs) if low <= len(source.split()) <= high]
        if not inside:
            continue
        found, references = [translations[index] for index in inside], [pairs[index][1] for index in inside]
        words = sum(len(text.split()) for text in references) or 1
        rows.append({
            "words": f"{low} to {high}" if high < 10**6 else f"{low} or more",
            "sentences": len(inside),
            "bleu": BLEU().corpus_score(found, [references]).score,
            "chrf": CHRF().corpus_score(found, [references]).score,
            "ratio": sum(len(text.split()) for text in found) / words,
        })  # fmt: skip
    return rows


def sentences(pairs: list[Pair], translations: list[str], others: list[str] | None) -> list[dict[str, Any]]:
    """The worst first; against another system those that lost most."""
    metric, rows = CHRF(), []
    for number, ((source, reference), text) in enumerate(zip(pairs, translations, strict=True), 1):
        own = metric.sentence_score(text, [reference]).score
        row = {"number": number, "source": source, "chrf": own, "gain": 0.0, "other": None}
        row["reference"], row["translation"] = marked(reference, text)
        if others:
            other = others[number - 1]
            row |= {"other": marked(reference, other)[1], "gain": own - metric.sentence_score(other, [reference]).score}
        rows.append(row)
    return sorted(rows, key=lambda row: (row["gain"], row["chrf"]))


def marked(reference: str, text: str) -> tuple[Markup, Markup]:
    """Words that only one of the two has are marked."""
    sides = reference.split(), text.split()
    out: tuple[list[Markup], list[Markup]] = ([], [])
    for kind, *spans in SequenceMatcher(None, *sides, autojunk=False).get_opcodes():
        for side, (low, high) in enumerate((spans[:2], spans[2:])):
            words = escape(" ".join(sides[side][low:high]))
            if words:
                tag = "del" if side == 0 else "ins"
                out[side].append(words if kind == "equal" else Markup("<{0}>{1}</{0}>").format(tag, words))
    return Markup(" ").join(out[0]), Markup(" ").join(out[1])
