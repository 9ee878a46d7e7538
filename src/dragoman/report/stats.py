"""A little statistics, with the doubt that belongs to it. Pure Python: a report starts fast."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.90
MANY = 3  # points that a straight line needs before its error can be told


class Estimate(NamedTuple):
    """A value and the interval that holds the true one with 90 % confidence."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.value * factor, low, high)


def student(freedom: int) -> float:
    """Half the width of a two-sided interval in standard errors: Student's t, by the Cornish-Fisher expansion, which is too
    narrow where there are closed forms."""
    if freedom == 1:
        return math.tan(math.pi * CONFIDENCE / 2)
    if freedom == 2:
        return CONFIDENCE * math.sqrt(2 / (1 - CONFIDENCE**2))
    z = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def slope(xs: Sequence[float], ys: Sequence[float]) -> Estimate | None:
    """Of the least-squares line; None with too few points, or all at the same place."""
    if len(set(xs)) < MANY:
        return None
    value, constant = statistics.linear_regression(xs, ys)
    rest = [y - value * x - constant for x, y in zip(xs, ys, strict=True)]
    spread = math.sqrt(math.fsum((x - statistics.fmean(xs)) ** 2 for x in xs))
    error = math.sqrt(math.fsum(r * r for r in rest) / (len(xs) - 2)) / spread
    reach = student(len(xs) - 2) * error
    return Estimate(value, value - reach, value + reach)


def correlation(xs: Sequence[float], ys: Sequence[float]) -> Estimate | None:
    """Pearson's r with its interval (Fisher); None where one of the two does not vary."""
    if len(xs) <= MANY or min(xs) == max(xs) or min(ys) == max(ys):
        return None
    r = max(-0.999999, min(0.999999, statistics.correlation(xs, ys)))
    reach = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) / math.sqrt(len(xs) - 3)
    return Estimate(r, math.tanh(math.atanh(r) - reach), math.tanh(math.atanh(r) + reach))


def level(xs: Sequence[float], ys: Sequence[float]) -> Estimate | None:
    """The mean of several values with Student's interval, from how far they lie off their own line: that they grow is no noise. None
    with too few points for that."""
    growing = slope(xs, ys)
    if growing is None:
        return None
    value, middle = statistics.fmean(ys), statistics.fmean(xs)
    rest = math.fsum((y - value - growing.value * (x - middle)) ** 2 for x, y in zip(xs, ys, strict=True))
    reach = student(len(xs) - 2) * math.sqrt(rest / (len(xs) - 2) / len(xs))
    return Estimate(value, value - reach, value + reach)


def spread(values: Sequence[float]) -> float:
    """A standard deviation that a few wild values cannot move: 1.48 x the median distance from the median."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)
