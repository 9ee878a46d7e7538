"""What the device really runs in a step: torch's profiler, by kernel and by kind of work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from dragoman.data.loader import Step

TOP = 15
ANNOTATIONS = ("##", "Torch-Compiled", "CompiledFunction", "ProfilerStep", "Optimizer.", "autograd::")
# The first kind whose pattern is found in the name of a kernel. Compiled kernels carry the names of what was fused.
KINDS = {
    "optimizer": r"adam|multi_tensor|foreach|lpnorm",
    "attention": r"flash|fmha|attention|sdpa|flex|::_softmax|masked_fill",
    "matrix products": r"gemm|gemv|cutlass|cublas|nvjet|xmma|splitk|wgmma|::mm$|::addmm|::bmm|matmul|mkldnn|onednn",
    "loss": r"^loss$|log_?softmax|logsumexp|cross_entropy|nll|smoothedsums",
    "numbers into 8 bits": r"^shrink|^turn$",
    "normalisation and dropout": r"add_?norm|layer_?norm|activ|relu_backward|dropout|bernoulli|philox|rand",
}


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name.lower())), "other")


def profile(update: Callable[[Step], object], steps: Iterable[Step], device: torch.device) -> dict[str, Any]:
    """Milliseconds a step: the largest kernels, and all of them by kind."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        count = len([update(step) for step in steps])
        if cuda:
            torch.cuda.synchronize(device)
    where, clock = ("CUDA", "self_device_time_total") if cuda else ("CPU", "self_cpu_time_total")
    found = [event for event in profiler.key_averages() if event.device_type.name == where]
    events = [event for event in found if not (cuda and is_annotation(event))]
    return summary([(event.key, float(getattr(event, clock)), event.count) for event in events], count)


def is_annotation(event: Any) -> bool:
    """A named stretch of the GPU's time, around kernels that are counted themselves."""
    return bool(event.is_user_annotation) or event.key.startswith(ANNOTATIONS)


def summary(events: list[tuple[str, float, int]], steps: int) -> dict[str, Any]:
    """Events are (name, microseconds, calls) over all steps."""
    total = sum(spent for _, spent, _ in events) or 1.0
    kinds: defaultdict[str, float] = defaultdict(float)
    for name, spent, _ in events:
        kinds[kind_of(name)] += spent / 1000.0 / steps
    top = [
        {
            "name": name,
            "kind": kind_of(name),
            "ms_per_step": round(spent / 1000.0 / steps, 4),
            "share": round(spent / total, 4),
            "calls_per_step": round(calls / steps, 2),
        }
        for name, spent, calls in sorted(events, key=lambda event: -event[1])[:TOP]
    ]
    by_time = sorted(kinds.items(), key=lambda kind: -kind[1])
    return {"kernels": top, "kinds_ms_per_step": {kind: round(spent, 4) for kind, spent in by_time}}
