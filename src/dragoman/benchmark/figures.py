"""What is said about speed: model FLOPs against the peak of the device, memory, and on what it was measured."""

from __future__ import annotations

import re
import resource
import sys
from typing import Any

import torch

from dragoman import __version__
from dragoman.benchmark.sentences import told
from dragoman.config.schema import Model
from dragoman.data.encode import PreparedData
from dragoman.model import size
from dragoman.parallel.mesh import Mesh
from dragoman.training.facts import device_name
from dragoman.training.trainer import Trainer

Figures = dict[str, Any]
PHASES = ("forward", "backward", "optimizer", "other")  # of a step
LOOP_PHASES = (*PHASES, "exposed", "idle")  # of a step between two others, by the spans of a run

# Dense bf16 matrix products of one device in TFLOP/s, from the data sheets; V100 and T4 have fp16 only. The first name
# that is found counts: special ones stand before general ones.
PEAK_TFLOPS = {
    "B200": 2250.0, "H200": 989.0, "GH200": 989.0, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.0,
    "A100": 312.0, "A40": 150.0, "A10": 125.0, "V100": 125.0, "T4": 65.0, "L40S": 362.0, "L40": 181.0, "L4": 121.0,
    "RTX 4090": 165.0, "RTX 3090": 71.0,
}  # fmt: skip


def peak_tflops(name: str) -> float | None:
    """Of the device with this name, or None where nobody wrote it down."""
    return next((peak for known, peak in PEAK_TFLOPS.items() if re.search(rf"\b{known}\b", name)), None)


def utilization(section: Model, vocab_size: int, measured: Figures, devices: int, peak: float | None) -> Figures:
    """Model FLOPs a second, and their share of what all devices could do together."""
    speeds = measured["source_tokens_per_s"], measured["target_tokens_per_s"]
    model = size.flops(section, vocab_size, *speeds) / 1e12
    mfu = round(model / (devices * peak), 4) if peak else None
    return {"model_tflops_per_s": round(model, 6), "peak_tflops": peak, "mfu": mfu}


def of_trainer(trainer: Trainer, data: PreparedData, measured: Figures, peak: float | None) -> Figures:
    """Everything that follows from the measured speeds of a trainer. `peak` in TFLOP/s overrides the table."""
    mesh = trainer.mesh
    peak = peak or peak_tflops(device_name(mesh.device))
    return {
        **measured,
        **utilization(trainer.config.model, len(data.vocabulary), measured, mesh.world, peak),
        **peak_memory(mesh.device),
        "rows_per_step": trainer.share.rows,
        "micro_batches": trainer.share.micro_batches,
        "precision": trainer.arithmetic.name,
        "compile": trainer.compiled,
        **circumstances(mesh, data),
    }


def circumstances(mesh: Mesh, data: PreparedData) -> Figures:
    return {
        "data": told(data),
        "device": mesh.device.type,
        "device_name": device_name(mesh.device),
        "ranks": mesh.world,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "dragoman": __version__,
    }


def forget_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> Figures:
    """Bytes: of this rank's GPU since its peak was forgotten, or of this process since it started."""
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        return {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
