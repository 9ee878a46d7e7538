"""Several runs beside each other: which was better, by what, and whether the difference is more than noise."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import RunError
from dragoman.report import machine, units
from dragoman.report.answer import Table
from dragoman.report.learning_questions import nats
from dragoman.report.measures import StepTimes, TimeSplit, last_step, series
from dragoman.report.read import NotRecorded, RunRecord, number
from dragoman.report.stats import Estimate, difference, spread
from dragoman.runs import RunFolder, write_json, write_text

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
    return [
        by_validation(records, names, "bleu", "BLEU", "higher"),
        by_validation(records, names, "loss", "Validation loss (nats)", "lower"),
        by_steps(records, names),
        by_wall(records, names),
    ]


def by_validation(records: list[RunRecord], names: list[str], key: str, title: str, better: str) -> Contest:
    """At equal steps: the last validations up to the step that the shortest run reached. Noise: differences between runs at the same
    steps against their spread. One run a side says nothing about other seeds."""
    curves = [dict(zip(*series(record.valid_rows, key), strict=True)) for record in records]
    common = sorted(set.intersection(*(set(curve) for curve in curves))) if all(curves) else []
    if not common:
        return Contest(title, better, [None] * len(records), "not recorded at the same steps")
    last = common[-LAST:]
    means = [statistics.fmean(curve[step] for step in last) for curve in curves]
    best = means.index(max(means) if better == "higher" else min(means))
    words = []
    for at, curve in enumerate(curves):
        if at != best:
            apart = difference([curves[best][step] - curve[step] for step in last], [0.0, 0.0])
            words.append(gap_words(names[best], names[at], means[best] - means[at], apart, key))
    at_steps = f"step {last[0]:,}" if len(last) == 1 else f"steps {last[0]:,} to {last[-1]:,}, {len(last)} validations"
    return Contest(title, better, list(means), f"{'; '.join(words)} ({at_steps})")


def gap_words(best: str, other: str, gap: float, apart: Estimate | None, key: str) -> str:
    unit = "BLEU" if key == "bleu" else "nats"
    usual = {"bleu": 0.3, "loss": 0.01}[key]  # between runs that differ in their seed only
    said = (
        f"{best} is {abs(gap):.2f} {unit} better than {other}"
        if key == "bleu"
        else f"{best} is {nats(abs(gap))} better than {other}"
    )
    if abs(gap) < 0.001:
        return f"{best} and {other} are the same"
    if apart is None or not apart.is_sure:
        return f"{said}, which is within the noise of the validations"
    return f"{said}, {'more than' if abs(gap) > usual else 'but less than'} another seed usually makes ({usual} {unit})"


def by_steps(records: list[RunRecord], names: list[str]) -> Contest:
    """Target tokens a second, over rows of metrics after the first."""
    rates = [series(record.train_rows[1:], "target_tokens_per_s")[1] for record in records]
    if not all(rates):
        return Contest("Target tokens/s", "higher", [None] * len(records), "not recorded")
    middles = [statistics.median(rate) for rate in rates]
    best = middles.index(max(middles))
    words = []
    for at, rate in enumerate(rates):
        if at != best:
            noise = (spread(rate) + spread(rates[best])) / (middles[at] or 1.0)
            ratio = middles[best] / middles[at]
            sure = "" if ratio - 1 > noise / 2 else ", within the spread of its rows"
            words.append(f"{names[best]} is {ratio:.2f} times as fast as {names[at]}{sure}")
    return Contest("Target tokens/s", "higher", list(middles), "; ".join(words))


def by_wall(records: list[RunRecord], names: list[str]) -> Contest:
    """Seconds of wall clock to the validation loss that all runs reached: the fair question when runs differ in everything."""
    curves = [[(number(row, "time"), number(row, "loss")) for row in record.valid_rows] for record in records]
    known = [[(time, loss) for time, loss in curve if time is not None and loss is not None] for curve in curves]
    starts = [record.events[0]["time"] if record.events else None for record in records]
    if not all(known) or None in starts:
        return Contest("Time to the same loss", "lower", [None] * len(records), "not recorded")
    goal = max(min(loss for _, loss in curve) for curve in known)
    took = [
        next(time for time, loss in curve if loss <= goal) - (start or 0.0)
        for curve, start in zip(known, starts, strict=True)
    ]
    best = took.index(min(took))
    words = [
        f"{names[best]} is {took[at] / took[best]:.2f} times as fast as {names[at]}"
        for at in range(len(took))
        if at != best
    ]
    return Contest(
        "Time to the same loss (s)", "lower", list(took), f"to {nats(goal)}, which all reached: {'; '.join(words)}"
    )


def overview(records: list[RunRecord]) -> Table:
    rows = []
    for name, record in zip(names_of(records), records, strict=True):
        rows.append((name, units.count(last_step(record)), *(told(fact, record) for fact in (wall, pace, bound))))
    return Table(("Run", "Steps", "Wall clock", "Mean step", "Bound by"), rows)


def told(fact: object, record: RunRecord) -> str:
    try:
        assert callable(fact)
        return str(fact(record))
    except NotRecorded:
        return units.NOT_RECORDED


def wall(record: RunRecord) -> str:
    return units.duration(TimeSplit(record).wall)


def pace(record: RunRecord) -> str:
    return units.duration(StepTimes(record).mean)


def bound(record: RunRecord) -> str:
    found = machine.waits(record)
    return (
        "computing"
        if found.bound == "compute"
        else f"{found.bound}, {units.percent(found.causes[found.bound])} of a step"
    )


def write_comparison(records: list[RunRecord], folder: Path) -> tuple[Path, ...]:
    """comparison.html, .md and .json into a folder."""
    from dragoman.report.charts import draw_comparison
    from dragoman.report.render import template

    names, contests = names_of(records), compare(records)
    figures = draw_comparison(records, names)
    shown = {"names": names, "contests": contests, "overview": overview(records), "figures": figures, "units": units}
    html, markdown, data = (folder / f"comparison.{kind}" for kind in ("html", "md", "json"))
    write_text(html, template("comparison.html.j2").render(shown))
    write_text(markdown, template("comparison.md.j2").render(shown) + "\n")
    write_json(data, {"runs": names, "contests": [contest._asdict() for contest in contests]})
    return html, markdown, data


def folder_for(records: list[RunRecord]) -> Path:
    """Beside the first run."""
    return RunFolder(records[0].folder.path).path.resolve().parent
