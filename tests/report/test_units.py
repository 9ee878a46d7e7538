"""Every number leaves with its unit, and reads as a person would say it."""

from __future__ import annotations

import pytest

from dragoman.report import units


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.000003, "3.00 µs"),
        (0.0001, "0.100 ms"),
        (0.0021, "2.10 ms"),
        (0.0999, "0.0999 s"),
        (0.291, "0.291 s"),
        (0.9999, "1.00 s"),
        (1.946, "1.95 s"),
        (9.999, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (252, "4 min 12 s"),
        (3599.7, "1 h 0 min 0 s"),
        (186_945, "51 h 55 min 45 s"),
        (357_000, "4 d 3 h 10 min"),
        (0, "0 s"),
        (-3, "-3.00 s"),
        (None, "not recorded"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert units.duration(seconds) == words


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (730_570_768, "730.6 MB (696.7 MiB)"),
        (852_332_544, "852.3 MB (812.8 MiB)"),
        (2_518_106_128, "2,518.1 MB (2,401.5 MiB)"),
        (270_000, "270.0 kB (263.7 KiB)"),
        (999_960, "1.0 MB (1.0 MiB)"),
        (440, "440 bytes"),
        (25_769_803_776, "25.8 GB (24.0 GiB)"),
        (None, "not recorded"),
    ],
)
def test_sizes(num_bytes: int | None, words: str) -> None:
    assert units.size(num_bytes) == words


def test_counts_rates_and_shares() -> None:
    assert units.count(60_880_896, "parameters") == "60,880,896 parameters"
    assert units.rough(13_210.4, "target tokens/s") == "13.2 thousand target tokens/s"
    assert units.rough(60_880_896) == "60.9 million"
    assert units.rough(999_960) == "1.00 million"
    assert units.rough(842) == "842"
    assert units.percent(0.9006) == "90.1 %"
    assert units.percent(0.0001) == "<0.1 %"
    assert units.rate(1.2352647e-7) == "1.24e-7"
    assert units.rate(0.00098821) == "0.000988"
    assert units.link_speed(10_000) == "10 Gbit/s"
    assert units.link_speed(None) == "of unknown speed"
    assert units.plural(1, "micro-batch", "micro-batches") == "1 micro-batch"
    assert units.plural(4, "micro-batch", "micro-batches") == "4 micro-batches"


def test_a_moment_that_is_none_is_shown_as_it_is() -> None:
    assert units.moment(1763199900.0) == "2025-11-15 09:45:00 UTC"
    assert "1e+18" in units.moment(1e18)
