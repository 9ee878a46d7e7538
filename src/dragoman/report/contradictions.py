"""Numbers of one run that cannot all be true, and readings of them that cannot be true either. Each finding is what disagrees, and why."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from itertools import pairwise

from dragoman.report import machine, measures, units
from dragoman.report.read import RunRecord, collected, column, number, section, text

Pair = tuple[str, str]
"""What disagrees, and why it cannot be."""

MIXUPS = (
    (8.0, 0.12, "bytes were read as bits"),
    (60.0, 0.05, "seconds were read as minutes, or minutes as hours"),
    (3600.0, 0.05, "seconds were read as hours"),
    (1000.0, 0.03, "the unit is off by a thousand"),
    (1.048576, 0.004, "MB (10^6) and MiB (2^20) were mixed up"),
)
SCALES = {"k": 1e3, "M": 1e6, "G": 1e9, "": 1.0, "ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
TIMES = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def contradictions(record: RunRecord) -> list[Pair]:
    """Of the log with itself, and of what people said with the log."""
    own = own_time, own_rates, impossible_scores, impossible_traffic, impossible_power
    return collected((*own, checkpoint_weight, stated_figures), record)


def own_time(record: RunRecord) -> Iterator[Pair]:
    """Steps x seconds a step cannot take longer than the run, nor much less than its training."""
    times, steps = measures.StepTimes(record), measures.last_step(record)
    stated = seconds_of(record.stated.get("duration"))
    if stated and steps and not 0.6 < (ratio := steps * times.mean / stated) < 1.4:
        mean, took, said = (units.duration(seconds) for seconds in (times.mean, steps * times.mean, stated))
        room = f"in {said} there is room for {stated / times.mean:,.0f} such steps"
        why = f"that is {units.significant(ratio)} times as long; {room}: it is another run, a part of one, or another clock"
        yield f"{units.plural(steps, 'step')} of {mean} are {took}, not {said}", why
    if record.own_average and not 0.95 < times.mean / record.own_average < 1.05:
        printed, average = units.duration(times.mean), units.duration(record.own_average)
        why = "evaluations are in one of them, or one is of another part of the run"
        yield f"The steps in the log took {printed} on average, its last lines say {average}", why
    if record.origin:
        return
    split = measures.TimeSplit(record)
    if split.other < -0.02 * split.wall:
        whole, parts = units.duration(split.wall), units.duration(split.wall - split.other)
        why = "was the clock changed, or two runs written into one folder?"
        yield f"The parts of the run take {parts}, the whole run {whole}", why
    trained = number(record.last_row, "train_seconds")
    total = times.mean * times.steps + times.first_seconds
    if trained and not 0.9 < (ratio := total / trained) < 1.1:
        summed, said = units.duration(total), units.duration(trained)
        yield f"Step times add up to {summed}, train_seconds says {said}", f"{ratio:.2f} times"


def own_rates(record: RunRecord) -> Iterator[Pair]:
    """Tokens a second x seconds = tokens."""
    wrong = []
    for before, row in pairwise(record.train_rows):
        rate, seconds, steps = (number(row, key) or 0.0 for key in ("target_tokens_per_s", "step_seconds", "steps"))
        tokens, expected = column((before, row), "target_tokens"), rate * seconds * steps
        told = expected and len(tokens) == 2 and row["step"] - before["step"] == steps
        if told and not 0.95 < (tokens[1] - tokens[0]) / expected < 1.05:
            wrong.append(row["step"])
    if wrong:
        rows = f"In {units.plural(len(wrong), 'row')} tokens a second do not agree with tokens and seconds"
        yield rows, f"the first is that of step {wrong[0]:,}"


def impossible_scores(record: RunRecord) -> Iterator[Pair]:
    floor = number(record.environment, "model", "loss_floor")
    for name, rows in (("training", record.train_rows), ("validation", record.valid_rows)):
        steps, losses = measures.series(measures.comparable(record, rows), "loss")
        if floor and losses and (lowest := min(losses)) < floor - 0.01:
            loss = f"The {name} loss of step {steps[losses.index(lowest)]:,}, {lowest:.3f} nats"
            why = "the floor was subtracted from it, as OpenSeq2Seq does, or it is another loss"
            yield f"{loss}, is below {floor:.4f}, the least that label smoothing allows", why
    for row in record.valid_rows:
        bleu, nll, perplexity = (number(row, key) for key in ("bleu", "nll", "perplexity"))
        if bleu is not None and not 0 <= bleu <= 100:
            yield f"BLEU {bleu:g} at step {row['step']:,}", "BLEU lies between 0 and 100"
        if nll is not None and perplexity and nll < 90 and not 0.98 < math.exp(nll) / perplexity < 1.02:
            title = f"Perplexity {perplexity:.2f} at step {row['step']:,} is not exp({nll:.3f})"
            yield title, "one of the two was changed"


def impossible_traffic(record: RunRecord) -> Iterator[Pair]:
    for one in machine.traffic(record):
        if one.link_share and one.link_share > 1.05:
            sent, link = units.bit_rate(one.sent_per_s), units.link_speed(one.link_mbit)
            yield f"{one.host} sent {sent} over a link of {link}", "the speed of the link or the counter is wrong"
    rate, speed = bytes_per_s(record.stated.get("network_rate")), number(record.stated, "link_mbit")
    if rate and speed and rate * 8 > 1.05e6 * speed:
        yield f"{units.bit_rate(rate)} over a link of {units.link_speed(speed)}", "more than it carries"


def impossible_power(record: RunRecord) -> Iterator[Pair]:
    for name, rows in machine.gpus(record).items():
        drawn, limit = machine.mean_of(rows, "power_watts"), machine.mean_of(rows, "power_limit_watts")
        if drawn and limit and drawn > 1.15 * limit:
            why = "the limit was changed during the run, or it is another GPU"
            yield f"{name} drew {drawn:.0f} W on average, over its limit of {limit:.0f} W", why


def checkpoint_weight(record: RunRecord) -> Iterator[Pair]:
    """A checkpoint of 12 bytes a parameter is fp32 with Adam's moments; 14 has half-precision copies beside it."""
    parameters, held = number(record.environment, "model", "parameters"), size_of(record.stated.get("checkpoint"))
    if parameters and held and not any(abs(held / parameters - each) < 0.35 for each in (4, 8, 12, 14)):
        title = f"A checkpoint of {units.size(held)} is {held / parameters:.1f} bytes a parameter"
        yield title, "4 are weights, 12 weights and Adam's moments, 14 with half-precision copies"


def stated_figures(record: RunRecord) -> Iterator[Pair]:
    """What a person read off a screen, `[read]`, against what stood there, by the usual slips with units."""
    read = section(record.stated, "read")
    for key, (parse, _) in STATED.items():
        real, said = parse(record.stated.get(key)), parse(read.get(key))
        if real and said and (slip := unit_slip(real, said)):
            yield f"“{text(read, key)}” was said, {record.stated[key]} was measured", slip


def unit_slip(real: float, said: float) -> str:
    """Why two numbers for the same thing differ, where a slip with units explains it; empty when they agree."""
    ratio = max(real, said) / min(real, said)
    if ratio < 1.02:
        return ""
    slip = next((words for factor, room, words in MIXUPS if abs(ratio / factor - 1) < room), "")
    return f"they differ {units.significant(ratio)} times: {slip or 'no slip with units explains it'}"


NUMBER = r"((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
TIME = rf"{NUMBER}\s*(ms|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?)(?![a-z])"


def amount(value: object, unit: str) -> float | None:
    """Bytes, of a text such as `180-210 Mbit/s`: of a range, its middle."""
    found = re.fullmatch(rf"\s*{NUMBER}(?:\s*-\s*{NUMBER})?\s*((?:[kKMG]i?)?)({unit})\s*", str(value or ""))
    if not found:
        return None
    mean = statistics.fmean(float(part.replace(",", "")) for part in found.groups()[:2] if part)
    return mean * SCALES[found[3].replace("K", "k")] / (1.0 if found[4].startswith("B") else 8.0)


def bytes_per_s(value: object) -> float | None:
    """`200,000 KB/s`, `1.6 Gbit/s`, `1.6 Gb/s`, `210 Mbps`."""
    return amount(value, "B/s|bit/s|b/s|bps")


def size_of(value: object) -> float | None:
    """`731 MB`, `697 MiB`."""
    return amount(value, "B")


def seconds_of(value: object) -> float | None:
    """`51 h 55 min 45 s`, `1h53m`, `1:53:00`, `1.946 s`, `186,945 s`, `2 minutes`."""
    said = str(value or "").strip()
    if clock := re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)", said):
        return sum(float(part) * scale for part, scale in zip(clock.groups(), (3600.0, 60.0, 1.0), strict=True))
    if not re.fullmatch(rf"{TIME}(?:,?\s*{TIME})*", said):
        return None
    parts = re.findall(TIME, said)
    return sum(float(number.replace(",", "")) * TIMES[unit if unit == "ms" else unit[0]] for number, unit in parts)


STATED = {  # key of a table of stated figures -> its reader, and a value it reads
    "duration": (seconds_of, "26 h 23 min 36 s"),
    "step_time": (seconds_of, "1.9 s"),
    "checkpoint": (size_of, "731 MB"),
    "network_rate": (bytes_per_s, "1.6 Gbit/s"),
}
