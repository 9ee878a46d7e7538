"""Questions about learning: 2 whether the model is fully trained, 3 whether it overfitted."""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import NamedTuple

from dragoman.config.schedule import schedule_end
from dragoman.report import units
from dragoman.report.answer import Answer, Evidence
from dragoman.report.measures import comparable, last_step, relabelled, researched, series, stop_reason
from dragoman.report.read import RunRecord, column, number
from dragoman.report.stats import Estimate, slope, spread
from dragoman.report.time_questions import why_it_stopped

SMOOTHED_ROWS = 20  # of metrics: their median is a level, not chance
FURTHER = 1.1  # ask what the next 10 % of steps would bring
ENOUGH = {"bleu": 0.1, "loss": 0.004}  # BLEU points and nats: less than this is no reason to go on
FEWEST = 4  # validations that a trend is read from
FEWEST_LEVELS = 3  # validations that make two levels, each a mean of two
RISEN, RISEN_IN_FEW = 0.01, 0.03  # of the lowest validation loss; in few validations, whose noise nobody can tell
SURE = 4  # times the noise: the lowest of many levels is low by chance


class Trend(NamedTuple):
    """Of one metric over the last validations."""

    key: str
    gain: Estimate  # by the next 10 % of steps; positive is better
    points: int
    line: tuple[float, float]  # over the logarithm of the step: slope, value at 0

    def at(self, step: float) -> float:
        return self.line[0] * math.log(step) + self.line[1]

    @property
    def judgement(self) -> str:
        if self.gain.high < 0:
            return "worse"
        if self.gain.high < ENOUGH[self.key]:
            return "flat"
        return "rising" if self.gain.low > 0 and self.gain.value > ENOUGH[self.key] else "unsure"

    def words(self) -> str:
        digits, unit = (2, "BLEU") if self.key == "bleu" else (4, "nats better")
        value, low, high = (f"{round(each, digits) + 0.0:+.{digits}f}" for each in self.gain)
        return f"{value} {unit} (90 %: {low} to {high})"


def line_length(steps: list[int]) -> int:
    return max(FEWEST, len(steps) // 3)


def scored(record: RunRecord, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the validations of which this value is the same measure."""
    return series(comparable(record, record.valid_rows, key), key)


def since_relabelled(record: RunRecord) -> str:
    """Words for losses of which those before are another quantity."""
    since = relabelled(record)
    return f" since step {since:,}, where the run was resumed with another label smoothing" if since else ""


def trend(record: RunRecord, key: str) -> Trend | None:
    """Curves of training are nearly straight over the logarithm of the step: the line through the last third of the validations,
    at least four, continued."""
    steps, values = scored(record, key)
    count = line_length(steps)
    places, last = [math.log(step) for step in steps[-count:]], values[-count:]
    rising = slope(places, last)
    if len(steps) < FEWEST or rising is None:
        return None
    better = 1.0 if key == "bleu" else -1.0
    start = fmean(last) - rising.value * fmean(places)
    return Trend(key, rising.times(better * math.log(FURTHER)), count, (rising.value, start))


def fully_trained(record: RunRecord) -> Answer:
    """A straight line over the logarithm of the step through the last third of the validations, continued over the next 10 % of steps,
    with a 90 % interval. Fully trained: even the upper end promises less than 0.1 BLEU and 0.004 nats. The learning rate matters as
    well: a curve is also flat because the schedule has come to its end."""
    trends = {key: found for key in ("bleu", "loss") if (found := trend(record, key))}
    evidence, spent = state_evidence(record), rate_is_spent(record)
    ended = "not projected: the schedule has ended, and what its fall brought does not go on"
    for key, found in trends.items():
        name = "BLEU" if key == "bleu" else "validation loss"
        evidence.append((f"Next 10 % of steps, {name}", ended if spent else found.words()))
    if trends and not spent:
        evidence.append(("Line drawn through", f"{max(found.points for found in trends.values())} last validations"))
    if rate := rate_left(record):
        evidence.append(("Learning rate now", rate))
    if has_diverged(record):
        return Answer(2, "No: training diverged.", evidence, "gap")
    if not trends:
        seen = units.plural(len(scored(record, "loss")[0]), "validation")
        said = f"Not recorded: {seen} recorded{since_relabelled(record)}, a trend needs {FEWEST}."
        return Answer(2, said, evidence, answered=False)
    if spent:
        return Answer(2, spent_verdict(record, trends), evidence, "gap")
    return Answer(2, trained_verdict(trends), evidence, "trend")


def trained_verdict(trends: dict[str, Trend]) -> str:
    judgements = {found.judgement for found in trends.values()}
    said = f"10 % more steps would bring {' and '.join(found.words() for found in trends.values())}"
    if "rising" in judgements:
        return f"No: {said}."
    if judgements == {"worse"}:
        return f"It is past its best: {said}. Take the best checkpoint, not the last."
    if "unsure" in judgements:
        return f"Cannot be told for sure: {said}. More validations, or more sentences in them, would tell."
    return f"Yes: {said}."


def spent_verdict(record: RunRecord, trends: dict[str, Trend]) -> str:
    """Of a run whose schedule has ended: nothing is said about steps that it does not plan."""
    left, key = f"the learning rate has come down to {rate_left(record)}", next(iter(trends))
    if all(found.judgement == "worse" for found in trends.values()):
        return f"It is past its best: its last validations became worse, and {left}. Take the best checkpoint, not the last."
    steps, values = scored(record, key)
    change = f"{values[-1] - values[-2]:+.2f} {'BLEU' if key == 'bleu' else 'nats'}"
    since = f"from step {steps[-2]:,} to {steps[-1]:,} the validation changed by {change}"
    return f"Yes, as far as its schedule goes: {left}; {since}. A longer schedule may reach more."


def rate_left(record: RunRecord) -> str:
    rates = column(record.train_rows, "learning_rate")
    return f"{units.rate(rates[-1])}, {units.percent(rates[-1] / max(rates))} of its peak" if any(rates) else ""


def rate_is_spent(record: RunRecord) -> bool:
    """The schedule came to its end among the validations that a line would go through, or the rate is next to nothing. A rate that falls
    for ever, as with the inverse root of the step, is never spent; where the formula is not known, the rate alone says it."""
    rates = column(record.train_rows, "learning_rate")
    spent = bool(rates) and rates[-1] < 0.05 * max(rates)
    if record.config is None or record.config.schedule.policy == "exponential":
        return spent
    end, steps = schedule_end(record.config), series(record.valid_rows, "loss")[0]
    if end is None:
        return False
    return spent or (end <= (last_step(record) or 0) and any(step < end for step in steps[-line_length(steps) :]))


def has_diverged(record: RunRecord) -> bool:
    """By its own words, or because the training loss ended far above where it had been for good, on the data of the same stage."""
    since = max((step for step in stage_starts(record) if step < record.last_row.get("step", 0)), default=0)
    losses = column((row for row in comparable(record, record.train_rows) if row["step"] > since), "loss")
    broken = any(type(row.get("loss")) is float and not math.isfinite(row["loss"]) for row in record.train_rows[-3:])
    risen = len(losses) > 10 and min(losses[-3:]) > 1.3 * lowest_level(losses)
    return stop_reason(record) == "diverged" or broken or risen


def stage_starts(record: RunRecord) -> list[int]:
    """Where another mixture of data begins, whose loss is another."""
    return [stage.from_step for stage in record.config.data.stages] if record.config else []


def lowest_level(losses: list[float]) -> float:
    """The lowest running median: other tools log the loss of single batches, and one of thousands is low by chance."""
    width = min(SMOOTHED_ROWS, len(losses) // 3)
    return min(median(losses[at : at + width]) for at in range(len(losses) - width + 1))


def state_evidence(record: RunRecord) -> Evidence:
    rows = []
    if last := record.last_valid:
        words = {"loss": "loss {:.3f} nats per target token", "bleu": "BLEU {:.1f}"}
        scores = [said.format(value) for key, said in words.items() if (value := number(last, key)) is not None]
        rows.append((f"Validation at step {last['step']:,}", ", ".join(scores) or units.NOT_RECORDED))
    if reached := list(zip(*reversed(scored(record, "bleu")), strict=True)):
        best, at = max(reached)
        rows.append(("Best validation BLEU", f"{best:.1f} at step {at:,}"))
    if apart := not_compared(record):
        rows.append(("Not compared", apart))
    planned = f" of {record.config.train.max_steps:,} planned" if record.config else ""
    rows.append(("Steps", f"{units.count(last_step(record))}{planned}"))
    if forced := column(record.valid_rows, "teacher_forced_bleu"):
        own = f"{forced[-1]:.1f}; no sacreBLEU, and not comparable"
        rows.append(("Its own BLEU: fed the reference, over subword pieces", own))
    floor = number(record.environment, "model", "loss_floor")
    if floor is not None:
        rows.append(("Lowest loss that label smoothing allows", f"{floor:.4f} nats per target token"))
    return [*rows, ("Why it stopped", why_it_stopped(record))]


def not_compared(record: RunRecord) -> str:
    """Scores that are left out because they measure something else than the last ones."""
    labels, search = "another label smoothing", "another search or number of sentences"
    told = [("losses", relabelled(record), labels), ("BLEU", researched(record), search)]
    left_out = [(name, since, other) for name, since, other in told if since]
    return "; ".join(
        f"{name} up to step {since:,}: the run was resumed there with {other}" for name, since, other in left_out
    )


class Gap(NamedTuple):
    """Validation loss against that of a slice of the training set, both without dropout, in nats."""

    step: int  # of the last validation with both
    known: float  # the loss of the slice there
    first: float
    last: float
    slope: Estimate | None  # a step, over the second half of the validations


def gap(record: RunRecord) -> Gap | None:
    valid, sliced = (dict(zip(*scored(record, key), strict=True)) for key in ("loss", "train_slice_loss"))
    steps = [step for step in valid if step in sliced]
    if not steps:
        return None
    gaps = [valid[step] - sliced[step] for step in steps]
    half = len(gaps) // 2
    return Gap(steps[-1], sliced[steps[-1]], gaps[0], gaps[-1], slope(steps[half:], gaps[half:]))


def overfitting(record: RunRecord) -> Answer:
    """Validation loss is compared with the loss of a slice of the training set, both with dropout off; training rows have dropout on,
    which alone can put them above the validation loss. Overfitting: the mean of the last tenth of the validations (two at least) lies above
    the lowest such mean by more than 1 % and four times its noise, and the slice did not rise with it. Noise is told from how far the
    validations of the last two thirds lie off the line between their neighbours; fewer than seven tell none, and must rise by 3 %. The
    gap alone proves nothing: a part of it is there because validation text is other text."""
    steps, losses = scored(record, "loss")
    if not losses:
        raise record.lacks("metrics.jsonl", f"has no validation loss{since_relabelled(record)}")
    lowest, at = min(zip(losses, steps, strict=True))
    evidence = [
        (f"Validation loss at step {steps[-1]:,}", nats(losses[-1])),
        ("Lowest validation loss", f"{nats(lowest)}, at step {at:,}"),
    ]
    found = gap(record)
    if found:
        evidence += [
            (f"Training slice at step {found.step:,}, dropout off", nats(found.known)),
            ("Generalisation gap, first and last validation", f"{nats(found.first)} and {nats(found.last)}"),
        ]
        if found.slope:
            value, low, high = found.slope.times(1000)
            evidence.append(("Gap grows per 1,000 steps", f"{value:+.4f} nats (90 %: {low:+.4f} to {high:+.4f})"))
    else:
        evidence.append(("Loss of training data without dropout", units.NOT_RECORDED))
    return Answer(3, overfitting_verdict(record, losses, steps, found), evidence, "gap")


def overfitting_verdict(record: RunRecord, losses: list[float], steps: list[int], found: Gap | None) -> str:
    if has_diverged(record):
        return "No: training diverged, which is another illness."
    if len(losses) < FEWEST_LEVELS:
        few = "is one validation" if len(losses) == 1 else "are two validations"
        return f"Cannot be told: there {few} only{since_relabelled(record)}."
    lowest, at = min(zip(losses, steps, strict=True))
    risen, rise = has_risen(losses), losses[-1] - lowest
    beside = ""
    if found:
        beside = f"; the gap to training data without dropout went from {found.first:.3f} to {found.last:.3f} nats"
    if risen and not known_rises(record, at, rise / 2):
        return f"Yes, since step {at:,}: the validation loss has risen by {nats(rise)} ({units.percent(rise / lowest)}) since then{beside}."
    if risen:
        return f"No: the validation loss has risen since step {at:,}, but so has that of training data: it is training that fails."
    if found and found.slope and found.slope.low > 0 and found.last > found.first + 0.05 * lowest:
        return f"Not yet: the validation loss does not rise, but the gap grows{beside}: what is learnt is more and more the training set."
    if found is None:
        return "No sign of it: the validation loss has not risen above its noise; training data without dropout is not recorded."
    return f"No: the validation loss is at its lowest or within noise of it{beside}."


def has_risen(losses: list[float]) -> bool:
    width = max(2, len(losses) // 10)
    levels = [fmean(losses[at : at + width]) for at in range(len(losses) - width + 1)]
    later = losses[len(losses) // 3 :]
    bends = [one - 2 * middle + other for one, middle, other in zip(later, later[1:], later[2:], strict=False)]
    limit = RISEN_IN_FEW * min(levels)
    if len(bends) > 2:
        noise = spread(bends) / math.sqrt(6) * math.sqrt(2 / width)  # of a bend, a loss, the difference of two levels
        limit = max(RISEN * min(levels), SURE * noise)
    return levels[-1] - min(levels) > limit


def known_rises(record: RunRecord, since: int, much: float) -> bool:
    """Whether the loss of training data, too, surely rose after a step: that of its slice, or else of the rows with dropout. Of few
    values none is sure, so the first and the last are believed."""
    sliced, dropped = ([row for row in rows if row["step"] >= since] for rows in (record.valid_rows, record.train_rows))
    steps, values = series(sliced, "train_slice_loss")
    if not values:
        steps, values = series(dropped, "loss")
    if len(values) < FEWEST:
        return bool(values) and values[-1] - values[0] > much
    rising = slope(steps, values)
    return rising is not None and rising.low > 0 and rising.value * (steps[-1] - steps[0]) > much


def nats(value: float) -> str:
    return f"{value:.3f} nats"
