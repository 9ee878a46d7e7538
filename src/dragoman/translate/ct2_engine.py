"""CTranslate2: the engine for CPUs. It follows the same search; scores are brought to our length penalty here."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.cores import usable_cores, wanted_threads
from dragoman.data.subwords import NEVER_WRITTEN, Vocabulary
from dragoman.errors import ConfigError, RunError, require_extra
from dragoman.translate.request import Hypothesis, Request

log = logging.getLogger(__name__)

# CTranslate2 needs the positions as a table and refuses longer sentences; its own default cuts sources at 1024.
POSITIONS = 2048
MOST_WORKERS = 4
MOST_AT_ONCE = 64  # sentences of one worker
NO_PENALTY = 1e-9  # with exactly 0 CTranslate2 stops as soon as the best hypothesis has ended


class CTranslate2Engine:
    name = "ctranslate2"
    seed: int | None = None  # of this process: the library reads it once

    def __init__(
        self, folder: Path, vocabulary: Vocabulary, device: str = "cpu", threads: int = 0, convert: bool = False
    ):
        """From an export to CTranslate2, in the arithmetic it was exported in as far as the device has it. With `convert` from a
        model folder, in fp32: the translations are those of the model itself."""
        self.library = require_extra("ctranslate2", "export", "translating with CTranslate2")
        self.library.set_log_level(logging.ERROR)  # what it warns of is said below, once and in a line
        self.folder, self.convert, self.device = folder, convert, device
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
            if not self.convert:
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
        limits = [request.most_ids(*each) for each in zip(sources, prefixes, strict=True)]
        found: list[list[Hypothesis]] = [[] for _ in sources]

        def search(chosen: list[int]) -> None:
            pair = [sources[index] for index in chosen], [prefixes[index] for index in chosen]
            limit = max(limits[index] for index in chosen)
            for index, hypotheses in zip(chosen, self.search_batch(*pair, request, limit, attention), strict=True):
                found[index] = hypotheses

        if attention:  # one by one: in a batch the attention of first words that CTranslate2 returns is not their own
            for chosen in by_limit(range(len(sources)), limits):
                search(chosen)
        elif sources:
            search(list(range(len(sources))))
            # CTranslate2 has one limit for all, ours is a sentence's own; one hypothesis beyond it might have won at it.
            longer = [n for n, each in enumerate(found) if any(len(hypothesis.ids) > limits[n] for hypothesis in each)]
            for chosen in by_limit(longer, limits):
                search(chosen)
        return [hypotheses[: request.n_best] for hypotheses in found]

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
        sources: list[list[int]],
        prefixes: list[list[int]],
        request: Request,
        limit: int,
        attention: bool,
        without: list[list[str]] | None = None,
    ) -> list[list[Hypothesis]]:
        translator, share = self.translator, -(-len(sources) // self.workers)
        how: dict[str, Any] = {"beam_size": request.beam, "num_hypotheses": request.beam}
        if request.sample:
            translator, share = self.drawing, len(sources)
            how = {"beam_size": 1, "num_hypotheses": request.n_best, "sampling_topk": request.top_k}
            how |= {"sampling_topp": request.top_p, "sampling_temperature": request.temperature}
        results = translator.translate_batch(
            [[self.source_pieces[index] for index in source[:-1]] for source in sources],
            target_prefix=[[self.pieces[index] for index in prefix] for prefix in prefixes] if any(prefixes) else None,
            max_batch_size=1 if attention else min(share, MOST_AT_ONCE),
            max_decoding_length=min(POSITIONS - 1, limit),
            suppress_sequences=without,
            min_decoding_length=0,
            max_input_length=0,
            length_penalty=NO_PENALTY,
            return_scores=True,
            return_attention=attention,
            **how,
        )
        found = [self.hypotheses(result, request) for result in results]
        if without is None and any(
            number in NEVER_WRITTEN for hypotheses in found for each in hypotheses for number in each.ids
        ):
            # A search in torch never takes these. Here forbidding them changes all scores a little, so it is done where they come.
            never = [[self.pieces[mark]] for mark in NEVER_WRITTEN]
            return self.search_batch(sources, prefixes, request, limit, attention, never)
        return found

    def hypotheses(self, result: Any, request: Request) -> list[Hypothesis]:
        attention = result.attention or [[] for _ in result.hypotheses]
        found = [
            Hypothesis(
                [self.ids[piece] for piece in pieces], score / request.penalty(len(pieces) + 1), rows[: len(pieces)]
            )
            for pieces, score, rows in zip(result.hypotheses, result.scores, attention, strict=True)
        ]
        return sorted(found, key=lambda hypothesis: -hypothesis.score)


def by_limit(chosen: Iterable[int], limits: list[int]) -> Iterable[list[int]]:
    """Those of the same limit together."""
    groups: dict[int, list[int]] = {}
    for index in chosen:
        groups.setdefault(limits[index], []).append(index)
    return groups.values()


def tell_fallback(folder: Path, arithmetic: str) -> None:
    """An export may hold weights in a type that this machine does not compute with."""
    manifest = folder / runs.MANIFEST
    stored = runs.read_json(manifest).get("quantization") if manifest.is_file() else None
    if stored and not arithmetic.startswith(stored):
        log.warning("%s: holds %s, which this machine computes as %s", folder, stored, arithmetic)
