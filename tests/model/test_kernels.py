"""The Triton kernels: interpreted on any machine, compiled where there is a GPU. In a process of their own, because Triton
decides when it is imported."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).with_name("kernel_cases.py")

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def run(device, **environment):
    done = subprocess.run(
        [sys.executable, CASES, device], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ok") >= 8


def test_kernels_compute_what_the_plain_functions_do():
    run("cpu", TRITON_INTERPRET="1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_too():
    run("cuda")
