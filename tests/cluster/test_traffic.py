"""Bytes at the interface of a host during real runs are those of the plan, within 5 %."""

from __future__ import annotations

import pytest
from support import tiny_config

from dragoman.cli.forecast import setting_of
from dragoman.parallel import plan

CASES = {
    "ddp": ("fp32", 1, []),
    "bf16": ("bf16", 1, ["parallel.wire=bf16"]),
    "int8": ("int8", 1, ["parallel.wire=int8"]),
    "two_level": ("fp32", 2, ["parallel.strategy=two_level"]),
    "fsdp": ("fp32", 1, ["parallel.strategy=fsdp"]),
    "hybrid": ("fp32", 2, ["parallel.strategy=hybrid"]),
    "local": ("bf16", 1, ["parallel.strategy=local", "parallel.wire=bf16", "parallel.inner_steps=4"]),
    "streaming": ("int8", 1, ["parallel.strategy=streaming", "parallel.wire=int8", "parallel.inner_steps=4"]),
}  # what travels, processes on each host, settings
SHORT, LONG = 12, 52


@pytest.mark.cluster
@pytest.mark.parametrize("name", CASES)
def test_bytes_are_as_planned(start, lab, prepared, tmp_path, name):
    """Of the steps between a short and a long run: starting, validating and saving cost the same in both."""
    wire, each, overrides = CASES[name]
    model = ["model.d_model=128", "model.d_ff=512", "train.log_every=100", *overrides]
    sent = []
    for steps in (SHORT, LONG):
        before = lab.sent_bytes("a")
        start(f"train.max_steps={steps}", *model, hosts=f"a:{each},b:{each}", run=f"{name}-{steps}")
        sent.append(lab.sent_bytes("a") - before)
    config = tiny_config(prepared.folder, tmp_path, *model)
    strategy = config.parallel.strategy
    planned = plan.forecast(setting_of(config, 2, each, 0.1, "1gbit", 0.1), strategy, wire).sent_bytes
    assert (sent[1] - sent[0]) / (LONG - SHORT) == pytest.approx(planned, rel=0.05)
