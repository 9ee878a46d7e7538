"""Where the time of one rank goes, by the clock of its device: marks between the phases of a step, read once a window.

idle -> other (copies, books) -> forward -> backward (with the exchange of gradients that could not be hidden) -> optimizer
-> exchange (where it comes after the backward pass) -> idle -> ...
"""

from __future__ import annotations

import time
from typing import Any

import psutil
import torch

PHASES = ("idle", "other", "forward", "backward", "optimizer", "exchange")


class Clock:
    """Phases of steps. On a GPU the marks are events in its stream: nothing waits until `seconds` reads them. Between the steps
    a GPU is idle only when the host is late, so time that the host spends while the GPU still works is not counted twice."""

    def __init__(self, device: torch.device):
        self.device = device
        self.marks: list[tuple[str, Any]] = []
        self.mark("start")

    def mark(self, phase: str) -> None:
        """What was done since the mark before belongs to `phase`."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self.marks.append((phase, event))
        else:
            self.marks.append((phase, time.perf_counter()))

    def spans(self) -> list[tuple[str, float]]:
        """Phases in their order, with seconds. The device must have come to the last mark."""
        return [
            (phase, start.elapsed_time(end) / 1000.0 if self.device.type == "cuda" else end - start)
            for (_, start), (phase, end) in zip(self.marks, self.marks[1:], strict=False)
        ]

    def seconds(self) -> dict[str, float]:
        spent = dict.fromkeys(PHASES, 0.0)
        for phase, seconds in self.spans():
            spent[phase] += seconds
        return spent

    def steps(self) -> list[float]:
        """Seconds of every step, from one end of the optimizer to the next."""
        found, since = [], 0.0
        for phase, seconds in self.spans():
            since += seconds
            if phase == "optimizer":
                found.append(since)
                since = 0.0
        return found


def memory_bytes(device: torch.device) -> int:
    """What this rank holds of its device's memory at most, or of the host's now."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return int(psutil.Process().memory_info().rss)
