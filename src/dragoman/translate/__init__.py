"""From a model folder to translated text."""

from dragoman.translate.request import Request
from dragoman.translate.translator import Translation, Translator

__all__ = ["Request", "Translation", "Translator"]
