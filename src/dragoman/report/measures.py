"""What follows from a RunRecord by arithmetic: where the time went, how long steps took, whether logged learning
rates obey the formula, what a checkpoint is made of. No words and no figures; None where the record does not say."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.config.schedule import learning_rate
from dragoman.report.read import Checkpoint, RunRecord, number, text
from dragoman.runs import Row

RATE_TOLERANCE = 1e-5  # relative; room for rounding in the log, too tight for a rate that is off by one step


# --- time --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeSplit:
    """Wall clock from the first start to the last stop. The five parts add up to it exactly."""

    started: float
    ended: float
    stop_reason: str
    """Empty when the run has no stop event: it is still running or was killed."""
    training: float | None
    """None when metrics.jsonl has no train row; then it cannot be told from `other`."""
    validation: float
    checkpoint: float
    lost: float
    """From the last work that was kept to the resume: steps done again, and time down."""
    restarts: int
    lost_steps: int | None
    """None when a restart does not say it, as one that had to begin again from nothing."""

    @property
    def wall(self) -> float:
        return self.ended - self.started

    @property
    def other(self) -> float:
        return self.wall - (self.training or 0.0) - self.validation - self.checkpoint - self.lost

    @property
    def parts(self) -> list[tuple[str, float]]:
        """Name and seconds of every part."""
        parts = [("Training steps", self.training)] if self.training is not None else []
        parts += [("Validation", self.validation), ("Checkpoints", self.checkpoint)]
        if self.restarts:
            parts.append(("Lost work and time down", self.lost))
        rest = "Other" if self.training is not None else "Training and other, which cannot be told apart"
        # Negative when the clock was set back or rows of two attempts were mixed: then the sum must not look right.
        return [*parts, (rest if self.other >= 0 else "Counted twice (was the clock changed?)", self.other)]


def time_split(record: RunRecord) -> TimeSplit | None:
    """None when the folder does not say when the run started, or nothing happened since."""
    started = next((row["time"] for row in record.events if row.get("event") in ("start", "resume")), None)
    ended = end_time(record)
    if started is None or ended is None or ended <= started:
        return None
    gaps, lost_steps = lost_spans(record), [number(row, "lost_steps") for row in restarts(record)]
    return TimeSplit(
        started=started,
        ended=ended,
        stop_reason=stop_reason(record),
        training=training_seconds(record),
        validation=spent(record.events, "validation", gaps),
        checkpoint=spent(record.events, "checkpoint", gaps),
        lost=sum(until - since for since, until in gaps),
        restarts=len(restarts(record)),
        lost_steps=None if None in lost_steps else int(sum(steps or 0 for steps in lost_steps)),
    )


def restarts(record: RunRecord) -> list[Row]:
    """Every resume, and every start from nothing after the first one (killed before its first checkpoint)."""
    return [row for row in record.events if row.get("event") in ("start", "resume")][1:]


def stop_reason(record: RunRecord) -> str:
    last = record.events[-1] if record.events else {}
    return text(last, "reason") or "no reason given" if last.get("event") == "stop" else ""


def end_time(record: RunRecord) -> float | None:
    """The stop, or the last sign of life of a run without one."""
    if stop_reason(record):
        return float(record.events[-1]["time"])
    rows = [
        *record.events,
        *record.train_rows,
        *record.valid_rows,
        *(row for rows in record.telemetry.values() for row in rows),
    ]
    return max((time for row in rows if (time := number(row, "time")) is not None), default=None)


def last_step(record: RunRecord) -> int | None:
    """Updates done: by the stop event, or else by the last row."""
    step = number(record.events[-1], "step") if stop_reason(record) else None
    if step is None and record.train_rows:
        step = number(record.train_rows[-1], "step")
    return None if step is None else int(step)


def training_seconds(record: RunRecord) -> float | None:
    if not record.train_rows:
        return None
    recorded = number(record.train_rows[-1], "train_seconds")
    return recorded if recorded is not None else sum(span.seconds * span.steps for span in step_spans(record))


def lost_spans(record: RunRecord) -> list[tuple[float, float]]:
    """For every resume: from the last record at or before the step resumed from, to the resume itself."""
    spans = []
    rows = [*record.events, *record.train_rows, *record.valid_rows]
    for resume in restarts(record):
        step, until = number(resume, "step") or 0.0, float(resume["time"])
        kept = [row for row in rows if row is not resume and (number(row, "step") or 0.0) <= step]
        times = [time for row in kept if (time := number(row, "time")) is not None and time <= until]
        if times:
            spans.append((max(times), until))
    return spans


def spent(events: list[Row], kind: str, gaps: list[tuple[float, float]]) -> float:
    """Seconds of all events of a kind, less those that fell into a lost span and are counted there."""
    kept = [row for row in events if row.get("event") == kind and not any(a < row["time"] < b for a, b in gaps)]
    return sum(number(row, "seconds") or 0.0 for row in kept)


# --- steps -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepSpan:
    """One row of metrics: a mean over the steps since the row before."""

    step: int
    steps: int
    seconds: float
    data_seconds: float | None


@dataclass(frozen=True)
class StepTimes:
    rows: int
    steps: int
    mean: float
    median: float
    p95: float
    mean_with_everything: float | None
    """Validation and checkpoints shared out over the steps."""
    data_share: float | None


def step_spans(record: RunRecord) -> list[StepSpan]:
    """A row after a resume covers the steps since the resume, not since the row before the crash."""
    resumed = [int(number(row, "step") or 0) for row in restarts(record)]
    spans, before = [], 0
    for row in record.train_rows:
        step, seconds = int(row["step"]), number(row, "step_seconds")
        since = max([before, *(start for start in resumed if start < step)])
        if seconds is not None and step > since:
            spans.append(StepSpan(step, step - since, seconds, number(row, "data_seconds")))
        before = step
    return spans


def step_times(record: RunRecord) -> StepTimes | None:
    spans = step_spans(record)
    if not spans:
        return None
    seconds, steps = [span.seconds for span in spans], [span.steps for span in spans]
    timed = [span for span in spans if span.data_seconds is not None]
    waiting = sum((span.data_seconds or 0.0) * span.steps for span in timed)
    beside = sum(spent(record.events, kind, lost_spans(record)) for kind in ("validation", "checkpoint"))
    return StepTimes(
        rows=len(spans),
        steps=sum(steps),
        mean=mean(seconds, steps),
        median=quantile(seconds, steps, 0.5),
        p95=quantile(seconds, steps, 0.95),
        mean_with_everything=mean(seconds, steps) + beside / spans[-1].step if record.events else None,
        data_share=waiting / total if (total := sum(span.seconds * span.steps for span in timed)) else None,
    )


def mean(values: list[float], weights: list[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def quantile(values: list[float], weights: list[int], share: float) -> float:
    """The smallest value that at least `share` of the weight does not exceed."""
    below, total = 0, sum(weights)
    for value, weight in sorted(zip(values, weights, strict=True)):
        below += weight
        if below >= share * total:
            return value
    return max(values)


@dataclass(frozen=True)
class StepContent:
    """What goes into one step, averaged over the run."""

    pairs: float | None
    source_tokens: float | None
    target_tokens: float | None


def step_content(record: RunRecord) -> StepContent:
    """Sums since the beginning, over steps since the beginning."""
    last = record.train_rows[-1] if record.train_rows else {}
    step = number(last, "step")
    if not step:
        return StepContent(None, None, None)
    pairs, source, target = (number(last, key) for key in ("pairs", "source_tokens", "target_tokens"))
    return StepContent(
        pairs=None if pairs is None else pairs / step,
        source_tokens=None if source is None else source / step,
        target_tokens=None if target is None else target / step,
    )


# --- learning rate -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RateCheck:
    """Logged learning rates against the formula. The row of step s was made with lr(s - 1)."""

    steps: list[int]
    logged: list[float]
    expected: list[float]
    deviations: list[float]
    """Relative to the formula."""

    @property
    def wrong(self) -> list[int]:
        """Positions of the rates that do not obey the formula."""
        return [at for at, deviation in enumerate(self.deviations) if abs(deviation) > RATE_TOLERANCE]

    @property
    def worst(self) -> int:
        return max(range(len(self.deviations)), key=lambda at: abs(self.deviations[at]))


def rate_check(record: RunRecord) -> RateCheck | None:
    rows = [(int(row["step"]), rate) for row in record.train_rows if (rate := number(row, "learning_rate")) is not None]
    rows = [(step, rate) for step, rate in rows if step > 0]
    if record.config is None or not rows:
        return None
    formula = learning_rate(record.config)
    steps, logged = [step for step, _ in rows], [rate for _, rate in rows]
    expected = [formula(step - 1) for step in steps]
    smallest = max(expected) * 1e-6 or 1.0  # where the rate decays to 0, a relative deviation has no meaning
    deviations = [(a - b) / max(abs(b), smallest) for a, b in zip(logged, expected, strict=True)]
    return RateCheck(steps, logged, expected, deviations)


# --- checkpoint --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointSize:
    """The bytes of a checkpoint by what they are for."""

    tensors: int
    headers: int
    vocabulary: int
    rest: int
    predicted: int | None

    @property
    def total(self) -> int:
        return self.tensors + self.headers + self.vocabulary + self.rest


def checkpoint_size(checkpoint: Checkpoint, parameters: float | None) -> CheckpointSize:
    tensor_files = [file for file in checkpoint.files if file.header_bytes is not None]
    headers = sum(file.header_bytes or 0 for file in tensor_files)
    tensors = sum(file.bytes for file in tensor_files) - headers
    vocabulary = sum(file.bytes for file in checkpoint.files if file.name == "vocabulary.model")
    return CheckpointSize(
        tensors=tensors,
        headers=headers,
        vocabulary=vocabulary,
        rest=checkpoint.bytes - tensors - headers - vocabulary,
        predicted=None if parameters is None else 12 * int(parameters) + 16,
    )
