"""What is worth a look beside the eleven questions: one function a diagnosis, each yields what it found with cause and remedy."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from dragoman.config.schedule import schedule_end
from dragoman.report import machine, measures, units
from dragoman.report.contradictions import contradictions
from dragoman.report.learning_questions import has_diverged, stage_starts
from dragoman.report.machine_questions import CAUSES, judged_since, part_words
from dragoman.report.measures import last_step, series, stop_reason
from dragoman.report.questions import answered
from dragoman.report.read import RunRecord, collected, column, number, section, text
from dragoman.report.stats import spread

SERIOUS, WORTH, NOTE = SEVERITIES = ("serious", "worth knowing", "note")


class Finding(NamedTuple):
    severity: str
    title: str
    cause: str
    remedy: str


Found = Iterator[Finding]


def findings(record: RunRecord) -> list[Finding]:
    """All, the serious ones first. What is not recorded is no finding."""
    return sorted(collected(DIAGNOSES, record), key=lambda finding: SEVERITIES.index(finding.severity))


def bottleneck(record: RunRecord) -> Found:
    waits = machine.waits(record)
    if waits.bound in ("compute", "untimed"):
        return
    remedies = {
        "network": "send less (fewer, larger steps; gradients in 16 bit; fewer exchanges), use a faster link, or fewer hosts",
        "exchange": "fewer ranks with more work each, or gradients in 16 bit; GPUs: see whether they reach each other directly (NVLink)",
        "gradients": "send less (larger steps, gradients in 16 bit); inside one host fewer ranks, between hosts a faster link",
        "ranks": "find out why it is slower (see below), or leave its host out",
        "data": "put the prepared data on a local disk, and look at the CPU and the disk of the hosts",
        "host": "make steps larger (train.batch_tokens), turn on train.compile, keep other work off the host's cores",
    }
    share = waits.causes[waits.bound]
    title = f"{CAUSES[waits.bound][0].upper()}{CAUSES[waits.bound][1:]}"
    cause = f"{units.duration(share * waits.step)} of a step of {units.duration(waits.step)} is this wait ({units.percent(share)})"
    gain = f"without it, steps would be {waits.without(waits.bound):.2g} times as fast"
    gain += f"{part_words(waits)}{judged_since(record)}"
    yield Finding(SERIOUS if share > 0.3 else WORTH, title, f"{cause}; {gain}", remedies[waits.bound])


def slow_rank(record: RunRecord) -> Found:
    found = machine.straggler(record)
    if not found:
        return
    throttled = machine.throttled_share(record, found.host)
    cause = f"{found.slower:.2f} times as long as the others, last in {units.percent(found.share)} of windows; most in {found.phase}"
    if throttled and throttled > 0.05:
        cause += f"; the control group of {found.host} holds its processes back for {throttled:.2g} s in every second"
    usual = "look for a CPU limit, other work, or a hot or slower device on that host"
    remedy = "look at the disk and the loader of that host" if found.phase == "idle" else usual
    cause += f"; it costs the others {units.percent(found.cost)} of every step"
    severity = SERIOUS if found.cost > machine.MUCH else WORTH
    yield Finding(severity, f"{found.name} is a straggler", cause, remedy)


def stalls(record: RunRecord) -> Found:
    """Single steps far above the median of their window. Where they lose their time differs when it is the whole host that stops.
    Windows in which islands agree tell nothing: that step is long by design."""
    found = [window for window in machine.windows(record) if not machine.holds_agreement(record, window)]
    lost, total, worst, phases = 0.0, 0.0, 0.0, Counter[str]()
    usual = {name: statistics.median(window.mean(name) for window in found) for name in machine.PHASES} if found else {}
    for window in found:
        median, slowest = (number(window.row, f"{key}_step_seconds") for key in ("median", "slowest"))
        if median and slowest:
            total += window.seconds * window.steps
            worst = max(worst, slowest / median)
            if slowest > 2.5 * median:
                lost += max(0.0, window.seconds - median) * window.steps
                excess = {name: window.mean(name) - seconds for name, seconds in usual.items()}
                phases[max(excess, key=excess.__getitem__)] += 1
    if not total or lost < 0.03 * total:
        return
    where = ", ".join(f"{name} {times} times" for name, times in phases.most_common())
    cause = f"{units.percent(lost / total)} of the time is lost in them, up to {worst:.2g} times a usual step; they fall into {where}"
    hint = "the host stops as a whole: rows packed in the same process, garbage collection, other work on its cores"
    remedy = hint if len(phases) > 1 else f"look at what happens in {next(iter(phases))}"
    yield Finding(WORTH, f"{units.plural(phases.total(), 'stall')} of single steps", cause, remedy)


def crowded(record: RunRecord) -> Found:
    """On a CPU, computing takes processor time; where it got much less than it took, others had the cores."""
    if text(record.environment, "device") != "cpu":
        return
    windows = [window for window in machine.windows(record) if window.mean("forward")]
    shares = [w.mean("cpu") / sum(map(w.mean, ("forward", "backward", "optimizer"))) for w in windows]
    if shares and (share := statistics.median(shares)) < 0.6:
        cause = f"a rank got {share:.2g} s of processor time for every second that it was computing"
        remedy = "run fewer processes or threads than there are cores, and nothing beside it"
        yield Finding(SERIOUS, "The cores were busy with other work", cause, remedy)


def throttling(record: RunRecord) -> Found:
    for name, rows in machine.gpus(record).items():
        clock, most = machine.mean_of(rows, "sm_clock_mhz"), machine.mean_of(rows, "max_sm_clock_mhz")
        known = f"its clock was at {clock:.0f} of {most:.0f} MHz on average" if clock and most else ""
        at = known or "its clock is not recorded"
        seen = Counter(reason for row in rows for reason in row.get("throttle_reasons") or [])
        for reason, count in sorted(seen.items()):
            share = units.percent(count / len(rows))
            told = reason == "hardware_slowdown" and seen.keys() & {"hardware_thermal", "power_brake"}
            if count < 0.05 * len(rows) or told:  # that is what slowed it down
                continue
            if reason == "power_cap":
                cause = f"{at}: it works as hard as its limit allows"
                yield Finding(NOTE, f"{name} ran at its power limit for {share} of the time", cause, "none needed")
            else:
                title = f"{name} was throttled ({reason.replace('_', ' ')}) for {share} of the time"
                yield Finding(SERIOUS, title, at, "check cooling and power supply of the host")
    for host in record.hosts:
        held = machine.throttled_share(record, text(host, "host"))
        if held and held > 0.05:
            cause = f"for {held:.2g} s in every second, summed over its threads"
            title = f"{text(host, 'host')}: a CPU limit held processes back"
            severity = SERIOUS if held > 0.2 else WORTH
            yield Finding(severity, title, cause, "raise the limit of its control group or container")


def divergence(record: RunRecord) -> Found:
    if not has_diverged(record):
        return
    steps, losses = series(measures.comparable(record, record.train_rows), "loss")
    lowest = min(zip(losses, steps, strict=True), default=None)
    was = f"the training loss was {lowest[0]:.3f} at step {lowest[1]:,}" if lowest else "no finite loss is recorded"
    now = f" and {losses[-1]:.3f} at the end" if losses else ""
    remedy = "lower schedule.learning_rate, raise schedule.warmup_steps or set train.clip_norm; go on from a checkpoint before it"
    yield Finding(SERIOUS, "Training diverged", f"{was}{now}", remedy)


def spikes(record: RunRecord) -> Found:
    """A row's loss far above the twenty before it, of the same data."""
    steps, losses = series(record.train_rows, "loss")
    breaks = [*stage_starts(record), measures.relabelled(record) + 1]
    found: list[int] = []
    for at in range(20, len(losses)):
        if any(steps[at - 20] < begin <= steps[at] for begin in breaks):
            continue
        before = losses[at - 20 : at]
        limit = statistics.median(before) + max(8 * spread(before), 0.1 * statistics.median(before))
        if losses[at] > limit and (not found or at - found[-1] > 5):
            found.append(at)
    if not found or has_diverged(record):
        return
    worst = max(found, key=lambda at: losses[at])
    usual = 1.02 * statistics.median(losses[worst - 20 : worst])
    later = zip(steps[worst:], losses[worst:], strict=True)
    back = next((step - steps[worst] for step, loss in later if loss <= usual), 0)
    after = f"it was back after {units.plural(back, 'step')}" if back else "it has not come back yet"
    when = ", ".join(f"{steps[at]:,}" for at in found[:5]) + (" and more" if len(found) > 5 else "")
    title = f"{units.plural(len(found), 'loss spike')}, at step {when}"
    remedy = "where they come again: train.clip_norm, a lower rate, or a look at the data around these steps"
    yield Finding(WORTH, title, f"the highest was {losses[worst]:.3f} nats; {after}", remedy)


def skipped(record: RunRecord) -> Found:
    if count := sum(column(record.events_of("skipped"), "steps")):
        title, cause = f"{units.plural(count, 'step')} learnt nothing", "their gradient was not finite, or far too long"
        yield Finding(WORTH, title, cause, "a few are usual in fp16; otherwise lower the rate or use bf16")


def faulty(record: RunRecord) -> Found:
    """What a machine got wrong: weights in memory, a checkpoint on disk."""
    for row in record.events_of("drift", "damaged"):
        if row["event"] == "drift":
            ranks, hosts = (", ".join(dict.fromkeys(map(str, row.get(key) or []))) for key in ("ranks", "hosts"))
            who = f"{'rank' if row.get('known') else 'it cannot be told which is wrong of ranks'} {ranks} ({hosts})"
            title = f"Ranks held different weights at step {units.count(number(row, 'step'))}"
            remedy = "test memory and devices of these hosts, or leave them out; checkpoints from before are sound"
            yield Finding(SERIOUS, title, f"{who}: a fault of memory, device or network", remedy)
        else:
            title = f"Checkpoint {text(row, 'checkpoint')} was damaged and passed over"
            cause = f"{text(row, 'problem')}; it cost {units.plural(number(row, 'lost_steps') or 0, 'step')}"
            yield Finding(SERIOUS, title, cause, "check the disk that holds the run")


def clipping(record: RunRecord) -> Found:
    rows = [row for row in record.train_rows if number(row, "clipped_steps") is not None]
    clipped, total = sum(column(rows, "clipped_steps")), sum(column(rows, "steps"))
    norm = record.config.train.clip_norm if record.config else 0.0
    if norm and total and (share := clipped / total) > 0.3:
        cause = f"their gradient was longer than train.clip_norm = {norm:g}: the length of a step is then the learning rate's alone"
        title = f"{units.percent(share)} of all steps were clipped"
        yield Finding(WORTH, title, cause, "raise train.clip_norm, unless that is meant")


def fill(record: RunRecord) -> Found:
    shares = column(record.train_rows, "row_fill")
    if shares and (mean := statistics.fmean(shares)) < 0.9:
        title, cause = f"Rows are only {units.percent(mean)} full", "empty slots are computed and thrown away"
        yield Finding(WORTH, title, cause, "raise train.window_pairs, or train.tile_width where sentences are long")


def memory(record: RunRecord) -> Found:
    since, whole = measures.rearranged_at(record), machine.least_memory(record)  # other cards were filled before
    rows = [row for step, row in record.spans.items() if step > since]
    used = max((size for row in rows for size in machine.numbers(row, "memory_bytes")), default=0.0)
    if text(record.environment, "device") != "cuda" or not used or whole is None:
        return
    share, batches = used / whole, number(record.environment, "micro_batches") or 1
    of = f"{units.decimal_size(used)} of {units.decimal_size(whole)}"
    if share > 0.95:
        cause = "a longer batch or another process may end the run"
        yield Finding(WORTH, f"GPU memory is nearly full: {of}", cause, "lower train.tokens_per_gpu a little")
    elif share < 0.5 and batches > 1:
        title, cause = f"Half of the GPU memory is free: {of}", f"and a step is cut into {batches:.0f} micro-batches"
        yield Finding(WORTH, title, cause, 'raise train.tokens_per_gpu, or set it to "auto"')


def checkpoint_stalls(record: RunRecord) -> Found:
    split, saved = measures.TimeSplit(record), record.events_of("checkpoint")
    if failed := record.events_of("checkpoint_failed"):
        title, cause = f"{units.plural(len(failed), 'checkpoint')} could not be written", text(failed[-1], "error")
        yield Finding(SERIOUS, title, cause or "no reason given", "make room, or write elsewhere (run.folder)")
    if saved and split.checkpoint > 0.02 * split.wall:
        title = f"Checkpoints held training up for {units.percent(split.checkpoint / split.wall)} of the time"
        cause = f"{units.duration(split.checkpoint / len(saved))} each: the disk is slower than checkpoints come"
        yield Finding(WORTH, title, cause, "save less often (checkpoint.every) or to a faster disk")
    if split.validation > 0.15 * split.wall:
        title = f"Validation took {units.percent(split.validation / split.wall)} of the time"
        remedy = "validate less often (validation.every) or translate fewer sentences (validation.bleu_sentences)"
        yield Finding(WORTH, title, f"{units.duration(split.validation)} in all", remedy)


def restarts(record: RunRecord) -> Found:
    found = [each for each in measures.setbacks(record) if each.event != "roll_back"]
    remedy = "save more often (checkpoint.every) where that is much"
    yield from lost_work(record, found, units.plural(len(found), "restart"), came_after(found), remedy)


def returns(record: RunRecord) -> Found:
    found = [each for each in measures.setbacks(record) if each.event == "roll_back"]
    reasons = [text(row, "reason") for row in record.events_of("roll_back")]
    remedy = "lower schedule.learning_rate, raise schedule.warmup_steps or set train.clip_norm"
    yield from lost_work(record, found, measures.returned(len(found)), f": {'; '.join(dict.fromkeys(reasons))}", remedy)


def lost_work(record: RunRecord, found: list[measures.Setback], title: str, why: str, remedy: str) -> Found:
    if not found:
        return
    lost, steps = sum(each.seconds for each in found), measures.lost_steps(found)
    severity = SERIOUS if lost > 0.1 * measures.TimeSplit(record).wall else WORTH
    again = "an unknown number of steps" if steps is None else units.plural(steps, "step")
    yield Finding(severity, f"{title}, {units.duration(lost)} lost", f"{again} were done again{why}", remedy)


def came_after(found: list[measures.Setback]) -> str:
    """What these starts of a run say of the end before them, the most frequent first."""
    reasons = Counter(each.after for each in found if each.after)
    most = reasons.most_common(3)
    told = [f"{reason} ({units.plural(times, 'time')})" if times > 1 else reason for reason, times in most]
    others = reasons.total() - sum(times for _, times in most)
    told += [f"and {others} others"] if others else []
    return f"; ended by {'; '.join(told)}" if told else ""


def unfinished_schedule(record: RunRecord) -> Found:
    config, last = record.config, last_step(record)
    if config is None or not last or not stop_reason(record):
        return  # still running, or killed: it may not be the end
    planned, warmup = config.train.max_steps, config.schedule.warmup_steps
    if last < warmup:
        title = f"The run ended inside its warm-up of {warmup:,} steps"
        cause = f"it has {last:,}: the rate never reached its peak"
        yield Finding(SERIOUS, title, cause, "lower schedule.warmup_steps or train longer")
    elif last < 0.95 * planned and stop_reason(record) != "patience":
        cut = "the decay of the rate was cut off: a schedule of the real length would have ended lower"
        whole = "its schedule does not depend on the end, so the curve up to here is what a longer run shows too"
        cause = whole if config.schedule.policy in ("fixed", "transformer") else cut
        over = schedule_end(config)
        if over is not None and over <= last:
            cause = f"its schedule was over at step {over:,}: from there the rate stays as it is"
        title = f"The run did {last:,} of {planned:,} planned steps"
        yield Finding(WORTH, title, cause, "resume it, or plan what there is time for")


def unsaid(record: RunRecord) -> Found:
    """What the machines did not tell."""
    for host in record.hosts:
        parts = [host, *(host.get("gpus") or [])]
        missing = dict.fromkeys(str(line) for part in parts for line in part.get("missing") or [])
        if missing and text(record.environment, "device") == "cuda":
            remedy = "newer driver, or permission for performance counters"
            yield Finding(NOTE, f"{text(host, 'host')} does not tell everything", "; ".join(missing), remedy)


def lost_segments(record: RunRecord) -> Found:
    for host in record.hosts:
        again = sum(rate for _, rate in machine.rates(record.samples(host), "tcp_retransmitted"))
        sent = sum(rate for _, rate in machine.nic_rates(record, host)) / 1448
        if len(record.hosts) > 1 and sent > 1000 and again > 0.005 * sent:
            title = f"{text(host, 'host')}: TCP sent {units.percent(again / sent)} of its segments again"
            cause = "packets are lost on the way, and every loss slows the exchange"
            yield Finding(WORTH, title, cause, "check cables, duplex and congestion of the link")


HELD_UP = "(?:bottleneck|bound|limit)"
CLAIMS: dict[int, tuple[tuple[str, ...], str, str]] = {
    # question -> what a claim is about, the surest words first; the verdict that a yes cannot stand beside, and a no
    4: (("fully|100 ?%",), r"^No\b", "^Yes"),
    5: (
        (
            rf"network.*{HELD_UP}|{HELD_UP}.*network",
            r"\b(?:not|nor)\W+(?:\w+\W+)?network|network\W+(?:was|is)\W+not\W*$",
            rf"\bit\b.*{HELD_UP}",
        ),
        r"^No\b",
        "^(?:Very probably yes|Yes)",
    ),
    6: (("BLEU|plateau|improve",), "from the step alone", "^$"),
}
NEGATION = r"\b(?:no|not|nor|never|neither|hardly)\b|n't\b"


def claimed(said: str, topics: tuple[str, ...]) -> bool | None:
    """Whether somebody's answer is yes or no, by its first word or by the clause that names the topic; None where it is neither."""
    if first := re.match(r"\W*(yes|no)\b", said, re.IGNORECASE):
        return first[1].lower() == "yes"
    clauses = re.split(r"[,;:.](?!\d)|\bbut\b|\band\b", said)
    for topic, clause in product(topics, clauses):
        if match := re.search(topic, clause, re.IGNORECASE):
            return not re.search(NEGATION, clause[: match.end()], re.IGNORECASE)
    return None


def said_otherwise(record: RunRecord) -> Found:
    for title, why in contradictions(record):
        yield Finding(SERIOUS, title, why, "believe neither number before it is known which one is wrong")
    for number_of, (topics, against_yes, against_no) in CLAIMS.items():
        said, answer = text(section(record.stated, "said"), str(number_of)), answered(number_of, record).verdict
        claim = claimed(said, topics)
        if claim is not None and re.search(against_yes if claim else against_no, answer):
            title = f"Question {number_of}: “{said}” is not what the numbers say"
            yield Finding(SERIOUS, title, answer.rstrip("."), "see the answer above")


DIAGNOSES: tuple[Callable[[RunRecord], Found], ...] = (
    said_otherwise, divergence, bottleneck, slow_rank, crowded, stalls, throttling, restarts, returns, faulty, skipped, spikes,
    unfinished_schedule, checkpoint_stalls, clipping, fill, memory, lost_segments, unsaid,
)  # fmt: skip
