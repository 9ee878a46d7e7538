"""From a model folder to translated text."""

from dragoman.translate.translator import Translator

__all__ = ["Translator"]
