"""The Triton kernels: interpreted on any machine, compiled where there is a GPU. In a process of their own, because Triton
decides when it is imported."""

import os
import subprocess
import sys
from functools import partial
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
    assert done.stdout.count(" ok\n") == CASES.read_text(encoding="utf-8").count("\ndef case_")


def test_kernels_compute_what_the_plain_functions_do():
    run("cpu", TRITON_INTERPRET="1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_too():
    run("cuda")


ATTENTION = {"SCALE": 0.125, "THRESHOLD": 2**28, "GAIN": 1.1, "HEADS": 8, "WIDTH": 64, "DIM": 64, "CAUSAL": True,
             "DROPOUT": True, "TOGETHER": True, "SMALL": False}  # fmt: skip
NORM = {"THRESHOLD": 2**28, "GAIN": 1.1, "EPSILON": 1e-5, "WIDTH": 512, "BLOCK": 512, "DROPOUT": True}
SEARCH = {"SCALE": 0.125, "HEADS": 8, "HYPOTHESES": 4, "QUERIES": 16, "DIM": 64, "TILE": 32}
LOGITS = {"FIRST": 0, "SECOND": 2, "WIDTH": 32_000, "CHUNK": 128}
NUMBERS = {
    "add_norm_forward": NORM | {"ROWS": 4, "SMALL": 0.0},
    "add_norm_backward": NORM | {"ROWS": 2, "TURNS": 3, "STAGES": 3},
    "attention_forward": ATTENTION,
    "attention_backward": ATTENTION,
    "search_self": SEARCH,
    "search_cross": SEARCH,
    "activate": {"THRESHOLD": 2**28, "GAIN": 1.1, "BLOCK": 4096},
    "relu_backward": {"GAIN": 1.1, "WIDTH": 2048, "COLUMNS": 256, "ROWS": 16, "TILES": 16},
    "loss": {"SMOOTHING": 0.1, "GAIN": 1.0, "WIDTH": 32_000, "BLOCK": 4096, "SMALL": False},
    "embedding_backward": {"WIDTH": 512, "BLOCK": 512, "RUN": 32},
    "peaks": LOGITS | {"BLOCK": 4096},
    "best": LOGITS | {"CHUNKS": 250, "MOST": 256, "COUNT": 8, "PLACES": 8},
}
TILE = {"ROWS": 64, "COLUMNS": 128}
WORDS = {"x": "*u32", "small": "*u32", "turned": "*u32", "hidden": "*u32", "gradient": "*u32"}
GRADIENTS = {"small": "*fp8e5"}
QUERIES = {"query_gradient": "*fp8e5", "key_value_gradient": "*fp8e5"}
EIGHT_BITS = [  # Ampere has none; kernel, its numbers, and types of their own
    ("shrink", TILE | {"SCALE": 4.0, "GRADIENT": False}, WORDS | {"x": "*i64"}),
    ("shrink", TILE | {"SCALE": 1.0, "GRADIENT": True}, WORDS | {"x": "*i64"}),
    ("turn_active", TILE | {"THRESHOLD": 2**28, "DROPOUT": True}, WORDS),
    ("turn_relu_backward", TILE | {"TILES": 8}, WORDS),
    ("turn", TILE, WORDS),
    ("add_norm_forward", NUMBERS["add_norm_forward"] | {"SMALL": 4.0}, {"normed": "*fp8e4nv"}),
    ("attention_forward", ATTENTION | {"SMALL": 4.0}, {"out": "*fp8e4nv"}),
    ("attention_backward", ATTENTION | {"SMALL": True}, QUERIES),
    ("loss", NUMBERS["loss"] | {"SMALL": True}, GRADIENTS),
]
OTHER_TYPES = {
    "*i64": ("seed", "labels", "position", "column", "id", "order"),
    "*i32": ("query_segment", "key_segment"),
    "*i8": ("ancestry",),
    "*fp32": ("weight", "bias", "partial", "normalizer", "peak", "losses", "likelihoods", "bias_gradient", "inverse"),
}


def type_of(name: str) -> str:
    if not name.endswith("_ptr"):
        return "i32"
    found = (kind for kind, names in OTHER_TYPES.items() if name.removesuffix("_ptr") in names)
    return next(found, "*fp16")


@pytest.mark.parametrize("architecture", [80, 90], ids=["Ampere", "Hopper"])
@pytest.mark.parametrize("name", NUMBERS)
def test_kernels_compile_without_a_gpu_too(name, architecture):
    """The interpreter takes what the compiler refuses, such as a variable that changes its shape in a loop."""
    compiles(name, NUMBERS[name], {}, architecture)


@pytest.mark.parametrize(("name", "numbers", "own_types"), EIGHT_BITS)
def test_kernels_of_eight_bits_compile_without_a_gpu_too(name, numbers, own_types):
    compiles(name, numbers, own_types, 90)


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_a_cap_on_registers_leaves_enough_of_them(dim):
    from dragoman.model import eight_bits

    numbers = ATTENTION | {"SMALL": True, "DIM": dim, "DROPOUT": False}
    assert bool(eight_bits.capped(numbers)) == (dim == 64)
    compiles("attention_backward", numbers, QUERIES, 90, eight_bits.capped(numbers))


def compiles(name, numbers, own_types, architecture, options=None):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compiled

    from dragoman.model import kernels

    kernel = getattr(kernels, name)
    types = {
        argument: "constexpr"
        if argument in numbers
        else own_types.get(argument.removesuffix("_ptr"), type_of(argument))
        for argument in kernel.arg_names
    }
    constants = {(kernel.arg_names.index(argument),): value for argument, value in numbers.items()}
    made = compiled(ASTSource(kernel, types, constants), target=GPUTarget("cuda", architecture, 32), options=options)
    assert made.asm["cubin"]


def test_long_sums_in_eight_bits_are_exact(monkeypatch):
    """Over the vocabulary or all slots: the quick way would lose the many small gradients of logits beside the large one."""
    from dragoman.model import eight_bits

    quick = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda left, right, **how: quick.append(how["use_fast_accum"]))
    for terms in (4096, 32_768):
        numbers = torch.zeros(16, terms, dtype=torch.float8_e4m3fn)
        eight_bits.product(numbers, 1.0, numbers, 1.0, None, torch.bfloat16)
    assert quick == [True, False]


@pytest.mark.parametrize("named", ["", "kept"])
def test_kernels_lie_in_one_folder(monkeypatch, tmp_path, named):
    """Before and after torch.compile's first one: Triton's usual folder, or the one that somebody has named for torch or Triton."""
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
    from triton import knobs

    from dragoman.model import ops

    named = named and str(tmp_path / named)  # torch makes it
    name_folder = (
        partial(monkeypatch.setenv, "TORCHINDUCTOR_CACHE_DIR", named)
        if named
        else partial(monkeypatch.delenv, "TORCHINDUCTOR_CACHE_DIR", raising=False)
    )
    name_folder()
    monkeypatch.setenv("TRITON_CACHE_DIR", "Triton's")
    ops.keep_kernels_together()
    assert knobs.cache.dir == "Triton's"
    monkeypatch.delenv("TRITON_CACHE_DIR")
    usual = knobs.cache.dir
    assert triton_cache_dir(0) != usual, "or there is no need for any of this"
    name_folder()  # torch has named its own when it was asked
    ops.keep_kernels_together()
    assert triton_cache_dir(0) == knobs.cache.dir == (str(Path(named, "triton")) if named else usual)
