"""Optimizers, and their state as plain named tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.config.schema import Train

MOMENTS = ("exp_avg", "exp_avg_sq")


def build(model: nn.Module, section: Train) -> torch.optim.Optimizer:
    """Its rate is set before every step."""
    kind = torch.optim.AdamW if section.optimizer == "adamw" else torch.optim.Adam
    return kind(model.parameters(), 0.0, section.betas, section.epsilon, weight_decay=section.weight_decay, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def moments(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """`exp_avg.<parameter>` and `exp_avg_sq.<parameter>` of every parameter that was updated at least once."""
    state = optimizer.state
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter in state]
    return {f"{moment}.{name}": state[parameter][moment] for name, parameter in named for moment in MOMENTS}


def updates(optimizer: torch.optim.Optimizer) -> int:
    """Updates that were made: fewer than steps, as one whose gradient is not finite is skipped. The same for every parameter,
    so one is asked: reading it waits for the device."""
    return int(next((state["step"] for state in optimizer.state.values()), 0))


def restore(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor], updates: int) -> None:
    names = [name for name, _ in model.named_parameters()]
    state = {
        index: {"step": torch.tensor(float(updates)), **{moment: tensors[f"{moment}.{name}"] for moment in MOMENTS}}
        for index, name in enumerate(names)
        if f"{MOMENTS[0]}.{name}" in tensors
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
