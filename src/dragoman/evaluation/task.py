"""sacreBLEU while training: freely decoded, detokenised, each sentence once, shared out over the ranks.

Also keeps the translations of a few fixed probe sentences, to be read over time.
"""

from __future__ import annotations

import logging
from typing import Any

from dragoman import runs
from dragoman.config.schema import Translate, Validation
from dragoman.data.corpus import Pair
from dragoman.data.subwords import Vocabulary
from dragoman.evaluation.metrics import score, tokenizer_for
from dragoman.parallel.reduce import from_main, gather
from dragoman.training.trainer import Moment
from dragoman.translate.torch_engine import TorchEngine
from dragoman.translate.translator import Translator

log = logging.getLogger(__name__)


class BleuTask:
    """A task for the trainer. Never teacher-forced: the decoder sees nothing but the source."""

    def __init__(
        self, pairs: list[Pair], vocabulary: Vocabulary, validation: Validation, translate: Translate, language: str
    ):
        """`language`: of the targets, which says how BLEU cuts them."""
        self.pairs = pairs[: validation.bleu_sentences or None]
        self.probes = pairs[: validation.probes]
        self.vocabulary = vocabulary
        self.tokenize = tokenizer_for(language)
        self.section = translate.model_copy(update={"beam": validation.beam})

    def run(self, moment: Moment) -> dict[str, Any]:
        translator = Translator(TorchEngine(moment.model), self.vocabulary, self.section)
        mesh = moment.mesh
        mine = translator.translate([source for source, _ in self.pairs[mesh.rank :: mesh.world]])
        shares = gather(mesh, mine)
        translations = [shares[index % mesh.world][index // mesh.world] for index in range(len(self.pairs))]
        numbers: dict[str, Any] = {}
        if mesh.is_main:
            numbers = self.scores(translations)
            self.keep_probes(moment, translator)
        return from_main(mesh, numbers)

    def scores(self, translations: list[str]) -> dict[str, Any]:
        sources, references = ([pair[side] for pair in self.pairs] for side in (0, 1))
        numbers: dict[str, Any] = {}
        for name, found in score(sources, translations, references, ["bleu", "chrf"], self.tokenize).items():
            numbers |= {name: found["score"], f"{name}_signature": found["signature"]}
        return numbers | {"bleu_sentences": len(self.pairs)}

    def keep_probes(self, moment: Moment, translator: Translator) -> None:
        translations = translator.translate([source for source, _ in self.probes])
        blocks = [
            f"source       {source}\nreference    {reference}\ntranslation  {translation}\n"
            for (source, reference), translation in zip(self.probes, translations, strict=True)
        ]
        path = moment.run.translations / f"{runs.step_name(moment.step)}.txt"
        try:
            runs.write_text(path, "\n".join(blocks))
        except OSError as error:  # a full disk ends no run
            log.warning("%s could not be written (%s); training goes on", path, error)
