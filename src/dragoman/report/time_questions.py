"""Questions about time: 1 how long the run took, 6 the learning rate over the steps, 10 what a step is and takes."""

from __future__ import annotations

from dragoman.config import Config
from dragoman.config.schedule import formula, schedule_end
from dragoman.report import machine, measures, units
from dragoman.report.answer import Answer, Evidence
from dragoman.report.measures import RateCheck, StepTimes, TimeSplit, last_step, series, stop_reason
from dragoman.report.read import RunRecord, known, number

ALONE = "from the step alone, neither from BLEU nor from a plateau"


def why_it_stopped(record: RunRecord) -> str:
    words = {
        "": "no stop event, so it is still running or was killed",
        "max_steps": "all planned steps are done (max_steps)",
        "patience": "no better validation score for too long (patience)",
    }
    return words.get(stop_reason(record), stop_reason(record))


def duration(record: RunRecord) -> Answer:
    """Wall clock between the start of the first process and the last stop in events.jsonl (without a stop: the last row
    written anywhere). Training is train_seconds of the last row of metrics.jsonl, validation and checkpoints are the seconds of
    their events; what is left is other: start-up, compilation, logging, steps after the last row."""
    if record.origin and not measures.starts(record):
        return duration_by_pace(record)
    split, steps = TimeSplit(record), last_step(record)
    verdict = f"{units.duration(split.wall)} "
    verdict += "from start to stop; " if split.stop_reason else "so far (no stop event: still running, or killed); "
    if split.training is None or steps is None:
        verdict += "how much of it was training is not recorded"
    else:
        verdict += f"{units.duration(split.training)} of it went into {units.plural(steps, 'training step')}"
    begin, end = (units.moment(time, record.clock) for time in (split.started, split.ended))
    if not split.started:  # what is imported without a clock begins at 0
        begin = end = units.NOT_RECORDED
    evidence = [
        ("Start", begin),
        ("Stop" if split.stop_reason else "Last sign of life", end),
        ("Why it stopped", why_it_stopped(record)),
        ("Wall clock", units.duration(split.wall)),
        *((name, f"{units.duration(value)} ({units.percent(value / split.wall)})") for name, value in split.parts),
        ("Steps (updates)", units.count(steps)),
        ("Wall clock per step, everything included", units.duration(split.wall / steps if steps else None)),
    ]
    if split.paused:
        evidence.append(("Paused between a stop and a resume, not counted", units.duration(split.paused)))
    if split.lost:
        back = sum(each.event == "roll_back" for each in split.setbacks)
        again = len(split.setbacks) - back
        to = " and ".join([units.plural(again, "restart")] * bool(again) + [measures.returned(back)] * bool(back))
        verdict += f", {units.duration(split.lost)} were lost to {to}"
        lost = measures.lost_steps(split.setbacks)
        twice = units.count(lost)
        if steps and split.training and lost:
            twice += f", about {units.duration(lost * split.training / steps)} of work"
        evidence += [("Lost to", to), ("Steps lost and done again", twice)]
    return Answer(1, f"{verdict}.", evidence, "time_split")


def duration_by_pace(record: RunRecord) -> Answer:
    """Of a log without a clock: steps x seconds a step."""
    times, steps, first = StepTimes(record), last_step(record) or 0, record.train_rows[0]["step"]
    pace = units.duration(times.mean)
    verdict = f"About {units.duration(steps * times.mean)}, if all {units.plural(steps, 'step')} took {pace} as those in the log did"
    evidence = [
        ("Steps (updates)", units.count(steps)),
        ("The log begins at step", units.count(first)),
        ("Mean step", pace),
    ]
    return Answer(1, f"{verdict}; the log has no clock.", evidence)


def learning_rates(record: RunRecord) -> Answer:
    """The formula is evaluated from run.toml for every row of metrics.jsonl. The row of step s was written after update
    number s, whose rate is lr(s-1). A relative deviation above 1e-5 counts as wrong."""
    steps, logged = series(record.train_rows, "learning_rate")
    if record.origin and record.config and not logged:
        return Answer(6, f"No rate is recorded; by its configuration, {formula(record.config)}: {ALONE}.")
    if record.origin and record.config is None and logged:
        verdict = f"{seen_shape(steps, logged)}; its formula is not recorded, so that nothing can be compared with it."
        return Answer(6, verdict, [("Rates in the log", units.count(len(steps)))], "rate_by_step")
    check = RateCheck(record)
    how_much = units.percent(check.deviation) if check.deviation >= 0.001 else f"{check.deviation:.1e}"
    worst = f"{how_much} of the rate by the formula, at step {check.steps[check.worst]:,}"
    on = "the step alone; neither on BLEU nor on a plateau of the loss"
    since = f"steps up to {check.since:,}: the run was resumed there with another schedule"
    evidence = [
        ("Policy and formula", formula(check.config)),
        ("Rates compared with the formula", units.count(len(check.steps))),
        ("Rates that do not obey it", units.count(len(check.wrong))),
        *([("Not compared", since)] if check.since else []),
        ("Largest deviation", worst if check.deviation else "none"),
        ("Depends on", f"{on} (by the configuration; the log says otherwise)" if check.wrong else on),
    ]
    if unseen := unfinished(check.config, check.steps[-1]):
        evidence.append(("Part of the curve not reached", unseen))
    return Answer(6, f"{seen_shape(check.steps, check.logged)}; {obedience(check)}.", evidence, "learning_rate")


def seen_shape(steps: list[int], logged: list[float]) -> str:
    first, last, peak = logged[0], logged[-1], max(logged)
    end = f"{units.rate(last)} at step {steps[-1]:,}"
    if min(logged) == peak:
        return f"The rate stays at {units.rate(peak)}"
    if last == peak:
        return f"The rate rises from {units.rate(first)} to {end}"
    if first == peak:
        return f"The rate falls from {units.rate(first)} to {end}"
    top = steps[logged.index(peak)]
    return f"The rate rises to {units.rate(peak)} at step {top:,}, then falls to {end}"


def obedience(check: RateCheck) -> str:
    if not check.wrong:
        since = f" since step {check.since:,}, where the run was resumed with another schedule," if check.since else ""
        return f"all {len(check.steps)} logged rates{since} follow {ALONE}"
    step, logged = check.steps[check.worst], check.logged[check.worst]
    wrong = f"{len(check.wrong)} of {len(check.steps)} logged rates do NOT obey the formula"
    rates = f"{units.rate(logged)} logged, {units.rate(check.formula(step - 1))} by the formula"
    return f"{wrong}; the worst is step {step:,}: {rates}"


def unfinished(config: Config, last: int) -> str:
    """What a run of `last` steps is too short to show; empty when it shows all."""
    schedule, end = config.schedule, f"the log ends at step {last:,}"
    if last < schedule.warmup_steps:
        return f"{end}, within the warm-up of {schedule.warmup_steps:,} steps: only the rise shows"
    over = schedule_end(config)
    return f"{end}; the decay goes on to step {over:,}" if over is not None and last < over else ""


def step(record: RunRecord) -> Answer:
    """step_seconds of a row of metrics.jsonl is a mean over the steps since the row before, so rows are weighed by the steps they stand
    for; the first row after every start has compilation in it and is left out. Median and 95th percentile are over such rows: a single
    slow step is averaged with its neighbours. Pairs and tokens a step are the sums of the last row over its step."""
    times = StepTimes(record)
    parts = {"pairs": times.pairs, "target tokens": times.target_tokens}
    made_of = " and ".join(units.count(value, noun) for noun, value in parts.items() if value is not None)
    verdict = "A step is one update of all weights" + (f", here from {made_of}" if made_of else "")
    verdict += f"; an average one took {units.duration(times.mean)}"
    if times.mean_with_everything is not None:
        verdict += f" ({units.duration(times.mean_with_everything)} with validation and checkpoints)"
    target_rate = None if times.target_tokens is None else times.target_tokens / times.mean
    middle = [("Median step", units.duration(times.median)), ("95th percentile", units.duration(times.p95))]
    evidence = [
        ("A step of this run", step_of_run(record)),
        ("Sentence pairs a step", units.count(times.pairs)),
        ("Source tokens a step", units.count(times.source_tokens)),
        ("Target tokens a step", units.count(times.target_tokens)),
        ("Mean step", units.duration(times.mean)),
        *(middle if times.rows > 1 else []),
        ("Mean with validation and checkpoints", units.duration(times.mean_with_everything)),
        *first_rows(times),
        waiting_for_data(record, times),
        ("Throughput", units.rough(target_rate, "target tokens/s")),
        ("Measured over", f"{units.plural(times.steps, 'step')} in {units.plural(times.rows, 'row')} of metrics"),
    ]
    return Answer(10, f"{verdict}.", evidence, "step_time")


def first_rows(times: StepTimes) -> Evidence:
    if not times.first_steps:
        return []
    pace = units.duration(times.first_seconds / times.first_steps)
    rows = f"{units.plural(times.first_steps, 'step')} of {pace}"
    beyond = units.duration(max(0.0, times.first_seconds - times.first_steps * times.mean))
    return [("First row after every start, left out", f"{rows}: compilation and cold caches cost {beyond}")]


def waiting_for_data(record: RunRecord, times: StepTimes) -> tuple[str, str]:
    """As question 4 counts it, where a device's idle time is recorded."""
    if waits := known(machine.waits, record):
        return "Share waiting for data", units.percent(waits.causes["data"])
    return "Share in which the host waited for data, its device at work or not", units.percent(times.data_share)


def step_of_run(record: RunRecord) -> str:
    keys = ("world_size", "micro_batches", "rows_per_micro_batch", "rows_per_step")
    ranks, micro_batches, rows, total = (number(record.environment, key) for key in keys)
    if not (ranks and micro_batches and rows and total):
        return f"one update of all weights; ranks and micro-batches are {units.NOT_RECORDED}"
    batches = f"{units.plural(ranks, 'rank')} x {units.plural(micro_batches, 'micro-batch', 'micro-batches')}"
    return f"one update of all weights, from {batches} x {units.plural(rows, 'row')} = {units.plural(total, 'row')}"
