"""Questions about time: 1 how long the run took, 6 the learning rate over the steps, 10 what a step is and takes."""

from __future__ import annotations

from dragoman.config import Config
from dragoman.config.schedule import formula
from dragoman.report import units
from dragoman.report.answer import Answer, Evidence, answer, not_recorded
from dragoman.report.measures import (
    RateCheck,
    StepContent,
    StepTimes,
    TimeSplit,
    last_step,
    rate_check,
    step_content,
    step_times,
    time_split,
)
from dragoman.report.read import RunRecord, number

STOPS = {
    "": "no stop event, so it is still running or was killed",
    "max_steps": "all planned steps are done (max_steps)",
    "patience": "no better validation score for too long (patience)",
}


def stop_in_words(reason: str) -> str:
    return STOPS.get(reason, reason)


# --- 1: duration -------------------------------------------------------------------------------------------


def duration(record: RunRecord) -> Answer:
    split = time_split(record)
    if split is None:
        return not_recorded(1, record.why("events.jsonl", "has no start, or nothing after it"))
    derivation = (
        "Wall clock between the first start and the last stop in events.jsonl (without a stop: the last row written "
        "anywhere). Training is train_seconds of the last row of metrics.jsonl, validation and checkpoints are the "
        "seconds of their events; what is left is other: start-up, compilation, logging, steps after the last row."
    )
    return answer(1, duration_verdict(record, split), duration_evidence(record, split), "time_split", derivation)


def duration_verdict(record: RunRecord, split: TimeSplit) -> str:
    steps = last_step(record)
    words = f"{units.duration(split.wall)} "
    words += "from start to stop" if split.stop_reason else "so far (no stop event: still running, or killed)"
    if split.training is None or steps is None:
        words += "; how much of it was training is not recorded"
    else:
        words += f"; {units.duration(split.training)} of it went into {units.plural(steps, 'training step')}"
    if split.restarts:
        words += f", {units.duration(split.lost)} were lost to {units.plural(split.restarts, 'restart')}"
    return f"{words}."


def duration_evidence(record: RunRecord, split: TimeSplit) -> Evidence:
    steps, times = last_step(record), step_times(record)
    parts = [(name, f"{units.duration(value)} ({units.percent(value / split.wall)})") for name, value in split.parts]
    rows = [
        ("Start", units.moment(split.started)),
        ("Stop" if split.stop_reason else "Last sign of life", units.moment(split.ended)),
        ("Why it stopped", stop_in_words(split.stop_reason)),
        ("Wall clock", units.duration(split.wall)),
        *parts,
        ("Steps (updates)", units.count(steps)),
    ]
    if steps:
        rows.append(("Wall clock per step, everything included", units.duration(split.wall / steps)))
    if split.restarts:
        lost = split.lost_steps
        worth = f", about {units.duration(lost * times.mean)} of work" if times and lost is not None else ""
        rows.append(("Restarts", units.count(split.restarts)))
        rows.append(("Steps lost and done again", f"{units.count(lost)}{worth}"))
    return rows


# --- 6: learning rate --------------------------------------------------------------------------------------


def learning_rates(record: RunRecord) -> Answer:
    check = rate_check(record)
    if record.config is None or check is None:
        file = "run.toml" if record.config is None else "metrics.jsonl"
        return not_recorded(6, record.why(file, "has no train row with a learning rate"))
    derivation = (
        "The formula is evaluated from run.toml for every row of metrics.jsonl. The row of step s was written after "
        "update number s, whose rate is lr(s-1). A relative deviation above 1e-5 counts as wrong."
    )
    verdict = f"{seen_shape(check)}; {obedience(check)}."
    return answer(6, verdict, rate_evidence(record.config, check), "learning_rate", derivation)


def seen_shape(check: RateCheck) -> str:
    first, last, peak = check.logged[0], check.logged[-1], max(check.logged)
    end = f"{units.rate(last)} at step {check.steps[-1]:,}"
    if min(check.logged) == peak:
        return f"The rate stays at {units.rate(peak)}"
    if last == peak:
        return f"The rate rises from {units.rate(first)} to {end}"
    if first == peak:
        return f"The rate falls from {units.rate(first)} to {end}"
    return (
        f"The rate rises to {units.rate(peak)} at step {check.steps[check.logged.index(peak)]:,}, then falls to {end}"
    )


def obedience(check: RateCheck) -> str:
    if not check.wrong:
        return f"all {len(check.steps)} logged rates follow from the step alone, neither from BLEU nor from a plateau"
    at = check.worst
    return (
        f"{len(check.wrong)} of {len(check.steps)} logged rates do NOT obey the formula; the worst is step "
        f"{check.steps[at]:,}: {units.rate(check.logged[at])} logged, {units.rate(check.expected[at])} by the formula"
    )


def rate_evidence(config: Config, check: RateCheck) -> Evidence:
    deviation = abs(check.deviations[check.worst])
    how_much = units.percent(deviation) if deviation >= 0.001 else f"{deviation:.1e}"
    worst = f"{how_much} of the rate by the formula, at step {check.steps[check.worst]:,}" if deviation else "none"
    alone = "the step alone; neither on BLEU nor on a plateau of the loss"
    unseen = unfinished(config, check.steps[-1])
    return [
        ("Policy and formula", formula(config)),
        ("Rates compared with the formula", units.count(len(check.steps))),
        ("Rates that do not obey it", units.count(len(check.wrong))),
        ("Largest deviation", worst),
        ("Depends on", f"{alone} (by the configuration; the log says otherwise)" if check.wrong else alone),
        *([("Part of the curve not reached", unseen)] if unseen else []),
    ]


def unfinished(config: Config, last: int) -> str:
    """What a run of `last` steps is too short to show; empty when it shows all."""
    schedule = config.schedule
    if last < schedule.warmup_steps:
        return (
            f"the log ends at step {last:,}, within the warm-up of {schedule.warmup_steps:,} steps: only the rise shows"
        )
    if schedule.policy in ("transformer", "fixed"):
        return ""
    over = schedule.begin_decay_at + (schedule.decay_steps or max(1, config.train.max_steps - schedule.begin_decay_at))
    if schedule.policy == "piecewise":
        over = max(schedule.boundaries) + 1
    return f"the log ends at step {last:,}; the decay goes on to step {over:,}" if last < over else ""


# --- 10: step ----------------------------------------------------------------------------------------------


def step(record: RunRecord) -> Answer:
    times, content = step_times(record), step_content(record)
    if times is None:
        return not_recorded(10, record.why("metrics.jsonl", "has no train row with step_seconds"))
    derivation = (
        "step_seconds of a row of metrics.jsonl is a mean over the steps since the row before, so rows are weighed by "
        "the steps they stand for. Median and 95th percentile are over such rows: a single slow step is averaged with "
        "its neighbours. Source tokens follow from the ratio of the logged rates."
    )
    evidence = [("A step of this run", step_of_run(record)), *step_evidence(times, content)]
    return answer(10, step_verdict(times, content), evidence, "step_time", derivation)


def step_verdict(times: StepTimes, content: StepContent) -> str:
    parts = {"pairs": content.pairs, "target tokens": content.target_tokens}
    made_of = " and ".join(f"{value:,.0f} {noun}" for noun, value in parts.items() if value is not None)
    words = "A step is one update of all weights" + (f", here from {made_of}" if made_of else "")
    words += f"; an average one took {units.duration(times.mean)}"
    if times.mean_with_everything is not None:
        words += f" ({units.duration(times.mean_with_everything)} with validation and checkpoints)"
    return f"{words}."


def step_of_run(record: RunRecord) -> str:
    keys = ("world_size", "micro_batches", "rows_per_micro_batch", "rows_per_step")
    ranks, micro, rows, total = (number(record.environment, key) for key in keys)
    if ranks is None or micro is None:
        return f"one update of all weights; ranks and micro-batches are {units.NOT_RECORDED}"
    words = f"one update of all weights, from {units.plural(ranks, 'rank')} x "
    words += units.plural(micro, "micro-batch", "micro-batches")
    return words + (f" x {units.plural(rows, 'row')} = {units.plural(total, 'row')}" if rows and total else "")


def step_evidence(times: StepTimes, content: StepContent) -> Evidence:
    target_rate = None if content.target_tokens is None else content.target_tokens / times.mean
    return [
        ("Sentence pairs a step", units.count(content.pairs)),
        ("Source tokens a step", units.count(content.source_tokens)),
        ("Target tokens a step", units.count(content.target_tokens)),
        ("Mean step", units.duration(times.mean)),
        ("Median step", units.duration(times.median)),
        ("95th percentile", units.duration(times.p95)),
        ("Mean with validation and checkpoints", units.duration(times.mean_with_everything)),
        ("Share waiting for data", units.percent(times.data_share)),
        ("Throughput", units.rough(target_rate, "target tokens/s")),
        ("Measured over", f"{units.plural(times.steps, 'step')} in {units.plural(times.rows, 'row')} of metrics"),
    ]
