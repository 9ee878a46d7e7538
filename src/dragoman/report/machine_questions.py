"""Questions about machines: 4 whether the GPUs worked, 5 the network and whether it held the run up, 11 step time against network."""

from __future__ import annotations

import statistics

from dragoman.report import machine, units
from dragoman.report.answer import Answer, Evidence, Table
from dragoman.report.contradictions import bytes_per_s
from dragoman.report.machine import Traffic, Waits, mean_of
from dragoman.report.measures import rearranged, rearranged_at
from dragoman.report.read import NotRecorded, RunRecord, column, known, number, text
from dragoman.report.stats import Estimate, correlation
from dragoman.runs import Row

BUSY, WORKING, STRONG = 85.0, 50.0, 0.65  # percent of time, percent of multiprocessors, share of the power limit
CAUSES = {
    "compute": "computing itself bounds the step",
    "network": "the network bounds the step",
    "exchange": "the exchange of gradients inside the host bounds the step",
    "gradients": "the exchange of gradients, over what is not recorded, bounds the step",
    "untimed": "what bounds the step cannot be told: its exchange is part of both passes, and nobody times it",
    "ranks": "waiting for a slower rank bounds the step",
    "data": "waiting for data bounds the step",
    "host": "the host bounds the step: it hands out work too slowly for its GPUs",
}


def bound_words(found: Waits) -> str:
    """What holds a step up, and what would be gained without it."""
    if found.bound == "untimed":
        return CAUSES["untimed"]
    if found.bound == "compute":
        left = max(found.causes, key=lambda name: found.causes[name])
        return f"{CAUSES['compute']}; all waiting together is {units.percent(sum(found.causes.values()))} of it, most for {left}"
    share, faster = found.causes[found.bound], found.without(found.bound)
    gain = f"without it steps would be {faster:.2g} times as fast"
    return f"{CAUSES[found.bound]}: {units.percent(share)} of it is that wait, {gain}{part_words(found)}"


def part_words(found: Waits) -> str:
    """Where a wait holds up a part of the run only."""
    share, since = found.held
    so = f"it is so ({machine.MUCH * 100:.0f} % and more)"
    return f"; {so} in {units.percent(share)} of the steps, first after step {since:,}" if 0 < share < 0.9 else ""


def judged_since(record: RunRecord) -> str:
    found, since = rearranged(record), rearranged_at(record)
    if not found or not since:
        return ""
    before, after = map(machines, found)
    return f" (since step {since:,}, when it was resumed on {after}; before, {before})"


def machines(start: Row) -> str:
    ranks = units.plural(number(start, "ranks") or 0, "rank")
    return f"{units.plural(len(start['hosts']), 'host')} with {ranks}" if start.get("hosts") else ranks


def wait_evidence(found: Waits) -> Evidence:
    names = {
        "network": "for gradients over the network",
        "exchange": "for gradients inside the host",
        "gradients": "for gradients, over what is not recorded",
        "ranks": "for slower ranks",
        "data": "for data",
        "host": "for the host",
    }
    rows = [("Mean step, first rows left out", units.duration(found.step))]
    rows += [
        (f"Waiting {names[cause]}", f"{units.duration(share * found.step)} a step, {units.percent(share)}")
        for cause, share in found.causes.items()
    ]
    return [*rows, ("What bounds the step", CAUSES[found.bound])]


def gpus_used(record: RunRecord) -> Answer:
    """NVML was asked once a second; samples in validations, in checkpoints, in lost work and between a start and its first row of metrics
    are left out. Utilisation is the share of time in which any kernel ran, also one that only waits. SM activity (GPM) is the share
    of multiprocessors that worked; power against its limit shows the same. Busy: above 85 % of the time; working: more than half of
    the multiprocessors, or where the card does not tell, 65 % of the power limit."""
    if text(record.environment, "device") not in ("", "cuda"):
        name = text(record.environment, "device_name") or "unknown"
        facts = bound_evidence(record)
        return Answer(4, f"No GPU was used: it ran on the CPU ({name}).", [("Device", name), *facts], "phases_by_step")
    cards = machine.gpus(record)
    rows = machine.gpu_samples(record)
    if not rows:
        raise NotRecorded("telemetry has no sample of a GPU taken while training")
    busy, active, power = (mean_of(rows, key) for key in ("utilization_percent", "sm_percent", "power_watts"))
    limit = mean_of(rows, "power_limit_watts")
    drawn = power / limit if power is not None and limit else None
    watts = f"{units.watts(power)} of {units.watts(limit)}"
    clock, most = mean_of(rows, "sm_clock_mhz"), mean_of(rows, "max_sm_clock_mhz")
    evidence = [
        ("Utilisation (any kernel running)", percent(busy)),
        ("SM activity (multiprocessors working)", percent(active)),
        ("Tensor cores active", percent(mean_of(rows, "tensor_percent"))),
        ("Power", f"{watts}, {units.percent(drawn)}"),
        ("SM clock", f"{units.count(clock)} of {units.count(most, 'MHz')}"),
        ("Temperature, highest", units.count(max(column(rows, "temperature_celsius"), default=None), "°C")),
        ("Work done", work(record)),
        *bound_evidence(record),
        ("Samples", f"{len(rows):,} of {units.plural(len(cards), 'GPU')}"),
    ]
    columns = ("GPU", "Utilisation", "SM activity", "Power", "Clock", "Memory")
    table = Table(columns, [gpu_row(*card) for card in cards.items()])
    return Answer(4, gpu_verdict(busy, active, drawn, watts), evidence, "gpus", table)


def gpu_verdict(busy: float | None, active: float | None, drawn: float | None, watts: str) -> str:
    figures = [f"busy {percent(busy)} of the time"] if busy is not None else []
    figures += [f"SM activity {percent(active)}"] if active is not None else []
    figures += [watts] if drawn is not None else []
    said = ", ".join(figures)
    working = active >= WORKING if active is not None else drawn >= STRONG if drawn is not None else None
    if busy is not None and busy < BUSY:
        return f"No: {said}. They stood still for {percent(100 - busy)} of the time."
    if working is None:
        return f"Cannot be told for sure: neither SM activity nor power is recorded ({said or 'nothing is'})."
    if busy is None:
        return f"{'Yes' if working else 'No'}: {said}; how much of the time they were busy is not recorded."
    if working:
        return f"Yes: {said}."
    return f"No, in spite of {percent(busy)} utilisation: {said}. They were waiting inside kernels, most likely for other GPUs or memory."


def percent(value: float | None) -> str:
    return units.percent(None if value is None else value / 100)


def work(record: RunRecord) -> str:
    """Floating-point operations by the model's own count."""
    rows = [row for row in record.train_rows if row["step"] > rearranged_at(record)]
    rates = column(rows[1:], "target_tokens_per_s")
    per_token = number(record.environment, "model", "flops_per_target_token")
    ranks = number(record.environment, "world_size")
    if not rates or not per_token or not ranks:
        return units.NOT_RECORDED
    return f"{units.significant(statistics.median(rates) * per_token / ranks / 1e12)} TFLOP/s a GPU (matrix products of the model)"


def gpu_row(name: str, rows: list[Row]) -> tuple[str, ...]:
    return (
        name,
        percent(mean_of(rows, "utilization_percent")),
        percent(mean_of(rows, "sm_percent")),
        units.watts(mean_of(rows, "power_watts")),
        units.count(mean_of(rows, "sm_clock_mhz"), "MHz"),
        units.decimal_size(max(column(rows, "memory_used_bytes"), default=None)),
    )


def bound_evidence(record: RunRecord) -> Evidence:
    waits = known(machine.waits, record)
    return wait_evidence(waits) if waits else [("Where the time of a step went", units.NOT_RECORDED)]


def network(record: RunRecord) -> Answer:
    """Bytes of every host's interfaces at the edges of the windows of metrics, everybody's traffic included. Predicted: what the
    strategy must send; with ddp, a ring over N ranks sends 2 (N-1)/N times the gradients out of every host. Exposed: time after the
    end of the backward pass, when only the exchange was left to wait for; of the rank that waited least, because the others may
    be waiting for that rank. 1 byte = 8 bit."""
    world = number(record.environment, "world_size")
    if world is not None and record.one_host:
        return Answer(5, inside_one_host(record, world), [("Hosts", "1"), *bound_evidence(record)])
    if not record.spans:
        return network_by_arithmetic(record)
    waits, busiest = machine.waits(record), machine.busiest(record)
    if busiest is None:
        raise no_traffic(record)
    how, predicted = machine.predicted(record)
    spent = transfer_seconds(record, waits)
    verdict = f"{units.decimal_size(busiest.sent_per_step)} a step out of a host each way, {units.bit_rate(busiest.sent_per_s)}"
    verdict += f", {units.percent(busiest.link_share)} of its link" if busiest.link_share is not None else ""
    if waits.untimed:
        verdict = f"Cannot be told: with {waits.untimed} the exchange is part of both passes and is not timed by itself; {verdict}."
    elif waits.bound == "gradients":
        verdict = f"Cannot be told: {bound_words(waits)}; {verdict}."
    else:
        was = "Yes, the network was" if waits.bound == "network" else "No, the network was not"
        verdict = f"{was} the bottleneck: {verdict}; {bound_words(waits)}."
    if waits.bound == "network" and spent and (busiest.link_mbit or 0) * 1e6 > 16 * busiest.sent_per_step / spent:
        carried = units.bit_rate(busiest.sent_per_step / spent)
        verdict += f" The path carried {carried}, though the link says {units.link_speed(busiest.link_mbit)}: it may be shaped, or shared."
    evidence = [
        (f"Sent a step, predicted ({how})", units.size(predicted)),
        ("Measured against predicted", agreement(busiest, predicted)),
        *rate_evidence(spent, busiest),
        *wait_evidence(waits),
    ]
    columns = ("Host", "Sent in all", "Sent a step", "Mean rate", "Link", "Share of the link")
    return Answer(5, verdict, evidence, "network", Table(columns, list(map(traffic_row, machine.traffic(record)))))


def transfer_seconds(record: RunRecord, waits: Waits) -> float | None:
    """A step's communication from its first to its last byte. None where that is not timed, or not by itself: `streaming` only times
    how long it waits for what has not come yet, and islands of several ranks add what they exchange inside."""
    if waits.untimed or "network" not in waits.causes or machine.strategy_of(record) == "streaming":
        return None
    return machine.mean_step(waits.windows, lambda window: min(window.ranks["communication"]))


def rate_evidence(spent: float | None, busiest: Traffic) -> Evidence:
    if spent is None:
        return []
    rate = units.bit_rate(busiest.sent_per_step / spent) if spent else units.NOT_RECORDED
    return [
        ("Communication, first to last byte", f"{units.duration(spent)} a step"),
        ("Rate during the exchange", rate),
    ]


def no_traffic(record: RunRecord) -> NotRecorded:
    if not record.hosts:
        return record.lacks("environment.json", "does not name the hosts")
    return record.lacks("spans.jsonl", "does not count the bytes of the hosts")


def inside_one_host(record: RunRecord, world: float) -> str:
    """The verdict where nothing can cross a network: ranks may wait for each other's gradients all the same."""
    if world == 1:
        return "No traffic, and no bottleneck: One rank, nothing was exchanged."
    ranks, waits = f"{units.count(world)} ranks on one host", known(machine.waits, record)
    if waits is None:
        return f"No traffic: {ranks}, gradients never left it."
    if waits.bound == "exchange":
        return f"No traffic, and no bottleneck in the network: {ranks}; but {bound_words(waits)}."
    told = ", how long they took inside it is not timed" if waits.untimed else ""
    return f"No traffic, and no bottleneck: {ranks}, gradients never left it{told}."


def network_by_arithmetic(record: RunRecord) -> Answer:
    """Where nobody measured waiting: what must have been sent, whether the wire carried that, and what it would need."""
    how, predicted = machine.predicted(record)
    step, measured = mean_of(record.train_rows, "step_seconds"), bytes_per_s(record.stated.get("network_rate"))
    if not predicted or not step:
        raise record.lacks("spans.jsonl", "has no whole window after the first")
    needs = {speed: predicted * 8 / (speed * 1e9) for speed in (1, 10)}
    drawn, limit = (mean_of(machine.gpu_samples(record), key) for key in ("power_watts", "power_limit_watts"))
    waited = bool(drawn and limit and drawn < 0.5 * limit)
    said = f"{units.decimal_size(predicted)} must leave a host at every step of {units.duration(step)}, {units.bit_rate(predicted / step)}"
    if measured and 0.7 < measured * step / predicted < 1.4:
        said += f", and {units.bit_rate(measured)} were seen on the wire: it is the gradients"
        likely = "Very probably yes" if waited or needs[10] < step < needs[1] else "It may have been"
        waiting = f"; the GPUs drew {drawn:.0f} of {limit:.0f} W, they were waiting" if waited else ""
        said = f"{likely}: {said}{waiting}."
    else:
        said = f"Cannot be told, exposed communication is not recorded; but {said}."
    rows = [(f"Such a step's exchange at {speed} Gbit/s", units.duration(seconds)) for speed, seconds in needs.items()]
    seen = [
        ("Seen on the wire", units.bit_rate(measured)),
        ("Power of the GPUs", f"{units.watts(drawn)} of {units.watts(limit)}" if drawn else units.NOT_RECORDED),
    ]
    return Answer(5, said, [(f"Sent a step and host, predicted ({how})", units.size(predicted)), *rows, *seen])


def agreement(found: Traffic, predicted: float | None) -> str:
    if not predicted:
        return units.NOT_RECORDED
    ratio = found.sent_per_step / predicted
    if ratio < 0.7:
        meaning = "less: some of it leaves by a way that is not counted"
    elif ratio > 1.3:
        meaning = "more: other traffic, or segments sent again"
    else:
        meaning = "as predicted: it is the gradients"
    return f"{units.size(found.sent_per_step)}, {ratio:.2f} times: {meaning}"


def traffic_row(one: Traffic) -> tuple[str, ...]:
    return (
        one.host,
        units.decimal_size(sum(one.sent)),
        units.decimal_size(one.sent_per_step),
        units.bit_rate(one.sent_per_s),
        f"{' + '.join(one.links)} {units.link_speed(one.link_mbit)}",
        units.percent(one.link_share),
    )


def step_and_network(record: RunRecord) -> Answer:
    """Pearson's r over the windows of metrics, with its 90 % interval: of mean step time with bytes sent a second by the host that sent
    most, with bytes a step, and with exposed communication. Where every step sends the same bytes, a slower step sends them at a lower
    rate: r with the rate is then negative by arithmetic and says nothing about the cause. Exposed communication is time, and does."""
    if record.one_host:
        return Answer(11, "Not at all: there is one host, and no traffic between nodes.", [("Hosts", "1")])
    waits, host = machine.waits(record), machine.busiest(record)
    if host is None:
        raise no_traffic(record)
    found, share = waits.windows, waits.gradients
    seconds = [window.seconds for window in found]
    with_rate = correlation(seconds, [many / (w.steps * w.seconds) for many, w in zip(host.sent, found, strict=True)])
    with_bytes = correlation(seconds, [many / w.steps for many, w in zip(host.sent, found, strict=True)])
    with_wait = correlation(seconds, [min(window.ranks["exposed"]) for window in found])
    verdict = f"Correlation of step time with exposed communication is {coefficient(with_wait)}, "
    verdict += f"with bytes a second {coefficient(with_rate)}; "
    evidence = [
        ("r of step time and bytes a second", coefficient(with_rate, long=True)),
        ("r of step time and bytes a step", coefficient(with_bytes, long=True)),
        ("r of step time and exposed communication", coefficient(with_wait, long=True)),
        ("Windows of metrics compared", units.count(len(found))),
        ("Exposed communication a step", f"{units.duration(share * waits.step)}, {units.percent(share)} of it"),
        ("Measured against predicted bytes", agreement(host, machine.predicted(record)[1])),
    ]
    return Answer(11, f"{verdict}{meaning(waits, with_wait)}.", evidence, "step_and_network")


def meaning(waits: Waits, with_wait: Estimate | None) -> str:
    share = units.percent(waits.gradients)
    what = "the network" if "network" in waits.causes else "the exchange of gradients"
    if waits.bound in machine.WAYS:
        return (
            f"what it means: {share} of a mean step is waiting for {what}, whatever the correlation{part_words(waits)}"
        )
    if with_wait and with_wait.low > 0.5 and waits.gradients > 0.05:
        return f"what it means: steps differ by what {what} adds, but it is only {share} of a step"
    return f"what it means: {what} adds {share} to a step, and other causes make steps differ"


def coefficient(found: Estimate | None, *, long: bool = False) -> str:
    if found is None:
        return "undefined (too few windows, or nothing varies)"
    return f"{found.value:+.2f}" + (f" (90 %: {found.low:+.2f} to {found.high:+.2f})" if long else "")
