"""Several runs: the better one is named, by how much, and noise is called noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import Gpu, Made, resumed, settling

from dragoman.errors import RunError
from dragoman.report import load_run
from dragoman.report.compare import compare, names_of, overview, write_comparison


def records(tmp_path: Path, **runs: dict[str, object]) -> list:
    return [load_run(Made(tmp_path / name, gpu=Gpu(), **how).write()) for name, how in runs.items()]


def test_the_better_run_is_named_with_its_lead(tmp_path: Path) -> None:
    better = {"valid": settling(8.5, 2.7, 350), "bleu": settling(0.0, 28.5, 350)}
    bleu, loss, speed, _ = compare(records(tmp_path, usual={}, better=better))
    assert "better is 1.5" in bleu.verdict
    assert "more than another seed usually makes" in bleu.verdict
    assert "better is 0.20" in loss.verdict
    assert "within the spread" in speed.verdict


def test_noise_is_called_noise(tmp_path: Path) -> None:
    runs = records(tmp_path, one={"noise": 0.05}, other={"noise": 0.05, "bleu": settling(0.0, 27.05, 351)})
    bleu, loss, _, _ = compare(runs)
    assert "within the noise" in bleu.verdict or "less than another seed" in bleu.verdict
    assert "within the noise" in loss.verdict or "are the same" in loss.verdict


def test_few_common_validations_do_not_tell_noise(tmp_path: Path) -> None:
    worse, better = ({"valid_every": 2000, "bleu": lambda _, score=score: score} for score in (20.0, 35.0))
    bleu, *_ = compare(records(tmp_path, worse={**worse, "steps": 2000}, better=better))
    assert "better is 15.0" in bleu.verdict
    assert (
        "more than another seed usually makes (0.3 BLEU); so few common validations do not tell their noise"
        in bleu.verdict
    )


def test_a_lead_that_grows_is_no_noise(tmp_path: Path) -> None:
    how = {"steps": 6000, "valid_every": 2000}
    flat, grows = {**how, "bleu": lambda _: 10.0}, {**how, "bleu": lambda step: 7.5 + step / 267}
    bleu, *_ = compare(records(tmp_path, flat=flat, grows=grows))
    assert "grows is 12.4" in bleu.verdict
    assert "noise" not in bleu.verdict


def test_runs_of_different_length_are_compared_at_equal_steps(tmp_path: Path) -> None:
    bleu, *_ = compare(records(tmp_path, short={"steps": 2000}, long={"steps": 4000}))
    assert "steps 1,000 to 2,000" in bleu.verdict


def test_a_faster_run_wins_the_clock(tmp_path: Path) -> None:
    _, _, speed, wall = compare(records(tmp_path, slow={"forward": 0.5}, fast={"forward": 0.1}))
    assert "fast is 2.2" in speed.verdict
    assert "fast is 2." in wall.verdict
    assert [row[4] for row in overview(records(tmp_path, a={}, b={"data": 0.4})).rows] == [
        "computing",
        "data, 56.2 % of a step",
    ]


def test_names_tell_runs_apart_and_twice_the_same_is_a_mistake(tmp_path: Path) -> None:
    one, other = (load_run(Made(tmp_path / name / "run").write()) for name in ("a", "b"))
    assert names_of([one, other]) == ["a/run", "b/run"]
    with pytest.raises(RunError, match="named twice"):
        names_of([one, one])


def test_three_files_are_written(tmp_path: Path) -> None:
    pages = write_comparison(records(tmp_path, one={}, two={}, three={"bleu": None}), tmp_path)
    assert [page.name for page in pages] == ["comparison.html", "comparison.md", "comparison.json"]
    html = pages[0].read_text()
    assert html.count("<svg") == 6
    assert "http" not in html
    assert json.loads(pages[2].read_text())["runs"] == ["one", "two", "three"]
    assert "not recorded at the same steps" in pages[1].read_text()


def test_a_night_between_a_stop_and_a_resume_is_no_slowness(tmp_path: Path) -> None:
    def pause(made: Made) -> None:
        """After half of the steps the run was stopped, and resumed ten hours later."""
        middle = made.events[0]["time"] + (made.events[-1]["time"] - made.events[0]["time"]) / 2
        for rows in (made.rows, made.events):
            for row in rows:
                row["time"] += 36_000 if row["time"] > middle else 0
        at = next(i for i, row in enumerate(made.events) if row["time"] > middle)
        stop = {
            "time": middle,
            "event": "stop",
            "step": 1,
            "reason": "terminated",
            "seconds": middle - made.events[0]["time"],
        }
        resume = {"time": middle + 36_000, "event": "resume", "step": 1, "lost_steps": 0, "ranks": 1}
        made.events[at:at] = [stop, resume]

    *_, wall = compare(records(tmp_path, straight={}, paused={"change": pause}))
    assert max(wall.values) < 1.2 * min(wall.values), wall


def facts(**parts: dict[str, object]) -> dict[str, object]:
    """A run with other facts about its data."""

    def change(run: Made) -> None:
        for name, values in parts.items():
            run.data_facts[name] = {**run.data_facts[name], **values}

    return {"change": change}


def test_what_is_not_comparable_is_said_and_has_no_winner(tmp_path: Path) -> None:
    bleu, loss, speed, wall = compare(records(tmp_path, a={}, b=facts(vocabulary={"size": 4000, "digest": "other"})))
    assert "not comparable" not in bleu.verdict, "free text can be compared, however it is cut"
    for contest in (loss, speed, wall):
        assert contest.verdict == "not comparable: the vocabularies differ (2,000 pieces, d / 4,000 pieces, other)"
    bleu, loss, speed, wall = compare(records(tmp_path, c={}, d=facts(valid={"source_bytes": 7})))
    assert bleu.verdict.startswith("not comparable: the validation sets differ")
    assert "not comparable" not in speed.verdict
    smooth = {"overrides": ["train.label_smoothing=0.2"]}
    bleu, loss, *_ = compare(records(tmp_path, e={}, f=smooth))
    assert "not comparable" not in bleu.verdict
    assert loss.verdict == "not comparable: the label smoothings differ (0.1 / 0.2)"


@pytest.mark.parametrize(
    ("how", "reason", "losses_too"),
    [
        (facts(valid={"target_bytes": 7}), "the validation targets differ (2,500,000 bytes / 7 bytes)", True),
        ({"change": lambda run: run.data_facts.update(target_lang="nl")}, "the languages differ (en-de / en-nl)", True),
        ({"overrides": ["validation.beam=4"]}, "the searches differ (greedy / beam 4, length penalty 0.6)", False),
    ],
)
def test_scores_of_another_task_have_no_winner(
    tmp_path: Path, how: dict[str, object], reason: str, losses_too: bool
) -> None:
    bleu, loss, speed, _ = compare(records(tmp_path, one={"overrides": ["validation.beam=1"]}, other=how))
    assert bleu.verdict == f"not comparable: {reason}"
    assert loss.verdict.startswith("not comparable") is losses_too
    assert "not comparable" not in speed.verdict


def test_a_length_penalty_is_another_search_only_where_there_is_a_choice(tmp_path: Path) -> None:
    def penalised(beam: int, penalty: float) -> dict[str, object]:
        return {"overrides": [f"validation.beam={beam}", f"translate.length_penalty={penalty}"]}

    bleu, *_ = compare(records(tmp_path, a=penalised(1, 0.6), b=penalised(1, 1.0)))
    assert "not comparable" not in bleu.verdict
    bleu, *_ = compare(records(tmp_path, c=penalised(4, 0.6), d=penalised(4, 1.0)))
    assert bleu.verdict == (
        "not comparable: the searches differ (beam 4, length penalty 0.6 / beam 4, length penalty 1)"
    )


def test_losses_from_before_another_label_smoothing_are_not_compared(tmp_path: Path) -> None:
    """Both runs end with the same label smoothing; one of them had another until step 3,250, with which losses are lower."""

    def lower_before(run: Made) -> None:
        for row in run.rows:
            if row["kind"] == "valid" and row["step"] <= 3250:
                row["loss"] -= 1.2
        resumed(run, (3250, 3250, "train.label_smoothing 0.0 -> 0.1"))

    _, loss, _, wall = compare(records(tmp_path, whole={}, relabelled={"change": lower_before}))
    assert "(steps 3,500 to 4,000, 3 validations)" in loss.verdict
    assert "within the noise" in loss.verdict or "are the same" in loss.verdict
    assert wall.verdict == "not comparable: relabelled was resumed with another label smoothing at step 3,250"


def test_bleu_from_before_another_search_is_not_compared(tmp_path: Path) -> None:
    """Both runs end with the same search; one of them had a worse one until step 3,250."""

    def worse_before(run: Made) -> None:
        for row in run.rows:
            if row["kind"] == "valid" and row["step"] <= 3250:
                row["bleu"] -= 3.0
        resumed(run, (3250, 3250, "validation.beam 1 -> 4"))

    beam = ["validation.beam=4"]
    whole, other = {"overrides": beam}, {"overrides": beam, "change": worse_before}
    bleu, loss, *_ = compare(records(tmp_path, whole=whole, other=other))
    assert "(steps 3,500 to 4,000, 3 validations)" in bleu.verdict
    assert "within the noise" in bleu.verdict or "are the same" in bleu.verdict
    assert "(steps 3,000 to 4,000, 5 validations)" in loss.verdict


def test_steps_of_another_size_are_named_beside_the_winner(tmp_path: Path) -> None:
    better = {"bleu": settling(0.0, 28.5, 350), "overrides": ["train.batch_tokens=50048"]}
    bleu, *_ = compare(records(tmp_path, usual={}, larger=better))
    assert "larger is 1.5" in bleu.verdict
    assert bleu.verdict.endswith("at equal steps the runs have seen different amounts of text")
