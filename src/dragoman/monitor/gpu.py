"""NVIDIA GPUs through NVML. A machine without a GPU or a driver gives an empty list."""

from __future__ import annotations

from typing import Any

import pynvml

FACTS = {
    "utilization_percent": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory_used_bytes": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "power_watts": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "temperature_celsius": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
}


def handles() -> list[Any]:
    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def describe(gpu: Any) -> dict[str, Any]:
    """What does not change: name, memory, power limit."""
    return {
        "name": ask(lambda: pynvml.nvmlDeviceGetName(gpu)),
        "memory_bytes": ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu).total),
        "power_limit_watts": ask(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000),
        "driver": ask(pynvml.nvmlSystemGetDriverVersion),
    }


def sample(gpus: list[Any]) -> list[dict[str, Any]]:
    return [{name: ask(lambda fact=fact, gpu=gpu: fact(gpu)) for name, fact in FACTS.items()} for gpu in gpus]


def ask(question: Any) -> Any:
    """NVML's answer, or None where this card, driver or permission gives none."""
    try:
        return question()
    except pynvml.NVMLError:
        return None
