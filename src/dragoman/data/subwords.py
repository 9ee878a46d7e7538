"""The vocabulary of both languages, or one of each: SentencePiece, with pad 0, eos 1, bos 2, unk 3."""

from __future__ import annotations

import io
import re
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import sentencepiece

from dragoman.config.schema import Config, Subwords
from dragoman.cores import usable_cores
from dragoman.data.corpus import Text
from dragoman.errors import DataError
from dragoman.runs import digest_of, whole

# Ids end to end, each text closed with the end mark; and how many each text has.
Cut = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]

PAD, EOS, BOS, UNK = 0, 1, 2, 3
MARKS = {"pad": PAD, "eos": EOS, "bos": BOS, "unk": UNK}
TRAINER: Any = {f"{name}_id": number for name, number in MARKS.items()} | {"minloglevel": 2}  # whatever is learnt
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a piece of byte fallback
LANGUAGE = re.compile(r">>[^<>]+<<")  # before a text: what to translate it into, as OPUS-MT's models are told
NEVER_WRITTEN = (PAD, BOS)  # marks that no translation holds
VOCABULARY_FILE, SOURCE_FILE = "vocabulary.model", "source.model"  # the latter where the source has one of its own
LEARNING_THREADS = 16  # the same everywhere: unigram pieces depend on it
CHUNK = 5_000  # texts that are cut together
SPACE = "\u2581"  # how a space is written in a piece
# Texts that a vocabulary may cut otherwise than word by word: plain words, characters that become white space or nothing, and the
# sign for a space standing in the text itself.
PROBES = ("a a", "1 \u200b \xb4 1", "a\u2581 a")
LARGEST_SEED = 2**32 - 2  # one more means "draw a seed" to SentencePiece
SAMPLING = threading.Lock()  # SentencePiece has one seed for the whole process


def processor(path: Path) -> sentencepiece.SentencePieceProcessor:
    try:
        found = sentencepiece.SentencePieceProcessor(model_proto=model_bytes(path))
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path}: not a SentencePiece model ({str(error).strip().splitlines()[0]})") from None
    special = tuple(getattr(found, f"{name}_id")() for name in MARKS)
    if special != tuple(MARKS.values()):
        raise DataError(
            f"{path}: pad, eos, bos, unk are {special}; dragoman needs {(PAD, EOS, BOS, UNK)}. Leave subwords.model empty "
            "to learn a vocabulary, or train the model with --pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3"
        )
    return found


def model_bytes(path: Path) -> bytes:
    """The model at `path`, which may be the `.vocab` that SentencePiece writes beside one."""
    return from_vocab(path) if path.suffix == ".vocab" else path.read_bytes()


def from_vocab(path: Path) -> bytes:
    """A model out of its pieces and scores: what else a model tells, such as how text is normalised, is as SentencePiece has it
    by itself."""
    from sentencepiece import sentencepiece_model_pb2 as layout

    usual = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a"]), model_writer=usual, vocab_size=9, hard_vocab_limit=False, **TRAINER
    )
    model, kinds = layout.ModelProto.FromString(usual.getvalue()), layout.ModelProto.SentencePiece
    del model.pieces[:]
    try:
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
        entries = [(piece, float(score)) for piece, score in rows]
    except ValueError:
        raise DataError(f"{path}: not a vocabulary of SentencePiece, whose lines are PIECE TAB SCORE") from None
    for number, (piece, score) in enumerate(entries):
        other = kinds.BYTE if BYTE.fullmatch(piece) else kinds.NORMAL
        kind = other if number > max(MARKS.values()) else kinds.UNKNOWN if number == UNK else kinds.CONTROL
        model.pieces.add(piece=piece, score=score, type=kind)
    ranked = all(score.is_integer() for _, score in entries)
    model.trainer_spec.model_type = layout.TrainerSpec.BPE if ranked else layout.TrainerSpec.UNIGRAM
    model.trainer_spec.byte_fallback = any(BYTE.fullmatch(piece) for piece, _ in entries)
    model.trainer_spec.vocab_size = len(entries)
    return bytes(model.SerializeToString())


def beside(path: Path) -> Path | None:
    """The file of the source side's own vocabulary, where there is one beside that of the target side."""
    source = path.with_name(SOURCE_FILE)
    return source if path.name == VOCABULARY_FILE and source.is_file() else None


class Vocabulary:
    """Text to ids and back. An imported vocabulary may have a second file beside it: the same pieces with the target side's
    scores."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.processor = processor(self.path)

    @cached_property
    def source(self) -> Vocabulary:
        """That of the source side: another one where it lies beside this one."""
        path = beside(self.path)
        return Vocabulary(path) if path else self

    @cached_property
    def cores(self) -> int:
        """Asked once: the answer is read from files, and the smallest request is encoded."""
        return usable_cores()

    @cached_property
    def source_size(self) -> int:
        """Pieces that the source has for itself. An imported vocabulary may have the same ones, cut by other rules: that is none."""
        same = self.source is self or self.source.pieces() == self.pieces()
        return 0 if same else len(self.source)

    def pieces(self) -> list[str]:
        return [str(self.processor.id_to_piece(index)) for index in range(len(self))]

    def __len__(self) -> int:
        return int(self.processor.get_piece_size())

    def digest(self) -> str:
        """Of what the vocabulary does; the file also holds settings such as the number of threads that made it."""
        own = [[self.processor.id_to_piece(i), self.processor.get_score(i)] for i in range(len(self))]
        return digest_of([own, self.source.digest()] if self.source is not self else own)

    @cached_property
    def knows_words(self) -> bool:
        """Whether a word is cut the same way wherever it stands, so that each distinct one need be cut only once. True of BPE (whose
        scores are ranks), unless a piece goes beyond a word or white space is treated in a way of its own; not of unigram, whose
        sums are rounded over the whole text."""
        inside = any(SPACE in piece[1:] for piece in self.pieces())
        if inside or self.languages or self.processor.piece_to_id(SPACE) == UNK:
            return False
        ranked = all(self.processor.get_score(number).is_integer() for number in range(len(self)))
        cut = self.processor.encode
        return ranked and all(cut(probe) == list(chain.from_iterable(cut(probe.split(" ")))) for probe in PROBES)

    def encode(self, texts: list[str], threads: int | None = None) -> list[list[int]]:
        """Ids of every text, each closed with the end-of-sentence mark."""
        return self.cut(texts, num_threads=threads or self.cores)

    def cut(self, texts: list[str], **how: Any) -> list[list[int]]:
        marks = [self.language_of(text) for text in texts] if self.languages else [""] * len(texts)
        rest = [text[len(mark) :] for text, mark in zip(texts, marks, strict=True)]
        rows: list[list[int]] = self.processor.encode(rest, add_eos=True, **how)
        return [[self.languages[mark], *row] if mark else row for mark, row in zip(marks, rows, strict=True)]

    @cached_property
    def languages(self) -> dict[str, int]:
        """Pieces that say in front of a text what it is to be translated into. As they are no text to SentencePiece, it never
        finds them by itself: with its blank before them they would not be what the model has learnt."""
        named = {piece: number for number, piece in enumerate(self.pieces()) if LANGUAGE.fullmatch(piece)}
        return {piece: number for piece, number in named.items() if self.processor.is_control(number)}

    def language_of(self, text: str) -> str:
        found = LANGUAGE.match(text)
        return found[0] if found and found[0] in self.languages else ""

    @cached_property
    def draws(self) -> bool:
        """Whether SentencePiece can cut with it at random."""
        from sentencepiece import sentencepiece_model_pb2 as layout

        model = layout.ModelProto.FromString(self.processor.serialized_model_proto())
        return model.trainer_spec.model_type in (layout.TrainerSpec.BPE, layout.TrainerSpec.UNIGRAM)

    def sample(self, texts: list[str], dropout: float, seed: int) -> list[list[int]]:
        """As `encode`, but cut at random. The same seed cuts the same way, on any machine and beside any other thread."""
        if not self.draws:
            raise DataError(
                f"{self.path}: only BPE and unigram vocabularies can cut at random; set subwords.dropout = 0.0"
            )
        with SAMPLING, ThreadPoolExecutor(1) as fresh:  # a thread takes the seed once, when it first draws
            sentencepiece.set_random_generator_seed(min(seed, LARGEST_SEED))
            how: Any = {"enable_sampling": True, "nbest_size": -1, "alpha": dropout, "num_threads": 1}
            return fresh.submit(self.cut, texts, **how).result()

    def look_up(self, pieces: list[str]) -> list[list[int]]:
        """The id of every piece, in a list. Marks that are no text, such as </s>, are unknown there."""
        return [[number if number > BOS else UNK] for number in self.processor.piece_to_id(pieces)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        return [str(text) for text in self.processor.decode([[i for i in row if i > BOS] for row in ids])]

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

    def encode(self, texts: Text, threads: int, *place: object) -> Cut:
        """Ids of every text. What is random follows from the seed and the place: shard, variant, side."""
        if self.tokenized:
            return by_words(texts, self.vocabulary.look_up)
        if not self.dropout and self.vocabulary.knows_words:
            return by_words(texts, partial(self.vocabulary.processor.encode, num_threads=threads))
        rows: list[list[int]] = []
        for start in range(0, len(texts), CHUNK):
            chunk = texts[start : start + CHUNK].to_pylist()
            if self.dropout:
                seed = zlib.crc32(repr((self.seed, *place, start)).encode())
                rows += self.vocabulary.sample(chunk, self.dropout, seed)
            else:
                rows += self.vocabulary.encode(chunk, threads)
        return flat(rows)


def by_words(texts: Text, spell: Callable[[list[str]], list[list[int]]]) -> Cut:
    """Ids of texts whose words are spelled one by one: each distinct word once, however often it occurs."""
    words = pc.split_pattern(texts, " ")
    coded = words.values.dictionary_encode()
    ids, lengths = flat([*spell(coded.dictionary.to_pylist()), [EOS]])
    ends = words.offsets.to_numpy()[1:]
    order = np.insert(coded.indices.to_numpy(), ends, len(lengths) - 1)  # a last word for every text: the end mark
    sizes = lengths[order]
    starts = (np.cumsum(lengths) - lengths)[order]
    behind = np.cumsum(sizes)
    place = np.repeat((starts - behind + sizes).astype(np.int32), sizes) + np.arange(sizes.sum(), dtype=np.int32)
    return ids[place], np.diff(behind[ends + np.arange(len(ends))], prepend=0)


def flat(rows: list[list[int]]) -> Cut:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.uint32, int(lengths.sum())), lengths


def cutter_for(part: str, config: Config, vocabulary: Vocabulary) -> Cutter:
    """Only training text is ever cut at random."""
    if part != "train":
        return Cutter(vocabulary, config.data.tokenized)
    section = config.subwords
    return Cutter(vocabulary, config.data.tokenized, section.dropout, section.ways, config.run.seed)


def learn(texts: Iterable[Text], section: Subwords, path: Path) -> Vocabulary:
    """Learn a vocabulary from blocks of text."""
    counted = section.kind != "unigram"  # the others learn the same from words with their counts, in less memory
    model = io.BytesIO()  # given a file name, SentencePiece would write that name into the model
    try:
        lines = words_with_counts(texts) if counted else (line for text in texts for line in text.to_pylist())
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            input_format="tsv" if counted else "text",
            model_writer=model,
            vocab_size=section.vocab_size,
            model_type=section.kind,
            character_coverage=section.character_coverage,
            byte_fallback=section.byte_fallback,
            max_sentence_length=100_000,
            num_threads=LEARNING_THREADS,
            use_all_vocab=section.kind in ("word", "char"),
            **TRAINER,
        )
    except RuntimeError as error:
        if "KeyboardInterrupt" in str(error):  # it came while SentencePiece asked for the next sentence
            raise KeyboardInterrupt from None
        largest = re.search(r"value <= (\d+)", str(error))
        reason = f"this text has at most {int(largest[1]):,} pieces" if largest else str(error).strip().splitlines()[-1]
        raise DataError(
            f"subwords.vocab_size = {section.vocab_size}: SentencePiece refuses ({reason}); lower it or give more text"
        ) from None
    with whole(path) as stream:
        stream.write(model.getvalue())
    return Vocabulary(path)


def words_with_counts(texts: Iterable[Text]) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        found = pc.value_counts(pc.split_pattern(text, " ").values)
        counts.update(dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)))
    return (f"{word}\t{count}" for word, count in counts.items() if word)
