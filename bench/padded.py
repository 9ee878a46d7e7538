"""What dragoman is measured against is fed with padded batches: sentences of similar length, one a row.

Also `Plain`, the Transformer that one writes first. The scripts beside this file import it."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import Config
from dragoman.data.encode import Encoded, Ints, Side
from dragoman.data.subwords import BOS, PAD
from dragoman.training.precision import AUTOCAST, NEEDS, arithmetic_of, resolve


@dataclass
class Padded:
    """All tensors [sentences, width], each side with a width of its own."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    target_tokens: int  # real ones

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)[:3]]

    def to(self, device: torch.device) -> Padded:
        return Padded(*(tensor.to(device, non_blocking=True) for tensor in self.tensors()), self.target_tokens)

    def pin(self) -> Padded:
        return Padded(*(tensor.pin_memory() for tensor in self.tensors()), self.target_tokens)


def groups(data: Encoded, tokens: int, random: np.random.Generator, multiple: int = 1) -> list[Ints]:
    """Every sentence pair once, similar lengths together, as many as `tokens` padded slots hold. Those of one width share a batch;
    what is left over of it goes with the next width."""
    source, target = (up_to(side.lengths, multiple) for side in (data.source, data.target))
    widths = np.maximum(source, target)
    order = np.lexsort((random.random(len(widths)), target, source, widths))
    widths, found, at = widths[order], [], 0
    while at < len(order):
        slots = widths[at : at + max(1, tokens // int(widths[at]))]
        rows = max(1, int((slots * np.arange(1, len(slots) + 1) <= tokens).sum()))
        found.append(order[at : at + rows])
        at += rows
    return found


def sample(data: Encoded, tokens: int, count: int, seed: int, multiple: int = 1) -> list[Padded]:
    """At most `count` of all batches, in random order."""
    random = np.random.default_rng(seed)
    every = groups(data, tokens, random, multiple)
    return [padded(data, every[choice], multiple) for choice in random.permutation(len(every))[:count]]


def padded(data: Encoded, group: Ints, multiple: int = 1) -> Padded:
    source, _ = placed(data.source, group, multiple)
    target_out, inside = placed(data.target, group, multiple)
    target_in = np.zeros_like(target_out)
    target_in[:, 1:] = target_out[:, :-1]
    target_in[:, 0] = BOS
    target_in[~inside] = PAD
    return Padded(*(torch.from_numpy(ids) for ids in (source, target_in, target_out)), int(inside.sum()))


def placed(side: Side, group: Ints, multiple: int) -> tuple[Ints, np.ndarray]:
    """Ids [sentences, width], and which of them are real."""
    starts = np.where(group > 0, side.ends[group - 1], 0)
    lengths = side.ends[group] - starts
    slots = np.arange(int(up_to(lengths.max(), multiple)))
    inside = slots < lengths[:, None]
    ids = np.full(inside.shape, PAD, dtype=np.int64)
    ids[inside] = side.ids[(starts[:, None] + slots)[inside]]
    return ids, inside


def up_to(lengths: Ints, multiple: int) -> Ints:
    """Multiples of 8: fewer shapes, and matrices that tensor cores like; of 1: fewer empty slots."""
    return -(-lengths // multiple) * multiple


class Plain(nn.Module):
    """torch's own Transformer, logits of every slot, no positions, no dropout on embeddings."""

    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        shape = config.model
        self.embedding = nn.Embedding(vocab_size, shape.d_model)
        nn.init.normal_(self.embedding.weight, std=shape.d_model**-0.5)
        self.transformer = nn.Transformer(
            shape.d_model, shape.heads, shape.encoder_layers, shape.decoder_layers, shape.d_ff, shape.dropout,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        for module in self.transformer.modules():  # it takes one dropout for everything
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = shape.attention_dropout
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = shape.relu_dropout
        self.scale, self.smoothing = math.sqrt(shape.d_model), config.train.label_smoothing

    def forward(self, source: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target_in.shape[1], device=source.device)
        hidden = self.transformer(
            self.embedding(source) * self.scale, self.embedding(target_in) * self.scale,
            tgt_mask=causal, tgt_is_causal=True, src_key_padding_mask=source == PAD, memory_key_padding_mask=source == PAD,
        )  # fmt: skip
        return smoothed_loss(hidden @ self.embedding.weight.t(), target_out, self.smoothing)


def precision_of(config: Config, device: torch.device) -> str:
    """As dragoman has it, but bf16 where that has fp8, which is its own, or fp16, which wants its loss scaled; on a CPU fp32."""
    if device.type != "cuda":
        return "fp32"
    name = resolve(config.train.precision, device)
    has_bf16 = torch.cuda.get_device_capability(device) >= NEEDS["bf16"]
    return "bf16" if name in AUTOCAST and has_bf16 else name


def arithmetic(config: Config, device: torch.device) -> AbstractContextManager[object]:
    return arithmetic_of(precision_of(config, device), device)()


def update(module: nn.Module, optimizer: torch.optim.Optimizer, config: Config, batch: Padded) -> Tensor:
    """What one writes around a module that returns its mean loss; returns that, still on the device."""
    with arithmetic(config, batch.source.device):
        loss = module(*batch.tensors())
    loss.backward()
    if config.train.clip_norm:
        nn.utils.clip_grad_norm_(module.parameters(), config.train.clip_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def smoothed_loss(logits: Tensor, target_out: Tensor, smoothing: float) -> Tensor:
    """The mean over real tokens; autocast computes it in fp32."""
    return F.cross_entropy(logits.flatten(0, 1), target_out.flatten(), ignore_index=PAD, label_smoothing=smoothing)
