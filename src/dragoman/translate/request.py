"""What is asked of a search, and what it finds. No torch here: the CTranslate2 engine speaks the same language."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from dragoman.errors import ConfigError


@dataclass(frozen=True)
class Request:
    """How to search. Either a beam (`beam` 1 is greedy), with `groups` a diverse one, or drawing with `sample`."""

    beam: int = 4
    n_best: int = 1
    length_penalty: float = 0.6
    extra_length: int = 50
    groups: int = 1  # of hypotheses that avoid each other's words
    diversity: float = 0.5  # what a word costs that a group before has just taken
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # draw among so many words only; 0: among all
    top_p: float = 1.0  # draw among the most probable words that together have this probability
    seed: int = 1

    @property
    def rows(self) -> int:
        """Independent searches for one sentence: a drawn translation, or a group of the beam, is one of them."""
        return self.n_best if self.sample else self.groups

    @property
    def width(self) -> int:
        """Hypotheses of one such search."""
        return 1 if self.sample else self.beam // self.groups

    def most_ids(self, source: list[int], prefix: list[int]) -> int:
        """Of a translation; one more than what it must begin with, at least."""
        return max(len(source) - 1 + self.extra_length, len(prefix) + 1)

    def check(self) -> Request:
        rules = [
            (not 1 <= self.beam <= 100, f"beam = {self.beam}; choose 1 to 100"),
            (self.n_best < 1, f"n_best = {self.n_best}; ask for 1 or more"),
            (self.sample and self.n_best > 100, f"n_best = {self.n_best}; at most 100 translations are drawn"),
            (
                not self.sample and self.n_best > self.beam,
                f"n_best = {self.n_best} is more than beam = {self.beam} finds; raise beam or draw with sample",
            ),
            (
                self.groups < 1 or self.beam % max(1, self.groups) > 0,
                f"groups = {self.groups} does not divide beam = {self.beam}",
            ),
            (self.sample and self.groups > 1, "groups are for a beam, not for sample"),
            (not self.temperature > 0, f"temperature = {self.temperature}; choose more than 0"),
            (not 0 < self.top_p <= 1, f"top_p = {self.top_p}; choose more than 0 and at most 1"),
            (self.top_k < 0, f"top_k = {self.top_k}; choose 0 (all) or more"),
            (not 0 <= self.length_penalty < inf, f"length_penalty = {self.length_penalty}; choose 0 or more"),
            (not 0 <= self.diversity < inf, f"diversity = {self.diversity}; choose 0 or more"),
            (self.extra_length < 1, f"extra_length = {self.extra_length}; choose 1 or more"),
            (not 0 <= self.seed < 2**32, f"seed = {self.seed}; choose 0 to {2**32 - 1}"),
        ]
        problems = [words for broken, words in rules if broken]
        if problems:
            raise ConfigError(problems, "translate")
        return self

    def penalty(self, length: int) -> float:
        """What log-probabilities are divided by; `length` counts the end mark."""
        return float(((5 + length) / 6) ** self.length_penalty)


@dataclass(frozen=True)
class Hypothesis:
    ids: list[int]  # without the end-of-sentence mark
    score: float  # log-probability divided by the length penalty
    attention: list[list[float]] = field(default_factory=list)  # for every id: how much it looked at every source id


class Engine(Protocol):
    """Searches for translations of ids: the model in torch, or in CTranslate2."""

    name: str

    def search(
        self, sources: list[list[int]], prefixes: list[list[int]], request: Request, *, attention: bool = False
    ) -> list[list[Hypothesis]]:
        """For every source (with end mark) its `n_best` hypotheses, the best first. A translation begins with its prefix."""
        ...

    def slots(self) -> int:
        """Source slots that are worth searching at once."""
        ...

    def cells(self) -> int:
        """Slots of hypotheses that fit into memory at once."""
        ...
