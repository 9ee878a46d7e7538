"""Cleaning by named filters, a block of pairs at a time; every pair that is dropped is counted by its reason.

    raw pairs -> decode -> repairs (encoding, HTML) -> filters, the first reason counts -> shards -> duplicates

A block is two Arrow arrays: searching and counting in them is compiled code, and Python sees only the lines that have something
odd in them. Each filter has its key in the section [clean]. Duplicates need the whole corpus and live in shards.py.
"""

from __future__ import annotations

import html
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

import ftfy
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from ftfy.fixes import fix_c1_controls

from dragoman.config.schema import Clean
from dragoman.data.corpus import Pair, RawPair, Text
from dragoman.data.languages import code_of, is_spaced
from dragoman.data.streams import TOO_LONG
from dragoman.errors import ConfigError, DataError, require_extra

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

LONGEST_LINE = 5_000  # characters; no sentence is longer, and subwords of such lines cost minutes
TELLING_WORDS = 3  # shorter sentences are met everywhere
RATIO_FROM_WORDS = 10  # short pairs differ by chance
RATIO_FROM_CHARACTERS = 60
COPY_FROM_WORDS = 4  # names, titles and numbers are the same in both languages
BEGINNING = 16  # letters of a sentence that tell it from nearly all others
LANGUAGE_FROM_CHARACTERS = 40  # below that every identifier guesses

TAB = pa.scalar("\t", pa.large_string())
LOST = "\ufffd"
NAMES = "a|abbr|b|big|blockquote|body|br|center|code|div|em|font|form|h[1-6]|head|hr|html|i|iframe|img|input|li|link|meta|ol|option"
NAMES += "|p|pre|s|script|select|small|span|strike|strong|style|sub|sup|table|tbody|td|th|title|tr|tt|u|ul"
ENTITY = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{2,6}|#[xX][0-9a-fA-F]{2,5});")
# (?>...) never gives back what it took. Otherwise each value could be read in two ways, and a tag that is never closed would be
# tried in 2^attributes ways.
VALUE = r"(?>\"[^\"]*\"(?=\s|/?>)|'[^']*'(?=\s|/?>)|[^\s<>]+)"
TAG = re.compile(rf"</?(?:{NAMES})(?:\s+[\w:-]+\s*=\s*{VALUE})*\s*/?>", re.IGNORECASE)
DIGIT = re.compile(r"\d")


def text_of(lines: Iterable[str]) -> Text:
    return pa.array(lines, pa.large_string())


class Block:
    """Pairs side by side."""

    def __init__(self, source: Text, target: Text):
        self.sides = source, target

    def __len__(self) -> int:
        return len(self.sides[0])

    @cached_property
    def characters(self) -> Ints:
        """[side, pair]"""
        return np.stack([pc.utf8_length(side).to_numpy() for side in self.sides])

    @cached_property
    def words(self) -> Ints:
        return np.stack([pc.count_substring(side, " ").to_numpy() for side in self.sides]) + 1

    def holds(self, pattern: str) -> Bools:
        """Which pairs have it on a side."""
        return either([bools(pc.match_substring_regex(side, pattern)) for side in self.sides])

    def through(self, repair: Repair) -> tuple[Block, Bools]:
        """The block after a repair, and which pairs it changed."""
        mended = Block(*(repair(side) for side in self.sides))
        return mended, either([bools(pc.not_equal(*both)) for both in zip(self.sides, mended.sides, strict=True)])

    def only(self, keep: Bools) -> Block:
        return self if keep.all() else Block(*(side.filter(pa.array(keep)) for side in self.sides))

    def pair(self, place: int) -> Pair:
        source, target = (side[place].as_py() for side in self.sides)
        return source, target

    def pairs(self) -> list[Pair]:
        return list(zip(*(side.to_pylist() for side in self.sides), strict=True))

    def lines(self) -> list[bytes]:
        """source TAB target"""
        return pc.binary_join_element_wise(*self.sides, TAB).cast(pa.large_binary()).to_pylist()


def bools(mask: Any) -> Any:
    return mask.to_numpy(zero_copy_only=False)


def either(sides: Any) -> Bools:
    """True on a side."""
    return np.logical_or(*sides)


Filter = Callable[[Block], Bools]  # which pairs to drop
Named = tuple[str, Filter]  # with the reason that is counted
Check = Callable[[str, str], str | None]  # the reason to drop a pair


# --- filters -----------------------------------------------------------------------------------------------


def outside(least: int, most: float, measure: str) -> Filter:
    return lambda block: either(getattr(block, measure) < least) | either(getattr(block, measure) > most)


EMPTY: Named = "empty side", outside(1, np.inf, "characters")
LONG: Named = f"over {LONGEST_LINE:,} characters", outside(0, LONGEST_LINE, "characters")
STAND_IN = pa.scalar(TOO_LONG.decode(), pa.large_string())
ENDLESS: Named = "line over 1 MB", lambda block: either([bools(pc.equal(side, STAND_IN)) for side in block.sides])
C0, C1 = r"[\x00-\x08\x0e-\x1b\x7f]", r"[\x{80}-\x{9f}]"
CONTROLS: Named = "control characters", lambda block: block.holds(C0)
ALL_CONTROLS: Named = CONTROLS[0], lambda block: block.holds(f"{C0}|{C1}")


def ratio_over(largest: float, measure: str, at_least: int) -> Filter:
    def unequal_lengths(block: Block) -> Bools:
        longer, shorter = np.maximum(*getattr(block, measure)), np.minimum(*getattr(block, measure))
        return np.logical_and(longer >= at_least, longer > largest * shorter)

    return unequal_lengths


Spaced = tuple[bool, bool]  # whether a side's language has spaces between words


def counted(block: Block, spaced: Spaced) -> Ints:
    """Words of each side; two characters are one where nothing stands between words."""
    return np.stack([block.words[side] if spaced[side] else block.characters[side] // 2 for side in (0, 1)])


def copied(spaced: Spaced) -> Filter:
    return lambda block: bools(pc.equal(*block.sides)) & (counted(block, spaced).max(axis=0) >= COPY_FROM_WORDS)


def held_out_before(held_out: Iterable[Pair], spaced: Spaced, repairs: Iterable[Repair]) -> Filter:
    """A training pair with a side that is a validation or test sentence would make the scores a lie. One or two words are
    everybody's: such a pair goes only if both of its sides are held out. Training text is compared as it is after repairs, so
    held-out text is too."""
    sides = [reduce(lambda text, mend: mend(text), repairs, text_of(side)) for side in zip(*held_out, strict=True)]
    known = [one_of(side) for side in sides]

    def overlap(block: Block) -> Bools:
        if not known:
            return np.zeros(len(block), np.bool_)
        found = np.stack([is_known(side) for is_known, side in zip(known, block.sides, strict=True)])
        return np.logical_or(found[0] & found[1], either(found & (counted(block, spaced) >= TELLING_WORDS)))

    return overlap


def one_of(texts: Text) -> Callable[[Text], Bools]:
    """Which lines are one of these, but for case and punctuation. Most are ruled out by their first letters, which is cheap."""
    known = unpunctuated(texts).unique()
    beginnings = text_of({text[:length] for text in known.to_pylist() for length in range(BEGINNING + 1)})

    def are_known(lines: Text) -> Bools:
        cut = unpunctuated(pc.utf8_slice_codeunits(lines, 0, 2 * BEGINNING))
        cut = pc.replace_substring_regex(cut, r".\p{M}*$", "")  # marks of the last letter may have been cut off
        first = pc.utf8_slice_codeunits(cut, 0, BEGINNING)
        found = bools(pc.is_in(first, beginnings))
        found[found] = bools(pc.is_in(unpunctuated(lines.filter(pa.array(found))), known))
        return found

    return are_known


def unpunctuated(texts: Text) -> Text:
    """Letters and digits, without case."""
    return pc.replace_substring_regex(composed(texts), r"[^\p{L}\p{M}\p{N}]+", "")


def letters(texts: Text) -> Text:
    """Letters alone, without case. A text without any stands for itself."""
    found = pc.replace_substring_regex(composed(texts), r"[^\p{L}\p{M}]+", "")
    return pc.if_else(pc.equal(found, ""), texts, found)


def composed(texts: Text) -> Text:
    """Without case, and every letter as one with its marks as far as there is such a one: vowels of Hindi or Thai are marks."""
    return pc.utf8_lower(pc.utf8_normalize(texts, "NFC"))


# --- checks of one pair, in Python -------------------------------------------------------------------------


def digits_differ(source: str, target: str) -> str | None:
    """Digits as a bag: 1,000.5 and 1 000,5 agree, and so do Western and Arabic ones."""
    found = [sorted(map(int, DIGIT.findall(text))) for text in (source, target)]
    return "different digits" if found[0] != found[1] else None


def wrong_language(languages: tuple[str, str]) -> Check:
    identifier = require_extra("py3langid.langid", "langid", "clean.language")
    loaded = identifier.LanguageIdentifier.from_model_file(identifier.MODEL_FILE)
    codes = [code_of(language) for language in languages]
    unknown = [code for code in codes if code not in loaded.nb_classes]
    if unknown:
        told = f'"{unknown[0]}" is no language that the identifier knows; write its code of two letters, or turn it off'
        raise ConfigError([told], "clean.language")
    classify = loaded.classify

    def foreign(*pair: str) -> str | None:
        for text, language in zip(pair, codes, strict=True):
            if len(text) >= LANGUAGE_FROM_CHARACTERS and classify(text)[0] != language:
                return "wrong language"
        return None

    return foreign


def own_function(name: str) -> Any:
    """The function(source, target) that `package.module:function` names; looked for in the current folder too."""
    module, _, function = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        check = getattr(importlib.import_module(module), function)
    except Exception as error:  # somebody else's code
        what = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise DataError(f'clean.own = "{name}": cannot be imported ({what}); write "package.module:function"') from None
    if not callable(check):
        raise DataError(f'clean.own = "{name}": is no function(source, target), but {type(check).__name__}')
    return check


def own_filter(name: str) -> Check:
    check = own_function(name)

    def judged(*pair: str) -> str | None:
        try:
            reason = check(*pair)
        except Exception as error:  # somebody else's code
            raise DataError(f'clean.own = "{name}": {type(error).__name__}: {error}, at the pair {pair}') from error
        return str(reason) if reason else None

    return judged


def source_files(name: str) -> list[Path]:
    """Where a filter of one's own is written: its text is part of the settings. A function that was decorated lies in the file
    of its decorator, so the file of the module that the name says counts too."""
    function = own_function(name)
    files = [getattr(sys.modules[name.partition(":")[0]], "__file__", None)]
    with suppress(TypeError):  # an object that can be called, such as a partial
        files.insert(0, inspect.getsourcefile(function))
    return list(dict.fromkeys(Path(file).resolve() for file in files if file)) or [Path(__file__)]


# --- repairs -----------------------------------------------------------------------------------------------


class Repair(NamedTuple):
    """How lines are mended, and which are looked at: a pattern, because looking takes far less time than mending."""

    suspect: str
    mend: Callable[[str], str]

    def __call__(self, texts: Text) -> Text:
        suspects = pc.match_substring_regex(texts, self.suspect)
        if not suspects.true_count:
            return texts
        return pc.replace_with_mask(texts, suspects, text_of(map(self.mend, texts.filter(suspects).to_pylist())))


def one_space(text: str) -> str:
    """White space normalised, so that no tab and no line end is inside."""
    return " ".join(text.split())


def without_html(text: str) -> str:
    """Entities as the characters that they stand for, tags gone."""
    mended = TAG.sub(" ", html.unescape(text) if ENTITY.search(text) else text)
    return text if mended == text else one_space(mended)


SPACE = Repair(
    r"[\x09-\x0d\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]|  |^ | $",
    one_space,
)
# UTF-8 read as Windows-1252 always has a letter from a lead byte before one from a continuation byte.
ENCODING = Repair(
    "[\xc2-\xf4][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|[\x80-\x9f]|\ufffd",
    lambda text: one_space(fix_c1_controls(ftfy.fix_encoding(text))),
)
HTML = Repair("[&<]", without_html)


# --- all together ------------------------------------------------------------------------------------------


class Cleaner:
    """Repairs, filters and checks of one configuration, by name. The first reason counts, checks of pairs come last."""

    def __init__(self, repairs: dict[str, Repair], filters: dict[str, Filter], *checks: Check):
        self.repairs, self.filters, self.checks = repairs, filters, checks

    def __call__(self, raw: list[RawPair]) -> tuple[Block, dict[int, str], Counter[str]]:
        """The pairs as they are after repairs, reasons to drop by their place, and how many were repaired."""
        sides, broken = zip(*(decoded([pair[side] for pair in raw]) for side in (0, 1)), strict=True)
        reasons = dict.fromkeys(sorted({*broken[0], *broken[1]}), "not UTF-8")
        block, _ = Block(*sides).through(SPACE)
        repaired: Counter[str] = Counter()
        for name, repair in self.repairs.items():
            block, changed = block.through(repair)
            changed[list(reasons)] = False
            repaired += Counter({name: int(changed.sum())})
        for reason, drops in self.filters.items():
            for place in np.flatnonzero(drops(block)).tolist():
                reasons.setdefault(place, reason)
        for place, pair in enumerate(block.pairs() if self.checks else ()):
            if place not in reasons and (found := next(filter(None, (check(*pair) for check in self.checks)), None)):
                reasons[place] = found
        return block, reasons, repaired


def decoded(lines: list[bytes]) -> tuple[Text, list[int]]:
    """Text, and the places of lines that are no UTF-8."""
    try:
        return pa.array(lines, pa.large_binary()).cast(pa.large_string()), []
    except pa.ArrowInvalid:
        texts = [line.decode("utf-8", "replace") for line in lines]
        return text_of(texts), [at for at, text in enumerate(texts) if LOST in text and text.encode() != lines[at]]


def cleaner_for(section: Clean, languages: tuple[str, str], held_out: Iterable[Pair]) -> Cleaner:
    """What a configuration asks for, cheap filters first."""
    mending = {"broken encoding": (section.encoding, ENCODING), "HTML": (section.html, HTML)}
    repairs = {name: repair for name, (choice, repair) in mending.items() if choice == "repair"}
    spaced = is_spaced(languages[0]), is_spaced(languages[1])
    characters, words = section.max_characters, section.max_words
    word_ratio, ratio = section.max_word_ratio if all(spaced) else 0, section.max_character_ratio
    filters: list[tuple[object, str, Filter]] = [
        (True, *EMPTY),
        (section.control_characters, *ALL_CONTROLS),
        (section.encoding == "drop", "broken encoding", lambda block: block.holds(LOST) | block.through(ENCODING)[1]),
        (section.encoding == "repair", "broken encoding", lambda block: block.holds(LOST)),
        (section.html == "drop", "HTML", lambda block: block.through(HTML)[1]),
        (characters, f"over {characters:,} characters", outside(0, characters, "characters")),
        (True, *ENDLESS),
        (words, f"over {words:,} words", outside(0, words, "words")),
        (word_ratio, f"word ratio over {word_ratio:g}", ratio_over(word_ratio, "words", RATIO_FROM_WORDS)),
        (ratio, f"character ratio over {ratio:g}", ratio_over(ratio, "characters", RATIO_FROM_CHARACTERS)),
        (section.copies, "copy of the source", copied(spaced)),
        (section.overlap, "in validation or test set", held_out_before(held_out, spaced, repairs.values())),
    ]
    checks: list[Check] = [digits_differ] if section.digits else []
    checks += [wrong_language(languages)] if section.language else []
    wanted = {reason: drops for on, reason, drops in filters if on}
    return Cleaner(repairs, wanted, *checks, *map(own_filter, section.own))


def checked(raw: Iterable[RawPair], name: str) -> Block:
    """Pairs of a validation or test set. Dropping one would change the scores, so a bad one is refused."""
    block, reasons, _ = Cleaner({}, dict([EMPTY, CONTROLS, LONG]))(list(raw))
    if reasons:
        place = min(reasons)
        raise DataError(
            f"{name}, line {place + 1:,}: {reasons[place]}. Validation and test sets are taken whole; mend the line or remove it "
            "on both sides"
        )
    return block
