"""The joint vocabulary of both languages: SentencePiece, with pad 0, eos 1, bos 2, unk 3."""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import sentencepiece

from dragoman.config.schema import Subwords
from dragoman.data.corpus import Pair
from dragoman.errors import DataError
from dragoman.runs import digest_of

PAD, EOS, BOS, UNK = 0, 1, 2, 3
VOCABULARY_FILE = "vocabulary.model"
LEARNING_THREADS = 16  # the same everywhere: unigram pieces depend on it


class Vocabulary:
    """Text to ids and back."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise DataError(f"{path}: not a SentencePiece model ({str(error).strip().splitlines()[0]})") from None
        special = tuple(getattr(self.processor, f"{name}_id")() for name in ("pad", "eos", "bos", "unk"))
        if special != (PAD, EOS, BOS, UNK):
            raise DataError(f"{path}: pad, eos, bos, unk are {special}; dragoman needs {(PAD, EOS, BOS, UNK)}")

    def __len__(self) -> int:
        return int(self.processor.get_piece_size())

    def digest(self) -> str:
        """Of what the vocabulary does; the file also holds settings such as the number of threads that made it."""
        return digest_of([[self.processor.id_to_piece(i), self.processor.get_score(i)] for i in range(len(self))])

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of every text, each closed with the end-of-sentence mark."""
        return [[*ids, EOS] for ids in self.processor.encode(texts, num_threads=os.cpu_count() or 1)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        return [str(text) for text in self.processor.decode([[i for i in row if i > BOS] for row in ids])]


def learn(pairs: Iterable[Pair], total: int, section: Subwords, path: Path) -> Vocabulary:
    """Learn a vocabulary from an even sample of the corpus."""
    every = max(1, -(-total // section.sample_pairs))
    sample = sides(islice(pairs, 0, None, every))
    counted = section.kind != "unigram"  # the others learn the same from words with their counts, in less memory
    model = io.BytesIO()  # given a file name, SentencePiece would write that name into the model
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=words_with_counts(sample) if counted else sample,
            input_format="tsv" if counted else "text",
            model_writer=model,
            vocab_size=section.vocab_size,
            model_type=section.kind,
            character_coverage=section.character_coverage,
            max_sentence_length=100_000,
            num_threads=LEARNING_THREADS,
            pad_id=PAD,
            eos_id=EOS,
            bos_id=BOS,
            unk_id=UNK,
            minloglevel=2,
            use_all_vocab=section.kind in ("word", "char"),
        )
    except RuntimeError as error:
        if "KeyboardInterrupt" in str(error):  # it came while SentencePiece asked for the next sentence
            raise KeyboardInterrupt from None
        largest = re.search(r"value <= (\d+)", str(error))
        reason = f"this text has at most {int(largest[1]):,} pieces" if largest else str(error).strip().splitlines()[-1]
        raise DataError(
            f"subwords.vocab_size = {section.vocab_size}: SentencePiece refuses ({reason}); lower it or give more text"
        ) from None
    path.write_bytes(model.getvalue())
    return Vocabulary(path)


def words_with_counts(texts: Iterable[str]) -> Iterator[str]:
    counts = Counter(chain.from_iterable(text.split() for text in texts))
    return (f"{word}\t{count}" for word, count in counts.items())


def sides(pairs: Iterable[Pair]) -> Iterator[str]:
    for source, target in pairs:
        yield source
        yield target
