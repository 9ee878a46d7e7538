"""Learning rates as plain functions of the step, counted from 0. They follow from the configuration alone, so that
the trainer applies them, the report checks them, and nobody has to guess what a curve depends on."""

from __future__ import annotations

import math
from collections.abc import Callable

from dragoman.config.schema import Config, Schedule

LearningRate = Callable[[int], float]


def learning_rate(config: Config) -> LearningRate:
    """The rate at every step of a run."""
    schedule = config.schedule
    if schedule.policy == "transformer":
        return lambda step: transformer(step, schedule, config.model.d_model)
    shape, decay_steps = SHAPES[schedule.policy], decay_length(config)
    return lambda step: warmed_up(step, schedule, shape(step, schedule, decay_steps))


def transformer(step: int, schedule: Schedule, d_model: int) -> float:
    scale = schedule.coefficient * schedule.learning_rate / math.sqrt(d_model)
    rate = scale * min((step + 1) / math.pow(schedule.warmup_steps, 1.5), 1.0 / math.sqrt(step + 1))
    return max(rate, schedule.min_learning_rate) if step >= schedule.warmup_steps else rate


def warmed_up(step: int, schedule: Schedule, rate: float) -> float:
    if step < schedule.warmup_steps:
        return schedule.learning_rate * (step + 1) / schedule.warmup_steps
    return max(rate, schedule.min_learning_rate)


def decay_begin(schedule: Schedule) -> int:
    """Decay does not begin before the warm-up is over: the curve has no jump."""
    return max(schedule.begin_decay_at, schedule.warmup_steps)


def decay_length(config: Config) -> int:
    return config.schedule.decay_steps or max(1, config.train.max_steps - decay_begin(config.schedule))


def schedule_end(config: Config) -> int | None:
    """The step from which on the rate stays as it is; None where it always does, or falls for ever."""
    schedule = config.schedule
    if schedule.policy in ("transformer", "fixed", "exponential"):
        return None
    if schedule.policy == "piecewise":
        return max(schedule.boundaries) + 1
    return decay_begin(schedule) + decay_length(config)


def progress(step: int, schedule: Schedule, decay_steps: int) -> float:
    """Decay done so far: 0 before it begins, 1 when it is over."""
    return min(max(step - decay_begin(schedule), 0) / decay_steps, 1.0)


def fixed(step: int, schedule: Schedule, decay_steps: int) -> float:
    return schedule.learning_rate


def piecewise(step: int, schedule: Schedule, decay_steps: int) -> float:
    passed = sum(step >= boundary for boundary in schedule.boundaries)
    return schedule.learning_rate * (schedule.factors[passed - 1] if passed else 1.0)


def exponential(step: int, schedule: Schedule, decay_steps: int) -> float:
    periods = max(step - decay_begin(schedule), 0) / decay_steps
    if schedule.staircase:
        periods = math.floor(periods)
    return schedule.learning_rate * math.pow(schedule.decay_rate, periods)


def polynomial(step: int, schedule: Schedule, decay_steps: int) -> float:
    left = math.pow(1.0 - progress(step, schedule, decay_steps), schedule.power)
    return schedule.min_learning_rate + (schedule.learning_rate - schedule.min_learning_rate) * left


def cosine(step: int, schedule: Schedule, decay_steps: int) -> float:
    left = 0.5 * (1.0 + math.cos(math.pi * progress(step, schedule, decay_steps)))
    return schedule.min_learning_rate + (schedule.learning_rate - schedule.min_learning_rate) * left


def inverse_polynomial(step: int, schedule: Schedule, decay_steps: int) -> float:
    """learning_rate / (1 + scale * n)^power, with the scale that reaches min_learning_rate after decay_steps."""
    scale = math.pow(schedule.learning_rate / schedule.min_learning_rate, 1.0 / schedule.power) - 1.0
    return schedule.learning_rate / math.pow(1.0 + scale * progress(step, schedule, decay_steps), schedule.power)


# By the names of policies.
SHAPES = {shape.__name__: shape for shape in (fixed, piecewise, exponential, polynomial, cosine, inverse_polynomial)}


def formula(config: Config) -> str:
    """The curve in words, with the numbers of this configuration."""
    schedule = config.schedule
    warmup = f"rises linearly over the first {schedule.warmup_steps:,} steps"
    if schedule.policy == "transformer":
        peak = learning_rate(config)(schedule.warmup_steps - 1)
        return (
            f"policy transformer: lr(s) = {schedule.coefficient:g} * {schedule.learning_rate:g} * {config.model.d_model}^-0.5 * "
            f"min((s+1) * {schedule.warmup_steps}^-1.5, (s+1)^-0.5): it {warmup} to {peak:.3g}, "
            "then falls with the inverse square root of the step"
        )
    decay_steps = decay_length(config)
    shapes = {
        "fixed": "stays there",
        "piecewise": f"is multiplied by {list(schedule.factors)} from steps {list(schedule.boundaries)} on",
        "exponential": f"is multiplied by {schedule.decay_rate:g} every {decay_steps:,} steps",
        "polynomial": f"falls with power {schedule.power:g} to {schedule.min_learning_rate:g} over {decay_steps:,} steps",
        "cosine": f"falls along a cosine to {schedule.min_learning_rate:g} over {decay_steps:,} steps",
        "inverse_polynomial": f"falls inversely with power {schedule.power:g} to {schedule.min_learning_rate:g} over {decay_steps:,} steps",
    }
    start = f"starts at {schedule.learning_rate:g} and"
    if schedule.warmup_steps:
        start = f"{warmup} to {schedule.learning_rate:g}, then"
    return f"policy {schedule.policy}: the rate {start} {shapes[schedule.policy]}"
