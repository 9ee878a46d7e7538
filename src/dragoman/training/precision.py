"""Which arithmetic a device can really do, and doing it. Weights and moments are fp32 always.

| precision | matrix products | where |
|---|---|---|
| fp32 | fp32 | everywhere |
| tf32 | fp32 with 10 bits of mantissa | GPUs from Ampere on |
| bf16 | bf16 | the default on GPUs that have it, and on CPUs where it is faster |
| fp16 | fp16 with dynamic loss scaling | GPUs |
| fp8 | as bf16, but products with large matrices in fp8 while learning, forward and backward | GPUs from Ada and Hopper on |
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch

from dragoman.errors import TrainingError
from dragoman.model import ops

# Products of the shapes that training has, in both types: prints how many times faster bf16 is.
PROBE = """
import time, torch
def ready(dtype):
    layers = [(torch.ones(rows, k, dtype=dtype, requires_grad=True), torch.ones(n, k, dtype=dtype, requires_grad=True))
              for rows, k, n in ((2048, 128, 512), (2048, 512, 128), (256, 128, 4000), (512, 512, 2048), (64, 64, 64))]
    heads = torch.ones(64, 64, 32, dtype=dtype)
    def work():
        for x, weight in layers:
            torch.nn.functional.linear(x, weight).sum().backward()
        torch.bmm(torch.bmm(heads, heads.transpose(1, 2)), heads)
    work()
    return work
def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
works = [ready(dtype) for dtype in (torch.float32, torch.bfloat16)]
turns = [[seconds(work) for work in works] for _ in range(15)]  # in turns, the best of each: others may use the machine too
fp32, bf16 = (min(each) for each in zip(*turns))
print(fp32 / bf16)
"""
WORTH = 1.2  # times faster that bf16 must be on a CPU to be taken there
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


def arithmetic_of(name: str, device: torch.device) -> Arithmetic:
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    return Arithmetic(name, device)


def resolve(wanted: str, device: torch.device) -> str:
    """`auto`: bf16 on a GPU that has it, and on a CPU where it works and is faster. What a device cannot do is refused."""
    if wanted == "auto":
        cuda = device.type == "cuda"
        good = torch.cuda.get_device_capability(device) >= NEEDS["bf16"] if cuda else gain_of_bf16() > WORTH
        return "bf16" if good else "fp32"
    if device.type == "cuda":
        check_gpu(wanted, device)
    elif wanted == "bf16":
        if not gain_of_bf16():
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
            f'{torch.cuda.get_device_name(device)} has {has[0]}.{has[1]}; set train.precision = "auto"'
        )
    if wanted == "fp8" and (why := ops.cannot_compile(device)):
        raise TrainingError(
            f'train.precision = "fp8" needs kernels that are compiled here, and {why}; or set train.precision = "bf16"'
        )


@cache
def gain_of_bf16() -> float:
    """How many times faster bf16 products are on this CPU; 0 where they kill a process. So it is tried in a child: some CPUs
    announce instructions that they do not run."""
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # as training has them
    child = subprocess.run(
        [sys.executable, "-c", PROBE], env=os.environ | threads, capture_output=True, text=True, check=False
    )
    return float(child.stdout) if child.returncode == 0 else 0.0
