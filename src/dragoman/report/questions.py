"""The eleven questions, answered. How an answer is derived is the docstring of its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dragoman.report.answer import QUESTIONS, Answer
from dragoman.report.learning_questions import fully_trained, overfitting
from dragoman.report.machine_questions import gpus_used, judged_since, network, step_and_network
from dragoman.report.read import NotRecorded, RunRecord, section, text
from dragoman.report.size_questions import checkpoint_bytes, checkpoint_files, training_set
from dragoman.report.time_questions import duration, learning_rates, step

ANSWERS: tuple[Callable[[RunRecord], Answer], ...] = (
    duration, fully_trained, overfitting, gpus_used, network, learning_rates, training_set, checkpoint_files, checkpoint_bytes, step,
    step_and_network,
)  # fmt: skip
"""In the order of QUESTIONS."""
OF_MACHINES = (4, 5, 11)
"""A run that goes on elsewhere is judged by its last machines."""


def answers(record: RunRecord) -> list[Answer]:
    """All eleven, in order."""
    return [answered(number, record) for number in QUESTIONS]


def answered(number: int, record: RunRecord) -> Answer:
    function = ANSWERS[number - 1]
    try:
        answer = replace(function(record), derivation=" ".join((function.__doc__ or "").split()))
    except NotRecorded as reason:
        answer = Answer(number, f"Not recorded: {reason}.", answered=False)
    if number in OF_MACHINES and (since := judged_since(record)):
        answer = replace(answer, verdict=f"{answer.verdict.rstrip('.')}{since}.")
    said = text(section(record.stated, "said"), str(number))
    before = [("What was said of it", f"“{said}”")] if said else []
    return replace(answer, evidence=[*before, *answer.evidence, *record.notes.get(number, [])])
