"""Which way an operation takes where: by what a GPU is, what is installed beside it, and how much memory it has."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch

from dragoman.model import loss, ops

CARD = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch):
    """A GPU of this capability and memory, on a machine with these programs and with Triton or without."""

    def make(capability=(9, 0), gibibytes=141, programs=("gcc",), triton=True):
        properties = SimpleNamespace(total_memory=gibibytes * 2**30, shared_memory_per_block_optin=2**18)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
        monkeypatch.setattr(ops, "find_spec", lambda name: triton or None)
        monkeypatch.setattr(ops, "keep_kernels_together", lambda: None)
        monkeypatch.setattr(ops, "HAS_TRITON", ops.HAS_TRITON)  # put back afterwards
        monkeypatch.setattr(ops, "MOST_DIM", ops.MOST_DIM)
        monkeypatch.delenv("CC", raising=False)

    return make


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ({}, ""),
        ({"programs": ("clang",)}, ""),
        ({"capability": (7, 0)}, ""),
        ({"capability": (6, 1)}, "a card is older than Triton supports"),
        ({"triton": False}, "Triton is not installed"),
        ({"programs": ()}, "there is no C compiler (gcc or clang), which Triton needs; install one"),
    ],
)
def test_what_cannot_be_compiled_for_a_gpu_is_known_beforehand(card, machine, why):
    card(**machine)
    assert ops.cannot_compile(CARD) == why


def test_a_compiler_may_be_named(card, monkeypatch):
    card(programs=())
    monkeypatch.setenv("CC", "/opt/cc")
    assert ops.cannot_compile(CARD) == ""


@pytest.mark.parametrize(
    ("machine", "ours"),
    [({}, True), ({"capability": (8, 0)}, True), ({"capability": (7, 5)}, False), ({"programs": ()}, False)],
)
def test_our_kernels_are_for_gpus_from_ampere_on_where_they_can_be_compiled(card, machine, ours):
    card(**machine)
    ops.look_at(CARD)
    assert ops.HAS_TRITON is ours


@pytest.mark.parametrize(
    ("gibibytes", "ours", "elements"), [(141, True, 2**30), (80, True, 2**30), (16, True, 2**28), (16, False, 2**26)]
)
def test_logits_that_exist_at_once_are_a_small_part_of_a_gpu(card, monkeypatch, gibibytes, ours, elements):
    card(gibibytes=gibibytes)
    monkeypatch.setattr(ops, "HAS_TRITON", ours)
    assert loss.slots_at_once(CARD, 2**15) == elements // 2**15


@pytest.mark.parametrize(
    ("slots", "key_slots", "dim", "has_mask"),
    [(64, 64, 64, False), (128, 128, 16, False), (64, 128, 64, True), (20, 20, 64, True), (512, 512, 64, True), (64, 64, 256, True)],
)  # fmt: skip
def test_a_mask_is_made_where_no_kernel_fits(monkeypatch, slots, key_slots, dim, has_mask):
    segments = [torch.ones(1, size, dtype=torch.int32) for size in (slots, key_slots)]
    like = torch.zeros(1)
    assert ops.sight(*segments, like, dim).mask.shape == (1, 1, slots, key_slots), "on a CPU always"
    monkeypatch.setattr(ops, "fusible", lambda x: x is like)
    monkeypatch.setattr(ops, "MOST_DIM", 128)
    assert (ops.sight(*segments, like, dim).mask is not None) == has_mask
