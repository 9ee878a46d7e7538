"""What the machines did, from spans and telemetry: where a step's time went, what the wires carried, how busy GPUs were."""

from __future__ import annotations

import statistics
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from dragoman.report import measures, units
from dragoman.report.read import RunRecord, column, number, once, section, sections, text
from dragoman.runs import Row

PHASES = ("idle", "other", "forward", "backward", "exposed", "optimizer")
"""Parts of a step by the device's clock, in their order."""


class Window(NamedTuple):
    """A train row with the spans of all ranks, in seconds a step."""

    step: int
    steps: int
    seconds: float
    row: Row
    ranks: dict[str, list[float]]

    def mean(self, span: str) -> float:
        return statistics.fmean(self.ranks[span])

    def own(self, rank: int) -> float:
        """What a rank did itself, waiting for its data and its host included, and not for the other ranks."""
        return sum(self.ranks[span][rank] for span in PHASES if span != "exposed")


@once
def windows(record: RunRecord) -> list[Window]:
    """Those that show how the run usually was, on the ranks and hosts that are described."""
    found, since = [], measures.rearranged_at(record)
    for span in (span for span in measures.usual_spans(record) if span.step > since):
        spans = record.spans.get(span.step, {})
        ranks = {name: numbers(spans, name) for name in (*PHASES, "data", "communication", "cpu")}
        if all(ranks.values()) and len({len(values) for values in ranks.values()}) == 1:
            found.append(Window(*span, ranks))
    return found


def numbers(row: Row, key: str) -> list[float]:
    values = row.get(key)
    if isinstance(values, list) and all(type(value) in (int, float) for value in values):
        return [float(value) for value in values]
    return []


WAYS = ("network", "exchange", "gradients")
"""Causes of which a run has one: over what gradients came, the last where that is not known."""


class Waits(NamedTuple):
    """What part of a mean step was waiting, by cause. Not of a median one: what holds up less than half of the windows may take
    most of the time."""

    windows: list[Window]
    step: float  # seconds
    causes: dict[str, float]  # shares of it
    untimed: str  # the strategy, where it exchanges inside of both passes and nobody times that

    @property
    def bound(self) -> str:
        """The cause that costs most; where none costs much "compute", or "untimed" where that hides the exchange."""
        worst = max(self.causes, key=lambda name: self.causes[name])
        return worst if self.causes[worst] >= MUCH else "untimed" if self.untimed else "compute"

    @property
    def gradients(self) -> float:
        """The share of a step that is waiting for gradients, over whatever they came."""
        return max(self.causes.get(way, 0.0) for way in WAYS)

    @property
    def held(self) -> tuple[float, int]:
        """The share of steps that the cause which bounds the step held up much, and the step after which that began."""
        slow = [window for window in self.windows if wait_of(window, self.bound) >= MUCH * window.seconds]
        steps = sum(window.steps for window in slow)
        return steps / sum(window.steps for window in self.windows), slow[0].step - slow[0].steps if slow else 0

    def without(self, cause: str) -> float:
        """How many times as fast steps would be without this waiting."""
        return 1.0 / max(1.0 - self.causes[cause], 1e-9)


MUCH = 0.15  # of a step
UNTIMED = ("fsdp", "hybrid")  # strategies whose exchange nobody times
ISLANDS = ("local", "streaming")  # strategies that exchange gradients inside a host only


def strategy_of(record: RunRecord) -> str:
    """How ranks shared the work, as the run itself says, or else its configuration."""
    planned = record.config.parallel.strategy if record.config else ""
    return text(section(record.environment, "exchange"), "strategy") or planned


def holds_agreement(record: RunRecord, window: Window) -> bool:
    """Whether one of its steps, a multiple of `inner_steps`, may have waited until islands agreed, as with `local`. Where the
    configuration or the hosts are not recorded, it may."""
    if strategy_of(record) != "local":
        return False
    parallel, world = record.config and record.config.parallel, len(window.ranks["idle"])
    in_island = parallel.ranks_per_island if parallel else 0
    several = world > in_island if in_island else world > 1 and len(record.hosts) != 1
    every = parallel.inner_steps if parallel else 1
    return several and window.step // every > (window.step - window.steps) // every


@once
def waits(record: RunRecord) -> Waits:
    """Means over all steps. Raises where no spans are recorded."""
    found = windows(record)
    if not found:
        raise record.lacks("spans.jsonl", "has no whole window after the first")
    on_gpu = text(record.environment, "device") == "cuda"
    step = mean_step(found, lambda window: window.seconds)
    network, data, gaps = (mean_step(found, partial(wait_of, cause=cause)) for cause in ("network", "data", "host"))
    host = max(0.0, gaps, unseen_gaps(record, found, step) - data) if on_gpu else 0.0
    world = min(len(window.ranks["idle"]) for window in found)
    # By rank, because chance makes every rank the slowest at times.
    ranks = max(mean_step(found, partial(wait_of, cause="ranks", rank=rank)) for rank in range(world))
    seconds = {
        way_of_gradients(record): network,  # the rank that had to wait least still waited that long for gradients
        "ranks": ranks,  # the rank that waits most waits so much longer: for a slower one, which itself does not wait
        "data": data,
        "host": host,  # a GPU had nothing to do, and not because of data
    }
    causes, strategy = {name: spent / step for name, spent in seconds.items()}, strategy_of(record)
    return Waits(found, step, causes, strategy if strategy in UNTIMED and world > 1 else "")


def way_of_gradients(record: RunRecord) -> str:
    """The network, an exchange inside one host, or gradients of which nobody knows: no host is recorded, or islands of several ranks
    wait inside at every step and for each other now and then, in one sum."""
    islands = strategy_of(record) in ISLANDS and any(len(host.get("ranks") or []) > 1 for host in record.hosts)
    if len(record.hosts) == 1:
        return "exchange"
    return "gradients" if islands or not record.hosts else "network"


def mean_step(found: list[Window], seconds: Callable[[Window], float]) -> float:
    return sum(seconds(window) * window.steps for window in found) / sum(window.steps for window in found)


def wait_of(window: Window, cause: str, rank: int | None = None) -> float:
    """Seconds a step; for a slower rank, of this one or of the one that waits most."""
    waited = window.ranks["exposed"]
    if cause == "ranks":
        return (max(waited) if rank is None else waited[rank]) - min(waited)
    if cause in WAYS:
        return min(waited)
    return exposed_data(window) if cause == "data" else window.mean("idle") - exposed_data(window)


def exposed_data(window: Window) -> float:
    """A GPU that still works while its host waits for data loses nothing."""
    return statistics.fmean(min(pair) for pair in zip(window.ranks["data"], window.ranks["idle"], strict=True))


def unseen_gaps(record: RunRecord, found: list[Window], step: float) -> float:
    """Time a step in which no kernel ran, between kernels, because the host was late with the next: its sign is that the host never
    has to wait for the device. NVML's utilisation says how much."""
    leads = column((window.row for window in found), "lead_seconds")
    busy = mean_of(gpu_samples(record), "utilization_percent")
    if not leads or busy is None or statistics.median(leads) > 0.1 * step:
        return 0.0
    return max(0.0, 1.0 - busy / 100.0) * step


class Straggler(NamedTuple):
    ranks: list[int]  # one, or all of a host
    host: str
    slower: float  # times as long as the median of the others
    share: float  # of windows in which it was the last
    cost: float  # share of a step that the others wait for it
    phase: str  # where it loses most

    @property
    def name(self) -> str:
        where = self.host or "host not recorded"
        return f"Rank {self.ranks[0]} ({where})" if len(self.ranks) == 1 else f"Host {where}"


def straggler(record: RunRecord) -> Straggler | None:
    """A host, or else a rank, that is slower than the others nearly always. Step time cannot tell who: all take the same; but
    the slowest has the least to wait."""
    found = windows(record)
    world = len(found[-1].ranks["idle"]) if found else 0
    found = [window for window in found if len(window.ranks["idle"]) == world]
    hosts = [[rank for rank in row.get("ranks") or [] if rank < world] for row in record.hosts]
    whole = [ranks for ranks in hosts if len(ranks) > 1] if sum(map(len, hosts)) == world else []
    for groups in (whole, [[rank] for rank in range(world)]):
        slow = slowest_group(found, groups) if len(groups) > 1 else None
        if slow:
            host = next((text(row, "host") for row in record.hosts if slow.ranks[0] in row.get("ranks", [])), "")
            return slow._replace(host=host)
    return None


def slowest_group(found: list[Window], groups: list[list[int]]) -> Straggler | None:
    """Groups of ranks against each other; half of a group at least has to be slow."""
    own = [[statistics.median_low(map(window.own, group)) for group in groups] for window in found]
    last = [times.index(max(times)) for times in own]
    at = statistics.mode(last)
    others = [statistics.median([*times[:at], *times[at + 1 :]]) for times in own]
    slower = statistics.median(times[at] / max(other, 1e-9) for times, other in zip(own, others, strict=True))
    share = last.count(at) / len(last)
    late = [times[at] - other for times, other in zip(own, others, strict=True)]
    cost = statistics.median(wait / window.seconds for wait, window in zip(late, found, strict=True))
    if slower < 1.15 or share < 0.75 or cost < 0.05:
        return None
    rest = [rank for group in groups if group is not groups[at] for rank in group]

    def excess(phase: str) -> float:
        sides = [[[window.ranks[phase][rank] for rank in side] for side in (groups[at], rest)] for window in found]
        return statistics.fmean(statistics.fmean(slow) - statistics.median(usual) for slow, usual in sides)

    phase = max((name for name in PHASES if name != "exposed"), key=excess)
    return Straggler(groups[at], "", slower, share, cost, phase)


# --- network -----------------------------------------------------------------------------------------------


class Traffic(NamedTuple):
    """Of one host, over the windows of training."""

    host: str
    sent: list[float]  # bytes, by window
    sent_per_step: float
    sent_per_s: float
    links: list[str]
    link_mbit: float | None  # of all of them

    @property
    def link_share(self) -> float | None:
        return self.sent_per_s * 8 / (self.link_mbit * 1e6) if self.link_mbit else None


@once
def traffic(record: RunRecord) -> list[Traffic]:
    """By host; bytes were counted at the edges of the windows."""
    found, training = [], windows(record)
    steps, seconds = sum(window.steps for window in training), sum(window.steps * window.seconds for window in training)
    by_rank = [numbers(record.spans[window.step], "sent_bytes") for window in training]
    for host in record.hosts:
        rank = next(iter(host.get("ranks") or [0]))
        if training and all(rank < len(values) for values in by_rank):
            sent, links = [values[rank] for values in by_rank], used_links(record, host)
            a_step, a_second = sum(sent) / steps, sum(sent) / seconds
            found.append(Traffic(text(host, "host"), sent, a_step, a_second, list(links), link_mbit(links)))
    return found


def busiest(record: RunRecord) -> Traffic | None:
    return max(traffic(record), key=lambda host: host.sent_per_s, default=None)


def interfaces(host: Row) -> dict[str, float | None]:
    """Those that were described, with their speeds."""
    return {text(link, "name"): number(link, "speed_mbit") for link in sections(host, "interfaces")}


def used_links(record: RunRecord, host: Row) -> dict[str, float | None]:
    """Interfaces of a host that carried at least a tenth of what it sent, with their speeds; the fastest where nobody counted. Bytes are
    counted over all interfaces, so they are compared with the speed of all that took part."""
    speeds = interfaces(host)
    carried = {link: carried_bytes(record.samples(host), link) for link in speeds}
    whole = sum(carried.values())
    if whole:
        return {link: speeds[link] for link, sent in carried.items() if sent >= 0.1 * whole}
    known = [(speed, link) for link, speed in speeds.items() if speed]
    return {link: speed for speed, link in [max(known)]} if known else {}


def carried_bytes(rows: list[Row], link: str) -> float:
    """A host that was started again counts from 0."""
    return sum(max(0.0, after - before) for before, after in pairwise(column(rows, "nics", link, "sent_bytes")))


def link_mbit(links: dict[str, float | None]) -> float | None:
    """Of all of them together; None where one does not tell."""
    return sum(speed or 0.0 for speed in links.values()) if links and all(links.values()) else None


def predicted(record: RunRecord) -> tuple[str, float | None]:
    """How, and the bytes that must leave every host in a step, as the run itself worked it out from its strategy."""
    facts = section(record.environment, "exchange")
    how = ", ".join(filter(None, (text(facts, "strategy"), text(facts, "wire")))) or units.NOT_RECORDED
    return how, number(facts, "sent_bytes") if len(record.hosts) > 1 else None


# --- samples -----------------------------------------------------------------------------------------------


@once
def interruptions(record: RunRecord) -> list[tuple[float, float]]:
    """When no step was made, or none that was kept, in their order and apart: validations, checkpoints, what was lost, and every
    start up to its first row."""
    made = sorted(row["time"] for row in record.train_rows if "time" in row)
    found = [measures.pause(row) for row in record.events_of("validation", "checkpoint")]
    found += measures.pauses(record) + [(each.since, each.until) for each in measures.setbacks(record)]
    for row in measures.starts(record):
        found.append((row["time"], next(iter(made[bisect(made, row["time"]) :]), float("inf"))))
    apart: list[tuple[float, float]] = []
    for since, until in sorted(found):
        if apart and since <= apart[-1][1]:
            since, until = apart[-1][0], max(until, apart.pop()[1])
        apart.append((since, until))
    return apart


@once
def training_samples(record: RunRecord, host: str) -> list[Row]:
    """Samples taken while steps were made, on the ranks and hosts that are described."""
    since, idle = measures.rearranged_at(record), interruptions(record)
    begun = min((row["time"] for row in record.train_rows if "time" in row and row["step"] > since), default=0.0)
    ended = max((row["time"] for row in record.train_rows if "time" in row), default=float("inf"))

    def working(time: float) -> bool:
        before = bisect(idle, (time, float("inf")))
        return begun <= time <= ended and (not before or idle[before - 1][1] <= time)

    return [row for row in record.telemetry.get(host, []) if working(row["time"])]


@once
def gpu_samples(record: RunRecord) -> list[Row]:
    """Of all GPUs that the run used, over all hosts, each with its power limit and its clock's limit."""
    return [row for rows in gpus(record).values() for row in rows]


@once
def cards(record: RunRecord) -> dict[tuple[str, int], Row]:
    """Host and place -> what is known of every GPU that the run used; of all where that is not recorded."""
    found = {}
    for host in record.hosts:
        used = [card for card in host.get("rank_gpus") or [] if card is not None]
        for place, card in enumerate(sections(host, "gpus")):
            if place in used or not used:
                found[text(host, "host"), place] = card
    return found


def least_memory(record: RunRecord) -> float | None:
    """Bytes of the smallest of these GPUs."""
    return min(filter(None, column(cards(record).values(), "memory_bytes")), default=None)


@once
def gpus(record: RunRecord, *, training: bool = True) -> dict[str, list[Row]]:
    """`host GPU n` -> its samples, with their times; those taken while steps were made, or all."""
    found: dict[str, list[Row]] = {}
    for (host, place), card in cards(record).items():
        samples = training_samples(record, host) if training else record.telemetry.get(host, [])
        limits = {key: card.get(key) for key in ("power_limit_watts", "max_sm_clock_mhz")}
        seen = [(sections(row, "gpus"), row["time"]) for row in samples]
        if rows := [limits | here[place] | {"time": time} for here, time in seen if place < len(here)]:
            found[f"{host} GPU {place}"] = rows
    return found


def mean_of(rows: list[Row], key: str) -> float | None:
    values = column(rows, key)
    return statistics.fmean(values) if values else None


def rates(rows: list[Row], *keys: str) -> Iterator[tuple[float, float]]:
    """Times, and growth per second of a counter at `row[key][key]...` between two samples; a counter that fell was reset."""
    for before, after in pairwise(rows):
        values = number(before, *keys), number(after, *keys)
        seconds = after["time"] - before["time"]
        if values[0] is not None and values[1] is not None and seconds > 0 and values[1] >= values[0]:
            yield after["time"], (values[1] - values[0]) / seconds


def nic_rates(record: RunRecord, host: Row, key: str = "sent_bytes") -> list[tuple[float, float]]:
    """Bytes per second of all interfaces of a host that were described."""
    totals = defaultdict[float, float](float)
    for name in interfaces(host):
        for time, rate in rates(record.samples(host), "nics", name, key):
            totals[time] += rate
    return sorted(totals.items())


@once
def throttled_share(record: RunRecord, host: str) -> float | None:
    """Share of the time in which the control group of the main process of a host held it back."""
    grown = [rate for _, rate in rates(training_samples(record, host), "cpu_throttled_us")]
    return statistics.fmean(grown) / 1e6 if grown else None
