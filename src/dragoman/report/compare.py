"""Several runs beside each other: which was better, by what, and whether the difference is more than noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import RunError
from dragoman.report import machine, units
from dragoman.report.answer import Table
from dragoman.report.learning_questions import nats, scored
from dragoman.report.measures import StepTimes, TimeSplit, last_step, pauses, process_start, relabelled, starts
from dragoman.report.read import RunRecord, column, known, number, section, text
from dragoman.report.stats import Estimate, level, spread
from dragoman.runs import write_json, write_text

LAST = 5  # validations at the end that a run is judged by


class Contest(NamedTuple):
    """One measure over all runs."""

    name: str
    better: str  # higher or lower
    values: list[float | None]
    verdict: str


def names_of(records: list[RunRecord]) -> list[str]:
    """Names of the folders; where two are alike, as much of their paths as tells them apart."""
    paths = [record.folder.path.resolve() for record in records]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise RunError("the same run was named twice")


def compare(records: list[RunRecord]) -> list[Contest]:
    names = names_of(records)
    size = differing(records, "target slots a step")
    beside = f"; but {size[0]}: at equal steps the runs have seen different amounts of text" if size else ""
    texts = differing(records, "languages", "validation sets", "validation targets")
    scores = texts + differing(records, "sentences translated", "searches", "signatures")
    losses = texts + differing(records, "vocabularies", "label smoothings")
    told = zip(names, map(relabelled, records), strict=True)
    changed = [f"{name} was resumed with another label smoothing at step {step:,}" for name, step in told if step]
    return [
        barred(by_validation(records, names, "bleu", "BLEU", "higher"), scores, beside),
        barred(by_validation(records, names, "loss", "Validation loss (nats)", "lower"), losses, beside),
        barred(by_steps(records, names), differing(records, "vocabularies")),
        barred(by_wall(records, names), losses + changed),
    ]


def valid_text(record: RunRecord) -> str | None:
    """The text itself: ids are others with another vocabulary."""
    valid = section(record.data, "valid")
    pairs, size = number(valid, "text_pairs") or number(valid, "pairs"), number(valid, "source_bytes")
    return None if pairs is None or size is None else f"{units.count(pairs)} pairs, {units.count(size)} source bytes"


def valid_target(record: RunRecord) -> str | None:
    size = number(record.data, "valid", "target_bytes")
    return None if size is None else f"{units.count(size)} bytes"


def languages(record: RunRecord) -> str | None:
    pair = text(record.data, "source_lang"), text(record.data, "target_lang")
    return "-".join(pair) if all(pair) else None


def search(record: RunRecord) -> str | None:
    """How validation sentences were translated; a length penalty has no meaning where there is nothing to choose from."""
    if record.config is None:
        return None
    beam, penalty = record.config.validation.beam, record.config.translate.length_penalty
    return f"beam {beam}, length penalty {penalty:g}" if beam > 1 else "greedy"


def vocabulary(record: RunRecord) -> str | None:
    found = section(record.data, "vocabulary")
    size, digest = units.count(number(found, "size")), text(found, "digest")
    return f"{size} pieces, {digest[:8]}" if digest else None


FACTS: dict[str, Callable[[RunRecord], object]] = {
    "languages": languages,
    "validation sets": valid_text,
    "validation targets": valid_target,
    "vocabularies": vocabulary,
    "label smoothings": lambda record: record.config and record.config.train.label_smoothing,
    "sentences translated": lambda record: record.last_valid.get("bleu_sentences"),
    "searches": search,
    "signatures": lambda record: record.last_valid.get("bleu_signature"),
    "target slots a step": lambda record: record.config and record.config.train.batch_tokens,
}
"""What must be the same in all runs for a comparison to mean anything; None where it is not recorded."""


def differing(records: list[RunRecord], *names: str) -> list[str]:
    found = []
    for name in names:
        recorded = [value for record in records if (value := FACTS[name](record)) is not None]
        values = list(dict.fromkeys(map(str, recorded)))
        if len(values) > 1:
            found.append(f"the {name} differ ({' / '.join(values)})")
    return found


def barred(contest: Contest, reasons: list[str], beside: str = "") -> Contest:
    """Without a winner where the numbers of the runs are not of the same thing."""
    if all(value is None for value in contest.values):
        return contest
    verdict = f"not comparable: {'; '.join(reasons)}" if reasons else f"{contest.verdict}{beside}"
    return contest._replace(verdict=verdict)


def judged(name: str, better: str, values: list[float], lead: Callable[[int, int], str], frame: str = "{}") -> Contest:
    """`lead`: the words about the best run and another one; `frame`: what stands around them."""
    best = values.index(max(values) if better == "higher" else min(values))
    words = "; ".join(lead(best, other) for other in range(len(values)) if other != best)
    return Contest(name, better, list(values), frame.format(words))


def by_validation(records: list[RunRecord], names: list[str], key: str, title: str, better: str) -> Contest:
    """At equal steps: the last validations up to the step that the shortest run reached. Noise: differences between runs at the same
    steps against their spread about a line, which needs three. One run a side says nothing about other seeds."""
    curves = [dict(zip(*scored(record, key), strict=True)) for record in records]
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not common:
        return Contest(title, better, [None] * len(records), "not recorded at the same steps")
    last = common[-LAST:]
    means = [statistics.fmean(curve[step] for step in last) for curve in curves]

    def lead(best: int, other: int) -> str:
        apart = level(last, [curves[best][step] - curves[other][step] for step in last])
        return gap_words(names[best], names[other], means[best] - means[other], apart, key)

    at_steps = f"step {last[0]:,}" if len(last) == 1 else f"steps {last[0]:,} to {last[-1]:,}, {len(last)} validations"
    return judged(title, better, means, lead, f"{{}} ({at_steps})")


def gap_words(best: str, other: str, gap: float, apart: Estimate | None, key: str) -> str:
    unit, usual = {"bleu": ("BLEU", 0.3), "loss": ("nats", 0.01)}[key]  # between runs that differ in their seed only
    lead = f"{abs(gap):.2f} BLEU" if key == "bleu" else nats(abs(gap))
    said = f"{best} is {lead} better than {other}"
    if abs(gap) < 0.001:
        return f"{best} and {other} are the same"
    if apart and apart.low <= 0 <= apart.high:
        return f"{said}, which is within the noise of the validations"
    said += f", {'more than' if abs(gap) > usual else 'but less than'} another seed usually makes ({usual} {unit})"
    return said if apart else f"{said}; so few common validations do not tell their noise"


def by_steps(records: list[RunRecord], names: list[str]) -> Contest:
    """Target tokens a second, over rows of metrics after the first."""
    rates = [column(record.train_rows[1:], "target_tokens_per_s") for record in records]
    if not all(rates):
        return Contest("Target tokens/s", "higher", [None] * len(records), "not recorded")
    middles = [statistics.median(rate) for rate in rates]

    def lead(best: int, other: int) -> str:
        middle = middles[other] or 1.0
        ratio, noise = middles[best] / middle, (spread(rates[other]) + spread(rates[best])) / middle
        sure = "" if ratio - 1 > noise / 2 else ", within the spread of its rows"
        return f"{names[best]} is {ratio:.2f} times as fast as {names[other]}{sure}"

    return judged("Target tokens/s", "higher", middles, lead)


def by_wall(records: list[RunRecord], names: list[str]) -> Contest:
    """Seconds of wall clock to the validation loss that all runs reached: the fair question when runs differ in everything."""
    curves = [[(number(row, "time"), number(row, "loss")) for row in record.valid_rows] for record in records]
    timed = [[(time, loss) for time, loss in curve if time is not None and loss is not None] for curve in curves]
    if not all(timed) or not all(starts(record) for record in records):
        return Contest("Time to the same loss", "lower", [None] * len(records), "not recorded")
    goal = max(min(loss for _, loss in curve) for curve in timed)
    reached = [next(time for time, loss in curve if loss <= goal) for curve in timed]
    took = [worked_until(record, time) for time, record in zip(reached, records, strict=True)]

    def lead(best: int, other: int) -> str:
        if not took[best]:  # as in a log that begins with a validation
            return f"{names[best]} had it when its log began"
        return f"{names[best]} is {took[other] / took[best]:.2f} times as fast as {names[other]}"

    return judged("Time to the same loss (s)", "lower", took, lead, f"to {nats(goal)}, which all reached: {{}}")


def worked_until(record: RunRecord, moment: float) -> float:
    """Seconds since the run began, without the pauses between a stop and a resume."""
    paused = sum(min(until, moment) - since for since, until in pauses(record) if since < moment)
    return moment - process_start(record) - paused


def overview(records: list[RunRecord]) -> Table:
    facts: tuple[Callable[[RunRecord], str], ...] = (
        lambda record: units.duration(TimeSplit(record).wall),
        lambda record: units.duration(StepTimes(record).mean),
        bound,
    )
    rows = [
        (name, units.count(last_step(record)), *(known(fact, record) or units.NOT_RECORDED for fact in facts))
        for name, record in zip(names_of(records), records, strict=True)
    ]
    return Table(("Run", "Steps", "Wall clock", "Mean step", "Bound by"), rows)


def bound(record: RunRecord) -> str:
    found = machine.waits(record)
    share = units.percent(found.causes.get(found.bound))
    return {"compute": "computing", "untimed": "not timed"}.get(found.bound) or f"{found.bound}, {share} of a step"


def write_comparison(records: list[RunRecord], folder: Path) -> tuple[Path, ...]:
    """comparison.html, .md and .json into a folder."""
    from dragoman.report.charts import draw_comparison
    from dragoman.report.render import template

    names, contests = names_of(records), compare(records)
    figures = draw_comparison(records, names)
    shown = {"names": names, "contests": contests, "overview": overview(records), "figures": figures}
    html, markdown, data = (folder / f"comparison.{kind}" for kind in ("html", "md", "json"))
    write_text(html, template("comparison.html.j2").render(shown))
    write_text(markdown, template("comparison.md.j2").render(shown) + "\n")
    write_json(data, {"runs": names, "contests": [contest._asdict() for contest in contests]})
    return html, markdown, data
