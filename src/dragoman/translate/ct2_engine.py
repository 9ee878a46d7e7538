"""CTranslate2: the engine for CPUs. It follows the same search; scores are brought to our length penalty here."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dragoman import runs
from dragoman.cores import usable_cores, wanted_threads
from dragoman.data.subwords import NEVER_WRITTEN, Vocabulary
from dragoman.errors import ConfigError, RunError, require_extra
from dragoman.translate.models import is_ctranslate2
from dragoman.translate.request import Hypothesis, Request

log = logging.getLogger(__name__)

# CTranslate2 needs the positions as a table and refuses longer sentences; its own default cuts sources at 1024.
POSITIONS = 2048
MOST_WORKERS = 4
MOST_AT_ONCE = 64  # sentences of one worker
NO_PENALTY = 1e-9  # with exactly 0 CTranslate2 stops as soon as the best hypothesis has ended


class Task(NamedTuple):
    source: list[int]  # with the end mark
    prefix: list[int]
    limit: int  # most ids of a translation


class CTranslate2Engine:
    name = "ctranslate2"
    seed: int | None = None  # of this process: the library reads it once

    def __init__(self, folder: Path, vocabulary: Vocabulary, device: str = "cpu", threads: int = 0):
        """From an export to CTranslate2, in the arithmetic it was exported in as far as the device has it. A model folder is
        converted to fp32 first: the translations are those of the model itself."""
        self.library = require_extra("ctranslate2", "export", "translating with CTranslate2")
        self.library.set_log_level(logging.ERROR)  # what it warns of is said below, once and in a line
        self.folder, self.exported, self.device = folder, is_ctranslate2(folder), device
        self.threads = threads or wanted_threads(os.environ.get("OMP_NUM_THREADS", "")) or usable_cores()
        # Sentences are spread over workers before the work on one is: threads that wait for each other at every product lose.
        self.workers = min(self.threads, MOST_WORKERS) if device == "cpu" else 1
        self.translator = self.open(self.workers)
        self.drawing = self.translator if self.workers == 1 else None
        tell_fallback(folder, self.translator.compute_type)
        self.source_pieces, self.pieces = vocabulary.source.pieces(), vocabulary.pieces()
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}

    def open(self, workers: int) -> Any:
        if not self.folder.is_dir():
            raise RunError(
                f"{self.folder}: is gone since it was read, and drawing reads it again. Name a model that is kept"
            )
        threads = -(-self.threads // workers)  # five cores for four workers: rather a thread too many than an idle core
        how = {"device": self.device, "inter_threads": workers, "intra_threads": threads}
        try:
            if self.exported:
                return self.library.Translator(str(self.folder), **how)
            from dragoman.translate.ct2_model import write_ctranslate2

            with tempfile.TemporaryDirectory(prefix="dragoman-") as temporary:
                write_ctranslate2(self.folder, Path(temporary), None)
                return self.library.Translator(temporary, **how)
        except (RuntimeError, ValueError) as error:
            raise RunError(f"{self.folder}: CTranslate2 cannot load it ({str(error).splitlines()[0]})") from None

    def slots(self) -> int:
        return 2048

    def cells(self) -> int:
        """Its memory grows with what is really written, not with what might be."""
        return 2**62

    def search(
        self, sources: list[list[int]], prefixes: list[list[int]], request: Request, *, attention: bool = False
    ) -> list[list[Hypothesis]]:
        if request.groups > 1:
            raise ConfigError(["a diverse beam (groups) is not in CTranslate2; choose engine torch"], "translate")
        if any(len(prefix) + 2 > POSITIONS for prefix in prefixes):
            told = f"a prefix of {max(map(len, prefixes)):,} subwords; CTranslate2 takes {POSITIONS - 2:,}. Choose engine torch"
            raise ConfigError([told], "translate")
        if request.sample:
            self.begin_to_draw(request.seed)
        limits = [min(POSITIONS - 1, request.most_ids(*each)) for each in zip(sources, prefixes, strict=True)]
        tasks = list(map(Task, sources, prefixes, limits))
        found = self.search_within(tasks, request, attention)
        # A search in torch never takes these marks. Forbidding them here changes all scores a little, so it is done where they come.
        never = [[self.pieces[mark]] for mark in NEVER_WRITTEN]
        marked = [
            n for n, each in enumerate(found) if any(set(NEVER_WRITTEN) & set(hypothesis.ids) for hypothesis in each)
        ]
        put(found, marked, self.search_within([tasks[n] for n in marked], request, attention, never))
        return [ranked(hypotheses, request) for hypotheses in found]

    def search_within(
        self, tasks: list[Task], request: Request, attention: bool, without: list[list[str]] | None = None
    ) -> list[list[Hypothesis]]:
        """As if each sentence were searched alone. CTranslate2 has one limit of length for a whole batch, ours is each sentence's own:
        what is longer is cut there and scored again, with an end mark after it, as in torch. Scores are log-probabilities until
        `ranked` divides them."""
        if not tasks:
            return []
        found = self.search_batch(tasks, request, attention, without)
        # Something that long was found, so the beam was still going on at the limit: fewer than `beam` hypotheses ended before it.
        reached = [n for n, each in enumerate(found) if any(len(h.ids) >= tasks[n].limit for h in each)]
        if not request.sample and request.beam > 1:
            for chosen in by_limit(reached, tasks):
                again = self.search_batch([tasks[n] for n in chosen], request, attention, without, patience=2)
                put(found, chosen, [done(each, tasks[chosen[0]].limit, request.beam) for each in again])
        changed = reached if without is None else list(range(len(tasks)))
        put(found, changed, self.scored([tasks[n] for n in changed], [found[n] for n in changed]))
        return found

    def scored(self, tasks: list[Task], found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """With the log-probabilities that the model gives to all ids after the prefix, and to an end mark after them."""
        pairs = [(task, each) for task, hypotheses in zip(tasks, found, strict=True) for each in hypotheses]
        results = self.translator.score_batch(
            [self.spelled(task) for task, _ in pairs],
            [[self.pieces[index] for index in each.ids] for _, each in pairs],
            max_batch_size=MOST_AT_ONCE,
            max_input_length=0,
        )
        scores = (sum(result.log_probs[len(task.prefix) :]) for result, (task, _) in zip(results, pairs, strict=True))
        return [[replace(each, score=next(scores)) for each in hypotheses] for hypotheses in found]

    def spelled(self, task: Task) -> list[str]:
        return [self.source_pieces[index] for index in task.source[:-1]]

    def begin_to_draw(self, seed: int) -> None:
        """The same seed draws the same in every process. Within one it cannot be set back: the library's threads have read it.
        One worker draws for all: who of several comes first is chance."""
        if CTranslate2Engine.seed not in (None, seed):
            told = f"CTranslate2 draws with one seed a process, here {CTranslate2Engine.seed}; choose engine torch for another"
            raise ConfigError([told], "translate")
        if CTranslate2Engine.seed is None:
            self.library.set_random_seed(seed)
            CTranslate2Engine.seed = seed
        self.drawing = self.drawing or self.open(1)

    def search_batch(
        self,
        tasks: list[Task],
        request: Request,
        attention: bool,
        without: list[list[str]] | None,
        patience: int = 1,
    ) -> list[list[Hypothesis]]:
        """With `patience` 2 twice as many hypotheses: at the limit the beam chooses without the scores of end marks, and might leave out
        what is best with them."""
        translator, share = self.translator, -(-len(tasks) // self.workers)
        how: dict[str, Any] = {
            "beam_size": request.beam,
            "num_hypotheses": patience * request.beam,
            "patience": patience,
        }
        if request.sample:
            translator, share = self.drawing, len(tasks)
            how = {"beam_size": 1, "num_hypotheses": request.n_best, "sampling_topk": request.top_k}
            how |= {"sampling_topp": request.top_p, "sampling_temperature": request.temperature}
        prefixes = [[self.pieces[index] for index in task.prefix] for task in tasks]
        results = translator.translate_batch(
            list(map(self.spelled, tasks)),
            target_prefix=prefixes if any(prefixes) else None,
            # One by one for attention: in a batch that of first words, as CTranslate2 returns it, is not their own.
            max_batch_size=1 if attention else min(share, MOST_AT_ONCE),
            max_decoding_length=max(task.limit for task in tasks),
            suppress_sequences=without,
            min_decoding_length=0,
            max_input_length=0,
            length_penalty=NO_PENALTY,
            return_scores=True,
            return_attention=attention,
            **how,
        )
        return [self.hypotheses(*each) for each in zip(results, tasks, strict=True)]

    def hypotheses(self, result: Any, task: Task) -> list[Hypothesis]:
        attention = result.attention or [[] for _ in result.hypotheses]
        return [
            Hypothesis([self.ids[piece] for piece in pieces[: task.limit]], score, rows[: min(len(pieces), task.limit)])
            for pieces, score, rows in zip(result.hypotheses, result.scores, attention, strict=True)
        ]


def by_limit(chosen: Iterable[int], tasks: list[Task]) -> Iterable[list[int]]:
    """Those of the same limit together."""
    groups: dict[int, list[int]] = {}
    for index in chosen:
        groups.setdefault(tasks[index].limit, []).append(index)
    return groups.values()


def put(found: list[list[Hypothesis]], places: list[int], others: list[list[Hypothesis]]) -> None:
    for place, hypotheses in zip(places, others, strict=True):
        found[place] = hypotheses


def done(hypotheses: list[Hypothesis], limit: int, beam: int) -> list[Hypothesis]:
    """Only those that ended by themselves, where these were enough to end the search before the others were cut."""
    ended = [each for each in hypotheses if len(each.ids) < limit]
    return ended if len(ended) >= beam else hypotheses


def ranked(hypotheses: list[Hypothesis], request: Request) -> list[Hypothesis]:
    """As in torch: of the likeliest, as many as the beam is wide, the best by the score with our length penalty."""
    likeliest = sorted(hypotheses, key=lambda each: -each.score)[: request.rows * request.width]
    best = [replace(each, score=each.score / request.penalty(len(each.ids) + 1)) for each in likeliest]
    return sorted(best, key=lambda each: -each.score)[: request.n_best]


def tell_fallback(folder: Path, arithmetic: str) -> None:
    """An export may hold weights in a type that this machine does not compute with."""
    manifest = folder / runs.MANIFEST
    stored = runs.read_json(manifest).get("quantization") if manifest.is_file() else None
    if stored and not arithmetic.startswith(stored):
        log.warning("%s: holds %s, which this machine computes as %s", folder, stored, arithmetic)
