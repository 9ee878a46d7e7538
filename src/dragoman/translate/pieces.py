"""Texts cut into parts that a model can translate, put together again, and words found in subwords."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import sentencex

from dragoman.data.languages import code_of, is_spaced
from dragoman.data.subwords import EOS, Vocabulary
from dragoman.errors import DataError

LONGEST = 250  # subwords of a part: what is longer is split into sentences, and a longer sentence between words
WINDOW = 2_000  # characters in which sentences are looked for at once: the time it takes grows with their square where no blanks are

Alignment = list[tuple[int, int]]


@dataclass(frozen=True)
class Part:
    """What is translated at once."""

    ids: list[int]  # with the end mark
    joint: str  # between its translation and that of the part before
    sentence: str  # that begins with it; empty where one goes on


def parts(text: str, ids: list[int], vocabulary: Vocabulary, language: str, *, split: bool, space: str) -> list[Part]:
    """The text itself, whose ids are given; its sentences, when asked for or when it is too long; pieces of a sentence that is
    still too long. The language that a text begins with is told with every part of it."""
    whole = not split and len(ids) <= LONGEST
    found = [text] if whole else list(sentences(text, language))
    inside = "" if is_spaced(language) else space  # words are cut only where nothing tells them apart
    own: list[int] = []
    made: list[Part] = []
    for sentence, each in zip(found, [ids] if whole else vocabulary.encode(found), strict=True):
        mark = vocabulary.language_of(sentence)
        own, rest = each[: bool(mark)] or own, each[bool(mark) :]
        if rest != [EOS]:  # nothing, or nothing that the vocabulary keeps
            pieces = cut(rest, sentence[len(mark) :].strip(), vocabulary, space, inside)
            made += [replace(part, ids=[*own, *part.ids]) for part in pieces] if own else pieces
    return made


def sentences(text: str, language: str) -> Iterator[str]:
    """Window by window: a sentence is believed when half a window follows it, in which an open bracket may be closed. One that
    fills a window goes on in the next."""
    at, begun = 0, ""
    while at < len(text):
        found = sentencex.segment(code_of(language), text[at : at + WINDOW])
        if at + WINDOW < len(text):
            found = found[: max(1, bisect_right(list(accumulate(map(len, found))), WINDOW // 2))]
        at += sum(map(len, found))
        begun += found[0]
        if len(found[0]) == WINDOW and at < len(text):
            continue
        yield begun.strip()
        yield from (sentence.strip() for sentence in found[1:])
        begun = ""


def cut(ids: list[int], sentence: str, vocabulary: Vocabulary, space: str, inside: str) -> Iterator[Part]:
    """Pieces of at most LONGEST subwords, where possible between two words."""
    start, joint, piece_of = 0, space, vocabulary.processor.id_to_piece
    while len(ids) - start > LONGEST:
        end = start + LONGEST - 1
        between = [at for at in range(end, start + LONGEST // 2, -1) if piece_of(ids[at]).startswith("▁")]
        end = between[0] if between else end
        yield Part([*ids[start:end], EOS], joint, sentence)
        start, joint, sentence = end, space if between else inside, ""
    yield Part(ids[start:], joint, sentence)


def source_places(text: str, cut: list[Part], vocabulary: Vocabulary) -> list[int]:
    """Where in the text the subwords of its parts begin."""
    places: list[int] = []
    waiting: list[int] = []
    at = 0
    for part in cut:
        if part.sentence:
            at = max(at, text.find(part.sentence, at))
            again = vocabulary.processor.encode(part.sentence, out_type="immutable_proto")
            waiting = [at + piece.begin for piece in again.pieces]
            at += len(part.sentence)
        told = [0] if part.ids[0] in vocabulary.languages.values() else []
        count = len(part.ids) - 1 - len(told)
        places += told + waiting[:count]
        waiting = waiting[count:]
    return places


def target_places(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Where in its text the subwords of a translation begin."""
    return [piece.begin for piece in vocabulary.processor.decode(ids, out_type="immutable_proto").pieces]


def word_numbers(text: str, places: list[int]) -> list[int]:
    """Which of the words that blanks tell apart is at these places, or next after them; counted from 0."""
    ends = [word.end() for word in re.finditer(r"\S+", text)]
    return [min(bisect_right(ends, place), len(ends) - 1) for place in places]


def checked(texts: list[str]) -> list[str]:
    """Runs of whitespace and line breaks are one blank; half of a surrogate pair is no text."""
    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"text {number}: holds half of a surrogate pair, which is no text") from None
    return [" ".join(text.split()) for text in texts]
