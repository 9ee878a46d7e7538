"""Arithmetic of a run, against runs whose every second is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import Gpu, Made

from dragoman.report import findings, load_run, machine
from dragoman.report.measures import RateCheck, StepTimes, TimeSplit, last_step, quantile, step_spans
from dragoman.runs import read_rows, write_rows

Write = Callable[..., Path]


def rewrite(folder: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    (folder / name).write_text("".join(json.dumps(change(row)) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("switches", "start_up"),
    [
        ({}, 5.0),
        ({"killed": True}, 5.0),
        ({"validation": False}, 5.0),
        ({"crash_at": 455}, 10.0),  # started twice
        ({"crash_at": 35}, 5.0),  # before any checkpoint: the first start-up is lost with everything else
    ],
)
def test_the_parts_of_the_time_add_up_to_the_wall_clock(
    story: Write, switches: dict[str, Any], start_up: float
) -> None:
    split = TimeSplit(load_run(story(**switches)))
    assert sum(seconds for _, seconds in split.parts) == pytest.approx(split.wall)
    assert split.other == pytest.approx(start_up, abs=0.01)


def test_each_part_is_what_the_clock_said(story: Write) -> None:
    split = TimeSplit(load_run(story()))
    assert split.validation == pytest.approx(3 * 4.1)
    assert split.checkpoint == pytest.approx(3 * 0.5)
    assert split.training == pytest.approx(600 * 0.28 + 10 * 0.25, abs=0.3)
    assert (split.stop_reason, split.setbacks, split.lost) == ("max_steps", [], 0)


def test_a_resume_loses_the_steps_since_the_checkpoint_and_the_time_down(story: Write) -> None:
    split = TimeSplit(load_run(story(crash_at=455)))
    assert [each.steps for each in split.setbacks] == [55]
    assert split.lost == pytest.approx(60.0 + 55 * 0.28, abs=0.6)
    assert split.validation == pytest.approx(3 * 4.1)


def test_work_done_twice_is_lost_once(story: Write) -> None:
    """Validations of lost steps stay in events.jsonl; their time belongs to what was lost."""
    folder = story(crash_at=455)
    with (folder / "events.jsonl").open("r+") as stream:
        rows = [json.loads(line) for line in stream.read().splitlines()]
        resume = next(at for at, row in enumerate(rows) if row["event"] == "resume")
        rows.insert(resume, {"time": rows[resume]["time"] - 61, "event": "validation", "step": 450, "seconds": 4.1})
        stream.seek(0)
        stream.write("".join(json.dumps(row) + "\n" for row in rows))
    split = TimeSplit(load_run(folder))
    assert split.validation == pytest.approx(3 * 4.1)
    assert sum(seconds for _, seconds in split.parts) == pytest.approx(split.wall)


def test_a_restart_is_told_with_what_it_came_after(story: Write) -> None:
    folder, after = story(crash_at=455), "killed: rank 1 on host beta: rank 1 was killed"
    rewrite(folder, "events.jsonl", lambda row: {**row, "after": after} if row["event"] == "resume" else row)
    (found,) = findings.restarts(load_run(folder))
    assert found.cause == f"55 steps were done again; ended by {after}"


def test_a_stop_in_good_order_is_no_reason_of_a_restart(story: Write) -> None:
    """Resumed after a stop, then killed: one restart, and one reason."""
    folder, after = story(crash_at=455), "killed: rank 1 on host beta: rank 1 was killed"
    rewrite(folder, "events.jsonl", lambda row: {**row, "after": after} if row["event"] == "resume" else row)
    events = read_rows(folder / "events.jsonl")
    at = next(place for place, row in enumerate(events) if row["event"] == "resume")
    stop = {"time": events[at - 1]["time"], "event": "stop", "step": events[at - 1]["step"], "reason": "interrupted"}
    events[at:at] = [stop, {**stop, "event": "resume", "lost_steps": 0, "after": "stop: interrupted"}]
    write_rows(folder / "events.jsonl", events)
    (found,) = findings.restarts(load_run(folder))
    assert found.title.startswith("1 restart, ")
    assert found.cause == f"55 steps were done again; ended by {after}"


def test_bytes_are_carried_on_where_a_counter_began_again() -> None:
    rows = [{"nics": {"eth0": {"sent_bytes": sent}}} for sent in (7000, 7500, 100, 400)]
    assert machine.carried_bytes(rows, "eth0") == 500 + 300
    assert machine.carried_bytes(rows[:1], "eth0") == machine.carried_bytes([], "eth0") == 0


def insert_before(folder: Path, event: str, *rows: dict[str, Any]) -> None:
    """Events told shortly before the first one of a kind; `ago`: how many seconds."""
    events = read_rows(folder / "events.jsonl")
    at = next(place for place, row in enumerate(events) if row["event"] == event)
    events[at:at] = [{**row, "time": events[at]["time"] - row["ago"]} for row in rows]
    write_rows(folder / "events.jsonl", events)


@pytest.mark.parametrize(
    "told",
    [
        {"ago": 0.01, "event": "fault", "step": 400, "kind": "silent"},  # by the start that follows, at its step
        {"ago": 5.0, "event": "hang", "step": 400, "section": "checkpoint", "seconds": 50.0},
    ],
)
def test_what_is_told_of_a_kill_afterwards_is_no_work_that_was_kept(story: Write, told: dict[str, Any]) -> None:
    folder = story(crash_at=455)
    plain = TimeSplit(load_run(folder)).lost
    insert_before(folder, "resume", told)
    assert TimeSplit(load_run(folder)).lost == plain == pytest.approx(60.0 + 55 * 0.28, abs=0.6)


def test_a_checkpoint_written_long_after_its_step_keeps_no_later_work(story: Write) -> None:
    folder = story(crash_at=455)
    plain = TimeSplit(load_run(folder))
    late = lambda row: {**row, "stalled_at": row["time"] - 0.5, "time": row["time"] + 9.0, "write_seconds": 9.0}  # noqa: E731
    rewrite(folder, "events.jsonl", lambda row: late(row) if row["event"] == "checkpoint" else row)
    split = TimeSplit(load_run(folder))
    assert (split.lost, split.checkpoint) == pytest.approx((plain.lost, plain.checkpoint))


def test_a_return_to_a_checkpoint_is_lost_work_too(story: Write) -> None:
    folder = story(crash_at=455)
    rolled = {"event": "roll_back", "from_step": 455, "checkpoint": "step-00000400", "reason": "the loss is far above"}
    rewrite(folder, "events.jsonl", lambda row: {**row, **rolled} if row["event"] == "resume" else row)
    record = load_run(folder)
    split = TimeSplit(record)
    assert split.lost == pytest.approx(60.0 + 55 * 0.28, abs=0.6)
    assert sum(seconds for _, seconds in split.parts) == pytest.approx(split.wall)
    (found,) = findings.returns(record)
    assert found.title.startswith("1 return to a checkpoint, 1 min 1")
    assert found.cause == "55 steps were done again: the loss is far above"
    assert list(findings.restarts(record)) == []


def test_a_fault_told_after_a_stop_does_not_undo_it(story: Write) -> None:
    """Training that diverged ends with an error: first its own stop, then the fault of the rank."""
    folder = story()
    events = read_rows(folder / "events.jsonl")
    stop = events[-1] | {"reason": "diverged"}
    fault = {"time": stop["time"] + 3.0, "event": "fault", "step": 600, "kind": "error", "host": "alpha", "rank": 0}
    write_rows(folder / "events.jsonl", [*events[:-1], stop, fault])
    split = TimeSplit(load_run(folder))
    assert (split.stop_reason, split.ended) == ("diverged", stop["time"])


def test_machines_that_got_it_wrong_are_findings(story: Write) -> None:
    folder = story()
    drift = {"ago": 2.0, "event": "drift", "step": 590, "ranks": [1], "hosts": ["beta"], "known": True}
    damaged = {"ago": 1.0, "event": "damaged", "step": 400, "checkpoint": "step-00000600", "lost_steps": 200}
    insert_before(folder, "stop", drift, damaged | {"problem": "model.safetensors: SHA-256 differs"})
    first, second = findings.faulty(load_run(folder))
    assert (first.severity, first.title) == ("serious", "Ranks held different weights at step 590")
    assert first.cause == "rank 1 (beta): a fault of memory, device or network"
    assert second.title == "Checkpoint step-00000600 was damaged and passed over"
    assert second.cause == "model.safetensors: SHA-256 differs; it cost 200 steps"


def test_a_second_start_from_nothing_is_a_restart(story: Write) -> None:
    folder = story(crash_at=35)  # before the first checkpoint
    rewrite(folder, "events.jsonl", lambda row: {**row, "event": "start"} if row["event"] == "resume" else row)
    rewrite(folder, "events.jsonl", lambda row: {k: v for k, v in row.items() if k != "lost_steps"})
    split = TimeSplit(load_run(folder))
    assert [each.steps for each in split.setbacks] == [None]
    assert split.lost == pytest.approx(5.0 + 60.0 + 35 * 0.28 + 2.5, abs=0.4)


def test_a_killed_run_ends_with_its_last_sign_of_life(story: Write) -> None:
    folder = story(killed=True)
    (folder / "telemetry").mkdir()
    before = TimeSplit(load_run(folder))
    assert before.stop_reason == ""
    (folder / "telemetry" / "alpha.jsonl").write_text(json.dumps({"time": before.ended + 7}) + '\n{"time": 17')
    after = TimeSplit(load_run(folder))
    assert after.ended == before.ended + 7


def test_step_times_are_weighed_by_the_steps_a_row_stands_for(story: Write) -> None:
    folder = story(validation=False, checkpoints=False)
    rows = [{"step": 10, "step_seconds": 99.0}]  # with compilation in it: left out
    rows += [{"step": 110, "step_seconds": 1.0, "data_seconds": 0.1}, {"step": 120, "step_seconds": 12.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"kind": "train", **row}) + "\n" for row in rows))
    times = StepTimes(load_run(folder))
    assert times.mean == pytest.approx(2.0)  # (100 x 1 s + 10 x 12 s) / 110, not 6.5 s
    assert (times.median, times.p95, times.steps, times.rows) == (1.0, 12.0, 110, 2)
    assert (times.first_steps, times.first_seconds) == (10, 990.0)
    assert times.data_share == pytest.approx(0.1)  # rows that do not tell are not counted as zero


def test_mean_step_agrees_with_the_recorded_sum(story: Write) -> None:
    record = load_run(story(log_every=7))  # the last row stands for 5 steps only
    times = StepTimes(record)
    assert (times.first_steps, times.steps) == (7, 593)
    assert times.mean * 593 + times.first_seconds == pytest.approx(record.train_rows[-1]["train_seconds"])
    assert times.mean_with_everything == pytest.approx(times.mean + 3 * 4.6 / 600)
    assert times.data_share == pytest.approx(0.02)


def test_a_row_after_a_resume_stands_for_the_steps_since_it(story: Write) -> None:
    spans = {span.step: span.steps for span in step_spans(load_run(story(crash_at=455, log_every=30)))}
    assert (spans[390], spans[420]) == (30, 20)  # resumed from step 400


def test_quantile_is_a_value_that_occurs() -> None:
    assert quantile([3.0, 1.0, 2.0], [1, 1, 1], 0.5) == 2.0
    assert quantile([1.0, 5.0], [95, 5], 0.95) == 1.0
    assert quantile([1.0, 5.0], [94, 6], 0.95) == 5.0


def test_what_a_step_is_made_of(story: Write) -> None:
    content = StepTimes(load_run(story()))
    assert (content.pairs, content.target_tokens) == (170, 3800)
    assert content.source_tokens == pytest.approx(3325)


def test_the_rate_of_row_s_is_that_of_update_s_counted_from_nought(story: Write) -> None:
    """The reference: peak 9.88e-4 at step 7,999 counted from 0, which is the row of step 8,000."""
    base = ["model.d_model=512", "model.heads=8", "schedule.warmup_steps=8000", "validation.every=100000"]
    overrides = [*base, "checkpoint.every=100000"]
    check = RateCheck(load_run(story(steps=20_000, log_every=1000, every=100_000, overrides=overrides)))
    assert check.wrong == []
    assert f"{max(check.logged):.3g}" == "0.000988"
    assert check.steps[check.logged.index(max(check.logged))] == 8000


def test_rates_that_are_off_by_one_step_are_found(story: Write) -> None:
    folder = story()
    rates = {row["step"]: row["learning_rate"] for row in load_run(folder).train_rows}
    shifted = lambda row: {**row, "learning_rate": rates.get(row["step"] + 10)} if row["kind"] == "train" else row  # noqa: E731
    rewrite(folder, "metrics.jsonl", shifted)
    check = RateCheck(load_run(folder))
    assert len(check.wrong) == len(check.steps) == 59


def test_last_step_of_a_run_without_rows_is_that_of_its_stop(story: Write) -> None:
    assert last_step(load_run(story(metrics=False))) == 600


def test_a_pause_between_stop_and_resume_is_neither_run_nor_loss(story: Write) -> None:
    folder = story()
    straight = TimeSplit(load_run(folder))
    events = read_rows(folder / "events.jsonl")
    stop = events[-1]
    events += [
        {"time": stop["time"] + 5000.0, "event": "resume", "step": stop["step"], "ranks": 2, "lost_steps": 0},
        {**stop, "time": stop["time"] + 5010.0},
    ]
    write_rows(folder / "events.jsonl", events)
    split = TimeSplit(load_run(folder))
    assert (split.paused, split.lost) == (5000.0, 0)
    assert split.wall == pytest.approx(straight.wall + 10.0)
    assert sum(seconds for _, seconds in split.parts) == pytest.approx(split.wall)


def test_the_time_before_the_start_event_belongs_to_the_run(story: Write) -> None:
    """Reading data and placing the model go before it; events that count from the start of the process tell how long."""
    folder = story()
    before = TimeSplit(load_run(folder)).wall
    events = folder / "events.jsonl"
    rows = [json.loads(line) for line in events.read_text().splitlines()]
    rows.insert(1, {"time": rows[0]["time"] + 2.0, "event": "first_step", "step": 1, "seconds": 12.0})
    events.write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = TimeSplit(load_run(folder))
    assert split.wall == pytest.approx(before + 10.0)
    assert sum(seconds for _, seconds in split.parts) == pytest.approx(split.wall)


def test_samples_of_every_host_are_told_by_the_clock_of_the_main_one(tmp_path):
    """Host 1's clock is 40 s ahead: by its own times, its samples of steps would look like those of pauses."""

    def ahead(run):
        run.environment["hosts"][1]["clock_offset_seconds"] = 40.0
        for row in run.telemetry[1]:
            row["time"] += 40.0

    plain, shifted = (
        load_run(Made(tmp_path / name, hosts=2, gpu=Gpu(), change=how).write())
        for name, how in (("a", None), ("b", ahead))
    )
    assert [row["time"] for row in shifted.telemetry["host1"]] == pytest.approx(
        [row["time"] for row in plain.telemetry["host1"]]
    )
    assert machine.mean_of(machine.gpu_samples(shifted), "utilization_percent") == 99.0


def test_samples_are_cut_where_training_stood_still_and_not_where_a_thread_wrote(tmp_path):
    """Training stood for 30 s; the event came when the thread was done, 200 s later."""

    def written_later(run):
        for row in run.events:
            if row["event"] == "checkpoint":
                row |= {"time": row["time"] + 200.0, "write_seconds": 200.0}

    def without_moment(run):
        written_later(run)
        for row in run.events:
            row.pop("stalled_at", None)

    for name, how in (("told", written_later), ("older", without_moment)):
        record = load_run(Made(tmp_path / name, gpu=Gpu(), checkpoint_stall=30.0, change=how).write())
        assert machine.mean_of(machine.gpu_samples(record), "utilization_percent") == 99.0, (
            "those in the stall show 9.9 %"
        )


LOCAL = ["parallel.strategy=local"]


@pytest.mark.parametrize(
    ("how", "stalls"),
    [
        ({"overrides": LOCAL}, 79),  # one process agrees with nobody
        ({"ranks": 2, "overrides": LOCAL}, 79),  # one host is one island
        ({"ranks": 2, "overrides": [*LOCAL, "parallel.ranks_per_island=2"]}, 79),
        ({"ranks": 2, "overrides": [*LOCAL, "parallel.ranks_per_island=1"]}, 0),
        ({"hosts": 2, "overrides": LOCAL}, 0),  # every window of 50 steps has an agreement, every 20
        ({"hosts": 2, "overrides": [*LOCAL, "parallel.inner_steps=500"]}, 79 - 8),
        ({"hosts": 2, "overrides": ["parallel.strategy=streaming"]}, 79),
    ],
)
def test_only_a_step_in_which_islands_agree_is_long_by_design(tmp_path: Path, how: dict[str, Any], stalls: int) -> None:
    found = list(findings.stalls(load_run(Made(tmp_path / "run", stall=2.0, **how).write())))
    assert [each.title for each in found] == ([f"{stalls} stalls of single steps"] if stalls else [])


def test_rare_agreements_are_no_stalls(tmp_path: Path) -> None:
    def long_agreements(run: Made) -> None:
        for row in run.rows:
            if row["kind"] == "train" and row["step"] % 500 == 0:
                row["slowest_step_seconds"] += 30.0
                row["step_seconds"] += 30.0 / run.log_every

    how = {"hosts": 2, "overrides": [*LOCAL, "parallel.inner_steps=500"], "change": long_agreements}
    assert list(findings.stalls(load_run(Made(tmp_path / "run", **how).write()))) == []
