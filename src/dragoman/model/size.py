"""What a model weighs and costs, from its shape alone."""

from __future__ import annotations

from dragoman.config.schema import Model, Train
from dragoman.model.loss import loss_floor

FP32_BYTES = 4


def parameters(section: Model, vocab_size: int) -> int:
    """All numbers, with embeddings of `vocab_size` pieces (of both vocabularies, where there are two): attention without
    biases and two final norms, or the other way round."""
    width, inner = section.d_model, section.d_ff
    norm = 2 * width
    feed_forward = 2 * width * inner + inner + width
    encoder = 4 * width**2 + feed_forward + 2 * norm
    decoder = 8 * width**2 + feed_forward + 3 * norm
    ends = 2 * norm
    if section.style == "marian":
        encoder, decoder, ends = encoder + 4 * width, decoder + 8 * width, 0
    return vocab_size * width + section.encoder_layers * encoder + section.decoder_layers * decoder + ends


def checkpoint_bytes(num_parameters: int, *, averaged: bool = False, trainable: int | None = None) -> int:
    """fp32 weights, their average where there is one, Adam's two moments of those that are not frozen, and a handful of numbers."""
    moments = 2 * (num_parameters if trainable is None else trainable)
    return FP32_BYTES * ((2 if averaged else 1) * num_parameters + moments) + 16


def flops(section: Model, vocab_size: int, source_tokens: float, target_tokens: float) -> float:
    """Floating-point operations of training on these tokens: two a weight forward, four backward, matrices only."""
    width, inner = section.d_model, section.d_ff
    per_source = section.encoder_layers * (4 * width**2 + 2 * width * inner) + section.decoder_layers * 2 * width**2
    per_target = section.decoder_layers * (6 * width**2 + 2 * width * inner) + vocab_size * width
    return 6.0 * (per_source * source_tokens + per_target * target_tokens)


def summary(section: Model, train: Train, vocab_size: int, source_vocab_size: int, trainable: int) -> dict[str, float]:
    """The facts that a run folder keeps. `source_vocab_size`: of a vocabulary that the source has for itself, or 0."""
    count = parameters(section, vocab_size + source_vocab_size)
    return {
        "parameters": count,
        "trainable": trainable,
        "vocab_size": vocab_size,
        "weight_bytes": FP32_BYTES * count,
        "checkpoint_bytes": checkpoint_bytes(count, averaged=train.average_decay > 0, trainable=trainable),
        "flops_per_target_token": flops(section, vocab_size, 1.0, 1.0),
        "loss_floor": round(loss_floor(vocab_size, train.label_smoothing), 6),
    }
