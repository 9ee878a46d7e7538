"""Numbers for people: every value leaves here with its unit. `0:00:1.946` was once read as two minutes."""

from __future__ import annotations

import math
from datetime import UTC, datetime

NOT_RECORDED = "not recorded"


def duration(seconds: float | None) -> str:
    """'3.10 µs', '2.10 ms', '0.291 s', '12.3 s', '4 min 12 s', '51 h 55 min 45 s', '4 d 3 h 10 min'."""
    if seconds is None:
        return NOT_RECORDED
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if 0 < seconds < 0.0000995:
        return f"{significant(seconds * 1e6)} µs"
    if 0 < seconds < 0.0995:
        return f"{significant(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{significant(seconds)} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours < 1:
        return f"{minute} min {second} s"
    if hours < 72:
        return f"{hours} h {minute} min {second} s"
    return f"{hours // 24} d {hours % 24} h {minute} min"


def significant(value: float) -> str:
    """Three digits that say something, none of them as an exponent: 0.291, 4.10, 12.3, 1,234."""
    rounded = float(f"{value:.2e}")
    if rounded == 0 or abs(rounded) >= 1000:
        return f"{value:,.0f}"
    return f"{rounded:.{2 - math.floor(math.log10(abs(rounded)))}f}"


def size(num_bytes: float | None) -> str:
    """'730.6 MB (696.7 MiB)': 10^6 and 2^20 bytes. Both, because their confusion made two reports disagree."""
    if num_bytes is None or abs(num_bytes) < 1000:
        return count(num_bytes, "bytes")
    if abs(num_bytes) < 999_950:
        return f"{num_bytes / 1e3:.1f} kB ({num_bytes / 2**10:.1f} KiB)"
    if abs(num_bytes) < 1e10:
        return f"{num_bytes / 1e6:,.1f} MB ({num_bytes / 2**20:,.1f} MiB)"
    return f"{num_bytes / 1e9:,.1f} GB ({num_bytes / 2**30:,.1f} GiB)"


def decimal_size(num_bytes: float | None) -> str:
    """'730.6 MB', where there is no room for both."""
    return size(num_bytes).split(" (")[0]


def count(number: float | None, noun: str = "") -> str:
    """'60,880,896 parameters'."""
    return NOT_RECORDED if number is None else f"{number:,.0f} {noun}".rstrip()


def plural(number: float, noun: str, many: str = "") -> str:
    """'1 restart', '2 restarts', '2 micro-batches'."""
    return f"{number:,.0f} {noun if number == 1 else many or noun + 's'}"


def rough(number: float | None, noun: str = "") -> str:
    """'13.2 thousand target tokens/s', '60.9 million parameters'."""
    if number is None:
        return NOT_RECORDED
    for limit, scale, word in ((1e9, 1e9, "billion"), (1e6, 1e6, "million"), (1e4, 1e3, "thousand")):
        if abs(number) >= limit * 0.9995:
            return f"{significant(number / scale)} {word} {noun}".rstrip()
    return f"{significant(number)} {noun}".rstrip()


def percent(share: float | None) -> str:
    """'82.4 %'; what is there but rounds to nothing is '<0.1 %'."""
    if share is None:
        return NOT_RECORDED
    return "<0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def rate(value: float) -> str:
    """A learning rate: '0.000988', '1.24e-7'."""
    return f"{value:.3g}".replace("e-0", "e-")


def link_speed(mbit: float | None) -> str:
    """'10 Gbit/s': bits with their name, because 200,000 KB/s was once read as 200 Mbit/s."""
    if not mbit or mbit < 0:
        return "of unknown speed"
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


def bit_rate(bytes_per_s: float | None) -> str:
    """'200 MB/s = 1.6 Gbit/s': both, with their names."""
    if bytes_per_s is None:
        return NOT_RECORDED
    scale, unit = next(((s, u) for s, u in ((1e9, "Gbit/s"), (1e6, "Mbit/s")) if bytes_per_s * 8 >= s), (1e3, "kbit/s"))
    return f"{decimal_size(bytes_per_s)}/s = {significant(bytes_per_s * 8 / scale)} {unit}"


def watts(value: float | None) -> str:
    return NOT_RECORDED if value is None else f"{value:.0f} W"


def moment(time: float, clock: str = "UTC") -> str:
    """'2026-11-15 09:30:00 UTC'."""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} {clock}"
    except (OverflowError, ValueError, OSError):  # milliseconds where seconds belong, or worse
        return f"{time:g} s since 1970"
