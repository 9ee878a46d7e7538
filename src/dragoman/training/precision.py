"""Which arithmetic a device can really do, and doing it. Weights and moments are fp32 always.

| precision | matrix products | where |
|---|---|---|
| fp32 | fp32 | everywhere |
| tf32 | fp32 with 10 bits of mantissa | GPUs from Ampere on |
| bf16 | bf16, activations too | the default on GPUs that have it; CPUs that survive it |
| fp16 | fp16 with dynamic loss scaling | GPUs |
| fp8 | as bf16, but forward products with large matrices in fp8 | GPUs from Hopper on |
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from dragoman.errors import TrainingError

PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum().item()"
NEEDS = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0), "fp8": (8, 9)}  # compute capability
AUTOCAST = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Arithmetic:
    """One of the precisions on one device. Called, it is the context of a forward pass."""

    name: str
    device: torch.device

    def __call__(self) -> AbstractContextManager[object]:
        if self.name in AUTOCAST:
            return torch.autocast(self.device.type, dtype=AUTOCAST[self.name])
        return nullcontext()

    def scaler(self) -> torch.amp.GradScaler:
        """Dynamic loss scaling; without fp16 it does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")


def arithmetic_of(wanted: str, device: torch.device) -> Arithmetic:
    """`auto` becomes bf16 on a GPU that has it and fp32 elsewhere; what a device cannot do is refused in words."""
    name = resolve(wanted, device)
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    return Arithmetic(name, device)


def resolve(wanted: str, device: torch.device) -> str:
    if wanted == "auto":
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if device.type == "cuda":
        check_gpu(wanted, device)
    elif wanted == "bf16":
        if not cpu_survives_bf16():
            raise TrainingError(
                'train.precision = "bf16": bf16 matrix products kill a process on this CPU (it announces instructions that it does not '
                'run). Set train.precision = "fp32", or start with the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16'
            )
    elif wanted != "fp32":
        raise TrainingError(f'train.precision = "{wanted}" needs a GPU; on a CPU set train.precision = "fp32"')
    return wanted


def check_gpu(wanted: str, device: torch.device) -> None:
    needed, has = NEEDS.get(wanted, (0, 0)), torch.cuda.get_device_capability(device)
    if has < needed:
        raise TrainingError(
            f'train.precision = "{wanted}" needs a GPU of compute capability {needed[0]}.{needed[1]}, '
            f"{torch.cuda.get_device_name(device)} has {has[0]}.{has[1]}; set train.precision = \"auto\""
        )


def cpu_survives_bf16() -> bool:
    """In a child process, because the wrong answer is an illegal instruction."""
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode == 0
