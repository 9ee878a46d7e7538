"""CTranslate2: the engine for CPUs. It follows the same search; scores are brought to our length penalty here."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.data.subwords import NEVER_WRITTEN, Vocabulary
from dragoman.errors import ConfigError, RunError, require_extra
from dragoman.translate.request import Hypothesis, Request

log = logging.getLogger(__name__)

# CTranslate2 needs the positions as a table and refuses longer sentences; its own default cuts sources at 1024.
POSITIONS = 2048
NO_PENALTY = 1e-9  # with exactly 0 CTranslate2 stops as soon as the best hypothesis has ended


class CTranslate2Engine:
    name = "ctranslate2"
    seed: int | None = None  # of this process: the library reads it once

    def __init__(self, folder: Path, vocabulary: Vocabulary, device: str = "cpu", threads: int | None = None):
        """From an export to CTranslate2, in the arithmetic it was exported in as far as the device has it."""
        library = require_extra("ctranslate2", "export", "translating with CTranslate2")
        library.set_log_level(logging.ERROR)  # what it warns of is said below, once and in a line
        threads = threads or int(os.environ.get("OMP_NUM_THREADS") or cores())
        try:
            self.translator = library.Translator(str(folder), device=device, inter_threads=1, intra_threads=threads)
        except (RuntimeError, ValueError) as error:
            raise RunError(f"{folder}: CTranslate2 cannot load it ({str(error).splitlines()[0]})") from None
        tell_fallback(folder, self.translator.compute_type)
        self.set_seed = library.set_random_seed
        self.source_pieces, self.pieces = vocabulary.source.pieces(), vocabulary.pieces()
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}

    @classmethod
    def converted(cls, folder: Path, vocabulary: Vocabulary) -> CTranslate2Engine:
        """From a model folder, in fp32: the translations are those of the model itself."""
        from dragoman.translate.ct2_model import write_ctranslate2

        with tempfile.TemporaryDirectory(prefix="dragoman-") as temporary:
            write_ctranslate2(folder, Path(temporary), None)
            return cls(Path(temporary), vocabulary)

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
        if not attention:
            found = self.search_batch(sources, prefixes, request) if sources else []
            for index, hypotheses in enumerate(found):  # CTranslate2 has one limit for all, ours is a sentence's own
                limit = request.most_ids(sources[index], prefixes[index])
                if len(sources) > 1 and any(len(hypothesis.ids) > limit for hypothesis in hypotheses):
                    found[index] = self.search_batch([sources[index]], [prefixes[index]], request)[0]
            return found
        # One by one: in a batch the attention of first words that CTranslate2 returns is not their own.
        return [
            self.search_batch([source], [prefix], request, attention=True)[0]
            for source, prefix in zip(sources, prefixes, strict=True)
        ]

    def begin_to_draw(self, seed: int) -> None:
        """The same seed draws the same in every process. Within one it cannot be set back: the library's threads have read it."""
        if CTranslate2Engine.seed not in (None, seed):
            told = f"CTranslate2 draws with one seed a process, here {CTranslate2Engine.seed}; choose engine torch for another"
            raise ConfigError([told], "translate")
        if CTranslate2Engine.seed is None:
            self.set_seed(seed)
            CTranslate2Engine.seed = seed

    def search_batch(
        self,
        sources: list[list[int]],
        prefixes: list[list[int]],
        request: Request,
        *,
        attention: bool = False,
        without: list[list[str]] | None = None,
    ) -> list[list[Hypothesis]]:
        results = self.translator.translate_batch(
            [[self.source_pieces[index] for index in source[:-1]] for source in sources],
            target_prefix=[[self.pieces[index] for index in prefix] for prefix in prefixes] if any(prefixes) else None,
            max_decoding_length=min(
                POSITIONS - 1, max(request.most_ids(*each) for each in zip(sources, prefixes, strict=True))
            ),
            suppress_sequences=without,
            min_decoding_length=0,
            max_input_length=0,
            length_penalty=NO_PENALTY,
            return_scores=True,
            return_attention=attention,
            **self.options(request),
        )
        found = [self.hypotheses(result, request) for result in results]
        if without is None and any(
            number in NEVER_WRITTEN for hypotheses in found for each in hypotheses for number in each.ids
        ):
            # A search in torch never takes these. Here forbidding them changes all scores a little, so it is done where they come.
            never = [[self.pieces[mark]] for mark in NEVER_WRITTEN]
            return self.search_batch(sources, prefixes, request, attention=attention, without=never)
        return found

    @staticmethod
    def options(request: Request) -> dict[str, Any]:
        if not request.sample:
            return {"beam_size": request.beam, "num_hypotheses": request.beam}
        return {
            "beam_size": 1,
            "num_hypotheses": request.n_best,
            "sampling_topk": request.top_k,
            "sampling_topp": request.top_p,
            "sampling_temperature": request.temperature,
        }

    def hypotheses(self, result: Any, request: Request) -> list[Hypothesis]:
        attention = result.attention or [[] for _ in result.hypotheses]
        found = [
            Hypothesis(
                [self.ids[piece] for piece in pieces], score / request.penalty(len(pieces) + 1), rows[: len(pieces)]
            )
            for pieces, score, rows in zip(result.hypotheses, result.scores, attention, strict=True)
        ]
        return sorted(found, key=lambda hypothesis: -hypothesis.score)[: request.n_best]


def cores() -> int:
    """That this process may use: a container or a scheduler may give it a few of many."""
    import loky

    return int(loky.cpu_count())


def tell_fallback(folder: Path, arithmetic: str) -> None:
    """An export may hold weights in a type that this machine does not compute with."""
    manifest = folder / runs.MANIFEST
    stored = runs.read_json(manifest).get("quantization") if manifest.is_file() else None
    if stored and not arithmetic.startswith(stored):
        log.warning("%s: holds %s, which this machine computes as %s", folder, stored, arithmetic)
