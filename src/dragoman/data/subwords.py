"""The joint vocabulary of both languages: SentencePiece, with pad 0, eos 1, bos 2, unk 3."""

from __future__ import annotations

import io
import os
import re
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path

import sentencepiece

from dragoman.config.schema import Config, Subwords
from dragoman.data.corpus import Pair
from dragoman.errors import DataError
from dragoman.runs import digest_of

PAD, EOS, BOS, UNK = 0, 1, 2, 3
VOCABULARY_FILE, TARGET_FILE = "vocabulary.model", "vocabulary.target.model"
LEARNING_THREADS = 16  # the same everywhere: unigram pieces depend on it
LARGEST_SEED = 2**32 - 2  # one more means "draw a seed" to SentencePiece
SAMPLING = threading.Lock()  # SentencePiece has one seed for the whole process


def processor(path: Path) -> sentencepiece.SentencePieceProcessor:
    try:
        found = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path}: not a SentencePiece model ({str(error).strip().splitlines()[0]})") from None
    special = tuple(getattr(found, f"{name}_id")() for name in ("pad", "eos", "bos", "unk"))
    if special != (PAD, EOS, BOS, UNK):
        raise DataError(
            f"{path}: pad, eos, bos, unk are {special}; dragoman needs {(PAD, EOS, BOS, UNK)}. Leave subwords.model empty "
            "to learn a vocabulary, or train the model with --pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3"
        )
    return found


class Vocabulary:
    """Text to ids and back. An imported vocabulary may have a second file beside it: the same pieces with the target side's
    scores."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.processor = processor(self.path)
        self.second = self.path.with_name(TARGET_FILE)
        self.sides = (self.processor, processor(self.second) if self.second.is_file() else self.processor)
        if len({side.get_piece_size() for side in self.sides}) > 1:
            raise DataError(f"{self.second}: has another number of pieces than {self.path.name}")

    def __len__(self) -> int:
        return int(self.processor.get_piece_size())

    def digest(self) -> str:
        """Of what the vocabulary does; the file also holds settings such as the number of threads that made it."""
        sides = dict.fromkeys(self.sides)
        return digest_of([[side.id_to_piece(i), side.get_score(i)] for side in sides for i in range(len(self))])

    def encode(self, texts: list[str] | list[bytes], threads: int | None = None, side: int = 0) -> list[list[int]]:
        """Ids of every text, each closed with the end-of-sentence mark. `side`: 0 source, 1 target."""
        threads = threads or os.cpu_count() or 1
        rows: list[list[int]] = self.sides[side].encode(texts, add_eos=True, num_threads=threads)
        return rows

    def sample(self, texts: list[str] | list[bytes], dropout: float, seed: int, side: int = 0) -> list[list[int]]:
        """As `encode`, but cut at random. The same seed cuts the same way, on any machine and beside any other thread."""
        with SAMPLING, ThreadPoolExecutor(1) as fresh:  # a thread takes the seed once, when it first draws
            sentencepiece.set_random_generator_seed(min(seed, LARGEST_SEED))
            draw = partial(
                self.sides[side].encode, enable_sampling=True, nbest_size=-1, alpha=dropout, num_threads=1, add_eos=True
            )
            try:
                cut: list[list[int]] = fresh.submit(draw, texts).result()
            except RuntimeError:
                raise DataError(
                    f"{self.path}: only BPE and unigram vocabularies can cut at random; set subwords.dropout = 0.0"
                ) from None
        return cut

    def look_up(self, texts: list[str] | list[bytes]) -> list[list[int]]:
        """Ids of texts that are cut into pieces already. Marks that are no text, such as </s>, are unknown there."""
        plain = (text.decode() if isinstance(text, bytes) else text for text in texts)
        rows = (self.processor.piece_to_id(text.split(" ")) for text in plain)
        return [[*(number if number > BOS else UNK for number in row), EOS] for row in rows]

    def decode(self, ids: list[list[int]], side: int = 1) -> list[str]:
        return [str(text) for text in self.sides[side].decode([[i for i in row if i > BOS] for row in ids])]

    def join(self, texts: list[str]) -> list[str]:
        """Plain text of texts that are cut into pieces."""
        return [str(text) for text in self.processor.decode([text.split(" ") for text in texts])]


@dataclass(frozen=True)
class Cutter:
    """How the text of one part becomes ids: cut by the vocabulary, cut at random, or looked up where it is cut already."""

    vocabulary: Vocabulary
    tokenized: bool = False
    dropout: float = 0.0
    variants: int = 1
    seed: int = 0

    def encode(self, texts: list[bytes], threads: int, *place: object, side: int) -> list[list[int]]:
        """Ids of every text. What is random follows from the seed and the place: shard, variant, side, chunk."""
        if self.tokenized:
            return self.vocabulary.look_up(texts)
        if not self.dropout:
            return self.vocabulary.encode(texts, threads, side)
        return self.vocabulary.sample(texts, self.dropout, zlib.crc32(repr((self.seed, *place)).encode()), side)


def cutter_for(part: str, config: Config, vocabulary: Vocabulary) -> Cutter:
    """Only training text is ever cut at random."""
    if part != "train":
        return Cutter(vocabulary, config.data.tokenized)
    section = config.subwords
    return Cutter(vocabulary, config.data.tokenized, section.dropout, section.variants, config.run.seed)


def vocabulary_for(pairs: Iterable[Pair], total: int, section: Subwords, path: Path) -> Vocabulary:
    """The model that the section names, or one learnt from the pairs; either way it lies at `path` then."""
    if not section.model:
        return learn(pairs, total, section, path)
    given = Vocabulary(section.model)
    path.write_bytes(given.path.read_bytes())
    if given.second.is_file():
        path.with_name(TARGET_FILE).write_bytes(given.second.read_bytes())
    return Vocabulary(path)


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
            byte_fallback=section.byte_fallback,
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
