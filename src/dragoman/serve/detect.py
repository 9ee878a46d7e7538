"""Which language a text is in, among those that the served models translate from."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from dragoman.data.languages import code_of
from dragoman.errors import require_extra


class Detector:
    """With one source language nothing has to be guessed; with several py3langid guesses (the extra `langid`)."""

    def __init__(self, languages: list[str]):
        self.languages = sorted(set(languages))

    @cached_property
    def identifier(self) -> Any:
        library = require_extra("py3langid.langid", "langid", "telling languages apart")
        found = library.LanguageIdentifier.from_model_file(library.MODEL_FILE, norm_probs=True)
        codes = {code_of(language) for language in self.languages}
        if codes.issubset(found.nb_classes):  # with one that it does not know it may be none of the others either
            found.set_languages(sorted(codes))
        return found

    def __call__(self, text: str) -> list[tuple[str, float]]:
        """Languages, as the models spell them, and how sure it is of each, in per cent; the likeliest first."""
        if len(self.languages) == 1:
            return [(self.languages[0], 100.0)]
        shares = {code: round(100 * float(share), 1) for code, share in self.identifier.rank(text)}
        found = [(language, shares.get(code_of(language), 0.0)) for language in self.languages]
        return sorted(found, key=lambda entry: -entry[1])
