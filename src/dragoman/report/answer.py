"""What an answer is, and the eleven questions of the reference run that ask for one."""

from __future__ import annotations

from dataclasses import dataclass, field

Evidence = list[tuple[str, str]]
"""What, and its value with its unit."""

QUESTIONS = {
    1: "How long did the training run take?",
    2: "Is the model fully trained, and how can you tell?",
    3: "Was it overfitting?",
    4: "Were the GPUs fully utilised?",
    5: "How much network traffic was there, and was the network the bottleneck?",
    6: "What does the learning-rate plot show, and how does the configuration explain it?",
    7: "How big was the training set?",
    8: "Which files is a checkpoint made of?",
    9: "How big is a checkpoint?",
    10: "What is a step, and how long did an average one take?",
    11: "How does step time correlate with network utilisation between the nodes?",
}


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Answer:
    number: int
    question: str
    verdict: str
    """One plain sentence."""
    evidence: Evidence = field(default_factory=list)
    figure: str | None = None
    """Name of a figure of charts.py, which is there when its numbers are."""
    derivation: str = ""
    table: Table | None = None
    answered: bool = True
    """False where this version gives no verdict at all."""


def answer(number: int, verdict: str, evidence: Evidence, figure: str, derivation: str) -> Answer:
    return Answer(number, QUESTIONS[number], verdict, evidence, figure, derivation)


def not_recorded(number: int, reason: str) -> Answer:
    return Answer(number, QUESTIONS[number], f"Not recorded: {reason}.")
