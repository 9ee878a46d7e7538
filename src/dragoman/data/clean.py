"""Cleaning by named filters. Each takes a pair and returns the reason to drop it, or None. Every drop is counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from dragoman.data.corpus import Pair, RawPair
from dragoman.errors import DataError

Filter = Callable[[Pair], str | None]

LONGEST_LINE = 5_000  # characters; no sentence is longer, and subwords of such lines cost minutes
RATIO_FROM_WORDS = 10  # short pairs differ by chance
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")


def empty(pair: Pair) -> str | None:
    return "empty side" if not pair[0] or not pair[1] else None


def control_characters(pair: Pair) -> str | None:
    return "control characters" if CONTROL.search(pair[0]) or CONTROL.search(pair[1]) else None


def long_line(pair: Pair) -> str | None:
    return f"over {LONGEST_LINE:,} characters" if max(map(len, pair)) > LONGEST_LINE else None


def length_ratio(largest: float) -> Filter:
    def unequal_lengths(pair: Pair) -> str | None:
        shorter, longer = sorted(text.count(" ") + 1 for text in pair)
        return f"length ratio over {largest:g}" if longer >= RATIO_FROM_WORDS and longer > largest * shorter else None

    return unequal_lengths


def decode(raw: RawPair) -> Pair | None:
    """Text with its white space normalised (so that it holds no tab and no line end), or None where it is no UTF-8."""
    try:
        source, target = (" ".join(side.decode("utf-8").split()) for side in raw)
    except UnicodeDecodeError:
        return None
    return source, target


def cleaned(raw: Iterable[RawPair], filters: list[Filter], dropped: Counter[str]) -> Iterator[Pair]:
    """Pairs that pass every filter; `dropped` counts the others by the first reason found."""
    for raw_pair in raw:
        pair = decode(raw_pair)
        reason = "not UTF-8" if pair is None else next(filter(None, (check(pair) for check in filters)), None)
        if pair is None or reason:
            dropped[reason or ""] += 1
        else:
            yield pair


def checked(raw: Iterable[RawPair], name: str) -> Iterator[Pair]:
    """Pairs of a validation or test set. Dropping one would change the scores, so a bad one is refused."""
    for number, raw_pair in enumerate(raw, 1):
        pair = decode(raw_pair)
        reason = "not UTF-8" if pair is None else empty(pair) or control_characters(pair) or long_line(pair)
        if pair is None or reason:
            raise DataError(
                f"{name}, line {number:,}: {reason}. Validation and test sets are taken whole; mend the line or remove it on both sides"
            )
        yield pair
