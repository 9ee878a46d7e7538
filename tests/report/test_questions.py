"""The answers: right where the run says it, 'not recorded' where it does not, and never made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import Gpu, Made, resumed, write_safetensors

from dragoman.errors import RunError
from dragoman.report import Answer, diagnose, findings, load_run
from dragoman.report.learning_questions import scored
from dragoman.report.measures import relabelled
from dragoman.report.read import parse_samples

Write = Callable[..., Path]


def ask(folder: Path, number: int) -> Answer:
    return next(answer for answer in diagnose(folder) if answer.number == number)


def evidence(answer: Answer) -> dict[str, str]:
    return dict(answer.evidence)


def test_eleven_questions_in_order_each_with_verdict_evidence_figure_and_derivation(tmp_path: Path) -> None:
    found = diagnose(Made(tmp_path / "run", hosts=2, ranks=2, gpu=Gpu()).write())
    assert [answer.number for answer in found] == list(range(1, 12))
    assert all(answer.answered and answer.evidence and answer.derivation and answer.figure for answer in found)


def test_what_a_run_does_not_say_is_not_answered(story: Write) -> None:
    found = {answer.number: answer for answer in diagnose(story())}
    assert [number for number, answer in found.items() if not answer.answered] == [2]
    assert found[2].verdict == "Not recorded: 3 validations recorded, a trend needs 4."


def test_duration_of_a_whole_and_of_a_killed_run(story: Write, tmp_path: Path) -> None:
    assert ask(story(), 1).verdict == "3 min 10 s from start to stop; 2 min 51 s of it went into 600 training steps."
    killed = ask(story(killed=True), 1)
    assert "so far (no stop event: still running, or killed)" in killed.verdict
    assert "Last sign of life" in evidence(killed)


def test_duration_of_a_resumed_run_names_the_loss(story: Write) -> None:
    answer = ask(story(crash_at=455), 1)
    assert "were lost to 1 restart" in answer.verdict
    assert evidence(answer)["Steps lost and done again"].startswith("55, about 15.7 s")


def test_learning_rate_follows_from_the_step_alone(story: Write) -> None:
    answer = ask(story(), 6)
    assert "all 60 logged rates follow from the step alone, neither from BLEU nor from a plateau" in answer.verdict
    assert "The rate rises to 0.0125 at step 200, then falls to 0.00722 at step 600" in answer.verdict
    assert evidence(answer)["Rates that do not obey it"] == "0"
    assert "128^-0.5" in evidence(answer)["Policy and formula"]


def test_a_tampered_learning_rate_is_found(story: Write) -> None:
    answer = ask(story(tamper_from=400), 6)
    assert "21 of 60 logged rates do NOT obey the formula; the worst is step 400" in answer.verdict
    assert evidence(answer)["Largest deviation"].startswith("50.0 %")
    assert "log says otherwise" in evidence(answer)["Depends on"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["schedule.warmup_steps=8000"], "within the warm-up of 8,000 steps: only the rise shows"),
        (["schedule.policy=cosine", "schedule.decay_steps=5000", "schedule.warmup_steps=0"], "goes on to step 5,000"),
        (["schedule.policy=piecewise", "schedule.boundaries=[100, 900]", "schedule.factors=[0.5, 0.1]"], "step 901"),
    ],
)
def test_a_run_too_short_for_its_schedule_says_so(story: Write, overrides: list[str], words: str) -> None:
    answer = ask(story(overrides=overrides), 6)
    assert words in evidence(answer)["Part of the curve not reached"]
    assert "NOT" not in answer.verdict


def test_a_fixed_rate_stays(story: Write) -> None:
    answer = ask(
        story(overrides=["schedule.policy=fixed", "schedule.learning_rate=0.001", "schedule.warmup_steps=0"]), 6
    )
    assert answer.verdict.startswith("The rate stays at 0.001; all 60")
    assert "Part of the curve not reached" not in evidence(answer)


def test_training_set_in_megabytes_and_lines(story: Write) -> None:
    answer = ask(story(), 7)
    assert answer.verdict == "49,990 lines a side, 2.10 MB en + 2.50 MB de = 4.60 MB; each pair was seen 2.04 times."
    assert evidence(answer)["Dropped: too long"] == "7"


def test_a_manifest_that_does_not_add_up_is_told(story: Write) -> None:
    folder = story()
    data = json.loads((folder / "data.json").read_text())
    data["train"]["read_pairs"] = 50_100
    (folder / "data.json").write_text(json.dumps(data))
    assert evidence(ask(folder, 7))["Neither kept nor counted as dropped"] == "100"


def test_checkpoint_files_with_their_roles(story: Write) -> None:
    answer = ask(story(), 8)
    assert answer.table is not None
    assert answer.table.rows[0] == ("model.safetensors", "weights, fp32", f"{4 * 1_231_360 + 45:,}")
    assert [row[0] for row in answer.table.rows][-1] == "manifest.json"
    assert evidence(answer)["Agrees with its manifest"] == "yes, every size"


def test_a_cut_checkpoint_is_told(story: Write) -> None:
    folder = story()
    with (folder / "checkpoints" / "step-00000600" / "optimizer.safetensors").open("r+b") as stream:
        stream.truncate(5000)
    assert "optimizer.safetensors has 5,000 bytes" in evidence(ask(folder, 8))["Agrees with its manifest"]
    assert "NOT the predicted 14.8 MB" in ask(folder, 9).verdict


def test_the_checkpoint_of_the_reference_weighs_what_two_reports_did_not_know(story: Write) -> None:
    answer = ask(story(parameters=60_880_896), 9)
    found = evidence(answer)
    assert found["Prediction: 12 bytes a parameter + 16"] == "730,570,768 bytes = 730.6 MB (696.7 MiB)"
    assert found["Tensors (weights, two moments)"] == "730,570,752 bytes"
    assert found["Of it, tensors"].startswith("-16 bytes")
    assert "730.6 MB of weights and moments, as 12 bytes a parameter + 16 predict" in answer.verdict
    total = int(found["Whole checkpoint"].split(", ")[-1].removesuffix(" bytes").replace(",", ""))
    difference = int(found["Difference"].removesuffix(" bytes").replace(",", ""))
    assert total - difference == 730_570_768


def test_frozen_parameters_have_no_moments(story: Write) -> None:
    folder, count, learning = story(), 1_231_360, 500_000
    facts = json.loads((folder / "environment.json").read_text())
    facts["model"]["trainable"] = learning
    (folder / "environment.json").write_text(json.dumps(facts))
    write_safetensors(folder / "checkpoints" / "step-00000600" / "optimizer.safetensors", 8 * learning, "moments")
    answer = ask(folder, 9)
    assert "as 4 bytes a parameter, 8 for each of 500,000 that learn, + 16 predict" in answer.verdict
    assert evidence(answer)["Tensors (weights, two moments)"] == f"{4 * count + 8 * learning:,} bytes"


def test_what_ranks_have_for_themselves_is_told_apart(story: Write) -> None:
    folder = story()
    for rank in range(2):
        write_safetensors(folder / "checkpoints" / "step-00000600" / f"own-0000{rank}.safetensors", 4_000_000, "own")
    answer = ask(folder, 9)
    assert "as 12 bytes a parameter + 16 predict, 8.0 MB that ranks have for themselves, and" in answer.verdict
    found = {
        label: value.removesuffix(" bytes") for label, value in answer.evidence if label.startswith(("Of", "Diff"))
    }
    parts = [int(value.split(" ")[0].replace(",", "")) for label, value in found.items() if label.startswith("Of")]
    assert len(parts) == 3
    assert sum(parts) == int(found["Difference"].replace(",", ""))


def test_a_step_and_its_time_with_and_without_the_rest(story: Write) -> None:
    answer = ask(story(), 10)
    assert "one update of all weights, here from 170 pairs and 3,800 target tokens" in answer.verdict
    assert "an average one took 0.280 s (0.303 s with validation and checkpoints)" in answer.verdict
    found = evidence(answer)
    assert found["A step of this run"].endswith("2 ranks x 1 micro-batch x 32 rows = 64 rows")
    assert found["First row after every start, left out"].startswith("10 steps of 0.533 s: compilation")
    assert found["Share in which the host waited for data, its device at work or not"] == "2.0 %"
    assert found["Throughput"] == "13.6 thousand target tokens/s"


def test_a_run_folder_with_a_configuration_only_makes_nothing_up(story: Write) -> None:
    folder = story(metrics=False, validation=False, checkpoints=False)
    for name in ("environment.json", "data.json", "metrics.jsonl", "events.jsonl"):
        (folder / name).unlink()
    verdicts = {answer.number: answer.verdict for answer in diagnose(folder)}
    assert len(verdicts) == 11
    assert all(verdict.startswith("Not recorded: ") for verdict in verdicts.values())
    assert "metrics.jsonl is missing" in verdicts[10]


def test_the_file_that_is_missing_is_the_one_that_is_named(tmp_path: Path) -> None:
    folder = Made(tmp_path / "run", hosts=2, ranks=2, gpu=Gpu()).write()
    (folder / "environment.json").unlink()
    for number in (5, 11):
        assert ask(folder, number).verdict == "Not recorded: environment.json is missing."


def test_torn_files_are_reasons_and_not_crashes(story: Write) -> None:
    folder = story()
    for name in ("environment.json", "data.json", "run.toml", "scores.json"):
        (folder / name).write_text('{"train": {"pai')
    (folder / "events.jsonl").write_text('{"time": 1, "event": "st')
    (folder / "metrics.jsonl").write_text(
        '{"kind": "train", "step": "seven"}\n[1]\n{"kind": "train", "step": 7, "loss": NaN}\n'
    )
    (folder / "checkpoints" / "step-00000600" / "manifest.json").write_text("{")
    verdicts = {answer.number: answer.verdict for answer in diagnose(folder)}
    assert "run.toml cannot be read" in verdicts[6]
    assert "data.json: not readable as JSON" in verdicts[7]
    assert "number of parameters is not recorded" in verdicts[9]


def test_a_folder_without_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        load_run(tmp_path)


def test_probe_sentences_in_every_spelling() -> None:
    spellings = ["source       a\nreference    b\ntranslation  c", "Source: a\nReference: b\nTranslation: c", "a\nb\nc"]
    for spelling in spellings:
        (sample,) = parse_samples(spelling + "\n")
        assert (sample.source, sample.reference, sample.translation) == ("a", "b", "c")
    (empty,) = parse_samples("source       a\nreference    b\ntranslation  \n\nsource       torn")
    assert empty.translation == ""


def test_waiting_for_data_is_the_same_in_two_answers(tmp_path: Path) -> None:
    """A host that waits while its device works costs nothing."""
    hidden = {"change": lambda run: [span.update(data=[0.2]) for span in run.spans]}
    for how, share in ((hidden, "0.0 %"), ({"data": 0.4}, "56.2 %")):
        folder = Made(tmp_path / share, gpu=Gpu(), **how).write()
        assert evidence(ask(folder, 4))["Waiting for data"].endswith(share)
        assert evidence(ask(folder, 10))["Share waiting for data"] == share


def test_nothing_is_projected_beyond_the_end_of_a_schedule(tmp_path: Path) -> None:
    overrides = ["schedule.policy=cosine", "schedule.learning_rate=0.001"]
    answer = ask(Made(tmp_path / "run", gpu=Gpu(), overrides=overrides).write(), 2)
    assert answer.verdict.startswith("Yes, as far as its schedule goes")
    assert evidence(answer)["Next 10 % of steps, BLEU"].startswith("not projected: the schedule has ended")


def relabelled_after(step: int) -> Callable[[Made], None]:
    """Resumed there with twice the label smoothing: the losses before it are lower, as another quantity."""

    def change(run: Made) -> None:
        resumed(run, (step, step, "train.label_smoothing 0.1 -> 0.2"))
        for row in run.rows:
            for key in {"loss", "train_slice_loss"} & row.keys() if row["step"] <= step else ():
                row[key] -= 1.2

    return change


@pytest.mark.parametrize(
    ("step", "trained", "overfitted"),
    [
        (3250, "Not recorded: 3 validations recorded since step 3,250", "No: the validation loss is at its lowest"),
        (
            3500,
            "Not recorded: 2 validations recorded since step 3,500",
            "Cannot be told: there are two validations only",
        ),
        (3750, "Not recorded: 1 validation recorded since step 3,750", "Cannot be told: there is one validation only"),
        (3900, "Not recorded: 1 validation recorded since step 3,900", "Cannot be told: there is one validation only"),
    ],
)
def test_losses_with_another_label_smoothing_are_another_quantity(
    tmp_path: Path, step: int, trained: str, overfitted: str
) -> None:
    folder = Made(tmp_path / "run", bleu=None, change=relabelled_after(step)).write()
    assert ask(folder, 2).verdict.startswith(trained)
    assert ask(folder, 3).verdict.startswith(overfitted)
    assert evidence(ask(folder, 2))["Not compared"].startswith(f"losses up to step {step:,}: ")
    assert evidence(ask(folder, 3))["Lowest validation loss"].startswith(("2.89", "2.90"))


DOUBLED, HALVED = "train.label_smoothing 0.1 -> 0.2", "train.label_smoothing 0.2 -> 0.1"


@pytest.mark.parametrize(
    ("starts", "since"),
    [
        ([(3500, 3500, DOUBLED)], 3500),
        ([(3500, 3500, DOUBLED), (3500, 3500, HALVED)], 0),  # nothing was made with it
        ([(3500, 3500, DOUBLED), (3750, 3500, HALVED)], 0),  # what was made with it was made anew
        ([(3500, 3500, DOUBLED), (3750, 3750, HALVED)], 3750),
        ([(3500, 3500, DOUBLED), (3750, 1000, "")], 1000),
        ([(2000, 2000, HALVED), (3500, 3500, DOUBLED), (3500, 3500, HALVED)], 2000),
        ([(3500, 3500, DOUBLED), (3500, 3500, "train.label_smoothing 0.2 -> 0.3")], 3500),
    ],
)
def test_only_losses_that_were_made_otherwise_are_left_out(
    tmp_path: Path, starts: list[tuple[int, int, str]], since: int
) -> None:
    record = load_run(Made(tmp_path / "run", change=lambda run: resumed(run, *starts)).write())
    assert relabelled(record) == since
    assert scored(record, "loss")[0] == list(range(since + 250, 4001, 250))


def test_a_return_to_a_checkpoint_makes_earlier_losses_anew(tmp_path: Path) -> None:
    def change(run: Made) -> None:
        resumed(run, (3500, 3500, DOUBLED), (3750, 3000, ""))
        run.events = [
            row | {"event": "roll_back"} if row["step"] == 3000 and "changed" in row else row for row in run.events
        ]

    assert relabelled(load_run(Made(tmp_path / "run", change=change).write())) == 3000


@pytest.mark.parametrize(
    ("changed", "beam"),
    [
        ("validation.beam 1 -> 4", 4),
        ("translate.length_penalty 0.6 -> 1.0", 4),
        ("translate.extra_length 50 -> 5", 1),
        ("validation.bleu_sentences 200 -> 0", 1),
    ],
)
def test_bleu_of_another_search_is_another_quantity(tmp_path: Path, changed: str, beam: int) -> None:
    def change(run: Made) -> None:
        resumed(run, (2500, 2500, changed))

    folder = Made(tmp_path / "run", overrides=[f"validation.beam={beam}"], change=change).write()
    assert evidence(ask(folder, 2))["Not compared"] == (
        "BLEU up to step 2,500: the run was resumed there with another search or number of sentences"
    )
    assert scored(load_run(folder), "bleu")[0] == list(range(2750, 4001, 250))
    assert len(scored(load_run(folder), "loss")[0]) == 16, "which no search has changed"


def test_a_better_search_is_not_taken_for_learning(tmp_path: Path) -> None:
    def better_after(run: Made) -> None:
        resumed(run, (3400, 3400, "validation.beam 1 -> 4"))

    how: dict[str, Any] = {
        "valid_every": 100,
        "bleu": lambda step: 25.0 + 2 * (step > 3400),
        "overrides": ["validation.beam=4"],
    }
    told, untold = (
        Made(tmp_path / name, **how, change=change).write() for name, change in (("a", better_after), ("b", None))
    )
    assert ask(untold, 2).verdict.startswith("No: 10 % more steps would bring +"), "what it was taken for"
    assert not ask(told, 2).verdict.startswith("No:"), "steps after the change show no gain"


def test_a_length_penalty_means_nothing_to_greedy_search(tmp_path: Path) -> None:
    def change(run: Made) -> None:
        resumed(run, (2500, 2500, "translate.length_penalty 0.6 -> 1.0"))

    folder = Made(tmp_path / "run", overrides=["validation.beam=1"], change=change).write()
    assert "Not compared" not in evidence(ask(folder, 2))


def test_a_gap_of_another_label_smoothing_is_not_its_first(tmp_path: Path) -> None:
    def wider(run: Made) -> None:
        relabelled_after(2000)(run)
        for row in run.rows:
            if row["kind"] == "valid" and row["step"] <= 2000:
                row["loss"] += 0.5

    found = evidence(ask(Made(tmp_path / "run", change=wider).write(), 3))
    assert found["Generalisation gap, first and last validation"].startswith("0.1")


def test_a_divergence_is_told_by_losses_of_its_own_label_smoothing(tmp_path: Path) -> None:
    folder = Made(tmp_path / "run", reason="diverged", change=relabelled_after(2000)).write()
    (found,) = findings.divergence(load_run(folder))
    assert found.cause.startswith("the training loss was 3.0"), "and not the 1.8 of before"


def test_of_a_diverged_run_nothing_else_is_asked(tmp_path: Path) -> None:
    answer = ask(Made(tmp_path / "run", valid_every=4000, reason="diverged").write(), 3)
    assert answer.verdict == "No: training diverged, which is another illness."


@pytest.mark.parametrize(
    ("strategy", "ranks", "timed"),
    [("ddp", 2, True), ("local", 1, True), ("local", 2, False), ("streaming", 1, False), ("fsdp", 2, False)],
)
def test_an_exchange_has_a_rate_where_it_is_timed_by_itself(
    tmp_path: Path, strategy: str, ranks: int, timed: bool
) -> None:
    overrides = [f"parallel.strategy={strategy}", "train.tokens_per_gpu=4096"]
    how = {"hosts": 2, "ranks": ranks, "network": 0.01, "hidden": 0.1, "overrides": overrides}
    found = evidence(ask(Made(tmp_path / "run", **how).write(), 5))
    assert ("Communication, first to last byte" in found) is timed
    assert ("Rate during the exchange" in found) is timed
