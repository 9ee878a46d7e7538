"""torch.compile, one part of the model at a time: blocks of a kind share what is compiled for the first of them, so a model of
twelve layers starts nearly as soon as one of two. Where our kernels fit nothing between two parts could be fused with them; elsewhere a
mask and two norms are made without the compiler."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from dragoman.model.transformer import Transformer

VARIANTS = 64  # of what torch.compile sees as one function, a module's call: kinds of parts times shapes of batches


def compile_parts(model: Transformer) -> None:
    """At their first call. Whoever cuts them into pieces (FSDP) has done so before."""
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(VARIANTS, dynamo.recompile_limit)
    dynamo.optimize_ddp = False  # would cut every part, so that gradients leave early; parts are small enough
    for part in model.parts():
        part.compile(dynamic=False)


def uncompiled() -> AbstractContextManager[None]:
    """In here nothing is compiled: for shapes that come once, as in a validation."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
