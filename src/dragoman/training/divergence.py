"""Whether training still learns, by the rows of metrics. A step whose gradient is not finite, or is a hundred times as long as is usual
by now, changes nothing and is counted. When most steps are such, or when half of what was learnt is forgotten and does not come
back, the run has to go back to a checkpoint.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

from dragoman.training.step import ANY_FINITE
from dragoman.training.window import Totals

HISTORY = 50  # rows of metrics
ENOUGH_ROWS = 10  # to say what is usual
SPIKE = 100.0  # times the usual longest gradient of a row
LEARNT = 1.0  # nats a token below knowing nothing, before it can be said that something is forgotten
FORGOTTEN_ROWS = 3  # in a row
MOST_BAD_STEPS = 10  # then the run goes back to a checkpoint
MOST_ROLL_BACKS = 2  # in one go; a third time it would only happen again
FAR = 1000  # steps beyond the last roll-back that make the next one another go


class Judge:
    """Sees the same numbers on every rank, and comes to the same verdicts."""

    def __init__(self, vocab_size: int, *, one_mixture: bool):
        # The loss of whoever thinks all pieces equally likely. Another mixture of corpora may well be as new as that.
        self.knowing_nothing = math.log(vocab_size) if one_mixture else math.inf
        self.losses: deque[float] = deque(maxlen=HISTORY)
        self.norms: deque[float] = deque(maxlen=HISTORY)
        self.bad_steps = self.bad_rows = self.roll_backs = self.rolled_back_at = 0
        self.went_wrong_after = 0  # this step
        self.forgot = False  # not only skipped: the weights themselves are bad

    def learn(self, rows: Iterable[tuple[float, float]]) -> None:
        """What was usual before this start, by loss and longest gradient of all rows: as if this one had seen them all."""
        self.remember([])
        for loss, norm in rows:
            if loss <= self.loss_limit:
                self.losses.append(loss)
                self.norms.append(norm)

    @property
    def usual(self) -> list[tuple[float, float]]:
        """What is kept of the rows: loss and longest gradient of each."""
        return list(zip(self.losses, self.norms, strict=True))

    def remember(self, usual: list[tuple[float, float]]) -> None:
        """What another one has learnt. Learning it again may leave rows out: it depends on those before."""
        self.losses.clear()
        self.norms.clear()
        self.losses.extend(loss for loss, _ in usual)
        self.norms.extend(norm for _, norm in usual)
        self.forget_bad_rows()

    def forget_bad_rows(self) -> None:
        self.bad_steps = self.bad_rows = 0
        self.forgot = False

    @property
    def norm_limit(self) -> float:
        """Steps with a longer gradient are left out."""
        return SPIKE * statistics.median(self.norms) if len(self.norms) >= ENOUGH_ROWS else ANY_FINITE

    @property
    def loss_limit(self) -> float:
        """Above it, half of what was learnt is forgotten."""
        usual = statistics.median(self.losses) if len(self.losses) >= ENOUGH_ROWS else math.inf
        return (usual + self.knowing_nothing) / 2 if usual < self.knowing_nothing - LEARNT else math.inf

    @property
    def doubtful(self) -> bool:
        """The last row was bad: nothing is kept of it before that is decided."""
        return self.bad_steps > 0

    def look(self, totals: Totals, step: int) -> str:
        """Why the run has to go back to a checkpoint; empty as a rule."""
        skipped, forgot = totals.skipped > totals.steps / 2, totals.loss > self.loss_limit
        if not skipped and not forgot:
            self.good_row(totals, step)
            return ""
        if not self.bad_steps:
            self.went_wrong_after = step - totals.steps
        self.forgot = forgot
        self.bad_rows += 1
        self.bad_steps += totals.skipped if skipped else totals.steps
        if self.bad_steps < MOST_BAD_STEPS or (not skipped and self.bad_rows < FORGOTTEN_ROWS):
            return ""
        if skipped:
            return f"hardly a gradient was finite and of a usual length in the last {self.bad_steps} steps"
        return (
            f"the loss has been {totals.loss:.3g} and more than half of what was learnt is forgotten for {self.bad_steps} steps "
            f"(usual were {statistics.median(self.losses):.3g})"
        )

    def good_row(self, totals: Totals, step: int) -> None:
        self.forget_bad_rows()
        self.losses.append(totals.loss)
        self.norms.append(totals.largest_norm)
        if step > self.rolled_back_at + FAR:
            self.roll_backs = 0

    def may_roll_back(self, step: int) -> bool:
        """Counts one."""
        self.roll_backs += 1
        self.rolled_back_at = step
        return self.roll_backs <= MOST_ROLL_BACKS

    def before(self, newest: int) -> int | None:
        """A checkpoint to go back to should be from before this step. Steps that were left out have changed no weights, unless going
        back to the newest one did not help."""
        if self.roll_backs:
            return newest
        return self.went_wrong_after if self.forgot else None
