"""The eleven questions, answered. How an answer is derived is the docstring of its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dragoman.report.answer import Answer
from dragoman.report.learning_questions import fully_trained, overfitting
from dragoman.report.machine_questions import gpus_used, network, step_and_network
from dragoman.report.read import NotRecorded, RunRecord, section, text
from dragoman.report.size_questions import checkpoint_bytes, checkpoint_files, training_set
from dragoman.report.time_questions import duration, learning_rates, step

ANSWERS: dict[int, Callable[[RunRecord], Answer]] = {
    1: duration,
    2: fully_trained,
    3: overfitting,
    4: gpus_used,
    5: network,
    6: learning_rates,
    7: training_set,
    8: checkpoint_files,
    9: checkpoint_bytes,
    10: step,
    11: step_and_network,
}


def answers(record: RunRecord) -> list[Answer]:
    """All eleven, in order."""
    return [answered(number, record) for number in ANSWERS]


def answered(number: int, record: RunRecord) -> Answer:
    function = ANSWERS[number]
    try:
        answer = replace(function(record), derivation=" ".join((function.__doc__ or "").split()))
    except NotRecorded as reason:
        answer = Answer(number, f"Not recorded: {reason}.", answered=False)
    said = text(section(record.stated, "said"), str(number))
    return replace(answer, evidence=[("What was said of it", f"“{said}”"), *answer.evidence]) if said else answer
