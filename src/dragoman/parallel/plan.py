"""What a step will cost on so many hosts over such a network, for every strategy: bytes, seconds, efficiency. No torch: the
arithmetic of docs/distributed.md, checked against the counters of interfaces in bench/cluster.py.

step = compute + exposed, where exposed is what the exchange takes beyond the computing that it runs beside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dragoman.errors import DragomanError

BUCKET_BYTES = 25 * 2**20  # of gradients that DDP exchanges at once
BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0 + 4.0 / 1024}
GOODPUT = 0.95  # of a link's rate is left for data: the rest are headers
EVERY_PART = ("ddp", "two_level")  # strategies that exchange part after part of the gradients
RARELY = ("local", "streaming")  # strategies that exchange weights every inner_steps
CUT = ("fsdp", "hybrid")  # for models that do not fit otherwise; memory is not planned, so they are not recommended
BY_TURNS = 0.3  # of what is shorter with hybrid over gloo, travel or work: one rank of a host sends while another works. Measured
ALMOST = 1.1  # a strategy that makes the same updates is taken when no other is faster by more
UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}


@dataclass(frozen=True)
class Work:
    """What exchanges take of a host beside their travel: seconds for every number that is summed up, as `trial` finds them."""

    buckets: dict[str, float] = field(default_factory=dict)  # by wire: gradients of all ranks, as DDP exchanges them
    agreements: dict[str, float] = field(default_factory=dict)  # by wire: weights of islands, with the outer step
    inside: float = 0.0  # gradients of the ranks of one host
    leaders: dict[str, float] = field(default_factory=dict)  # by wire: gradients of hosts, between their first ranks
    pieces: float = 0.0  # of FSDP over gloo, for every byte that is sent
    hybrid: float = 0.0  # all of it over gloo


@dataclass(frozen=True)
class Setting:
    """Model, machines and network. `compute_seconds`: of one step, without any exchange."""

    parameters: int  # that learn: what is frozen has no gradient
    gathered_once: int  # parameters outside of blocks: FSDP gathers them before anything is computed, for both passes
    hosts: int
    ranks_per_host: int
    compute_seconds: float
    bytes_per_s: float  # of one host's link, each way
    latency_seconds: float = 0.0
    micro_batches: int = 1
    inner_steps: int = 20
    fragments: int = 4
    backward_share: float = 2 / 3
    work: Work = Work()
    frozen: int = 0  # parameters that do not learn; FSDP gathers them all the same
    gloo: bool = False  # on CPUs: it sums up before it scatters, and FSDP waits for it
    blocks: int = 1  # of the model: FSDP gathers and scatters one after the other
    ready_last: int = 0  # parameters of the source's embedding: its gradient is there when nothing is left to compute

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host


@dataclass(frozen=True)
class Forecast:
    strategy: str
    wire: str
    exact: bool  # the same updates as one process
    sent_bytes: float  # a step and host
    exchange_seconds: float  # a step
    exposed_seconds: float
    step_seconds: float
    efficiency: float

    @property
    def name(self) -> str:
        return self.strategy if self.wire == "fp32" else f"{self.strategy}, {self.wire}"


def ring(members: int) -> float:
    """How often every number leaves a host when `members` add up theirs in a ring."""
    return 2.0 * (members - 1) / members


def sent_bytes(setting: Setting, strategy: str, wire: str) -> float:
    """Leaving one host in one step. A ring of ranks crosses between two hosts once in each direction."""
    count, ranks, hosts = setting.parameters, setting.ranks, setting.hosts
    if hosts == 1:
        return 0.0
    if strategy == "ddp" and wire == "int8":
        scattered = setting.ranks_per_host * (ranks - setting.ranks_per_host) / ranks
        return (scattered + (ranks - 1) / ranks) * count * BYTES[wire]
    if strategy == "ddp":
        return ring(ranks) * count * BYTES[wire]
    if strategy == "fsdp":
        gathered = setting.micro_batches * (2 * (count + setting.frozen) - setting.gathered_once)
        scattered = 2 * count if setting.gloo else count
        return (gathered + scattered) * (ranks - 1) / ranks * BYTES["fp32"]
    between = ring(hosts) * count * BYTES[wire]
    return between / setting.inner_steps if strategy in RARELY else between


def exchange_seconds(setting: Setting, strategy: str, wire: str) -> float:
    """Of one step: bytes at the rate of the link, a round for every member and bucket or block, and the host's own work."""
    if setting.hosts == 1:
        return 0.0
    rare = setting.inner_steps if strategy in RARELY else 1
    members = setting.ranks if strategy in ("ddp", "fsdp") else setting.hosts
    parts = setting.fragments if strategy == "streaming" else 1 if strategy == "local" else buckets(setting)
    calls = (4 if setting.gloo else 3) * setting.blocks if strategy == "fsdp" else 2 * parts
    rounds = calls * (members - 1) * setting.latency_seconds / rare
    work = work_seconds(setting, strategy, wire)
    travel = sent_bytes(setting, strategy, wire) / setting.bytes_per_s
    if strategy == "fsdp" and setting.gloo:  # gathers and what is done with them keep out of each other's way
        return max(travel * gloo_turns(members), sent_bytes(setting, strategy, wire) * setting.work.pieces) + rounds
    if strategy in EVERY_PART:  # one is worked on while another travels, but for the first and the last
        return max(travel, work) + min(travel, work) / parts + rounds
    if strategy == "hybrid":
        return travel + work - BY_TURNS * min(travel, work) + rounds
    return travel + rounds + work


def work_seconds(setting: Setting, strategy: str, wire: str) -> float:
    """Of one step: what the exchange between hosts takes of a host beside its travel."""
    if strategy in RARELY:
        return setting.parameters * setting.work.agreements.get(wire, 0.0) / setting.inner_steps
    if strategy == "hybrid":
        return setting.parameters * setting.work.hybrid
    tried = setting.work.leaders if strategy == "two_level" and setting.ranks_per_host > 1 else setting.work.buckets
    return setting.parameters * tried.get(wire, 0.0)


def inside_seconds(setting: Setting, strategy: str) -> float:
    """Of one step: what the ranks of a host do among themselves before hosts exchange anything. Over gloo that is work for all of
    them; GPUs of a host hardly notice."""
    if not setting.gloo or 1 in (setting.hosts, setting.ranks_per_host) or strategy in ("ddp", "fsdp", "hybrid"):
        return 0.0
    return setting.parameters * setting.work.inside


def gloo_turns(members: int) -> float:
    """How much longer its gathers of large tensors take than their bytes: one direction often waits for the other. As measured by
    bench/cluster.py: 1.31 between two hosts, 1.16 among four."""
    return 1 + 0.62 / members


def buckets(setting: Setting) -> float:
    return max(1.0, 4 * setting.parameters / BUCKET_BYTES)


def exposed(setting: Setting, strategy: str, seconds: float) -> float:
    """What is left of an exchange when the computing beside it is done."""
    if strategy == "local" or (strategy in ("fsdp", "hybrid") and setting.gloo):
        return seconds
    if strategy == "streaming":  # until the next fragment is sent
        return max(0.0, seconds - setting.compute_seconds)
    if strategy == "fsdp":  # gathers run beside the forward pass too
        return min(seconds, max(beside_nothing(setting), seconds - setting.compute_seconds))
    return exposed_in_buckets(setting, seconds)


def beside_nothing(setting: Setting) -> float:
    """With FSDP what lies outside of blocks is gathered before anything is computed, and scattered when everything is."""
    travelling = 2 * setting.gathered_once * (setting.ranks - 1) / setting.ranks * BYTES["fp32"]
    return travelling / setting.bytes_per_s


def exposed_in_buckets(setting: Setting, seconds: float) -> float:
    # Nothing is left to compute when the last bucket is full, or when the embedding is, which is a bucket of its own.
    last = seconds * max(1 / buckets(setting), setting.ready_last / max(1, setting.parameters))
    return max(last, seconds - window(setting))


def window(setting: Setting) -> float:
    """Seconds of the backward pass that an exchange in buckets runs beside: that of the last micro-batch."""
    return setting.backward_share * setting.compute_seconds / setting.micro_batches * (1 - 1 / buckets(setting))


def forecast(setting: Setting, strategy: str, wire: str = "fp32") -> Forecast:
    seconds, inside = exchange_seconds(setting, strategy, wire), inside_seconds(setting, strategy)
    if strategy in RARELY:  # gradients inside a host at every step, weights between hosts now and then
        if strategy == "streaming" and inside:  # beside each other, on the same cores
            inside += work_seconds(setting, strategy, wire)
        waiting = exposed(setting, strategy, seconds) + exposed_in_buckets(setting, inside)
    else:
        seconds += inside
        waiting = exposed(setting, strategy, seconds)
    step = setting.compute_seconds + waiting
    exact = strategy not in RARELY and wire == "fp32"
    sent = sent_bytes(setting, strategy, wire)
    return Forecast(strategy, wire, exact, sent, seconds, waiting, step, setting.compute_seconds / step)


ALL = [
    *(("ddp", wire) for wire in BYTES),
    *(("two_level", wire) for wire in BYTES),
    ("fsdp", "fp32"),
    ("hybrid", "fp32"),
    *((strategy, wire) for strategy in RARELY for wire in ("bf16", "int8")),
]


def forecasts(setting: Setting) -> list[Forecast]:
    """Two levels are one where a host has one rank."""
    several = setting.ranks_per_host > 1
    chosen = [each for each in ALL if several or each[0] not in ("two_level", "hybrid")]
    return [forecast(setting, *each) for each in chosen]


def recommended(choices: list[Forecast]) -> Forecast:
    """The fastest; but one that makes the same updates where it is almost as fast, and the plainest of these."""
    choices = [each for each in choices if each.strategy not in CUT]
    fastest = min(choices, key=lambda each: each.step_seconds)
    near = [each for each in choices if each.step_seconds <= ALMOST * fastest.step_seconds]
    exact = [each for each in near if each.exact]
    every_step = [each for each in near if each.strategy not in RARELY]
    return (exact or every_step or [fastest])[0]


def parse_rate(text: str) -> float:
    """1gbit, 100 Mbit/s, 25Gbit -> bytes per second that are left for data."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?bit)(/s|ps)?\s*", text, re.IGNORECASE)
    if found and float(found[1]) > 0:
        return float(found[1]) * UNITS[found[2].lower()] / 8 * GOODPUT
    raise DragomanError(f"--bandwidth {text!r}: write it as 1gbit, 100mbit or 25gbit")
