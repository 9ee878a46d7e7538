"""NVIDIA GPUs through NVML. A machine without a GPU or a driver gives an empty list; what a card, its driver or the
permissions do not tell is null, and `describe` says in NVML's words what is missing.

`utilization_percent` is the share of time in which ANY kernel ran: it is 100 also while a card waits for the network inside one.
`sm_percent` (GPM, Hopper and later) is the share of multiprocessors that worked: read the two together, and with the power."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

Facts = dict[str, Any]

MIB = 2**20
GPM = {  # name -> (NVML's number of the metric, factor to the unit in the name)
    "sm_percent": (pynvml.NVML_GPM_METRIC_SM_UTIL, 1.0),
    "sm_occupancy_percent": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 1.0),
    "tensor_percent": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 1.0),
    "dram_percent": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 1.0),
    "pcie_sent_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, MIB),
    "pcie_received_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, MIB),
    "nvlink_sent_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, MIB),
    "nvlink_received_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, MIB),
}
FACTS: dict[str, Callable[[Any], Any]] = {
    "utilization_percent": lambda card: pynvml.nvmlDeviceGetUtilizationRates(card).gpu,
    "memory_used_bytes": lambda card: pynvml.nvmlDeviceGetMemoryInfo(card).used,
    "power_watts": lambda card: pynvml.nvmlDeviceGetPowerUsage(card) / 1000,
    "energy_joules": lambda card: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1000,
    "sm_clock_mhz": lambda card: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda card: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM),
    "temperature_celsius": lambda card: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU),
    "throttle_reasons": lambda card: reasons(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(card)),
}
PCIE = {  # each asks a counter for 20 ms; only where GPM does not tell
    "pcie_sent_bytes_per_s": pynvml.NVML_PCIE_UTIL_TX_BYTES,
    "pcie_received_bytes_per_s": pynvml.NVML_PCIE_UTIL_RX_BYTES,
}
REASONS = {  # bits of NVML's clocks event reasons; being idle or set to a lower clock by hand is no fault
    "power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
}


def handles() -> list[Any]:
    """Cards that NVML can open. It counts those too that are broken or that we may not use, which CUDA leaves out as well."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return []
    cards = [ask(partial(pynvml.nvmlDeviceGetHandleByIndex, index)) for index in range(count)]
    return [card for card in cards if card is not None]


def index_of(uuid: str) -> int | None:
    """The place among `handles` of the card that torch knows by this UUID."""
    uuids = [ask(partial(pynvml.nvmlDeviceGetUUID, card)) for card in handles()]
    return next((place for place, found in enumerate(uuids) if found and found.endswith(uuid)), None)


def describe(card: Any) -> Facts:
    """What does not change, and what this card does not tell."""
    missing: list[str] = []
    facts: dict[str, Callable[[], Any]] = {
        "name": lambda: pynvml.nvmlDeviceGetName(card),
        "memory_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(card).total,
        "power_limit_watts": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1000,
        "max_sm_clock_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_SM),
        "driver": pynvml.nvmlSystemGetDriverVersion,
    }
    known = {name: ask(fact, name, missing) for name, fact in facts.items()}
    for name, fact in FACTS.items():
        ask(partial(fact, card), name, missing)
    activity = "SM activity, NVLink traffic"
    if not has_gpm(card):
        missing.append(f"{activity}: this card or driver has no GPM metrics")
    else:  # having them and being allowed to read them are two things
        ask(lambda: pynvml.nvmlGpmSampleGet(card, pynvml.nvmlGpmSampleAlloc()), activity, missing)
    return known | {"missing": missing}


class Cards:
    """All cards of this host, sampled again and again: GPM's figures are means since the sample before."""

    def __init__(self) -> None:
        self.cards = handles()
        self.gpm = [Gpm(card) if has_gpm(card) else None for card in self.cards]

    def sample(self) -> list[Facts]:
        rows = []
        for card, gpm in zip(self.cards, self.gpm, strict=True):
            row = {name: ask(partial(fact, card)) for name, fact in FACTS.items()} | (gpm.sample() if gpm else {})
            if row.get("pcie_sent_bytes_per_s") is None:
                row |= {name: ask(partial(pcie, card, counter)) for name, counter in PCIE.items()}
            rows.append(row)
        return rows


class Gpm:
    """GPU performance monitoring of one card: two samples make a mean."""

    def __init__(self, card: Any):
        self.card = card
        self.samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
        self.before = self.take()
        self.samples.reverse()

    def take(self) -> bool:
        return ask(lambda: pynvml.nvmlGpmSampleGet(self.card, self.samples[1])) is not None

    def sample(self) -> Facts:
        """Means since the last call; nothing where one of the two samples failed."""
        taken = self.take()
        found = ask(self.between) if taken and self.before else None
        self.samples.reverse()
        self.before = taken
        return dict(found or {})

    def between(self) -> Facts:
        query = pynvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        query.sample1, query.sample2 = self.samples
        for metric, (number, _) in zip(query.metrics, GPM.values(), strict=False):
            metric.metricId = number
        pynvml.nvmlGpmMetricsGet(query)
        return {
            name: round(metric.value * factor, 2) if metric.nvmlReturn == pynvml.NVML_SUCCESS else None
            for metric, (name, (_, factor)) in zip(query.metrics, GPM.items(), strict=False)
        }


def has_gpm(card: Any) -> bool:
    return bool(ask(lambda: pynvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice))


def reasons(bits: int) -> list[str]:
    return [name for name, bit in REASONS.items() if bits & bit]


def pcie(card: Any, counter: int) -> int:
    return int(pynvml.nvmlDeviceGetPcieThroughput(card, counter)) * 1024


def ask(question: Callable[[], Any], name: str = "", missing: list[str] | None = None) -> Any:
    """NVML's answer, or None where this card, driver or permission gives none; why goes into `missing`."""
    try:
        return question()
    except pynvml.NVMLError as error:
        if missing is not None:
            missing.append(f"{name}: {error}")
        return None
