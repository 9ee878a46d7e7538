"""Training speed of one process against a plain padded `nn.Transformer` loop: same sentences, shape and optimizer.

    python bench/step.py [--preset tiny] [--pairs 20000] [--tokens 4096] [--rounds 3]

Both sides pass over the same pairs once to warm up, then take turns, so that noise of the machine hits both alike. Prints
a table and, as its last line, one JSON object. Tokens are real target tokens, padding not counted. `nn.Transformer` has one
dropout for everything, so it also pays for dropout on attention weights and inside the feed-forward layers.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.cli.stages import prepare
from dragoman.config import Config, load_config
from dragoman.data.encode import Encoded
from dragoman.data.loader import Share, steps
from dragoman.data.pack import Packing, Position
from dragoman.data.subwords import BOS, PAD
from dragoman.model.loss import SequenceLoss
from dragoman.model.transformer import Transformer
from dragoman.training import optim
from dragoman.training.precision import arithmetic, resolve

Step = Callable[[], int]  # does one update, returns its real target tokens


def main() -> None:
    options = parse()
    config = load_config(
        options.preset, ["data.corpus=grammar", f"data.train_pairs={options.pairs}", "data.valid_pairs=10"]
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        config = config.model_copy(
            update={"data": config.data.model_copy(update={"folder": str(Path(folder) / "data")})}
        )
        data = prepare(config)
        train, size = data.encoded("train"), len(data.vocabulary)
        ours = packed(config, train, size, options.tokens, device)
        plain = padded(config, train, size, options.tokens, device)
        speeds = compare({"dragoman": ours, "nn.Transformer": plain}, options.steps, options.rounds, device)
    ratio = speeds["dragoman"] / speeds["nn.Transformer"]
    print(f"\n{'':16s}{'target tokens/s':>18s}")
    for name, speed in speeds.items():
        print(f"{name:16s}{speed:18,.0f}")
    print(f"{'ratio':16s}{ratio:18.2f}")
    figures = {"bench": "step", "preset": options.preset, "device": device.type, "threads": torch.get_num_threads()}
    speeds_rounded = {f"{name}_target_tokens_per_s": round(speed, 1) for name, speed in speeds.items()}
    print(json.dumps(figures | speeds_rounded | {"ratio": round(ratio, 3)}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=4096, help="target slots per update")
    parser.add_argument("--steps", type=int, default=12, help="updates per round")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def compare(sides: dict[str, Step], count: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Median over rounds; the sides take turns."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, step in sides.items():
            start = time.perf_counter()
            tokens = sum(step() for _ in range(count))
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first turn warms up
                measured[name].append(tokens / (time.perf_counter() - start))
                print(f"round {turn}, {name}: {measured[name][-1]:,.0f} target tokens/s", flush=True)
    return {name: sorted(values)[len(values) // 2] for name, values in measured.items()}


def packed(config: Config, data: Encoded, vocab_size: int, tokens: int, device: torch.device) -> Step:
    """dragoman's own update: rows packed with whole pairs, the loss in pieces."""
    width = config.train.tile_width
    model = Transformer(config.model, vocab_size)
    model.init_weights(1)
    objective = SequenceLoss(model.to(device), config.train.label_smoothing).train()
    optimizer = optim.build(model, config.train)
    optim.set_rate(optimizer, 1e-4)
    rows = tokens // width
    stream = steps(data, Packing(width, config.train.window_pairs, 1), Share(rows, 0, 1, rows), Position())
    precision = resolve("auto", device)

    def step() -> int:
        item = next(stream)
        with arithmetic(precision, device):
            loss, _ = objective(*item.micro_batches[0].to(device).tensors())
        (loss / item.target_tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return item.target_tokens

    return step


class Plain(nn.Module):
    """What one writes first: torch's own Transformer, padded batches, logits of every slot."""

    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        shape = config.model
        self.embedding = nn.Embedding(vocab_size, shape.d_model)
        nn.init.normal_(self.embedding.weight, std=shape.d_model**-0.5)
        self.transformer = nn.Transformer(
            shape.d_model, shape.heads, shape.encoder_layers, shape.decoder_layers, shape.d_ff, shape.dropout,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.scale, self.smoothing = math.sqrt(shape.d_model), config.train.label_smoothing

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        given, wanted = target[:, :-1], target[:, 1:]
        causal = nn.Transformer.generate_square_subsequent_mask(
            given.shape[1], device=target.device, dtype=torch.float32
        )
        hidden = self.transformer(
            self.embedding(source) * self.scale, self.embedding(given) * self.scale, tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=source == PAD, memory_key_padding_mask=source == PAD,
        )  # fmt: skip
        logits = hidden @ self.embedding.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=self.smoothing)


def padded(config: Config, data: Encoded, vocab_size: int, tokens: int, device: torch.device) -> Step:
    model = Plain(config, vocab_size).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    batches = padded_batches(data, tokens)
    precision = resolve("auto", device)

    def step() -> int:
        source, target, count = next(batches)
        with arithmetic(precision, device):
            loss = model(source.to(device), target.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return count

    return step


def padded_batches(data: Encoded, tokens: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Buckets of sentences of similar length, as everybody does it, in random order."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.maximum(torch.from_numpy(data.source.lengths), torch.from_numpy(data.target.lengths))
    order = iter(torch.argsort(lengths, descending=True).tolist())
    groups = []
    for first in order:
        groups.append([first, *islice(order, max(0, tokens // int(lengths[first]) - 1))])
    while True:
        for choice in torch.randperm(len(groups), generator=generator).tolist():
            group = groups[choice]
            source = pad([data.source.sentence(index).tolist() for index in group])
            target = pad([[BOS, *data.target.sentence(index).tolist()] for index in group])
            yield source, target, int(data.target.lengths[group].sum())


def pad(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


if __name__ == "__main__":
    main()
