"""Which language a text is in, among those that the served models translate from."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from dragoman.errors import require_extra


class Detector:
    """With one source language nothing has to be guessed; with several py3langid guesses (the extra `langid`)."""

    def __init__(self, languages: list[str]):
        self.languages = sorted(set(languages))

    @cached_property
    def identifier(self) -> Any:
        library = require_extra("py3langid.langid", "langid", "telling languages apart")
        found = library.LanguageIdentifier.from_model_file(library.MODEL_FILE, norm_probs=True)
        known = [code for code in self.languages if code in found.nb_classes]
        found.set_languages(known or None)
        return found

    def __call__(self, text: str) -> list[tuple[str, float]]:
        """Languages and how sure it is of each, in per cent; the likeliest first."""
        if len(self.languages) == 1:
            return [(self.languages[0], 100.0)]
        return [(code, round(100 * share, 1)) for code, share in self.identifier.rank(text)]
