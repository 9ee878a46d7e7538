"""What follows from a RunRecord by arithmetic: where the time went, how long steps took, whether logged learning
rates obey the formula, what a checkpoint should weigh. Raises NotRecorded where the record does not say."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import NamedTuple

from dragoman.config.schedule import learning_rate
from dragoman.report import units
from dragoman.report.read import Checkpoint, NotRecorded, RunRecord, column, number, once, text
from dragoman.runs import Row

RATE_TOLERANCE = 1e-5  # relative; room for rounding in the log, too tight for a rate that is off by one step


def series(rows: list[Row], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the rows that have this value."""
    found = [(row["step"], value) for row in rows if (value := number(row, key)) is not None]
    return [step for step, _ in found], [value for _, value in found]


class TimeSplit:
    """Wall clock from the first process to the last stop, in seconds, without the pauses between a stop and a resume. The
    parts add up to it exactly."""

    def __init__(self, record: RunRecord):
        begun, self.ended = starts(record), end_time(record)
        if not begun or self.ended <= begun[0]["time"]:
            raise record.lacks("events.jsonl", "has no start, or nothing after it")
        self.started = process_start(record)
        self.paused = sum(until - since for since, until in pauses(record))
        self.wall = self.ended - self.started - self.paused
        self.stop_reason = stop_reason(record)
        self.training = number(record.last_row, "train_seconds")
        self.validation, self.checkpoint = spent(record, "validation"), spent(record, "checkpoint")
        self.setbacks = setbacks(record)
        self.lost = sum(each.seconds for each in self.setbacks)
        self.other = self.wall - (self.training or 0.0) - self.validation - self.checkpoint - self.lost
        parts = [("Training steps", self.training)] if self.training is not None else []
        beside = [("Validation", self.validation), ("Checkpoints", self.checkpoint)]
        parts += [part for part in beside if part[1] or not record.origin]  # other logs tell them rarely
        parts += [("Lost work and time down", self.lost)] if self.lost else []
        rest = "Other" if self.training is not None else "Training and other, which cannot be told apart"
        # Negative when the clock was set back or rows of two attempts were mixed: then the sum must not look right.
        self.parts = [*parts, (rest if self.other >= 0 else "Counted twice (was the clock changed?)", self.other)]


def starts(record: RunRecord) -> list[Row]:
    """The start; then every resume, and every start from nothing of a run killed before its first checkpoint."""
    return record.events_of("start", "resume")


def rearranged(record: RunRecord) -> tuple[Row, Row] | None:
    """The last start on other ranks or hosts than the start before it, and that one: environment.json describes the last alone."""
    for before, after in reversed(list(pairwise(starts(record)))):
        if any(before[key] != after[key] for key in ("ranks", "hosts") if key in before and key in after):
            return before, after
    return None


@once
def rearranged_at(record: RunRecord) -> int:
    """The step from which the machines were as they are described; 0 where they always were."""
    found = rearranged(record)
    return int(number(found[1], "step") or 0) if found else 0


def process_start(record: RunRecord) -> float:
    """When the first process began: reading data and placing the model go before the start event. The events that count their
    seconds from there tell it."""
    begun = [*starts(record), {"time": float("inf")}]
    first = [row for row in record.events_of("first_step", "stop") if row["time"] < begun[1]["time"]]
    counted = [row["time"] - row["seconds"] for row in first if number(row, "seconds") is not None]
    return float(min([begun[0]["time"], *counted[:1]]))


def own_events(record: RunRecord) -> list[Row]:
    """Without faults: a launcher tells of them after the fact, also of a run that had stopped by itself with an error."""
    return [row for row in record.events if row.get("event") != "fault"]


def last_stop(record: RunRecord) -> Row:
    """Empty when the last event is no stop: the run is still going or was killed."""
    last = own_events(record)[-1:]
    return last[0] if last and last[0].get("event") == "stop" else {}


def stop_reason(record: RunRecord) -> str:
    return text(last_stop(record), "reason") or "no reason given" if last_stop(record) else ""


@once
def end_time(record: RunRecord) -> float:
    """The stop, or the last sign of life of a run without one."""
    if stop := last_stop(record):
        return float(stop["time"])
    rows = [record.events, record.train_rows, record.valid_rows, *record.telemetry.values()]
    return max((number(row, "time") or 0.0 for some in rows for row in some), default=0.0)


def last_step(record: RunRecord) -> int | None:
    """Updates done: by the stop event, or else by the last row."""
    stopped_at = number(last_stop(record), "step")
    return record.last_row.get("step") if stopped_at is None else int(stopped_at)


def pauses(record: RunRecord) -> list[tuple[float, float]]:
    """From every stop in good order to the resume after it: nobody computed, and nothing was lost."""
    return [
        (row["time"], after["time"])
        for row, after in pairwise(own_events(record))
        if row.get("event") == "stop" and after in starts(record)
    ]


KEPT = ("start", "resume", "stop", "validation", "checkpoint", "roll_back")
"""Events of work that was kept. Others, as a fault or a hang, are told long after the step that they name."""


class Setback(NamedTuple):
    """Training went on from an earlier step: a restart, or a return to a checkpoint in the same process."""

    event: str
    since: float  # the last record at or before that step
    until: float
    steps: int | None  # None when a restart does not say it, as one that had to begin again from nothing
    after: str  # how what was before it ended, as far as a start says that

    @property
    def seconds(self) -> float:
        return self.until - self.since


@once
def setbacks(record: RunRecord) -> list[Setback]:
    """All that cost something: a stop in good order loses nothing."""
    found, first = [], starts(record)[:1]
    for row in record.events_of("start", "resume", "roll_back"):
        if row in first:
            continue
        step, until = number(row, "step") or 0.0, row["time"]
        until = next((since for since, end in pauses(record) if end == until), until)
        work = [each for each in record.events_of(*KEPT) if each is not row and (number(each, "step") or 0.0) <= step]
        rows = [each for each in (*record.train_rows, *record.valid_rows) if each["step"] <= step]
        kept = [pause(each)[1] for each in work] + [number(each, "time") or 0.0 for each in rows]
        lost = number(row, "lost_steps") if row["event"] != "roll_back" else (number(row, "from_step") or step) - step
        since = max((time for time in kept if time <= until), default=until)
        found.append(Setback(row["event"], since, until, None if lost is None else int(lost), text(row, "after")))
    return [each for each in found if each.seconds or each.steps != 0]


def returned(times: int) -> str:
    return units.plural(times, "return to a checkpoint", "returns to a checkpoint")


def lost_steps(found: list[Setback]) -> int | None:
    steps = [each.steps for each in found]
    return None if None in steps else sum(each or 0 for each in steps)


def spent(record: RunRecord, kind: str) -> float:
    """Seconds of all events of a kind, less those that fell into a lost span and are counted there."""
    lost = setbacks(record)
    kept = [row for row in record.events_of(kind) if not any(each.since < pause(row)[1] < each.until for each in lost)]
    return sum(column(kept, "seconds"))


def pause(row: Row) -> tuple[float, float]:
    """When training stood still for an event. That of a checkpoint is written when its thread is done, long after."""
    long, since = number(row, "seconds") or 0.0, number(row, "stalled_at")
    until = row["time"] - (number(row, "write_seconds") or 0.0) if since is None else since + long
    return until - long, until


class StepSpan(NamedTuple):
    """One train row: a mean over the steps since the row before."""

    step: int
    steps: int
    seconds: float
    row: Row


@once
def step_spans(record: RunRecord) -> list[StepSpan]:
    """A row after a resume covers the steps since the resume, not since the row before the crash; the first of another system's log
    as many as the second, unless it says how many."""
    resumed = [int(number(row, "step") or 0) for row in starts(record)[1:]]
    spans, before = [], 0
    if record.origin and len(record.train_rows) > 1:  # a log may begin late
        first, second = (row["step"] for row in record.train_rows[:2])
        before = max(0, 2 * first - second)
    for row in record.train_rows:
        step, seconds = row["step"], number(row, "step_seconds")
        since = max([before, *(start for start in resumed if start < step)])
        if seconds is not None:
            many = number(row, "steps") if record.origin else None
            spans.append(StepSpan(step, int(many or step - since), seconds, row))
        before = step
    return spans


@once
def usual_spans(record: RunRecord) -> list[StepSpan]:
    """Without the first row after every start, which has compilation and cold caches in it."""
    if record.origin:  # whose first rows may be as all others
        return step_spans(record)
    begun = {int(number(row, "step") or 0) for row in starts(record)}
    return [span for span in step_spans(record) if span.step - span.steps not in begun]


class StepTimes:
    """How long a usual step took and what went into it, averaged over the run; what the first rows took lies apart."""

    def __init__(self, record: RunRecord):
        every, spans = step_spans(record), usual_spans(record) or step_spans(record)
        if not spans:
            raise record.lacks("metrics.jsonl", "has no train row with step_seconds")
        usual = {span.step for span in spans}
        first = [span for span in every if span.step not in usual]
        self.first_steps = sum(span.steps for span in first)
        self.first_seconds = sum(span.seconds * span.steps for span in first)
        seconds, weights = [span.seconds for span in spans], [span.steps for span in spans]
        self.rows, self.steps = len(spans), sum(weights)
        self.mean = sum(span.seconds * span.steps for span in spans) / self.steps
        self.median, self.p95 = (quantile(seconds, weights, share) for share in (0.5, 0.95))
        self.mean_with_everything = self.with_everything(record, spans[-1].step)
        known = [(wait, span) for span in spans if (wait := number(span.row, "data_seconds")) is not None]
        total = sum(span.seconds * span.steps for _, span in known)
        self.data_share = sum(wait * span.steps for wait, span in known) / total if total else None
        seen = [number(record.last_row, key) for key in ("pairs", "source_tokens", "target_tokens")]
        per_step = [None if many is None else many / record.last_row["step"] for many in seen]
        self.pairs, self.source_tokens, self.target_tokens = per_step

    def with_everything(self, record: RunRecord, steps: int) -> float | None:
        """Validation and checkpoints shared out over the steps; of another system's log, all the time it took."""
        if not record.origin:
            beside = (spent(record, "validation") + spent(record, "checkpoint")) / steps
            return self.mean + beside if record.events else None
        took = number(last_stop(record), "seconds") if not record.stated else None
        return took / steps if took else None


def quantile(values: list[float], weights: list[int], share: float) -> float:
    """The smallest value that at least `share` of the weight does not exceed."""
    ordered, enough = sorted(zip(values, weights, strict=True)), share * sum(weights)
    sums = accumulate(weight for _, weight in ordered)
    return next(value for (value, _), below in zip(ordered, sums, strict=True) if below >= enough)


def rescheduled(record: RunRecord) -> int:
    """The step since which the schedule is in force: the formula before it is not written down any more. 0 where it always was."""
    endless = record.config is not None and record.config.schedule.policy in ("fixed", "transformer")
    keys = ("schedule.",) if endless else ("schedule.", "train.max_steps ")  # where the end of the run shapes the curve
    return resumed_with(record, *keys)


def resumed_with(record: RunRecord, *keys: str) -> int:
    """The step since which such keys of the configuration have the values that they have now; 0 where all that was kept was made
    with them. Back from the end: a later start at an earlier step made the rows since then anew, and values under which no row
    was kept do not matter."""
    since = float("inf")
    others: dict[str, str] = {}  # keys that had another value then, with that of now
    for row in reversed(record.events_of("start", "resume", "roll_back")):
        step = int(number(row, "step") or 0)
        if others and has_rows(record, step, since):
            break
        since = since if others else min(since, step)
        for name, before, after in differences_told(row, keys):
            now = others.pop(name, after)
            if now != before:
                others[name] = now
    return int(since) if others else 0


def has_rows(record: RunRecord, since: int, until: float) -> bool:
    return any(since < each["step"] <= until for each in (*record.train_rows, *record.valid_rows))


def differences_told(start: Row, keys: tuple[str, ...]) -> list[list[str]]:
    """Key, value before and value after of what was changed on a start: `train.max_steps 600 -> 800`."""
    found = [re.fullmatch(r"(\S+) (.*) -> (.*)", str(each)) for each in start.get("changed") or []]
    return [list(each.groups()) for each in found if each and each[0].startswith(keys)]


def relabelled(record: RunRecord) -> int:
    """The step since which the label smoothing is what it is: the loss before it is another quantity."""
    return resumed_with(record, "train.label_smoothing ")


def researched(record: RunRecord) -> int:
    """The step since which validation sentences are the same and translated by the same search: BLEU before it is of other ones. A
    length penalty has no meaning where there is nothing to choose from."""
    greedy = record.config is not None and record.config.validation.beam == 1
    keys = ["validation.beam ", "validation.bleu_sentences ", "translate.extra_length "]
    return resumed_with(record, *keys, *([] if greedy else ["translate.length_penalty "]))


def comparable(record: RunRecord, rows: list[Row], key: str = "loss") -> list[Row]:
    """Those whose losses, or BLEU, are of the same kind as the last."""
    since = researched(record) if key == "bleu" else relabelled(record)
    return [row for row in rows if row["step"] > since]


class RateCheck:
    """Logged learning rates against the formula, since it is in force. The row of step s was made with lr(s - 1)."""

    def __init__(self, record: RunRecord):
        self.since = rescheduled(record)
        rows = [row for row in record.train_rows if row["step"] > self.since]
        self.steps, self.logged = series(rows, "learning_rate")
        if record.config is None or not self.steps:
            file = "metrics.jsonl" if record.config else "run.toml"
            since = f" since step {self.since:,}, where the run was resumed with another schedule" if self.since else ""
            raise record.lacks(file, f"has no train row with a learning rate{since}")
        self.config, self.formula = record.config, learning_rate(record.config)
        expected = [self.formula(step - 1) for step in self.steps]
        smallest = max(expected) * 1e-6 or 1.0  # where the rate decays to 0, a relative deviation has no meaning
        deviations = [abs(a - b) / max(abs(b), smallest) for a, b in zip(self.logged, expected, strict=True)]
        self.wrong = [at for at, deviation in enumerate(deviations) if deviation > RATE_TOLERANCE]
        """Positions of the rates that do not obey the formula."""
        self.deviation = max(deviations)
        self.worst = deviations.index(self.deviation)


def newest_checkpoint(record: RunRecord) -> Checkpoint:
    if record.checkpoints:
        return record.checkpoints[-1]
    if record.origin:
        raise NotRecorded(f"no checkpoint lies beside {record.origin}")
    more = " yet"
    if written := record.events_of("checkpoint"):
        more = f"; {len(written)} were written, the last at step {written[-1]['step']:,}, and are elsewhere"
    raise NotRecorded(f"there is no whole checkpoint in checkpoints/{more}")


class Prediction(NamedTuple):
    """What the tensors of a checkpoint should weigh."""

    bytes: int
    parameters: int
    words: str


def predicted_bytes(record: RunRecord) -> Prediction | None:
    """Weights in fp32, once more where the model is their moving average, two moments of Adam's of all that learn, and 16 bytes of
    counters."""
    known = number(record.environment, "model", "parameters")
    if not known:
        return None
    count, weights = int(known), 8 if "weights.safetensors" in newest_checkpoint(record).files else 4
    learning = int(number(record.environment, "model", "trainable") or count)
    words = f"{weights + 8} bytes a parameter + 16"
    if learning != count:
        words = f"{weights} bytes a parameter, 8 for each of {learning:,} that learn, + 16"
    return Prediction(weights * count + 8 * learning + 16, count, words)
