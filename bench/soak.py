"""A chaos soak: one run over four hosts (network namespaces) while faults of all kinds happen to it, drawn by a seed.

    python bench/soak.py --minutes 30          # as root; about half as long again until the last line

The number of steps is what an undisturbed run does in so many minutes. The run must end by itself with the weights of an
undisturbed one, to the bit. Goodput = steps x undisturbed step time / wall time from the first step to the last; the step time is the
mean of the same run where nothing happened, checkpoints included, as a machine is not equally fast before and after. A fault
lasts until it is over and, where it led to a restart, until the first step after it. Beside goodput stands that of the time in which
all hosts were there and all links up: steps that wait for every rank cannot go on without one, whatever a restart takes.
A step computes for `--compute` seconds by sleeping, as a host does that waits for its GPU, so that four ranks on a few cores do
not fight for them; all else is real.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from faults import Watched, percentiles
from lab import Lab, missing
from safetensors.torch import load_file

from dragoman import runs
from dragoman.cli.stages import prepare

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import as_overrides, tiny_config

HOSTS = "abcd"
LAUNCHER = "e"  # nothing happens to it
AFTERMATH_SECONDS = 1.0  # after which all is as before
SLEEP = """
import time
from dragoman.training import optim
usual = optim.set_rate
def compute(*arguments):
    time.sleep({seconds})
    return usual(*arguments)
optim.set_rate = compute
"""


@dataclass
class Fault:
    name: str
    since: float
    until: float = 0.0


class Chaos:
    """One fault after the other, while the run goes on."""

    def __init__(self, lab: Lab, watched: Watched, dice: random.Random, only: list[str]):
        self.lab, self.watched, self.dice = lab, watched, dice
        self.happened: list[Fault] = []
        self.outage_seconds = 0.0  # in which a host was away or a link down
        self.faults: dict[str, Callable[[], None]] = {
            "kill a rank": self.kill_rank,
            "lose a host": self.lose_host,
            "stop a rank": self.stop_rank,
            "cut a link": self.cut_link,
            "lose packets": self.lose_packets,
            "damage a checkpoint": self.damage_checkpoint,
        }
        self.faults = {name: self.faults[name] for name in only or self.faults}

    def happen(self) -> str:
        name = self.dice.choice(list(self.faults))
        self.happened.append(Fault(name, time.time()))
        self.faults[name]()
        self.happened[-1].until = time.time()
        return name

    def follow(self, first_steps: list[float], ended: float) -> None:
        """Faults last until the first step after the restart that they led to, if there was one before the next fault."""
        for fault, later in zip(self.happened, [*(fault.since for fault in self.happened[1:]), ended], strict=True):
            again = [moment for moment in first_steps if fault.since < moment < later]
            fault.until = max([fault.until, *again]) + AFTERMATH_SECONDS

    def fault_at(self, since: float, until: float) -> str:
        """The last one in this time; empty where there was none."""
        names = [fault.name for fault in self.happened if fault.since < until and since < fault.until]
        return names[-1] if names else ""

    def rank(self):
        ranks = self.watched.ranks()
        return ranks[self.dice.choice(sorted(ranks))] if ranks else None

    def kill_rank(self) -> None:
        if rank := self.rank():
            rank.kill()

    def stop_rank(self) -> None:
        if rank := self.rank():
            rank.suspend()

    def lose_host(self) -> None:
        host = self.dice.choice(HOSTS)
        self.lab.kill(host)
        self.outage(0.0, 3.0)
        self.lab.mend(host)

    def cut_link(self) -> None:
        host = self.dice.choice(HOSTS)
        self.lab.cut(host)
        self.outage(0.5, 8.0)
        self.lab.mend(host)

    def outage(self, shortest: float, longest: float) -> None:
        seconds = self.dice.uniform(shortest, longest)
        time.sleep(seconds)
        self.outage_seconds += seconds

    def lose_packets(self) -> None:
        host = self.dice.choice(HOSTS)
        self.lab.lose(2, host)
        time.sleep(5.0)
        self.lab.lose(0, host)

    def damage_checkpoint(self) -> None:
        """A bit of the newest one flips, and a rank dies, so that it would be used."""
        if saved := runs.checkpoint_folders(self.watched.run):
            path = self.dice.choice(sorted(saved[-1].iterdir()))
            content = bytearray(path.read_bytes())
            content[self.dice.randrange(len(content))] ^= 1
            path.write_bytes(content)
        self.kill_rank()


def overrides(options: argparse.Namespace, data: Path, run: Path, steps: int) -> list[str]:
    every = [f"checkpoint.every={options.checkpoint_every}", "checkpoint.keep_last=3", "train.log_every=10"]
    limits = [f"train.timeout_seconds={options.timeout}", "validation.every=1000000", f"train.max_steps={steps}"]
    return as_overrides(tiny_config(data, run, *every, *limits))


def launch(lab: Lab, options: argparse.Namespace, folder: Path, name: str, steps: int, restarts: int) -> Watched:
    words = ["launch", "tiny", *overrides(options, folder / "data", folder / name, steps)]
    words += ["--hosts", ",".join(f"{host}:1" for host in HOSTS), "--rsh", str(lab.rsh), "--restarts", str(restarts)]
    slow = {"PYTHONPATH": f"{folder / 'slow'}:{Path(__file__).parents[1] / 'src'}"}
    return Watched(lab.dragoman(*words, host=LAUNCHER), folder / name, **slow)


Spans = dict[str, list[tuple[float, int]]]  # by fault, or "" for none: seconds and steps between two rows of metrics


def spans(watched: Watched, chaos: Chaos | None = None) -> Spans:
    rows = [row for row in runs.read_rows(watched.run.metrics) if row["kind"] == "train"]
    found: Spans = defaultdict(list)
    for row, later in pairwise(rows):
        name = chaos.fault_at(row["time"], later["time"]) if chaos else ""
        found[name].append((later["time"] - row["time"], later["step"] - row["step"]))
    return found


def step_seconds(found: Spans) -> float:
    """Mean wall time of a step where nothing happens, checkpoints included: as many of these make an undisturbed run."""
    return sum(seconds for seconds, _ in found[""]) / sum(steps for _, steps in found[""])


def costs(found: Spans, happened: list[Fault], step: float) -> dict[str, dict[str, float]]:
    """By kind: how many, and the seconds that each took away."""
    counts = Counter(fault.name for fault in happened)
    lost = {name: sum(seconds - steps * step for seconds, steps in each) for name, each in found.items()}
    return {
        name: {"faults": count, "seconds_each": round(lost.get(name, 0.0) / count, 2)} for name, count in counts.items()
    }


def undisturbed_step(lab: Lab, options: argparse.Namespace, folder: Path) -> float:
    with launch(lab, options, folder, "calibration", 200, 0) as watched:
        assert watched.finish(900) == 0, watched.said
    return step_seconds(spans(watched))


def disturbed(lab: Lab, options: argparse.Namespace, folder: Path, steps: int) -> tuple[Watched, Chaos, float]:
    dice = random.Random(options.seed)
    with launch(lab, options, folder, "run", steps, 100_000) as watched:
        watched.wait_for(lambda: watched.events("first_step"), "first step")
        began, chaos = time.time(), Chaos(lab, watched, dice, options.only)
        ended = threading.Event()
        threading.Thread(target=lambda: (watched.process.wait(), ended.set()), daemon=True).start()
        while not ended.wait(dice.expovariate(1.0 / options.every)):
            name = chaos.happen()
            share = watched.step() / steps
            print(
                f"{time.time() - began:6.0f} s, step {watched.step()}, {share:.0%}: {name}", file=sys.stderr, flush=True
            )
        assert watched.finish() == 0, watched.said[-4000:]
    return watched, chaos, began


def same_end(options: argparse.Namespace, folder: Path, steps: int, run: runs.RunFolder) -> bool:
    """As a run of as many ranks on one host that sleeps at no step."""
    words = [
        "train",
        "tiny",
        *overrides(options, folder / "data", folder / "straight", steps),
        "--nproc",
        str(len(HOSTS)),
    ]
    with Watched([sys.executable, "-m", "dragoman", *words], folder / "straight") as watched:
        assert watched.finish(7200) == 0, watched.said
    ends = [load_file(each.checkpoint(steps) / "model.safetensors") for each in (run, watched.run)]
    return all(ends[0][name].equal(ends[1][name]) for name in ends[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of an undisturbed run of as many steps")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two faults, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help='kinds of faults, as "kill a rank"; all unless some are named'
    )
    parser.add_argument("--compute", type=float, default=0.1, help="seconds of a step that a rank sleeps")
    parser.add_argument("--checkpoint-every", type=int, default=2, help="steps")
    parser.add_argument("--timeout", type=int, default=5, help="train.timeout_seconds")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(f"hosts out of network namespaces: {reason}")
    with tempfile.TemporaryDirectory(prefix="soak-") as place, Lab(len(HOSTS) + 1, Path(place)) as lab:
        folder = Path(place)
        prepare(tiny_config(folder / "data", folder / "unused"))
        (folder / "slow").mkdir()
        (folder / "slow" / "sitecustomize.py").write_text(SLEEP.format(seconds=options.compute), encoding="utf-8")
        step = undisturbed_step(lab, options, folder)
        steps = round(options.minutes * 60 / step)
        print(f"undisturbed: {step:.3f} s a step; {steps} steps", file=sys.stderr, flush=True)
        watched, chaos, began = disturbed(lab, options, folder, steps)
        ended = watched.events("stop")[-1]["time"]
        chaos.follow([row["time"] for row in watched.events("first_step")], ended)
        found = spans(watched, chaos)
        wall, step = ended - began, step_seconds(found)
        useful = (steps - 1) * step  # without the first one
        resumed = watched.events("resume")
        lost = [row["lost_steps"] for row in resumed]
        sound = all(runs.damage(path) is None for path in runs.checkpoint_folders(watched.run))
        result = {
            "hosts": len(HOSTS), "minutes": options.minutes, "seed": options.seed, "steps": steps,
            "undisturbed_step_seconds": round(step, 4), "wall_seconds": round(wall, 1), "goodput": round(useful / wall, 4),
            "outage_seconds": round(chaos.outage_seconds, 1), "goodput_of_the_rest": round(useful / (wall - chaos.outage_seconds), 4),
            "faults": costs(found, chaos.happened, step), "seconds_between_faults": round(wall / max(1, len(chaos.happened)), 1),
            "restarts": watched.said.count("starting again"), "lost_steps": percentiles(list(map(float, lost)), ""),
            "start_seconds": round(statistics.median(row["seconds"] for row in watched.events("first_step")), 2),
            "checkpoints_sound": sound, "left_behind": lab.left_behind(),
            "same_weights_as_undisturbed": same_end(options, folder, steps, watched.run),
        }  # fmt: skip
    print(json.dumps(result))
    if not (result["same_weights_as_undisturbed"] and result["checkpoints_sound"]) or result["left_behind"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
