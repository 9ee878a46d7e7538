"""Which arithmetic a device can really do."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from dragoman.errors import TrainingError

PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum().item()"


def resolve(wanted: str, device: torch.device) -> str:
    """`auto` becomes bf16 on a GPU that has it and fp32 elsewhere; bf16 on a CPU is tried before it is believed."""
    if wanted == "auto":
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if wanted == "bf16" and device.type == "cpu" and not cpu_survives_bf16():
        raise TrainingError(
            'train.precision = "bf16": bf16 matrix products kill a process on this CPU (it announces instructions that it does not '
            'run). Set train.precision = "fp32", or start with the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16'
        )
    return wanted


def cpu_survives_bf16() -> bool:
    """In a child process, because the wrong answer is an illegal instruction."""
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode == 0


def arithmetic(precision: str, device: torch.device) -> AbstractContextManager[object]:
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
