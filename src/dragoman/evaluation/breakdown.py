"""One page about a translated test set: scores by length, and every sentence, the worst first, with differences marked."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape
from sacrebleu.metrics import CHRF

from dragoman.data.corpus import Pair
from dragoman.data.languages import is_spaced
from dragoman.evaluation.metrics import metric_of
from dragoman.runs import write_text

LENGTHS = ((1, 10), (11, 20), (21, 30), (31, 50), (51, 10**6))  # words of the source, or characters
MOST_SHOWN = 500  # sentences


@dataclass(frozen=True)
class Cutting:
    """How texts are cut: by sacreBLEU for its score, and for people at spaces, or into characters where a language has none."""

    tokenize: str | None = None
    languages: tuple[str, str] = ("", "")

    def joint(self, side: int) -> str:
        return " " if is_spaced(self.languages[side]) else ""

    def words(self, text: str, side: int) -> list[str]:
        return text.split() if self.joint(side) else list("".join(text.split()))


def write_breakdown(
    path: Path,
    result: dict[str, Any],
    pairs: list[Pair],
    translations: list[str],
    others: list[str] | None,
    cutting: Cutting,
) -> Path:
    text = files("dragoman.evaluation").joinpath("breakdown.html").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(text)
    rows = sentences(pairs, translations, others, cutting)
    units = ["words" if cutting.joint(side) else "characters" for side in (0, 1)]
    lengths = by_length(pairs, translations, cutting)
    page = template.render(
        result=result, lengths=lengths, rows=rows[:MOST_SHOWN], total=len(rows), others=others, units=units
    )
    write_text(path, page)
    return path


def by_length(pairs: list[Pair], translations: list[str], cutting: Cutting) -> list[dict[str, Any]]:
    rows = []
    for low, high in LENGTHS:
        inside = [index for index, (source, _) in enumerate(pairs) if low <= len(cutting.words(source, 0)) <= high]
        if not inside:
            continue
        found, references = [translations[index] for index in inside], [pairs[index][1] for index in inside]
        words = sum(len(cutting.words(text, 1)) for text in references) or 1
        rows.append({
            "length": f"{low} to {high}" if high < 10**6 else f"{low} or more",
            "sentences": len(inside),
            "bleu": metric_of("bleu", cutting.tokenize).corpus_score(found, [references]).score,
            "chrf": metric_of("chrf", None).corpus_score(found, [references]).score,
            "ratio": sum(len(cutting.words(text, 1)) for text in found) / words,
        })  # fmt: skip
    return rows


def sentences(
    pairs: list[Pair], translations: list[str], others: list[str] | None, cutting: Cutting
) -> list[dict[str, Any]]:
    """The worst first; against another system those that lost most."""
    metric, rows = CHRF(), []
    for number, ((source, reference), text) in enumerate(zip(pairs, translations, strict=True), 1):
        own = metric.sentence_score(text, [reference]).score
        row = {"number": number, "source": source, "chrf": own, "gain": 0.0, "other": None}
        row["reference"], row["translation"] = marked(reference, text, cutting)
        if others:
            other = others[number - 1]
            row |= {
                "other": marked(reference, other, cutting)[1],
                "gain": own - metric.sentence_score(other, [reference]).score,
            }
        rows.append(row)
    return sorted(rows, key=lambda row: (row["gain"], row["chrf"]))


def marked(reference: str, text: str, cutting: Cutting) -> tuple[Markup, Markup]:
    """Words that only one of the two has are marked."""
    joint, sides = cutting.joint(1), [cutting.words(each, 1) for each in (reference, text)]
    out: tuple[list[Markup], list[Markup]] = ([], [])
    for kind, *spans in SequenceMatcher(None, sides[0], sides[1], autojunk=False).get_opcodes():
        for side, (low, high) in enumerate((spans[:2], spans[2:])):
            words = escape(joint.join(sides[side][low:high]))
            if words:
                tag = "del" if side == 0 else "ins"
                out[side].append(words if kind == "equal" else Markup("<{0}>{1}</{0}>").format(tag, words))
    return Markup(joint).join(out[0]), Markup(joint).join(out[1])
