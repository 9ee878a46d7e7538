"""Learning rates: the reference's table, and what each policy promises."""

import pytest

from dragoman.config import load_config
from dragoman.config.schedule import formula, learning_rate

REFERENCE = {
    0: 1.24e-7,
    1_000: 1.24e-4,
    7_999: 9.88e-4,
    20_000: 6.25e-4,
    50_000: 3.95e-4,
    100_000: 2.80e-4,
    300_000: 1.61e-4,
}


def rate_of(*overrides):
    return learning_rate(load_config("transformer-base", ["train.max_steps=1000", *overrides]))


@pytest.mark.parametrize(("step", "expected"), REFERENCE.items())
def test_table_of_the_reference(step, expected):
    assert learning_rate(load_config("transformer-base"))(step) == pytest.approx(expected, rel=5e-3)


def test_the_peak_is_where_the_warm_up_ends():
    rate = learning_rate(load_config("transformer-base"))
    assert max(range(20_000), key=rate) == 7_999


DECAYING = ["exponential", "polynomial", "cosine", "inverse_polynomial"]


@pytest.mark.parametrize("policy", [*DECAYING, "fixed"])
def test_warm_up_is_linear_and_the_floor_holds(policy):
    rate = rate_of(
        f"schedule.policy={policy}",
        "schedule.learning_rate=0.1",
        "schedule.warmup_steps=10",
        "schedule.min_learning_rate=0.02",
    )
    assert [rate(step) for step in range(10)] == pytest.approx([0.01 * (step + 1) for step in range(10)])
    assert all(rate(step) >= 0.02 for step in range(10, 3000))


@pytest.mark.parametrize("policy", DECAYING)
def test_no_jump_where_the_warm_up_ends(policy):
    rate = rate_of(
        f"schedule.policy={policy}",
        "schedule.learning_rate=0.1",
        "schedule.warmup_steps=400",
        "schedule.min_learning_rate=0.01",
    )
    assert rate(399) == pytest.approx(0.1)
    assert rate(400) == pytest.approx(0.1)
    assert rate(1000) == pytest.approx(0.01)


@pytest.mark.parametrize("policy", DECAYING)
def test_decays_from_the_highest_to_the_lowest(policy):
    rate = rate_of(
        f"schedule.policy={policy}",
        "schedule.learning_rate=0.1",
        "schedule.warmup_steps=0",
        "schedule.min_learning_rate=0.01",
        "schedule.begin_decay_at=100",
        "schedule.decay_steps=400",
        "schedule.power=2.0",
    )
    assert rate(0) == rate(100) == pytest.approx(0.1)
    assert rate(500) == pytest.approx(0.01)
    values = [rate(step) for step in range(100, 501)]
    assert values == sorted(values, reverse=True)


def test_decay_ends_with_the_run_by_default():
    rate = rate_of("schedule.policy=cosine", "schedule.learning_rate=0.1", "schedule.warmup_steps=0")
    assert rate(500) == pytest.approx(0.05)
    assert rate(1000) == pytest.approx(0.0, abs=1e-12)


def test_stairs_and_pieces():
    common = ["schedule.learning_rate=0.1", "schedule.warmup_steps=0"]
    stairs = rate_of("schedule.policy=exponential", "schedule.decay_steps=100", "schedule.staircase=true", *common)
    assert [stairs(step) for step in (0, 99, 100, 250)] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    pieces = rate_of("schedule.policy=piecewise", "schedule.boundaries=[10,20]", "schedule.factors=[0.5,0.1]", *common)
    assert [pieces(step) for step in (0, 9, 10, 19, 20)] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.01])


def test_words_carry_the_numbers():
    text = formula(load_config("transformer-base"))
    assert "512^-0.5" in text
    assert "8,000 steps to 0.000988" in text
