"""Texts cut into parts that a model can translate, put together again, and words found in subwords."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sentencex

from dragoman.data.subwords import EOS, Vocabulary, is_spaced
from dragoman.errors import DataError

LONGEST = 250  # subwords of a part: what is longer is split into sentences, and a longer sentence between words

Alignment = list[tuple[int, int]]


@dataclass(frozen=True)
class Part:
    """What is translated at once."""

    ids: list[int]  # with the end mark
    joint: str  # between its translation and that of the part before


def parts(text: str, ids: list[int], vocabulary: Vocabulary, language: str, *, split: bool, space: str) -> list[Part]:
    """The text itself, whose ids are given; its sentences, when asked for or when it is too long; pieces of a sentence that is
    still too long."""
    if not text:
        return []
    if not split and len(ids) <= LONGEST:
        return [Part(ids, space)]
    found = [sentence.strip() for sentence in sentencex.segment(language, text)]
    encoded = vocabulary.encode([sentence for sentence in found if sentence])
    inside = "" if is_spaced(language) else space  # words are cut only where nothing tells them apart
    return [part for ids in encoded for part in cut(ids, vocabulary, space, inside)]


def cut(ids: list[int], vocabulary: Vocabulary, space: str, inside: str) -> Iterator[Part]:
    """Pieces of at most LONGEST subwords, where possible between two words."""
    start, joint = 0, space
    while len(ids) - start > LONGEST:
        end = start + LONGEST - 1
        between = [at for at in range(end, start + LONGEST // 2, -1) if begins_word(ids[at], vocabulary)]
        end = between[0] if between else end
        yield Part([*ids[start:end], EOS], joint)
        start, joint = end, space if between else inside
    yield Part(ids[start:], joint)


def begins_word(index: int, vocabulary: Vocabulary) -> bool:
    return bool(vocabulary.processor.id_to_piece(index).startswith("▁"))


def aligned_words(
    source: list[int], target: list[int], attention: list[list[float]], vocabulary: Vocabulary
) -> Alignment:
    """For every word of the target the words of the source that its subwords looked at most, counted from 0."""
    source_words, target_words = word_numbers(source, vocabulary.source), word_numbers(target, vocabulary)
    pairs = {
        (source_words[max(range(len(source_words)), key=row.__getitem__)], word)
        for row, word in zip(attention, target_words, strict=True)
        if source_words
    }
    return sorted(pairs)


def word_numbers(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Which word every subword belongs to; the end mark belongs to none."""
    numbers, number = [], -1
    for index in ids:
        if index != EOS:
            number = max(0, number + begins_word(index, vocabulary))
            numbers.append(number)
    return numbers


def checked(texts: list[str]) -> list[str]:
    """Runs of whitespace and line breaks are one blank; half of a surrogate pair is no text."""
    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"text {number}: holds half of a surrogate pair, which is no text") from None
    return [" ".join(text.split()) for text in texts]
