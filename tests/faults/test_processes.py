"""Processes that die, hang, are asked to stop or are lied to by their clock."""

import random
import signal
import socket
import sys
import time
from collections import Counter

import psutil
import pytest
from fault_runs import STEPS, equal, final_weights
from faults import Watched
from support import as_overrides, tiny_config

from dragoman import runs
from dragoman.cli.stages import train

SAME_END = "all ranks start again from the newest checkpoint; same end to the bit"
LONG = ["train.max_steps=5000", "checkpoint.every=20", "train.log_every=10", "train.timeout_seconds=20"]
KILLS = 50


@pytest.mark.parametrize(
    ("what", "row"),
    [
        ("kill:rank=1,step=25", "kill -9 of one rank"),
        pytest.param("kill:rank=0,step=25", "kill -9 of rank 0", marks=pytest.mark.faults),
        pytest.param("stop:rank=1,step=25", "SIGSTOP of one rank", marks=pytest.mark.faults),
        pytest.param("hang:rank=0,step=25", "rank 0 hangs", marks=pytest.mark.faults),
        ("drift:rank=1,step=25", "replica divergence"),
    ],
)
def test_one_fault_and_the_same_end(train_watched, undisturbed, note, what, row):
    kind = what.split(":")[0]
    ranks = 3 if kind == "drift" else 2  # of two nobody can tell which is wrong
    with train_watched(*STEPS, ranks=ranks, options=("--restarts", "2", "--simulate-fault", what)) as watched:
        watched.wait_for_step(24)
        since = time.time()
        assert watched.finish() == 0, watched.said
    since = watched.at_the_latest(since)
    assert equal(final_weights(watched.run.path), undisturbed(*STEPS, ranks=ranks))
    lost = watched.lost_steps(since)
    assert watched.went_on_from_newest(since), "nothing is lost beyond the last checkpoint"
    drift = [(event["ranks"], event["known"]) for event in watched.events("drift")]
    assert drift == ([([1], True)] if kind == "drift" else [])
    (fault,), (resumed,) = watched.events("fault"), watched.events("resume")
    assert fault["host"] == socket.gethostname()
    assert resumed["after"].startswith(f"{fault['kind']}: rank {fault['rank']} on host {fault['host']}")
    if kind == "kill":
        assert (fault["kind"], fault["rank"]) == ("killed", int(what[len("kill:rank=")]))
    if kind == "stop":
        assert (fault["kind"], fault["rank"]) == ("stopped", 1)
    if kind == "hang":
        assert all(watched.run.stacks(rank).stat().st_size for rank in range(2)), "where every rank stood"
        assert {0} <= {event["rank"] for event in watched.events("hang")}
    expected = f"the rank is named; {SAME_END}" if drift else SAME_END
    note(row, expected, "same end to the bit", watched.detected(since), watched.trained_again(since), lost)


@pytest.mark.faults
def test_kills_at_random_times(train_watched, undisturbed, note):
    """Of four kills one while a checkpoint is being written, one before the ranks that come after it have begun."""
    dice = random.Random(6)
    detect, again, lost, when = [], [], [], Counter()
    with train_watched(*LONG, options=("--restarts", str(KILLS + 1))) as watched:
        watched.wait_for(lambda: watched.events("first_step"), "first step")
        while when.total() < KILLS:
            since = time.time()
            if when.total() % 4 == 1:
                watched.wait_for(lambda: list(watched.run.checkpoints.glob("*.partial")), "half-written checkpoint")
                when["while a checkpoint was written"] += kill(watched, 0)
            else:
                time.sleep(dice.uniform(0.0, 1.0))
                when["at any time"] += kill(watched, dice.randrange(2))
            if when.total() % 4 == 3:
                watched.wait_for(lambda: watched.said.count("starting again") == when.total(), "next start")
                watched.wait_for(lambda: len(watched.ranks()) == 2, "two ranks")
                time.sleep(dice.uniform(0.0, 0.4))
                when["during set-up"] += kill(watched, dice.randrange(2))
            watched.wait_for(lambda: len(watched.events("fault")) == when.total(), f"word of kill {when.total()}")
            noticed = watched.events("fault")[-1][
                "time"
            ]  # a first step before it may be one of ranks that died right then
            watched.wait_for(lambda t=noticed: watched.events("first_step", since=t), f"life after kill {when.total()}")
            detect.append(noticed - watched.killed_at)
            again.append(detect[-1] + watched.trained_again(noticed))
            lost.append(watched.lost_steps(since))
            print(f"kill {when.total()}: again after {again[-1]:.1f} s, {lost[-1]} steps lost", flush=True)
        assert watched.finish(600) == 0, watched.said
    assert max(lost) <= 20 + 20, "nothing is lost beyond the last checkpoint, and the one that was being written"
    assert not list(watched.run.checkpoints.glob("*.damaged")), "no half-written checkpoint had the name of a whole one"
    assert equal(final_weights(watched.run.path), undisturbed(*LONG))
    kinds = ", ".join(f"{count} {kind}" for kind, count in when.items())
    observed = f"{KILLS} kills ({kinds}): same end to the bit"
    note("kill -9 of any rank at random times", SAME_END, observed, detect, again, lost)


def kill(watched, rank):
    watched.killed_at = time.time()
    watched.ranks()[rank].kill()
    return 1


WRITTEN_BY_SEVERAL = {
    "fsdp": ["parallel.strategy=fsdp", "train.tokens_per_gpu=512"],
    "streaming, int8": [
        "parallel.strategy=streaming",
        "parallel.wire=int8",
        "parallel.ranks_per_island=1",
        "parallel.inner_steps=4",
        "parallel.fragments=2",
    ],
}


@pytest.mark.faults
@pytest.mark.parametrize("name", WRITTEN_BY_SEVERAL)
def test_kills_while_several_ranks_write_a_checkpoint(train_watched, undisturbed, note, name):
    """Pieces of moments, or weights between two agreements: the main rank puts together what the others have written."""
    keys = [*STEPS, "train.max_steps=300", *WRITTEN_BY_SEVERAL[name]]
    detect, again, lost = [], [], []
    with train_watched(*keys, options=("--restarts", "5")) as watched:
        for number, rank in enumerate((1, 0, 1, 0), 1):
            watched.wait_for(lambda: list(watched.run.checkpoints.glob("*.partial")), "half-written checkpoint")
            since = time.time()
            kill(watched, rank)
            watched.wait_for(lambda count=number: len(watched.events("fault")) == count, f"word of kill {number}")
            noticed = watched.events("fault")[-1]["time"]
            watched.wait_for(lambda t=noticed: watched.events("first_step", since=t), f"life after kill {number}")
            detect.append(noticed - watched.killed_at)
            again.append(detect[-1] + watched.trained_again(noticed))
            lost.append(watched.lost_steps(since))
        assert watched.finish(600) == 0, watched.said
    assert not list(watched.run.checkpoints.glob("*.damaged")), "no half-written checkpoint had the name of a whole one"
    assert equal(final_weights(watched.run.path), undisturbed(*keys))
    row = f"kill -9 while ranks write a checkpoint together ({name})"
    note(row, SAME_END, "4 kills: same end to the bit", detect, again, lost)


def listening(process):
    return [port for port in process.net_connections() if port.status == psutil.CONN_LISTEN]


def test_torchrun_starts_again(prepared, tmp_path, undisturbed, note):
    """Its elastic agent does what our launcher does elsewhere, with the same command."""
    config = tiny_config(prepared.folder, tmp_path / "run", *STEPS)
    agent = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=2",
        "--monitor-interval=0.1",
    ]
    words = ["train", "tiny", *as_overrides(config), "--resume", "--simulate-fault", "kill:rank=1,step=25"]
    command = [sys.executable, *agent, "-m", "dragoman", *words]
    with Watched(command, tmp_path / "run", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1") as watched:
        watched.wait_for_step(24)
        since = time.time()
        assert watched.finish() == 0, watched.said
    assert equal(final_weights(tmp_path / "run"), undisturbed(*STEPS))
    lost = watched.lost_steps(since)
    assert watched.went_on_from_newest(since), "nothing is lost beyond the last checkpoint"
    assert [fault["kind"] for fault in watched.events("fault")] == ["silent"], "torchrun tells us nothing"
    note(
        "kill -9 of one rank under torchrun",
        f"torchrun's agent: {SAME_END}",
        "same end to the bit",
        (),
        watched.trained_again(since),
        lost,
    )


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.faults)])
def test_sigterm(train_watched, undisturbed, note, ranks):
    steps = [*STEPS, "train.max_steps=300"]  # it is not over before the signal comes
    with train_watched(*steps, ranks=ranks) as watched:
        watched.wait_for_step(15)
        assert {port.laddr.ip for rank in watched.ranks().values() for port in listening(rank)} <= {"127.0.0.1"}
        since = time.time()
        watched.process.send_signal(signal.SIGTERM)
        assert watched.finish() == 128 + signal.SIGTERM
        stopped = time.time() - since
    (stop,) = watched.events("stop")
    assert stop["reason"] == "terminated"
    with train_watched(*steps, ranks=ranks, options=("--resume",)) as resumed:
        assert resumed.finish() == 0, resumed.said
    assert resumed.lost_steps(since) == 0
    assert equal(final_weights(watched.run.path), undisturbed(*steps, ranks=ranks))
    note(
        f"SIGTERM, {ranks} process{'es' if ranks > 1 else ''}",
        "a checkpoint at the next step that all agree on, exit code 143; --resume goes on to the same end",
        f"stopped with a checkpoint after {stopped:.1f} s; same end to the bit",
        lost=0,
    )


@pytest.mark.faults
def test_sigterm_under_torchrun(prepared, tmp_path, train_watched, undisturbed, note):
    """It hands the signal on and waits for its ranks; its own exit code is 1 whatever theirs are."""
    steps = [*STEPS, "train.max_steps=300"]
    config = tiny_config(prepared.folder, tmp_path / "run", *steps)
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = ["-m", "dragoman", "train", "tiny", *as_overrides(config), "--resume"]
    with Watched([sys.executable, *agent, *words], tmp_path / "run") as watched:
        watched.wait_for_step(15)
        since = time.time()
        watched.process.send_signal(signal.SIGTERM)
        assert watched.finish() == 1
        stopped = time.time() - since
    assert [row["reason"] for row in watched.events("stop")] == ["terminated"]
    with train_watched(*steps, options=("--resume",)) as resumed:
        assert resumed.finish() == 0, resumed.said
    assert resumed.lost_steps(since) == 0
    assert equal(final_weights(watched.run.path), undisturbed(*steps))
    note(
        "SIGTERM under torchrun, 2 processes",
        "a checkpoint at the next step that all agree on, torchrun's exit code 1; --resume goes on to the same end",
        f"stopped with a checkpoint after {stopped:.1f} s; same end to the bit",
        lost=0,
    )


@pytest.mark.faults
def test_out_of_memory_kill(train_watched, undisturbed, note):
    """The kernel kills with the same signal, and chooses the largest: a rank."""
    with train_watched(*STEPS, options=("--restarts", "2")) as watched:
        watched.wait_for_step(15)
        since = time.time()
        largest = max(watched.ranks().values(), key=lambda process: process.memory_info().rss)
        largest.kill()
        assert watched.finish() == 0, watched.said
    assert "was killed (by somebody, or by the kernel when memory ran out" in watched.said
    assert equal(final_weights(watched.run.path), undisturbed(*STEPS))
    note(
        "out-of-memory kill",
        f"said to be one, perhaps; {SAME_END}",
        "same end to the bit",
        watched.detected(since),
        watched.trained_again(since),
        watched.lost_steps(since),
    )


@pytest.mark.parametrize("jump", [-3600.0, 86400.0])
def test_clock_jump(prepared, tmp_path, monkeypatch, note, jump):
    """The wall clock jumps in the middle, under a short time limit."""
    real, moved = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + moved[0])

    def progress(stage, done, total, detail=""):
        moved[0] = jump if done >= 10 else 0.0

    steps = ["train.max_steps=20", "checkpoint.every=5", "train.log_every=1"]
    train(tiny_config(prepared.folder, tmp_path / "run", *steps, "train.timeout_seconds=20"), progress=progress)
    monkeypatch.undo()
    train(tiny_config(prepared.folder, tmp_path / "straight", *steps))
    assert equal(final_weights(tmp_path / "run"), final_weights(tmp_path / "straight"))
    assert [row["event"] for row in runs.read_rows(tmp_path / "run" / "events.jsonl")][-1] == "stop"
    note(
        "clock jump",
        "nothing: limits and spans are measured by a clock that only goes forward",
        "an hour back and a day ahead: no alarm, same end to the bit; times of events jump with the clock",
        lost=0,
    )


@pytest.mark.faults
def test_changed_world_size(train_watched, undisturbed, note):
    """Two ranks, then one, then two again: the same sentences in the same order, added up in another order."""
    half = [*STEPS, "model.dropout=0.0"]
    for ranks, steps in ((2, 20), (1, 40), (2, 60)):
        with train_watched(*half, f"train.max_steps={steps}", ranks=ranks, options=("--resume",)) as watched:
            assert watched.finish() == 0, watched.said
    weights, straight = final_weights(watched.run.path), undisturbed(*half)
    largest = max((weights[name] - straight[name]).abs().max().item() for name in straight)
    assert largest < 1e-4
    rows = [row for row in runs.read_rows(watched.run.metrics) if row["kind"] == "train"]
    assert [row["step"] for row in rows] == list(range(1, 61))
    note(
        "changed world size (2, 1, 2 ranks)",
        "the same sentences in the same order; sums of floats differ in their last bits",
        f"no weight differs by more than {largest:.0e} after 60 steps",
        lost=0,
    )
