"""The model in torch: batches of fixed shapes, whose steps a GPU records once and then replays without the host.

    sources --pad--> rows x slots --start--> memory of the source --advance, advance, ...--> harvest
                                                                        '- when many rows are done, the others go on as a smaller batch

Batches of any shape share one piece of memory (`Arena`): a recorded step finds its tensors where they were."""

from __future__ import annotations

import copy
import logging
import math
import zlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.data.subwords import BOS, EOS, PAD
from dragoman.errors import ConfigError
from dragoman.model import ops
from dragoman.model.layers import KeyValue
from dragoman.model.transformer import Cache, Transformer
from dragoman.translate.request import Hypothesis, Request
from dragoman.translate.search import NEVER, Beams, advance, harvest

log = logging.getLogger(__name__)

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ROWS = sorted({1, *(2**n for n in range(1, 15)), *(3 * 2**n for n in range(13))})  # of a batch on a GPU
MOST_RECORDED = 256  # steps of different shapes; each takes a few MB
NOTHING = Hypothesis([], NEVER)  # a model of NaNs ends nothing: an empty translation, not an endless search


class TorchEngine:
    """Searches with a Transformer on its device. `precision`: "fp32", "fp16", "bf16", or auto: fp16 on a GPU, else as it is."""

    name = "torch"

    def __init__(self, model: Transformer, precision: str = "auto"):
        self.device = model.embedding.weight.device
        self.on_gpu = self.device.type == "cuda"
        ops.look_at(self.device)
        if precision == "auto":
            precision = "fp16" if self.on_gpu else "fp32"
        if precision not in PRECISIONS:
            raise ConfigError(
                [f"precision {precision!r} is not known; choose {', '.join(PRECISIONS)} or auto"], "translate"
            )
        self.model = in_precision(model, PRECISIONS[precision])
        self.arena = Arena(self.device)
        self.recorder = Recorder(self.on_gpu)
        self.look_every, self.tile = (4, 32) if self.on_gpu else (1, 16)

    def slots(self) -> int:
        """As many as keep it busy."""
        return 65_536 if self.on_gpu else 8192

    def cells(self) -> int:
        """A key and a value in every layer for each: as many as half of the free memory holds, on a CPU a GiB."""
        free = 2**31
        if self.on_gpu:
            free = torch.cuda.mem_get_info(self.device)[0]
            free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            free += sum(flat.nbytes for flat in self.arena.flat.values())  # used again by the next batch
        section = self.model.section
        return free // 2 // (2 * section.d_model * section.decoder_layers * self.model.embedding.weight.itemsize)

    @torch.no_grad()
    def search(
        self, sources: list[list[int]], prefixes: list[list[int]], request: Request, *, attention: bool = False
    ) -> list[list[Hypothesis]]:
        if not sources:
            return []
        if request.sample:
            torch.manual_seed(zlib.crc32(repr((request.seed, sources)).encode()))  # no two batches draw alike
        limits = [request.most_ids(*each) for each in zip(sources, prefixes, strict=True)]
        each = [index for index in range(len(sources)) for _ in range(request.rows)]
        searched = [(sources[index], limits[index], prefixes[index]) for index in each]
        found = self.search_rows(searched, request)
        if request.rows > 1:
            firsts = range(0, len(each), request.rows)
            found = [together(found[first : first + request.rows], request) for first in firsts]
        results = [hypotheses or [NOTHING] for hypotheses in found]
        if not attention:
            return results
        pairs = zip(sources, results, strict=True)
        return [[self.with_attention(source, each) for each in hypotheses] for source, hypotheses in pairs]

    def search_rows(self, searched: list[tuple[list[int], int, list[int]]], request: Request) -> list[list[Hypothesis]]:
        """The best that has ended in every row, a row being a source, its limit and its prefix."""
        owners = list(range(len(searched)))
        results: list[list[Hypothesis]] = [[] for _ in searched]
        batch = self.begin(searched, request)
        position = 0
        while True:
            for _ in range(self.look_every):
                batch.step(position)
                position += 1
            done_S = batch.beams.done_B.view(-1, request.groups).all(1)
            done_B = done_S.repeat_interleave(request.groups)[: len(owners)]  # groups leave together
            count = len(owners) - int(done_B.sum())  # waits for the device
            rows = self.rows_for(count, request)
            if count and rows > 0.7 * batch.beams.shape[0]:
                continue
            done = done_B.tolist()
            left = [row for row, is_done in enumerate(done) if not is_done]
            leaving = [row for row, is_done in enumerate(done) if is_done]
            for row, ended in zip(leaving, harvest(batch.beams, self.index(leaving), request), strict=True):
                results[owners[row]] = ended
            if not left:
                return results
            owners = [owners[row] for row in left]
            batch = batch.smaller(self.index(left + leaving[:1] * (rows - len(left))), len(left), position)

    def begin(self, searched: list[tuple[list[int], int, list[int]]], request: Request) -> Batch:
        rows = self.rows_for(len(searched), request)
        limits = [limit for _, limit, _ in searched]
        width = round_up(max(len(source) for source, _, _ in searched), 16 if self.on_gpu else 1)
        slots = round_up(max(limits) + 1 + self.look_every, self.tile)
        spare = rows - len(searched)
        source, segment = padded([source for source, _, _ in searched] + [[EOS]] * spare, self.device, width)
        forced = torch.full((rows, slots), -1)
        for row, (_, _, prefix) in enumerate(searched):
            if prefix:
                forced[row, : len(prefix)] = torch.tensor(prefix)
        batch = Batch(self, request, rows, width, slots)
        batch.source.copy_(source)
        batch.segment.copy_(segment)
        batch.beams.begin(torch.tensor(limits + [0] * spare, device=self.device), forced.to(self.device))
        batch.start()
        return batch

    def rows_for(self, count: int, request: Request) -> int:
        """On a GPU one of a few numbers of rows, so that recorded steps are used again."""
        if not self.on_gpu:
            return count
        sentences = count // request.groups
        return next((rows for rows in ROWS if rows >= sentences), sentences) * request.groups

    def index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.device)

    def with_attention(self, source: list[int], found: Hypothesis) -> Hypothesis:
        """Once more through the model with the translation given; of every sentence by itself, as long ones are rare."""
        if not found.ids:
            return found
        rows = self.index(source)[None], self.index([BOS, *found.ids[:-1]])[None]
        ones = [torch.ones_like(row) for row in rows]
        weights = self.model.attention_to_source(rows[0], ones[0], rows[1], ones[1])[0]
        return replace(found, attention=weights.tolist())


def together(rows: list[list[Hypothesis]], request: Request) -> list[Hypothesis]:
    """The best of several searches for one sentence. Two groups may end with the same; what was drawn twice counts twice."""
    every = [hypothesis for row in rows for hypothesis in row]
    if request.groups > 1:
        every = list({tuple(hypothesis.ids): hypothesis for hypothesis in every}.values())
    return sorted(every, key=lambda hypothesis: -hypothesis.score)[: request.n_best]


class Batch:
    """Rows of one shape in the arena."""

    def __init__(self, engine: TorchEngine, request: Request, rows: int, width: int, slots: int):
        self.engine, self.request = engine, request
        self.shape = (rows, width, slots)
        model, arena = engine.model, engine.arena
        section, dtype = model.section, model.embedding.weight.dtype
        head = section.d_model // section.heads
        self.source = arena.take("source", (rows, width), torch.int64)
        self.segment = arena.take("segment", (rows, width), torch.int64)

        def pairs(name: str, *shape: int) -> list[KeyValue]:
            return [
                (arena.take(f"{name} key {layer}", shape, dtype), arena.take(f"{name} value {layer}", shape, dtype))
                for layer in range(section.decoder_layers)
            ]

        self.cache = Cache(
            pairs("source", rows, section.heads, width, head),
            arena.take("mask", (rows, 1, 1, width), dtype),
            pairs("target", rows, section.heads, slots, request.width, head),
        )
        self.is_fused = ops.searches_fused(self.cache.cross_mask, request.width, head)
        self.beams = arena.beams(rows, request.width, slots)
        if arena.grew:
            engine.recorder.forget()
            arena.grew = False

    def start(self) -> None:
        if not self.is_fused:
            for key, value in self.cache.past:  # what is not seen has weight 0, but 0 times NaN is NaN
                key.zero_()
                value.zero_()
        self.engine.recorder.run(
            ("start", self.shape), lambda: self.remember(*self.engine.model.start(self.source, self.segment))
        )

    def remember(self, memory: list[KeyValue], mask: Tensor) -> None:
        """What the model made of the source."""
        for kept, fresh in zip(self.cache.memory, memory, strict=True):
            kept[0].copy_(fresh[0])
            kept[1].copy_(fresh[1])
        self.cache.cross_mask.copy_(mask)

    def step(self, position: int) -> None:
        slots = self.shape[2]
        if not self.is_fused:  # a kernel reads what is filled, whatever it is told: one recording for all positions
            slots = min(slots, round_up(position + 1, self.engine.tile))
        step = partial(advance, self.engine.model, self.cache, self.beams, self.request, slots)
        if self.request.sample:  # what is drawn is never recorded
            step()
        else:
            self.engine.recorder.run(("step", self.shape, slots, self.request), step)

    def smaller(self, rows: Tensor, real: int, filled: int) -> Batch:
        """Go on with these rows; those after the first `real` ones only fill the batch."""
        # Both lie in the same memory: what goes on is copied aside, layer by layer, before its new place is written.
        beams = self.beams.taken(rows)
        memory = [(key[rows], value[rows]) for key, value in self.cache.memory]
        mask = self.cache.cross_mask[rows]
        old = self.cache.past
        batch = Batch(self.engine, self.request, len(rows), *self.shape[1:])
        for (key, value), (new_key, new_value) in zip(old, batch.cache.past, strict=True):
            new_key[:, :, :filled].copy_(key[rows, :, :filled])
            new_value[:, :, :filled].copy_(value[rows, :, :filled])
        batch.remember(memory, mask)
        batch.beams.put(beams)
        batch.beams.done_B[real:] = True
        return batch


class Arena:
    """Flat memory by name, handed out in any shape; it grows when it must, and everything recorded is void then."""

    def __init__(self, device: torch.device):
        self.device = device
        self.flat: dict[str, Tensor] = {}
        self.states: dict[tuple[int, int, int], Beams] = {}
        self.grew = False

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        if name not in self.flat or self.flat[name].numel() < count:
            self.flat.pop(name, None)
            self.flat[name] = torch.zeros(count, dtype=dtype, device=self.device)
            self.grew = True
        return self.flat[name][:count].view(shape)

    def beams(self, rows: int, hypotheses: int, slots: int) -> Beams:
        key = (rows, hypotheses, slots)
        if self.device.type == "cpu":  # nothing is recorded: nothing has to stay where it is
            return Beams.empty(*key, self.device)
        if key not in self.states:
            if len(self.states) >= MOST_RECORDED:
                self.states.clear()
                self.grew = True
            self.states[key] = Beams.empty(*key, self.device)
        return self.states[key]


class Recorder:
    """Runs functions that read and write memory which stays where it is. On a GPU the second call with a key is recorded,
    and from then on replayed: a step is one launch instead of hundreds."""

    def __init__(self, on_gpu: bool):
        self.on_gpu = on_gpu
        self.seen: set[Hashable] = set()
        self.recorded: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def forget(self) -> None:
        self.seen.clear()
        self.recorded.clear()

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        if not self.on_gpu:
            function()
        elif key in self.recorded:
            self.recorded[key].replay()
        elif key not in self.seen:  # the first call warms up what must not be recorded
            self.seen.add(key)
            function()
        else:
            self.record(key, function)

    def record(self, key: Hashable, function: Callable[[], None]) -> None:
        if len(self.recorded) >= MOST_RECORDED:
            self.forget()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.recorded.values())).pool() if self.recorded else None
        try:
            # Other threads go on meanwhile: NCCL's, and the one that pins batches for training.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                function()
        except RuntimeError as error:  # slower, and as right: nothing was done yet
            reason = str(error).splitlines()[0]
            log.warning("this GPU does not record steps (%s); they are launched one by one", reason)
            self.on_gpu = False
            self.forget()
            function()
            return
        self.recorded[key] = graph
        graph.replay()


def in_precision(model: Transformer, dtype: torch.dtype) -> Transformer:
    """A copy with its matrices in `dtype`; norms stay in fp32. The model itself when nothing changes."""
    if model.embedding.weight.dtype == dtype:
        return model
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.to(dtype)
    if model.output_bias is not None:
        model.output_bias = model.output_bias.to(dtype)
    return model


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def padded(sources: list[list[int]], device: torch.device, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Ids and segments, 1 where there is an id."""
    lengths = np.array([len(source) for source in sources])
    is_id = np.arange(width or lengths.max()) < lengths[:, None]
    ids = np.full(is_id.shape, PAD)
    ids[is_id] = np.fromiter(chain.from_iterable(sources), np.int64, lengths.sum())
    return torch.from_numpy(ids).to(device), torch.from_numpy(is_id.astype(np.int64)).to(device)
