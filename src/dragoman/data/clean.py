"""Cleaning by named filters. Each takes a pair and returns the reason to drop it, or None; every drop is counted.

    raw pair -> decode -> repairs (encoding, HTML) -> filters, the first reason counts -> shards -> duplicates

Each filter has its key in the section [clean]. Duplicates need the whole corpus and live in shards.py.
"""

from __future__ import annotations

import html
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ftfy

from dragoman.config.schema import Clean
from dragoman.data.corpus import Pair, RawPair
from dragoman.errors import DataError, require_extra

Filter = Callable[[Pair], str | None]
Repair = Callable[[str], str]

LONGEST_LINE = 5_000  # characters; no sentence is longer, and subwords of such lines cost minutes
TELLING_WORDS = 3  # shorter sentences are met everywhere
RATIO_FROM_WORDS = 10  # short pairs differ by chance
RATIO_FROM_CHARACTERS = 60
COPY_FROM_WORDS = 4  # names, titles and numbers are the same in both languages
BEGINNING = 16  # letters of a sentence that tell it from nearly all others
LANGUAGE_FROM_CHARACTERS = 40  # below that every identifier guesses
UNSPACED = {"zh", "ja", "th", "lo", "km", "my", "bo", "yue"}  # written without spaces: words cannot be counted

CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")
LOST = "\ufffd"
# UTF-8 read as Windows-1252 always has a letter from a lead byte before one from a continuation byte. ftfy takes 12 us
# a line, this look 0.3 us.
SUSPECT = re.compile("[\xc2-\xf4][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|\ufffd")
ENTITY = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{2,6}|#[xX][0-9a-fA-F]{2,5});")
NAMES = (
    "a|abbr|b|big|blockquote|body|br|center|code|div|em|font|form|h[1-6]|head|hr|html|i|iframe|img|input|li|link|meta"
)
NAMES += "|ol|option|p|pre|s|script|select|small|span|strike|strong|style|sub|sup|table|tbody|td|th|title|tr|tt|u|ul"
TAG = re.compile(rf"</?(?:{NAMES})(?:\s+[\w:-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s<>]+))*\s*/?>", re.IGNORECASE)
NOT_WORDS = re.compile(r"[\W_]+")
NOT_LETTERS = re.compile(r"[\W\d_]+")
DIGIT = re.compile(r"\d")


# --- filters -----------------------------------------------------------------------------------------------


def empty(pair: Pair) -> str | None:
    return "empty side" if not pair[0] or not pair[1] else None


def control_characters(pair: Pair) -> str | None:
    if pair[0].isprintable() and pair[1].isprintable():  # nearly always, and fast
        return None
    return "control characters" if CONTROL.search(pair[0]) or CONTROL.search(pair[1]) else None


def broken_encoding(pair: Pair) -> str | None:
    return "broken encoding" if any(LOST in text or repaired_encoding(text) != text for text in pair) else None


def lost_characters(pair: Pair) -> str | None:
    return "broken encoding" if LOST in pair[0] or LOST in pair[1] else None


def html_inside(pair: Pair) -> str | None:
    return "HTML" if any(without_html(text) != text for text in pair) else None


def characters_over(largest: int) -> Filter:
    reason = f"over {largest:,} characters"
    return lambda pair: reason if len(pair[0]) > largest or len(pair[1]) > largest else None


def words_over(largest: int) -> Filter:
    reason = f"over {largest:,} words"
    return lambda pair: reason if pair[0].count(" ") >= largest or pair[1].count(" ") >= largest else None


def ratio_over(largest: float, what: str, measure: Callable[[str], int], at_least: int) -> Filter:
    reason = f"{what} ratio over {largest:g}"

    def unequal_lengths(pair: Pair) -> str | None:
        one, other = measure(pair[0]), measure(pair[1])
        shorter, longer = (one, other) if one < other else (other, one)
        return reason if longer >= at_least and longer > largest * shorter else None

    return unequal_lengths


def words(text: str) -> int:
    return text.count(" ") + 1


def copied(pair: Pair) -> str | None:
    return "copy of the source" if pair[0] == pair[1] and words(pair[0]) >= COPY_FROM_WORDS else None


def digits_differ(pair: Pair) -> str | None:
    """Digits as a bag: 1,000.5 and 1 000,5 agree, and so do Western and Arabic ones."""
    source, target = (sorted(map(int, DIGIT.findall(text))) for text in pair)
    return "different digits" if source != target else None


def wrong_language(languages: tuple[str, str]) -> Filter:
    identifier = require_extra("py3langid.langid", "langid", "clean.language")
    classify = identifier.LanguageIdentifier.from_model_file(identifier.MODEL_FILE).classify

    def foreign(pair: Pair) -> str | None:
        for text, language in zip(pair, languages, strict=True):
            if len(text) >= LANGUAGE_FROM_CHARACTERS and classify(text)[0] != language:
                return "wrong language"
        return None

    return foreign


def held_out_before(held_out: Iterable[Pair]) -> Filter:
    """A training pair with a side that is a validation or test sentence would make the scores a lie. One or two words are
    everybody's: such a pair goes only if both of its sides are held out."""
    sides = tuple(zip(*held_out, strict=True)) or ((), ())
    is_source, is_target = map(one_of, sides)

    def overlap(pair: Pair) -> str | None:
        known = is_source(pair[0]), is_target(pair[1])
        told = [found and text.count(" ") + 1 >= TELLING_WORDS for found, text in zip(known, pair, strict=True)]
        return "in validation or test set" if all(known) or any(told) else None

    return overlap


def one_of(texts: Iterable[str]) -> Callable[[str], bool]:
    """Whether a text is one of these, but for case and punctuation. Most are known to be none by their first letters."""
    known = {unpunctuated(text) for text in texts}
    beginnings = {text[:length] for text in known for length in range(BEGINNING + 1)}

    def is_known(text: str) -> bool:
        return unpunctuated(text[: 2 * BEGINNING])[:BEGINNING] in beginnings and unpunctuated(text) in known

    return is_known


def unpunctuated(text: str) -> str:
    """Letters and digits, without case."""
    return NOT_WORDS.sub("", text.casefold())


def letters(text: str) -> str:
    """Letters alone, without case. A text without any stands for itself."""
    return NOT_LETTERS.sub("", text.casefold()) or text


@cache
def own_filter(name: str) -> Filter:
    """The function(source, target) that `package.module:function` names; looked for in the current folder too."""
    module, _, function = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        check = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(
            f'clean.own = "{name}": cannot be imported ({error}); write "package.module:function"'
        ) from None

    def judged(pair: Pair) -> str | None:
        try:
            reason = check(*pair)
        except Exception as error:  # somebody else's code
            raise DataError(f'clean.own = "{name}": {type(error).__name__}: {error}, at the pair {pair}') from error
        return str(reason) if reason else None

    judged.__wrapped__ = check  # type: ignore[attr-defined]
    return judged


def source_file(name: str) -> Path:
    """Where a filter of one's own is written: its text is part of the settings."""
    function: Any = own_filter(name).__wrapped__  # type: ignore[attr-defined]
    return Path(inspect.getsourcefile(function) or __file__)


def filters_of(clean: Clean, languages: tuple[str, str], held_out: Iterable[Pair]) -> list[Filter]:
    """The filters that a configuration asks for, cheap ones first."""
    spaced = not UNSPACED & {language.replace("_", "-").split("-")[0] for language in languages}
    wanted: list[tuple[Any, Callable[[], Filter]]] = [
        (True, lambda: empty),
        (clean.control_characters, lambda: control_characters),
        (clean.encoding == "drop", lambda: broken_encoding),
        (clean.encoding == "repair", lambda: lost_characters),
        (clean.html == "drop", lambda: html_inside),
        (clean.max_characters, lambda: characters_over(clean.max_characters)),
        (clean.max_words, lambda: words_over(clean.max_words)),
        (clean.max_word_ratio and spaced, lambda: ratio_over(clean.max_word_ratio, "word", words, RATIO_FROM_WORDS)),
        (
            clean.max_character_ratio,
            lambda: ratio_over(clean.max_character_ratio, "character", len, RATIO_FROM_CHARACTERS),
        ),
        (clean.copies, lambda: copied),
        (clean.overlap, lambda: held_out_before(held_out)),
        (clean.digits, lambda: digits_differ),
        (clean.language, lambda: wrong_language(languages)),
    ]
    return [make() for on, make in wanted if on] + [own_filter(name) for name in clean.own]


# --- repairs -----------------------------------------------------------------------------------------------


def repaired_encoding(text: str) -> str:
    return text if text.isascii() or not SUSPECT.search(text) else " ".join(ftfy.fix_encoding(text).split())


def without_html(text: str) -> str:
    """Entities as the characters that they stand for, tags gone."""
    mended = html.unescape(text) if "&" in text and ENTITY.search(text) else text
    mended = TAG.sub(" ", mended) if "<" in mended else mended
    return text if mended is text else " ".join(mended.split())


def repairs_of(clean: Clean) -> dict[str, Repair]:
    repairs = {"broken encoding": (clean.encoding, repaired_encoding), "HTML": (clean.html, without_html)}
    return {name: repair for name, (choice, repair) in repairs.items() if choice == "repair"}


# --- pairs -------------------------------------------------------------------------------------------------


def decode(raw: RawPair) -> Pair | None:
    """Text with its white space normalised (so that it holds no tab and no line end), or None where it is no UTF-8."""
    try:
        source, target = (" ".join(side.decode("utf-8").split()) for side in raw)
    except UnicodeDecodeError:
        return None
    return source, target


class Cleaner:
    """Repairs and filters of one configuration; counts what it repaired."""

    def __init__(self, repairs: dict[str, Repair], filters: list[Filter]):
        self.repairs = repairs
        self.filters = filters
        self.repaired: Counter[str] = Counter()

    def __call__(self, raw: RawPair) -> tuple[Pair, str | None]:
        """The pair as it is after repairs, and the reason to drop it, if any."""
        pair = decode(raw)
        if pair is None:
            source, target = (side.decode("utf-8", errors="replace") for side in raw)
            return (source, target), "not UTF-8"
        for name, repair in self.repairs.items():
            mended = repair(pair[0]), repair(pair[1])
            if mended != pair:
                self.repaired[name] += 1
                pair = mended
        for check in self.filters:
            if reason := check(pair):
                return pair, reason
        return pair, None


def checked(raw: Iterable[RawPair], name: str) -> Iterator[Pair]:
    """Pairs of a validation or test set. Dropping one would change the scores, so a bad one is refused."""
    long_line = characters_over(LONGEST_LINE)
    for number, raw_pair in enumerate(raw, 1):
        pair = decode(raw_pair)
        reason = "not UTF-8" if pair is None else empty(pair) or control_characters(pair) or long_line(pair)
        if pair is None or reason:
            raise DataError(
                f"{name}, line {number:,}: {reason}. Validation and test sets are taken whole; mend the line or remove it on both sides"
            )
        yield pair
