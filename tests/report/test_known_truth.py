# ruff: noqa: E501
"""Runs with known truth: every verdict must be right, and none may have a wrong unit. The same table is in docs/report.md."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
from made_runs import Gpu, Made, settling

from dragoman.config.schema import Corpus, Stage
from dragoman.report import diagnose, load_run
from dragoman.report.findings import findings
from dragoman.report.learning_questions import has_diverged, overfitting
from dragoman.report.machine import straggler, waits
from dragoman.report.read import RunRecord
from dragoman.report.render import render_markdown
from dragoman.runs import RunFolder

GPUS: dict[str, Any] = {"gpu": Gpu()}
TWO: dict[str, Any] = {"hosts": 2, "ranks": 2, "gpu": Gpu(), "hidden": 0.1}
COSINE = ["schedule.policy=cosine", "schedule.learning_rate=0.001"]
WAITING = Gpu(busy=99.0, active=None, watts=48.0, limit=250.0)


def rising_after(step: int, lowest: float) -> Any:
    return lambda at: settling(8.5, lowest, 300)(at) + max(0, at - step) * 2e-4


def spiky(at: int) -> float:
    return settling(9.0, 3.0, 500)(at) + (2.5 if at in (2000, 2050, 3000) else 0.0)


def diverging(at: int) -> float:
    return settling(9.0, 3.0, 300)(at) if at < 2500 else 7.5


def failing(lowest: float, slope: float = 8e-4) -> Any:
    return lambda at: settling(8.5, lowest, 350)(at) + max(0, at - 3000) * slope


def staged(run: Made) -> None:
    """From step 3,000 on, another mixture of corpora, which is harder."""
    corpora = tuple(Corpus(name=name, source=f"{name}.en", target=f"{name}.de") for name in ("web", "news"))
    stages = (Stage(from_step=3000, weights={"news": 4.0}),)
    data = run.config.data.model_copy(update={"corpora": corpora, "stages": stages})
    run.config = run.config.model_copy(update={"data": data})


def display_card(run: Made) -> None:
    """A small card for the screen comes first, and the run does not use it."""
    host = run.environment["hosts"][0]
    host |= {"gpus": [{"name": "T400", "memory_bytes": 4e9}, *host["gpus"]], "rank_gpus": [1]}
    for row in run.telemetry[0]:
        row["gpus"] = [{"utilization_percent": 1, "power_watts": 8}, *row["gpus"]]


def no_utilisation(run: Made) -> None:
    for row in run.telemetry[0]:
        row["gpus"] = [card | {"utilization_percent": None} for card in row["gpus"]]


def halve_rates(run: Made) -> None:
    for row in run.rows:
        if row["kind"] == "train" and row["step"] > 2000:
            row["learning_rate"] /= 2


def resume_with(run: Made, changed: str) -> None:
    """After step 2,000 with another configuration."""
    at = next(place for place, row in enumerate(run.events) if row["step"] > 2000)
    before = run.events[at - 1]
    stop = {"time": before["time"], "event": "stop", "step": 2000, "reason": "interrupted", "seconds": 1.0}
    run.events[at:at] = [stop, {**stop, "event": "resume", "lost_steps": 0, "changed": [changed]}]


def resumed_otherwise(run: Made) -> None:
    """Half of the run was made with two thirds of the rate."""
    for row in run.rows:
        if row["kind"] == "train" and row["step"] <= 2000:
            row["learning_rate"] /= 1.5
    resume_with(run, "schedule.coefficient 1.0 -> 1.5")


def relabelled(run: Made) -> None:
    """Twice the label smoothing from step 2,000 on, with which no loss can be below 2.6."""
    resume_with(run, "train.label_smoothing 0.1 -> 0.2")
    run.environment["model"]["loss_floor"] = 2.6


def higher_after(step: int, curve: Any) -> Any:
    return lambda at: curve(at) + 1.2 * (at > step)


def resumed_on(hosts: int) -> Any:
    """After step 2,500 on so many hosts, before on the other number of them; on one host nothing is sent."""

    def change(run: Made) -> None:
        before, after = (
            {"ranks": 2 * many, "hosts": [f"host{host}" for host in range(many)]} for many in (3 - hosts, hosts)
        )
        run.events[0] |= before
        at = next(place for place, row in enumerate(run.events) if row["step"] > 2500)
        last = run.events[at - 1]
        run.events.insert(at, {"time": last["time"], "event": "resume", "step": 2500, "lost_steps": 0, **after})
        for span in run.spans:
            if (span["step"] > 2500) == (hosts == 1):
                span |= {key: values[:2] for key, values in span.items() if isinstance(values, list)}
                span |= {"exposed": [0.0, 0.0], "communication": [0.0, 0.0], "sent_bytes": [0, 0]}
        run.environment["hosts"] = run.environment["hosts"][:hosts]
        run.environment["world_size"] = 2 * hosts

    return change


def two_links(run: Made) -> None:
    """Half of the bytes take another interface of the same speed; a third one is idle."""
    for host in run.environment["hosts"]:
        host["interfaces"] += [{"name": "eth1", "speed_mbit": 5_000}, {"name": "idle", "speed_mbit": 100_000}]
    for rows in run.telemetry.values():
        for row in rows:
            half = row["nics"]["eth0"]["sent_bytes"] // 2
            row["nics"] = {
                name: {"sent_bytes": half * (name != "idle"), "received_bytes": half}
                for name in ("eth0", "eth1", "idle")
            }


def two_links_from_another_boot(run: Made) -> None:
    """The counters of its hosts had counted for months, and began at 0 when the run was halfway."""
    two_links(run)
    for rows in run.telemetry.values():
        for row in rows[: len(rows) // 2]:
            for link in row["nics"].values():
                link["sent_bytes"] += 10**15


def agreements(run: Made) -> None:
    """One step in twenty takes the whole exchange, and the others none of it."""
    for row in run.rows:
        if row["kind"] == "train":
            row["median_step_seconds"] -= run.network
            row["slowest_step_seconds"] = row["median_step_seconds"] + 20 * run.network


def smaller_cards_before(run: Made) -> None:
    """They were nearly full; the host on which the run goes on has larger ones."""
    resumed_on(1)(run)
    for span in run.spans:
        span["memory_bytes"] = [int(148e9 if span["step"] <= 2500 else 60e9)] * len(span["memory_bytes"])


def no_power(run: Made) -> None:
    for row in run.telemetry[0]:
        row["gpus"] = [card | {"power_watts": None} for card in row["gpus"]]


def tokens_twice(run: Made) -> None:
    for row in run.rows:
        if row["kind"] == "train":
            row["target_tokens_per_s"] *= 2


def no_environment(run: Made) -> None:
    run.environment = {}


def no_spans(run: Made) -> None:
    run.spans.clear()


def no_telemetry(run: Made) -> None:
    run.telemetry = {}


def torn(run: Made) -> None:
    run.rows, run.events = run.rows[:30], run.events[:4]


def over_power(run: Made) -> None:
    for row in run.telemetry[0]:
        row["gpus"][0]["power_watts"] = 900.0


CASES: dict[str, tuple[dict[str, Any], str, dict[int, str], tuple[str, ...]]] = {
    # name: (how it was made, what bounds the step, question -> what its verdict must match, findings that must be there)
    "one GPU at work": (GPUS, "compute", {4: "^Yes: busy 99.0 %", 5: "^No traffic, and no bottleneck: One rank", 11: "^Not at all"}, ()),
    "CPU only": ({}, "compute", {4: "^No GPU was used", 5: "^No traffic"}, ()),
    "two GPUs of one host": (
        {"ranks": 2, **GPUS}, "compute", {4: "^Yes", 5: "^No traffic, and no bottleneck: 2 ranks on one host"}, (),
    ),
    "two GPUs that wait for each other's gradients": (
        {"ranks": 2, **GPUS, "network": 0.2}, "exchange",
        {5: "^No traffic, and no bottleneck in the network: 2 ranks on one host; but the exchange of gradients inside the host bounds the step: 38.9 %"},
        ("The exchange of gradients inside the host bounds the step",),
    ),
    "ranks that wait for gradients, nobody knows where": (
        {"ranks": 2, **GPUS, "network": 0.2, "change": no_environment}, "gradients",
        {5: "^Not recorded: environment.json is empty or torn"}, ("The exchange of gradients, over what is not recorded, bounds the step",),
    ),
    "sharded inside one host": (
        {"ranks": 2, **GPUS, "overrides": ["parallel.strategy=fsdp", "train.tokens_per_gpu=4096"]}, "untimed",
        {5: "2 ranks on one host, gradients never left it, how long they took inside it is not timed"}, (),
    ),
    "two hosts, network hidden": (
        {**TWO, "network": 0.005}, "compute",
        {4: "^Yes", 5: "^No, the network was not the bottleneck: 365.3 MB a step", 11: "adds 1.6 % to a step"}, (),
    ),
    "network-bound at 1 Gbit/s": (
        {**TWO, "network": 2.6, "link_mbit": 1000, "gpu": WAITING}, "network",
        {4: "^No, in spite of 99.0 % utilisation.*48 W of 250 W", 5: "^Yes, the network was the bottleneck: 365.3 MB a step.*1.00 Gbit/s"},
        ("The network bounds the step",),
    ),
    "network-bound at 100 Mbit/s": (
        {**TWO, "network": 29.0, "link_mbit": 100, "steps": 1000, "log_every": 20}, "network",
        {5: "^Yes.*365.3 MB a step.*99.7 Mbit/s.*% of its link", 11: "waiting for the network, whatever"}, ("The network bounds the step",),
    ),
    "network that comes and goes": (
        {**TWO, "network": 0.5, "wave": 0.6}, "network", {11: r"exposed communication is \+1.00, with bytes a second -"}, (),
    ),
    "network slow for a part of the run": (
        {**TWO, "network": 2.6, "since": 2250}, "network",
        {5: "^Yes, .*78.5 % of it is that wait.* it is so .15 % and more. in 44.3 % of the steps, first after step 2,250", 11: "78.5 % of a mean step"},
        ("The network bounds the step",),
    ),
    "resumed on one host of two": (
        {**TWO, "network": 2.6, "change": resumed_on(1)}, "compute",
        {5: "^No traffic, and no bottleneck: 2 ranks on one host.*since step 2,500, when it was resumed on 1 host with 2 ranks; before, 2 hosts with 4 ranks",
         11: "^Not at all: .*since step 2,500"}, (),
    ),
    "resumed on two hosts after one": (
        {**TWO, "network": 2.6, "since": 2500, "change": resumed_on(2)}, "network",
        {5: "^Yes, .*365.3 MB a step.*89.2 % of it .*since step 2,500", 11: "89.2 % of a mean step"}, (),
    ),
    "link of unknown speed": ({**TWO, "network": 0.3, "link_mbit": None}, "network", {5: "^Yes"}, ()),
    "two links a host": (
        {**TWO, "network": 0.3, "link_mbit": 5_000, "change": two_links}, "network", {5: "^Yes.*4.75 Gbit/s, 47.5 % of its link"}, (),
    ),
    "two links a host, which was started again": (
        {**TWO, "network": 0.3, "link_mbit": 5_000, "change": two_links_from_another_boot}, "network",
        {5: "^Yes.*4.75 Gbit/s, 47.5 % of its link"}, (),
    ),
    "gradients sent in 16 bit": (
        {**TWO, "network": 0.004, "overrides": ["parallel.wire=bf16"]}, "compute", {5: "^No, .*182.6 MB a step"}, (),
    ),
    "agreement every 20 steps": (
        {**TWO, "network": 0.001, "overrides": ["parallel.strategy=local", "parallel.wire=int8"]}, "compute", {5: r"^No, .*3.1 MB a step"}, (),
    ),
    "long agreements, which are no stalls": (
        {"hosts": 2, "network": 0.03, "overrides": ["parallel.strategy=local"], "change": agreements}, "compute", {5: r"^No, .*12.2 MB a step"}, (),
    ),
    "agreements over a slow network": (
        {"hosts": 2, "network": 0.5, "overrides": ["parallel.strategy=local"]}, "network",
        {5: "^Yes, the network was.*12.2 MB a step.*The path carried"}, ("The network bounds the step",),
    ),
    "streaming over a slow network": (
        {"hosts": 2, "network": 0.5, "overrides": ["parallel.strategy=streaming"]}, "network",
        {5: r"^Yes, the network was.*12.2 MB a step.*2.6 times as fast\.$"}, ("The network bounds the step",),
    ),
    "islands of two GPUs that wait": (
        {**TWO, "network": 0.5, "overrides": ["parallel.strategy=local"]}, "gradients",
        {5: "^Cannot be told: the exchange of gradients, over what is not recorded, bounds the step: 6.*12.2 MB a step", 11: "waiting for the exchange of gradients, whatever"},
        ("The exchange of gradients, over what is not recorded, bounds the step",),
    ),
    "islands of two GPUs that hardly wait": (
        {**TWO, "network": 0.005, "overrides": ["parallel.strategy=streaming"]}, "compute",
        {5: "^No, the network was not the bottleneck", 11: "the exchange of gradients adds 1.6 % to a step"}, (),
    ),
    "steps that stall": ({"stall": 2.0}, "compute", {}, ("79 stalls of single steps",)),
    "starved by a slow disk": ({**GPUS, "data": 0.4, "gpu": Gpu(busy=44.0, active=40.0, watts=280.0)}, "data",
        {4: "^No: busy 44.0 %.*stood still for 56.0 %"}, ("Waiting for data bounds the step",)),
    "disk slow for a part of the run": ({**GPUS, "data": 2.6, "since": 2250, "gpu": Gpu(busy=21.0, active=20.0, watts=150.0)}, "data",
        {4: "^No: busy 21.0 %"}, ("Waiting for data bounds the step",)),
    "data waits that cost nothing": ({**GPUS, "change": lambda run: [span.update(data=[0.2]) for span in run.spans]}, "compute",
        {4: "^Yes"}, ()),
    "host too slow, seen between steps": ({**GPUS, "idle": 0.2, "gpu": Gpu(busy=60.0, active=50.0, watts=300.0)}, "host",
        {4: "^No: busy 60.0 %"}, ("The host bounds the step",)),
    "host too slow, seen inside a step": ({**GPUS, "lead": 0.0, "gpu": Gpu(busy=55.0, active=45.0, watts=300.0)}, "host",
        {4: "^No: busy 55.0 %"}, ("The host bounds the step",)),
    "a straggler by CPU limit": (
        {"hosts": 2, "slow": {1: 1.8}, "throttled": {1: 0.4}}, "ranks", {},
        (r"Rank 1 \(host1\) is a straggler", "host1: a CPU limit held processes back"),
    ),
    "cores shared with others": ({"granted": 0.4}, "compute", {4: "^No GPU"}, ("The cores were busy with other work",)),
    "a straggler among four GPUs": ({**TWO, "slow": {2: 1.5}}, "ranks", {5: "^No, "}, (r"Rank 2 \(host1\) is a straggler",)),
    "a straggler among two": ({"ranks": 2, "slow": {1: 1.35}}, "ranks", {}, (r"Rank 1 \(host0\) is a straggler",)),
    "a slow host of two GPUs": (
        {**TWO, "slow": {2: 1.4, 3: 1.4}}, "ranks", {5: "^No, .*waiting for a slower rank bounds the step"}, (r"Host host1 is a straggler",),
    ),
    "ranks that differ by chance": ({**TWO, "jitter": 0.04}, "compute", {}, ()),
    "throttled by heat": ({"gpu": Gpu(clock=900.0, reasons=["hardware_thermal"])}, "compute", {},
        (r"host0 GPU 0 was throttled \(hardware thermal\) for 100.0 %",)),
    "slowed down by heat": ({"gpu": Gpu(clock=900.0, reasons=["hardware_slowdown", "hardware_thermal"])}, "compute", {},
        (r"host0 GPU 0 was throttled \(hardware thermal\) for 100.0 %",)),
    "at the power limit": ({"gpu": Gpu(watts=698.0, reasons=["power_cap"])}, "compute", {4: "^Yes.*698 W of 700 W"}, ("ran at its power limit",)),
    "card without SM activity": ({"gpu": Gpu(active=None)}, "compute", {4: "^Yes: busy 99.0 % of the time, 620 W of 700 W"}, ()),
    "card without utilisation": ({**GPUS, "change": no_utilisation}, "compute", {4: "^Yes: SM activity 90.0 %, 620 W of 700 W; how much of the time"}, ()),
    "card that tells its utilisation alone": (
        {"gpu": Gpu(busy=44.0, active=None), "data": 0.4, "change": no_power}, "data",
        {4: "^No: busy 44.0 % of the time. They stood still for 56.0 %"}, ("Waiting for data bounds the step",),
    ),
    "another card for the screen": ({**GPUS, "change": display_card}, "compute", {4: "^Yes: busy 99.0 %"}, ()),
    "fully trained": ({**GPUS}, "compute", {2: "^Yes: 10 % more steps would bring", 3: "^No: "}, ()),
    "under-trained": (
        {**GPUS, "valid": lambda s: 9 - 0.6 * math.log(s), "slice": lambda s: 8.98 - 0.6 * math.log(s), "bleu": lambda s: 3 * math.log(s)},
        "compute", {2: r"^No: 10 % more steps would bring \+0.2\d BLEU", 3: "^No: "}, (),
    ),
    "too noisy to tell": ({**GPUS, "noise": 0.15}, "compute", {2: "^Cannot be told for sure", 3: "^No: the validation loss is at its lowest or within noise"}, ()),
    "too few validations": ({**GPUS, "valid_every": 2000}, "compute", {2: "^Not recorded: 2 validations recorded", 3: "^Cannot be told: there are two validations only"}, ()),
    "overfitted": (
        {**GPUS, "valid": rising_after(1500, 2.9), "slice": settling(8.5, 1.6, 900), "bleu": lambda s: 27 - max(0, s - 1500) * 1e-3},
        "compute", {2: "^It is past its best", 3: r"^Yes, since step 1,[567]\d\d: the validation loss has risen by 0.4\d\d nats"}, (),
    ),
    "a gap that grows": (
        {**GPUS, "valid": settling(8.5, 3.0, 450), "slice": lambda s: settling(8.5, 2.9, 450)(s) - s * 1e-4}, "compute", {3: "^Not yet: "}, (),
    ),
    "another kind of validation text": (
        {**GPUS, "valid": settling(9.0, 4.2, 450), "slice": settling(8.5, 2.8, 450)}, "compute", {3: "^No: "}, (),
    ),
    "overfitting without a slice": ({**GPUS, "valid": rising_after(1500, 2.9), "slice": None}, "compute", {3: "^Yes, since step 1,"}, ()),
    "training that fails at the end": (
        {**GPUS, "valid_every": 1000, "loss": failing(3.0, 4e-4), "valid": failing(2.9), "slice": failing(2.8)}, "compute",
        {3: "^No: the validation loss has risen since step 3,000, but so has that of training data: it is training that fails"}, (),
    ),
    "label smoothing doubled on the way": (
        {**GPUS, "noise": 0.0005, "change": relabelled, "overrides": ["train.label_smoothing=0.2"],
         **{name: higher_after(2000, settling(8.5, least, 350)) for name, least in (("loss", 2.3), ("valid", 2.2), ("slice", 2.1))}}, "compute",
        {2: "^Yes: 10 % more steps", 3: "^No: the validation loss is at its lowest"}, (),
    ),
    "diverged": (
        {**GPUS, "loss": diverging, "valid": lambda s: diverging(s) - 0.1, "slice": lambda s: diverging(s) - 0.2, "reason": "diverged"},
        "compute", {2: "^No: training diverged", 3: "^No: training diverged"}, ("Training diverged",),
    ),
    "diverged and nobody said so": (
        {**GPUS, "loss": diverging, "valid": diverging, "slice": diverging}, "compute", {2: "^No: training diverged"}, ("Training diverged",),
    ),
    "another stage of the data": (
        {**GPUS, "loss": lambda s: settling(9.0, 2.0, 300)(s) if s <= 3000 else 2.8, "change": staged}, "compute",
        {2: "^Yes: 10 % more", 3: "^No: the validation loss is at its lowest"}, (),
    ),
    "loss spikes": ({**GPUS, "loss": spiky}, "compute", {2: "^Yes"}, ("2 loss spikes, at step 2,000, 3,000",)),
    "restarted": ({**GPUS, "crash_at": 1850}, "compute", {1: "were lost to 1 restart"}, ("1 restart, ",)),
    "stopped and resumed four times": (
        {**GPUS, "lead": 0.0, "stops": (1000, 2000, 2750, 3500), "start_up": 100.0}, "compute", {1: "4,000 training steps.$", 4: "^Yes: busy 99.0 %"}, (),
    ),
    "killed": ({**GPUS, "reason": ""}, "compute", {1: "still running, or killed"}, ()),
    "stopped before its time": ({**GPUS, "planned": 300_000, "reason": "interrupted"}, "compute", {}, ("did 4,000 of 300,000 planned",)),
    "a decay cut off": (
        {**GPUS, "planned": 9000, "reason": "interrupted", "overrides": COSINE},
        "compute", {6: "rises to 0.001 at step"}, ("did 4,000 of 9,000 planned",),
    ),
    "ended inside the warm-up": ({**GPUS, "overrides": ["schedule.warmup_steps=8000"]}, "compute", {6: "^The rate rises from"}, ("inside its warm-up",)),
    "a schedule that has ended": (
        {**GPUS, "overrides": COSINE}, "compute", {2: "^Yes, as far as its schedule goes: the learning rate has come down to .* of its peak"}, (),
    ),
    "a schedule that ended at a floor": (
        {**GPUS, "overrides": [*COSINE, "schedule.min_learning_rate=0.0001"], "bleu": lambda s: 20 + 7 * (s / 4000) ** 2}, "compute",
        {2: r"^Yes, as far as its schedule goes: the learning rate has come down to 0.0001, 10\.\d % of its peak"}, (),
    ),
    "a schedule that ended after the best": (
        {**GPUS, "overrides": COSINE, "valid": rising_after(1500, 2.9), "slice": settling(8.5, 1.6, 900), "bleu": lambda s: 27 - max(0, s - 1500) * 1e-3}, "compute",
        {2: "^It is past its best: its last validations became worse, and the learning rate has come down to", 3: "^Yes, since step 1,"}, (),
    ),
    "a schedule that ended with better BLEU and worse loss": (
        {**GPUS, "overrides": COSINE, "valid": rising_after(1500, 2.9), "slice": settling(8.5, 1.6, 900), "bleu": lambda s: 3 * math.log(s)}, "compute",
        {2: r"^Yes, as far as its schedule goes: .*the validation changed by \+0\.\d\d BLEU", 3: "^Yes, since step 1,"}, (),
    ),
    "a floor kept for long": (
        {**GPUS, "overrides": [*COSINE, "schedule.decay_steps=500", "schedule.min_learning_rate=0.0001"], "bleu": lambda s: 3 * math.log(s)}, "compute",
        {2: r"^No: 10 % more steps would bring \+0.2\d BLEU"}, (),
    ),
    "an inverse root after hundreds of warm-ups": (
        {**GPUS, "log_every": 5, "overrides": ["schedule.warmup_steps=5"], "bleu": lambda s: 3 * math.log(s)}, "compute",
        {2: r"^No: 10 % more steps would bring \+0.2\d BLEU"}, (),
    ),
    "rates that were changed": ({**GPUS, "change": halve_rates}, "compute", {6: "40 of 80 logged rates do NOT obey"}, ()),
    "resumed with another schedule": (
        {**GPUS, "overrides": ["schedule.coefficient=1.5"], "change": resumed_otherwise}, "compute",
        {6: "all 40 logged rates since step 2,000, where the run was resumed with another schedule, follow from the step alone"}, (),
    ),
    "most steps clipped": ({**GPUS, "clipped": 0.8, "overrides": ["train.clip_norm=0.5"]}, "compute", {}, ("80.0 % of all steps were clipped",)),
    "rows half empty": ({**GPUS, "fill": 0.55}, "compute", {}, ("Rows are only 55.0 % full",)),
    "memory nearly full": ({**GPUS, "memory": 148e9}, "compute", {}, ("GPU memory is nearly full: 148.0 GB of 150.0 GB",)),
    "smaller cards before it was resumed elsewhere": (
        {**TWO, "change": smaller_cards_before}, "compute", {5: "^No traffic.*since step 2,500"}, (),
    ),
    "checkpoints on a slow disk": ({**GPUS, "checkpoint_stall": 30.0}, "compute", {1: "from start to stop"}, ("Checkpoints held training up",)),
    "validation all the time": ({**GPUS, "valid_every": 100, "valid_seconds": 20.0}, "compute", {}, ("Validation took",)),
    "steps without a gradient": ({**GPUS, "skipped": 2000}, "compute", {}, ("3 steps learnt nothing",)),
    "packets lost": ({**TWO, "network": 0.2, "retransmitted": 0.02}, "network", {5: "^Yes"}, ("TCP sent 2.0 % of its segments again",)),
    "tokens that do not add up": ({**GPUS, "change": tokens_twice}, "compute", {}, ("tokens a second do not agree",)),
    "more power than the limit": ({**GPUS, "change": over_power}, "compute", {}, ("over its limit of 700 W",)),
    "loss below its floor": ({**GPUS, "valid": settling(6.0, 1.2, 400)}, "compute", {}, ("the least that label smoothing allows",)),
    "no permission": ({"gpu": Gpu(active=None), "missing": ["power_watts: Insufficient Permissions"]}, "compute", {}, ("host0 does not tell everything",)),
    "no telemetry": ({**GPUS, "change": no_telemetry}, "compute", {4: "^Not recorded: telemetry has no sample"}, ()),
    "sharded, nobody times its exchange": (
        {**TWO, "hidden": 0.0, "link_mbit": 25_000, "overrides": ["parallel.strategy=fsdp", "train.tokens_per_gpu=4096"]}, "untimed", {5: "^Cannot be told: with fsdp the exchange .*547.9 MB a step"}, (),
    ),
    "no spans": ({**TWO, "change": no_spans}, "", {5: "^Cannot be told, exposed communication is not recorded", 11: "^Not recorded: "}, ()),
    "truncated files": ({**GPUS, "change": torn}, "compute", {1: "still running, or killed", 10: "^A step is"}, ()),
}  # fmt: skip


def judged(folder: Path, verdicts: dict[int, str], wanted: tuple[str, ...]) -> list[str]:
    """Answers and findings of a run are as they should be; returns the titles of the findings."""
    said = {answer.number: answer.verdict for answer in diagnose(folder)}
    for number, pattern in verdicts.items():
        assert re.search(pattern, said[number]), f"{number}: {said[number]}"
    titles = [finding.title for finding in findings(load_run(folder))]
    for pattern in wanted:
        assert any(re.search(pattern, title) for title in titles), titles
    return titles


@pytest.mark.parametrize("name", CASES)
def test_every_verdict_is_right(name: str, tmp_path: Path) -> None:
    how, bound, verdicts, wanted = CASES[name]
    folder = Made(tmp_path / "run", **how).write()
    record = load_run(folder)
    titles = judged(folder, verdicts, wanted)
    if bound:
        found = waits(record)
        assert found.bound == bound, found
    expected = [*wanted, *(["bounds the step"] if bound not in ("compute", "untimed", "") else [])]
    evidence = {label: value for answer in diagnose(folder) for label, value in answer.evidence}
    assert evidence.get("Measured against predicted", "as predicted").endswith(
        ("as predicted", "as predicted: it is the gradients")
    )
    surplus = [title for title in titles if not any(re.search(pattern, title) for pattern in expected)]
    assert surplus == [], "nothing is found that was not put in"


STRAGGLERS = {  # name -> times as fast as without the slow ones: 0.3 s of both passes and 0.012 s beside them
    "a straggler by CPU limit": (1.8 * 0.3 + 0.012) / 0.312,
    "a straggler among four GPUs": (1.5 * 0.3 + 0.012) / 0.312,
    "a straggler among two": (1.35 * 0.3 + 0.012) / 0.312,
    "a slow host of two GPUs": (1.4 * 0.3 + 0.012) / 0.312,
}


@pytest.mark.parametrize("name", STRAGGLERS)
def test_the_gain_without_a_straggler_is_told_once(name: str, tmp_path: Path) -> None:
    """The straggler itself waits for nobody: a mean over all ranks would tell too little."""
    record = load_run(Made(tmp_path / "run", **CASES[name][0]).write())
    found, slow = waits(record), straggler(record)
    assert found.without("ranks") == pytest.approx(STRAGGLERS[name], rel=0.03)
    assert slow is not None
    assert slow.cost == pytest.approx(found.causes["ranks"], abs=0.03)
    assert slow.phase == "backward"


RECORDED: dict[str, tuple[str, dict[int, str], tuple[str, ...]]] = {
    # folder in recorded/: (what bounds the step, question -> what its verdict must match, findings that must be there)
    "two-hosts-1-gbit": ("network", {4: "^No GPU", 5: r"^Yes, .*19.9 MB a step.*The path carried 6\d.\d MB/s = 5\d\d Mbit/s"}, ()),
    "two-hosts-100-mbit": ("network", {5: r"^Yes, .*75.9 % of it is that wait.*12.2 MB/s = 97.6 Mbit/s, though the link says 10 Gbit/s"}, ("The network bounds the step",)),
    "straggler": ("ranks", {5: "^No, the network was not"}, (r"Rank 1 \(h1\) is a straggler",)),
    "starved": ("data", {5: "^No traffic"}, ("Waiting for data bounds the step",)),
    "one-cpu": ("compute", {2: "^No: ", 4: "^No GPU", 9: "12 bytes a parameter"}, ()),
    "restarted": ("compute", {1: "24.2 s were lost to 1 restart"}, ("1 restart, 24.2 s lost",)),
    "h200": ("compute", {2: "^Yes, as far as its schedule goes", 3: "^No: ", 4: "^Yes: busy 93.1 % of the time, SM activity 85.1 %, 659 W of 700 W"}, ("stalls of single steps", "ran at its power limit")),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_runs_are_judged_right(name: str) -> None:
    bound, verdicts, wanted = RECORDED[name]
    folder = Path(__file__).parent / "recorded" / name
    record = load_run(folder)
    assert waits(record).bound == bound, waits(record)
    titles = judged(folder, verdicts, wanted)
    assert "straggler" in name or not any("straggler" in title for title in titles), titles


UNITS = re.compile(r"\b\d[\d,.]*\s*(KB|Kb|kb|mb|MBps|Mbps|Gbps|KBps|sec|secs|mins|hrs)\b")


@pytest.mark.parametrize("name", ["network-bound at 1 Gbit/s", "starved by a slow disk", "a straggler by CPU limit"])
def test_no_unit_is_ambiguous(name: str, tmp_path: Path) -> None:
    text = render_markdown(load_run(Made(tmp_path / "run", **CASES[name][0]).write()))
    assert UNITS.findall(text) == []
    assert "Gbit/s" in text or "Mbit/s" in text


ROOT = Path(__file__).parents[2]


def test_the_docs_list_every_case() -> None:
    docs = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    assert [name for name in (*CASES, *RECORDED) if f"| {name} |" not in docs] == []
    all_of_them = len(CASES) + len(RECORDED)
    counted = f"{all_of_them} of {all_of_them} right: {len(CASES)} constructed, {len(RECORDED)} recorded"
    assert counted in (ROOT / "README.md").read_text(encoding="utf-8")


def test_rates_in_the_docs_are_the_same_in_bytes_and_bits() -> None:
    rate = re.compile(r"([\d,.]+) ([kMG])B/s = ([\d,.]+) ([kMG])bit/s")
    scales = {"k": 1e3, "M": 1e6, "G": 1e9}
    found = []
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for number, scale, bits, bit_scale in rate.findall(file.read_text(encoding="utf-8")):
            in_bytes, in_bits = (float(text.replace(",", "")) for text in (number, bits))
            found.append(
                (file.name, in_bytes * scales[scale] * 8, in_bits * scales[bit_scale], 0.05 * scales[scale] * 8)
            )
    assert len(found) > 3
    assert [each for each in found if abs(each[1] - each[2]) > each[3] + 0.005 * each[2]] == [], (
        "rounding explains less"
    )


@pytest.mark.parametrize(("example", "name"), [("h200", "h200"), ("two-hosts", "two-hosts-100-mbit")])
def test_the_examples_say_what_the_report_says_today(example: str, name: str) -> None:
    shown = json.loads((ROOT / "docs" / "examples" / example / "report.json").read_text(encoding="utf-8"))
    today = diagnose(Path(__file__).parent / "recorded" / name)
    assert [each["verdict"] for each in shown["answers"]] == [answer.verdict for answer in today]


def curve(count: int, noise: float, seed: int, valid_rise: float, slice_rise: float) -> RunRecord:
    """Validations that settle, and rise by so much over the second half of the run, with noise of a normal distribution."""
    dice, record = random.Random(seed), RunRecord(RunFolder("nowhere"))
    for at in range(count):
        fallen, later = 3 * math.exp(-10 * at / count), max(0.0, 2 * at / count - 1)
        loss, known = (2.9 + fallen + later * rise + dice.gauss(0, noise) for rise in (valid_rise, slice_rise))
        record.valid_rows.append({"step": 1000 * (at + 1), "loss": loss, "train_slice_loss": known - 0.1})
    return record


@pytest.mark.parametrize("count", [8, 16, 75])
@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_noise_of_flat_validations_is_not_taken_for_overfitting(count: int, noise: float) -> None:
    verdicts = [overfitting(curve(count, noise, seed, 0.0, 0.0)).verdict for seed in range(300)]
    assert sum("risen" in verdict for verdict in verdicts) <= 0.03 * len(verdicts)


@pytest.mark.parametrize("count", [16, 75])
@pytest.mark.parametrize(
    ("slice_rise", "wanted"), [(-0.1, "^Yes, since step"), (0.0, "^Yes"), (0.3, "it is training that fails")]
)
def test_a_rise_is_found_through_the_noise(count: int, slice_rise: float, wanted: str) -> None:
    verdicts = [overfitting(curve(count, 0.02, seed, 0.3, slice_rise)).verdict for seed in range(100)]
    assert [verdict for verdict in verdicts if not re.search(wanted, verdict)] == []


def test_losses_of_single_batches_are_not_taken_for_a_divergence(tmp_path):
    """As other tools log them: the lowest of thousands is far below the usual one by chance."""

    def single(run: Made) -> None:
        dice = random.Random(5)
        for row in run.rows:
            if row["kind"] == "train":
                row["loss"] *= dice.lognormvariate(0.0, 0.3)
        run.rows[-1]["loss"] = run.rows[-2]["loss"] = 3.2

    folder = Made(tmp_path / "run", log_every=5, change=single, **GPUS).write()
    losses = [row["loss"] for row in load_run(folder).train_rows]
    assert min(losses[-3:]) > 1.3 * min(losses), "what was taken for a sign"
    assert not has_diverged(load_run(folder))


@pytest.mark.parametrize(
    ("overrides", "wanted"), [([], "was cut off"), (["schedule.decay_steps=500"], "was over at step 1,500")]
)
def test_a_decay_that_was_over_was_not_cut_off(tmp_path: Path, overrides: list[str], wanted: str) -> None:
    folder = Made(tmp_path / "run", planned=9000, reason="interrupted", overrides=[*COSINE, *overrides], **GPUS).write()
    (found,) = [each for each in findings(load_run(folder)) if "planned steps" in each.title]
    assert wanted in found.cause


def test_right_after_a_resume_with_another_schedule_no_rate_is_logged_yet(tmp_path: Path) -> None:
    def resumed(run: Made) -> None:
        changed = {"lost_steps": 0, "changed": ["schedule.coefficient 1.0 -> 1.5"]}
        run.events.append(run.events[-1] | {"event": "resume", **changed})

    folder = Made(tmp_path / "run", change=resumed, **GPUS).write()
    judged(folder, {6: "no train row with a learning rate since step 4,000, where the run was resumed"}, ())


def test_lines_are_counted_once_however_they_are_cut(tmp_path):
    def cut(run: Made) -> None:
        train = run.data_facts["train"]
        train |= {"text_pairs": train["pairs"], "pairs": 3 * train["pairs"], "variants": 3}

    plain, cut_thrice = (Made(tmp_path / name, change=how, **GPUS).write() for name, how in (("a", None), ("b", cut)))
    verdicts = [next(answer.verdict for answer in diagnose(each) if answer.number == 7) for each in (plain, cut_thrice)]
    assert verdicts[0] == verdicts[1]
