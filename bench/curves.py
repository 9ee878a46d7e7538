"""Does the fast path learn what the slow one learns? The same sentences, step by step, the same weights at the start:

    fast    rows packed with several pairs, fused kernels, compiled, recorded as in a run, the precision of the run file
    plain   one pair a row, padded, fp32, plain torch, its own cross-entropy, nothing compiled

    python bench/curves.py RUN.TOML [section.key=value ...] [--steps 1000] [--every 50]
    python bench/curves.py transformer-big --precisions bf16 fp8        # or: the fast path in two precisions

Prints both losses side by side and, as its last line, one JSON object. With dropout the two draw different masks; their noise
is shown by a second fast run with another seed for dropout, beside which the other one must not stand out.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.benchmark.train import changed
from dragoman.config import Config, load_config
from dragoman.config.schedule import learning_rate
from dragoman.data.encode import PreparedData
from dragoman.data.loader import Batch, Step, prefetched, steps
from dragoman.model import ops
from dragoman.model.loss import SequenceLoss
from dragoman.model.plain import IGNORED
from dragoman.model.transformer import Transformer
from dragoman.parallel.mesh import joined, pick_device
from dragoman.parallel.strategy import Strategy
from dragoman.training import facts, optim
from dragoman.training.compiling import compile_parts
from dragoman.training.precision import arithmetic_of, resolve
from dragoman.training.recorded import Recorded
from dragoman.training.state import TrainState
from dragoman.training.step import update

OTHER = ", other dropout"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--precisions", nargs=2, metavar=("USUAL", "TRIED"), help="of two fast runs; no plain one then")
    options = parser.parse_args()
    config = load_config(options.config, options.overrides)
    usual, tried = options.precisions or ("plain", "fast")
    again = f"{usual if options.precisions else tried}{OTHER}"
    curves = {}
    ops.look_at(pick_device(config.train.device))
    for name in (usual, tried, again):
        start, fast = time.perf_counter(), name != "plain"
        how = changed(config, train={"precision": name.removesuffix(OTHER)}) if options.precisions else config
        # The plain one takes none of our kernels, on any device: nothing that both might do wrong.
        own = {} if fast else {"on_cpu": lambda x: False, "HAS_TRITON": False}
        with patch.multiple(ops, **own) if own else nullcontext():
            curves[name] = curve(how, options.steps, options.every, fast=fast, dropout_seed=2 if name == again else 1)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    print(f"\n{'step':>6s}" + "".join(f"{name:>22s}" for name in curves))
    for index in range(len(curves[usual])):
        row = "".join(f"{curve[index]:22.4f}" for curve in curves.values())
        print(f"{(index + 1) * options.every:6d}{row}")
    print(json.dumps(figures(curves, options.steps)))


def figures(curves: dict[str, list[float]], count: int) -> dict[str, object]:
    usual, tried, again = curves

    def apart(one: str, other: str) -> float:
        """Mean relative difference over the second half: at the start, losses fall too quickly to compare."""
        half = len(curves[one]) // 2
        pairs = zip(curves[one][half:], curves[other][half:], strict=True)
        return round(float(np.mean([abs(a - b) / b for a, b in pairs])), 5)

    return {
        "benchmark": "curves",
        "steps": count,
        "final_loss": {name: round(curve[-1], 4) for name, curve in curves.items()},
        f"{tried}_from_{usual}": apart(tried, usual),
        "noise": apart(again, again.removesuffix(OTHER)),
    }


def curve(config: Config, count: int, every: int, *, fast: bool, dropout_seed: int) -> list[float]:
    """Mean loss per target token over every `every` steps."""
    with joined(config.train.device, config.train.timeout_seconds) as mesh:
        data = PreparedData(config.data.folder)
        arithmetic = arithmetic_of(resolve(config.train.precision if fast else "fp32", mesh.device), mesh.device)
        model = Transformer(config.model, len(data.vocabulary), data.vocabulary.source_size)
        model.init_weights(config.run.seed)
        if arithmetic.name == "fp8":
            model.use_eight_bits()
        state = TrainState(model.to(mesh.device), optim.build(model, config.train), arithmetic.scaler())
        compiled = fast and mesh.device.type == "cuda"
        strategy = Strategy(config.parallel, mesh)
        objective = (SequenceLoss if fast else PlainLoss)(model, config.train.label_smoothing)
        module = strategy.wrap(objective).train()
        if compiled:
            compile_parts(model)
        if compiled and config.train.cuda_graphs:
            module = Recorded(module, mesh.device).train()
        packing, share, rate = facts.packing_of(data, config), facts.share_of(config, mesh), learning_rate(config)
        stream = prefetched(steps(data.encoded("train"), packing, share, state.position), pin=compiled)
        losses, total, tokens = [], torch.zeros((), device=mesh.device, dtype=torch.float64), 0
        for number in range(1, count + 1):
            step = next(stream)
            optim.set_rate(state.optimizer, rate(state.step))
            given = step if fast else padded(step)
            loss, _ = update(state, module, given, strategy, config.train, arithmetic, dropout_seed)
            total, tokens = total + loss, tokens + step.target_tokens
            if number % every == 0:
                losses.append(float(total) / tokens)
                total, tokens = torch.zeros_like(total), 0
        stream.close()
    return losses


class PlainLoss(SequenceLoss):
    """The same sums, of all logits at once, by torch."""

    def forward(self, source, source_position, source_segment, target_in, target_out, target_position, target_segment):  # type: ignore[no-untyped-def]
        memory = self.model.encode(source, source_position, source_segment)
        hidden = self.model.decode(target_in, target_position, target_segment, memory, source_segment)
        labels = target_out.masked_fill(target_segment == 0, IGNORED).flatten()
        logits = self.model.logits(hidden).flatten(0, 1).float()

        def total(smoothing: float) -> Tensor:
            return F.cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")

        return total(self.label_smoothing), total(0.0).detach()


def padded(step: Step) -> Step:
    """The same pairs, one a row."""
    step.micro_batches = [unpacked(batch) for batch in step.micro_batches]
    return step


def unpacked(batch: Batch) -> Batch:
    source = spread(batch.source_segment, batch.source_position, [batch.source])
    target = spread(batch.target_segment, batch.target_position, [batch.target_in, batch.target_out])
    return Batch(source[2], source[0], source[1], target[2], target[3], target[0], target[1])


def spread(segment: torch.Tensor, position: torch.Tensor, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Positions, segments and values of every pair of the rows in a row of its own. Pairs of both sides are in the same order."""
    numbers, places = segment.numpy(), position.numpy().astype(np.int64)
    row, slot = np.nonzero(numbers)
    pair = np.unique(row * (numbers.max() + 1) + numbers[row, slot], return_inverse=True)[1]
    shape = (int(pair.max()) + 1, int(places.max()) + 1)
    result = [np.tile(np.arange(shape[1]), (shape[0], 1)), np.zeros(shape, dtype=np.int64)]
    result[1][pair, places[row, slot]] = 1
    for value in values:
        result.append(np.zeros(shape, dtype=np.int64))
        result[-1][pair, places[row, slot]] = value.numpy()[row, slot]
    return [torch.from_numpy(array) for array in result]


if __name__ == "__main__":
    main()
