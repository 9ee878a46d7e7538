"""Encoder, decoder and the one matrix they share with the output; the encoder has one of its own where vocabularies are
separate.

Shapes in names: B rows, S source slots, T target slots, D model width, V vocabulary, N hypotheses (B x beam).
Segments tell which slots of a row belong to the same pair; 0 is an empty slot (see data/pack).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config.schema import Model
from dragoman.model import layers, plain
from dragoman.model.layers import AddNorm, KeyValue, Normed, Stream, is_marian
from dragoman.model.ops import EIGHT_BITS_MULTIPLE, Descent, sight, stream

# Models of this width use 8 bits in these layers too: what is won grows with the width, what the conversion costs does not.
WIDE = {layers.FeedForward: 512, layers.SelfAttention: 1024, layers.CrossAttention: 1024}


@dataclass
class Cache:
    """What incremental decoding remembers, in memory that is set aside once: nothing of it is moved when hypotheses change."""

    memory: list[KeyValue]  # of every layer: keys and values of the source, [B, heads, S, dim]
    cross_mask: Tensor  # added to the scores of source slots, [B, 1, 1, S]
    past: list[KeyValue]  # of every layer: keys and values of the target so far, [B, heads, T, K, dim]


class Transformer(nn.Module):
    eight_bits = False  # of the output matrix

    def __init__(self, section: Model, vocab_size: int, source_vocab_size: int = 0):
        super().__init__()
        self.section = section
        self.embedding = nn.Embedding(vocab_size, section.d_model)
        self.source_embedding = nn.Embedding(source_vocab_size, section.d_model) if source_vocab_size else None
        self.encoder = nn.ModuleList(layers.EncoderBlock(section) for _ in range(section.encoder_layers))
        self.encoder_norm = None if is_marian(section) else AddNorm(section)
        self.decoder = nn.ModuleList(layers.DecoderBlock(section) for _ in range(section.decoder_layers))
        self.decoder_norm = None if is_marian(section) else AddNorm(section)
        self.beginning = layers.Beginning(section)
        self.output_bias: Tensor | None
        self.register_buffer("output_bias", torch.zeros(vocab_size) if is_marian(section) else None)  # never trained

    def init_weights(self, seed: int) -> None:
        """The same weights for the same seed, whatever was drawn before."""
        generator = torch.Generator().manual_seed(seed)
        width = self.section.d_model
        for embedding in filter(None, (self.embedding, self.source_embedding)):
            nn.init.normal_(embedding.weight, std=width**-0.5, generator=generator)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                # Fused projections are several matrices in one: each is drawn as if it stood alone.
                fused = {"query_key_value": 3, "key_value": 2}.get(name.split(".")[-1], 1)
                for part in module.weight.data.chunk(fused):
                    nn.init.xavier_uniform_(part, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def parts(self) -> list[nn.Module]:
        """What a forward pass calls one after the other."""
        return [self.beginning, *self.encoder, *self.decoder]

    def use_eight_bits(self) -> bool:
        """While learning, products with large matrices in fp8: those with the output matrix, and others where the model is wide
        enough. It is validated and translates in 16 bits, as it will be used. False where no matrix is of the kind."""
        fits = {size: not size % EIGHT_BITS_MULTIPLE for size in (self.embedding.num_embeddings, self.section.d_ff)}
        if self.section.d_model % EIGHT_BITS_MULTIPLE:
            return False
        self.eight_bits = fits[self.embedding.num_embeddings]
        found = [self.eight_bits]
        for module in self.modules():
            if isinstance(module, layers.FeedForward | layers.SelfAttention | layers.CrossAttention):
                module.eight_bits = self.section.d_model >= WIDE[type(module)]
                if isinstance(module, layers.FeedForward):
                    module.eight_bits &= module.activation == "relu" and fits[self.section.d_ff]
                found.append(module.eight_bits)
        if not is_marian(self.section):
            self.norm_in_eight_bits()
        return any(found)

    def norm_in_eight_bits(self) -> None:
        """Where nobody needs more."""
        for block in (*self.encoder, *self.decoder):
            block.attention_norm.eight_bits = block.attention.eight_bits  # type: ignore[union-attr]
            block.feed_forward_norm.eight_bits = block.feed_forward.eight_bits  # type: ignore[union-attr]
        for block in self.decoder:
            block.cross_norm.eight_bits = block.cross.eight_bits  # type: ignore[union-attr]
            self.encoder_norm.eight_bits = block.cross.eight_bits  # type: ignore[union-attr]

    def embed(
        self, ids_BT: Tensor, position_BT: Tensor, slots: int | None = None, embedding: nn.Embedding | None = None
    ) -> Stream:
        """The beginning of the stream, and what is still to be added to it."""
        weight_VD = (embedding or self.embedding).weight
        embedded = self.beginning(ids_BT, position_BT, slots or ids_BT.shape[1], weight_VD)
        dropout = self.section.dropout if self.training else 0.0
        return stream(embedded, dropout, norms_first=not is_marian(self.section))

    def encode(self, source_BS: Tensor, position_BS: Tensor, segment_BS: Tensor) -> Normed:
        x_BSD, update = self.embed(source_BS, position_BS, embedding=self.source_embedding)
        seen = sight(segment_BS, segment_BS, x_BSD, self.head_width)
        for block in self.encoder:
            x_BSD, update = block(x_BSD, update, seen)
        return self.encoder_norm(x_BSD, update)[1] if self.encoder_norm else x_BSD

    def decode(
        self, target_BT: Tensor, position_BT: Tensor, segment_BT: Tensor, memory_BSD: Normed, source_segment_BS: Tensor
    ) -> Tensor:
        """The last hidden state of every target slot; `logits` turns it into scores."""
        x_BTD, update = self.embed(target_BT, position_BT)
        seen = sight(segment_BT, segment_BT, x_BTD, self.head_width, causal=True)
        seen_source = sight(segment_BT, source_segment_BS, x_BTD, self.head_width)
        for block in self.decoder:
            x_BTD, update = block(x_BTD, update, seen, memory_BSD, seen_source)
        return self.decoder_norm(x_BTD, update)[1] if self.decoder_norm else x_BTD

    def logits(self, x_BTD: Tensor) -> Tensor:
        return F.linear(x_BTD, self.embedding.weight, self.output_bias)

    def attention_to_source(
        self, source_BS: Tensor, source_segment_BS: Tensor, target_BT: Tensor, segment_BT: Tensor
    ) -> Tensor:
        """[B, T, S]: where the last but one layer of the decoder looks when it predicts the slot after each target slot."""
        memory_BSD = self.encode(source_BS, in_order(source_BS), source_segment_BS)
        x_BTD, update = self.embed(target_BT, in_order(target_BT))
        seen = sight(segment_BT, segment_BT, x_BTD, self.head_width, causal=True)
        seen_source = sight(segment_BT, source_segment_BS, x_BTD, self.head_width)
        mask = plain.visible(segment_BT, source_segment_BS, causal=False)
        *before, block = list(self.decoder)[: self.aligning_layer + 1]
        for earlier in before:
            x_BTD, update = earlier(x_BTD, update, seen, memory_BSD, seen_source)
        found: list[Tensor] = []

        def attend_source(x_BTD: Tensor) -> Tensor:
            found.append(block.cross.weights(x_BTD, memory_BSD, mask))  # type: ignore[union-attr,operator]
            return x_BTD

        block.sublayers(x_BTD, update, lambda x_BTD: block.attention(x_BTD, seen), attend_source)  # type: ignore[operator]
        return found[0]

    @property
    def head_width(self) -> int:
        return self.section.d_model // self.section.heads

    @property
    def aligning_layer(self) -> int:
        return max(0, len(self.decoder) - 2)

    # --- one position at a time ---

    def start(self, source_BS: Tensor, segment_BS: Tensor) -> tuple[list[KeyValue], Tensor]:
        """Encode padded sources, one a row: keys and values of every decoder layer, and what is added to their scores."""
        memory_BSD = self.encode(source_BS, in_order(source_BS), segment_BS)
        assert isinstance(memory_BSD, Tensor), "8 bits are for learning"
        memory = [block.cross.memory(memory_BSD) for block in self.decoder]  # type: ignore[union-attr,operator]
        mask = torch.zeros_like(segment_BS, dtype=memory_BSD.dtype).masked_fill(segment_BS == 0, float("-inf"))
        return memory, mask[:, None, None, :]

    def step(self, target_BK: Tensor, cache: Cache, seen: Descent) -> Tensor:
        """Logits [B, K, V] of the slot after `target_BK`. Shapes do not depend on the position, which is a tensor."""
        x_BKD, update = self.embed(target_BK, seen.position.expand(1, 1), cache.past[0][0].shape[2])
        for block, past, memory in zip(self.decoder, cache.past, cache.memory, strict=True):
            x_BKD, update = block.step(x_BKD, update, past, seen, memory, cache.cross_mask)  # type: ignore[operator]
        return self.logits(self.decoder_norm(x_BKD, update)[1] if self.decoder_norm else x_BKD)


def in_order(ids_BT: Tensor) -> Tensor:
    """Positions of rows that hold one sentence each."""
    return torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
