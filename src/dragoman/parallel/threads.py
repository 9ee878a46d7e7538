"""How many threads a process takes: what OMP_NUM_THREADS says, or one for every core it may use. Neither torch nor psutil here:
a board that translates has none."""

from __future__ import annotations


def outermost(wanted: str) -> int | None:
    """Of OMP_NUM_THREADS: "4,1" is four threads, and one in each of these. None where it says no number of threads."""
    first = wanted.split(",")[0].strip()
    return int(first) or None if first.isascii() and first.isdigit() else None


def cores() -> int:
    """That this process may use: a container or a scheduler may give it a few of many."""
    import loky

    return int(loky.cpu_count())
