"""What would go wrong on these hosts, found before a run: each finding in words, with what to do about it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations

from dragoman.config import Config
from dragoman.config.schema import Parallel
from dragoman.errors import TrainingError
from dragoman.parallel import network
from dragoman.parallel.hosts import EACH_SAVES, SHARE, Cluster, Fleet, Host
from dragoman.parallel.plan import BYTES, RARELY

MEASURE_SECONDS = 1.0  # for every two hosts, each way
MEASURED_SECONDS = 120.0  # at most, until a very slow link has taken all of it: no host is overloaded then
SKEW_SECONDS = 1.0
DISK_BYTES = 10**9  # that should be free beside checkpoints: metrics, logs, translations
STREAM_MBIT = 5000.0  # that one stream of bytes should reach, however much more the interface says
LONG_SECONDS = 1.0  # for an exchange that is made at every step
DISK_BYTES_PER_S = 50e6
PROBE_SECONDS = 300.0
CLOCK_TRIALS = 5
BY_NAME = "put it into DNS or into /etc/hosts there: torchrun and Slurm go by names, dragoman launch does not"
LAST_LINES = 12  # of all ranks, that are shown when they fail
NO_EXCHANGE = "name the network with --interface, compare the drivers of the hosts; NCCL_DEBUG=INFO, set on the hosts, has ranks say more"
PLAN = "every step waits for what is left of it: dragoman plan"
SLOW_LINK = "is something else using the link, or limiting it? dragoman plan says what that costs"
NO_CUDA = 'install a torch with CUDA that its driver can run, or set train.device = "cpu"'


@dataclass(frozen=True)
class Finding:
    """`verdict`: ok, warning (it will run, but badly) or stop."""

    verdict: str
    text: str
    remedy: str = ""
    heard: tuple[str, ...] = ()  # what ranks said


def examine(cluster: Cluster, config: Config, checkpoint_bytes: int, model_bytes: int) -> Iterator[Finding]:
    """Findings one by one, as they are made. Ends early where nothing more can be asked; ranks start only where all is well."""
    stopped = False
    try:
        with Fleet(cluster, config, []) as fleet:
            for finding in before_ranks(fleet, checkpoint_bytes, model_bytes):
                stopped = stopped or finding.verdict == "stop"
                yield finding
            if not stopped:
                yield from all_reduce(fleet, model_bytes)
    except TrainingError as error:
        yield Finding("stop", str(error))


def before_ranks(fleet: Fleet, checkpoint_bytes: int, model_bytes: int) -> Iterator[Finding]:
    fleet.look()
    ranks, learning = [host.ranks for host in fleet.hosts], int(model_bytes / BYTES["fp32"])
    checkpoint_bytes += own_bytes(fleet.config.parallel, ranks, learning)
    yield Finding("ok", f"reached: {', '.join(host.name for host in fleet.hosts)}")
    yield from same(fleet)
    for host in fleet.hosts:
        yield from equipment(host, fleet.config, checkpoint_bytes)
    yield from shared(fleet)
    yield from names(fleet)
    yield from clocks(fleet)
    fleet.meet()
    yield from links(fleet)
    fleet.stop_listening()


def own_bytes(section: Parallel, ranks: list[int], learning: int) -> int:
    """What ranks save for themselves beside the model: with rare agreements weights, moments and momentum of every island; in 8
    bits what is owed."""
    world = sum(ranks)
    islands = world // section.ranks_per_island if section.ranks_per_island else len(ranks)
    rare = section.strategy in RARELY
    owed = 4 * (world if section.strategy == "ddp" else islands) if section.wire == "int8" else 0
    return learning * (owed + 16 * islands * rare) if world > 1 else 0


def same(fleet: Fleet) -> Iterator[Finding]:
    different = [Finding("stop", str(error)) for error in fleet.differences()]
    yield from different
    if different:
        return
    facts = fleet.hosts[0].facts
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    yield Finding("ok", f"the same versions everywhere: {versions}")
    yield Finding("ok", f"the same run file and the same prepared data everywhere (digest {facts['data_digest'][:12]})")
    drivers, names = ({gpu[key] for host in fleet.hosts for gpu in host.facts["gpus"]} for key in ("driver", "name"))
    if len(drivers) > 1:
        yield Finding("warning", f"GPU drivers differ: {', '.join(sorted(drivers))}", "install the same on all hosts")
    if len(names) > 1:
        told = f"GPUs differ: {', '.join(sorted(names))}; the slowest sets the pace"
        yield Finding("warning", told, "use hosts of one kind")


def equipment(host: Host, config: Config, checkpoint_bytes: int) -> Iterator[Finding]:
    checkpoints = config.checkpoint.most(config.train.max_steps) + 1  # one more while it is written
    facts, gpus = host.facts, host.facts["gpus"]
    room, has = facts["usable_cores"], f"no GPU to use, {facts['usable_cores']} cores"
    if gpus:
        room, has = len(gpus), f"{len(gpus)} x {gpus[0]['name']} (driver {gpus[0]['driver']})"
    told = f"host {host.name}: {has}, for {host.ranks} processes"
    if host.ranks > room:
        yield Finding("stop", told, f"start at most {room} there")
    else:
        yield Finding("ok", told)
    if "disk" not in facts:  # its configuration could not be read: that is told elsewhere
        return
    disk = facts["disk"]
    told = f"host {host.name}: {disk['free_bytes'] / 1e9:.1f} GB free where run.folder is, written at {disk['bytes_per_s'] / 1e6:.0f} MB/s"
    needed = DISK_BYTES + checkpoints * checkpoint_bytes
    if disk["free_bytes"] < needed:
        yield Finding("stop", told, f"make room: {checkpoints:,} checkpoints and some more need {needed / 1e9:.1f} GB")
    elif disk["bytes_per_s"] < DISK_BYTES_PER_S:
        yield Finding("warning", told, "checkpoints will take long; choose a faster disk for run.folder")
    else:
        yield Finding("ok", told)


def shared(fleet: Fleet) -> Iterator[Finding]:
    host = fleet.apart()
    if host and fleet.all_hosts_save():
        yield Finding("stop", f"host {host.name} {fleet.apart_why()}", f"{SHARE}: {EACH_SAVES}")
    elif host:
        yield Finding("warning", f"host {host.name} {fleet.apart_why()}", f"{SHARE}, or --resume will not work")
    elif len(fleet.hosts) > 1:
        yield Finding("ok", "run.folder is on a disk that all hosts share")


def names(fleet: Fleet) -> Iterator[Finding]:
    """Whether every host finds all others by the names that were given, without the user that ssh may want before them."""
    if len(fleet.hosts) == 1:
        return
    given = [host.name.rpartition("@")[2] for host in fleet.hosts]
    answers, well = fleet.each(lambda host: host.ask("resolve", names=given)), True
    for host, own, answer in zip(fleet.hosts, given, answers, strict=True):
        for name in given:
            if name != own and (trouble := misnamed(name, answer["found"][name])):
                well = False
                yield Finding("warning", f"host {host.name} {trouble}", BY_NAME)
    if well:
        yield Finding("ok", "every host finds all others by name")


def misnamed(name: str, addresses: list[str]) -> str:
    """What is wrong with the addresses by which another host knows this name; "" where nothing is."""
    if not addresses:
        return f"finds no address of {name}"
    own = [address for address in addresses if network.is_loopback(address)]
    return f"takes the name {name} for its own ({own[0]})" if own else ""


def clocks(fleet: Fleet) -> Iterator[Finding]:
    """How far each clock is from ours: the answer is from the middle between asking and hearing."""
    skews = {}
    for host in fleet.hosts:
        offsets = []
        for _ in range(CLOCK_TRIALS):
            before = time.time()
            there = host.ask("clock")["time"]
            offsets.append((time.time() - before, there - (before + time.time()) / 2))
        skews[host.name] = min(offsets)[1]
    apart = max(skews.values()) - min(skews.values())
    if apart > SKEW_SECONDS:
        told = f"clocks are {apart:.1f} s apart: " + ", ".join(f"{name} {skew:+.1f} s" for name, skew in skews.items())
        yield Finding("warning", told, "let chrony or ntpd set them: times in logs do not fit")
    else:
        yield Finding("ok", f"clocks are less than {max(apart, 0.01):.2f} s apart")


def links(fleet: Fleet) -> Iterator[Finding]:
    """Between every two hosts, each way, one pair at a time: they share the wires."""
    if len(fleet.hosts) == 1:
        return
    says: dict[str, float] = {}
    for host in fleet.hosts:
        mbit = host.ask("speed", interface=host.interface)["mbit"]
        says[host.name] = mbit or 0.0
        said = f"says {mbit:,} Mbit/s" if mbit else "does not say its speed"
        reached = f"reached by all others at {host.address}, interface {host.interface}"
        yield Finding("ok", f"host {host.name}: {reached}, which {said}")
    rates = {}
    for sender, receiver in permutations(fleet.hosts, 2):
        place = {"address": receiver.address, "port": receiver.port}
        found = sender.ask("measure", MEASURED_SECONDS, **place, duration=MEASURE_SECONDS)
        way, trip = f"{sender.name} to {receiver.name}", 1e3 * found["round_trip_seconds"]
        rates[way] = found["bytes_per_s"] * 8 / 1e6
        told = f"{way}: {rates[way]:,.0f} Mbit/s, there and back {trip:.2f} ms"
        if rates[way] < min(says[sender.name], says[receiver.name], STREAM_MBIT) / 2:
            told += ", less than half of what both interfaces say"
            yield Finding(
                "warning",
                told,
                SLOW_LINK,
            )
        else:
            yield Finding("ok", told)
    best = max(rates.values())
    for way, rate in rates.items():
        if rate < best / 2:
            told = f"{way} has less than half of the {best:,.0f} Mbit/s of the best"
            yield Finding("warning", told, "check cable, port and limits of both: the slowest link sets the pace")


def all_reduce(fleet: Fleet, model_bytes: int) -> Iterator[Finding]:
    """The real thing: as many ranks as the run has, where it would compute, add up as many bytes as the model has gradients."""
    fleet.start(["probe", str(model_bytes), fleet.config.train.device], {}, 0)
    seconds, said = 0.0, list[str]()
    deadline = time.monotonic() + PROBE_SECONDS
    while any(host.ended is None for host in fleet.hosts) and time.monotonic() < deadline:
        with suppress(queue.Empty):
            host, message = fleet.inbox.get(timeout=0.2)
            if "rank" in message:
                word, _, value = message["line"].partition(" ")
                if word == "seconds":
                    seconds = float(value)
                elif word != "device":
                    said.append(f"[{host.name}/{message['rank']}] {message['line']}")
                elif value == "cpu" and host.facts["gpus"]:
                    yield Finding("stop", f"host {host.name}: its torch sees none of its GPUs", NO_CUDA)
                    return
            elif failure := fleet.hear(host, message):
                first, *more = failure.line.strip().splitlines()
                line = (
                    f"host {failure.host}, rank {failure.rank}: {more[-1]}" if more else first
                )  # not all of a traceback
                yield Finding("stop", f"an all-reduce failed: {line}", NO_EXCHANGE, tuple(said[-LAST_LINES:]))
                return
    size = f"{model_bytes / 1e6:,.1f} MB, the gradients of the model,"
    chosen = fleet.config.parallel
    needed = chosen.strategy not in RARELY and chosen.wire == "fp32"
    if any(host.ended is None for host in fleet.hosts):
        told = f"an all-reduce of {size} did not end within {PROBE_SECONDS:.0f} s"
        yield Finding("stop" if needed else "warning", told, "the network is too slow for ddp")
    elif seconds:
        told = f"an all-reduce of {size} takes {seconds:.3f} s; ddp hides what fits beside the backward pass"
        if len(fleet.hosts) > 1 and chosen.strategy not in RARELY and seconds > LONG_SECONDS:
            remedy = f"{PLAN} --hosts {len(fleet.hosts)}, with the bandwidth above, says which strategy waits less"
            yield Finding("warning", told, remedy)
        else:
            yield Finding("ok", told)
