"""What an answer is, and the eleven questions of the reference run that ask for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Evidence = list[tuple[str, str]]
"""What, and its value with its unit."""

QUESTIONS = {
    1: ("Duration", "How long did the training run take?"),
    2: ("Fully trained", "Is the model fully trained, and how can you tell?"),
    3: ("Overfitting", "Was it overfitting?"),
    4: ("GPU utilisation", "Were the GPUs fully utilised?"),
    5: ("Network traffic", "How much network traffic was there, and was the network the bottleneck?"),
    6: ("Learning rate", "What does the learning-rate plot show, and how does the configuration explain it?"),
    7: ("Training set", "How big was the training set?"),
    8: ("Checkpoint files", "Which files is a checkpoint made of?"),
    9: ("Checkpoint size", "How big is a checkpoint?"),
    10: ("A step", "What is a step, and how long did an average one take?"),
    11: ("Network and steps", "How does step time correlate with network utilisation between the nodes?"),
}
"""A signpost for the first screen, and the question itself."""


class Table(NamedTuple):
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Answer:
    number: int
    verdict: str
    """One plain sentence."""
    evidence: Evidence = field(default_factory=list)
    figure: str = ""
    """Name of a figure of charts.py, which is there when its numbers are."""
    table: Table | None = None
    derivation: str = ""
    answered: bool = True
    """False where the run does not say enough for a verdict."""

    @property
    def topic(self) -> str:
        return QUESTIONS[self.number][0]

    @property
    def question(self) -> str:
        return QUESTIONS[self.number][1]
