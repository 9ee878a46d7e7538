"""Text in, text out: cut into parts, batch by length, search, and give the texts back in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.config.schema import Translate
from dragoman.data.languages import is_spaced
from dragoman.data.subwords import UNK, Vocabulary
from dragoman.errors import ConfigError, DataError
from dragoman.model import folder as model_folder
from dragoman.translate.ct2_engine import CTranslate2Engine
from dragoman.translate.models import find_model, is_ctranslate2, read_whole
from dragoman.translate.pieces import Alignment, Part, checked, parts, source_places, target_places, word_numbers
from dragoman.translate.request import Engine, Hypothesis, Request

MOST_SENTENCES = 2048  # at once
ONE_LINE = {ord("\n"): " ", ord("\r"): " "}  # bytes can spell them
ENGINES = ("auto", "torch", "ctranslate2")

ReadOut = tuple[Hypothesis, str]  # with its text


@dataclass(frozen=True)
class Translation:
    text: str
    score: float  # log-probability divided by the length penalty; of several parts their sum
    alignment: Alignment  # words of source and translation that belong together, when asked for


class Translator:
    """A model and its vocabulary, ready to translate.

    >>> Translator.load("runs/demo").translate(["The cat sleeps."])  # doctest: +SKIP
    ['Die Katze schläft.']
    """

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        section: Translate,
        languages: tuple[str, str] = ("en", ""),
        other: Callable[[], Engine] | None = None,
    ):
        """`other` opens the engine for what the first one cannot do."""
        self.engine, self.vocabulary, self.section, self.languages = engine, vocabulary, section, languages
        self.other = other

    @classmethod
    def load(
        cls, path: str | Path, device: str = "auto", *, engine: str = "auto", precision: str = "auto"
    ) -> Translator:
        """From a model folder, a checkpoint, a run (its best checkpoint) or an export to CTranslate2.

        `engine`: "torch", "ctranslate2", or auto: CTranslate2 on a CPU where it is installed, torch elsewhere."""
        return cls.read(find_model(Path(path)), device, engine=engine, precision=precision)

    @classmethod
    def read(cls, folder: Path, device: str = "auto", *, engine: str = "auto", precision: str = "auto") -> Translator:
        """From the folder that `find_model` found, and verified."""
        if engine not in ENGINES:
            raise ConfigError([f"engine {engine!r} is not known; choose one of {', '.join(ENGINES)}"], "translate")
        description = model_folder.read_description(folder)
        vocabulary = Vocabulary(folder / model_folder.VOCABULARY)
        languages = (description.source_lang, description.target_lang)
        opened = open_engine(folder, vocabulary, device, engine, precision)
        free = engine == "auto" and opened.name == CTranslate2Engine.name and not is_ctranslate2(folder)
        other = cache(partial(open_engine, folder, vocabulary, device, "torch", precision)) if free else None
        return cls(opened, vocabulary, description.translate, languages, other)

    def request(self, **options: Any) -> Request:
        return request_for(self.section, **options)

    def translate(
        self, texts: list[str], *, split: bool = False, progress: runs.Progress = runs.silent, **options: Any
    ) -> list[str]:
        """One translation per text, in the same order; an empty text stays empty. `options` as in `Request`."""
        return [found[0].text for found in self.search(texts, self.request(**options), split=split, progress=progress)]

    def search(
        self,
        texts: list[str],
        request: Request,
        *,
        prefixes: list[str] | None = None,
        split: bool = False,
        alignment: bool = False,
        batch_tokens: int | None = None,
        progress: runs.Progress = runs.silent,
    ) -> list[list[Translation]]:
        """For every text its `n_best` translations, the best first. With `split` a text may hold several sentences; a long one
        is always split. A translation begins with its prefix."""
        normal = checked(texts)
        begun = spelled(checked(one_each(prefixes, texts)), self.vocabulary)
        space = " " if is_spaced(self.languages[1]) else ""
        source_language = self.languages[0] or "en"
        source = self.vocabulary.source
        cut = [
            parts(text, ids, source, source_language, split=split, space=space)
            for text, ids in zip(normal, source.encode(normal), strict=True)
        ]
        sources = [part.ids for pieces in cut for part in pieces]
        forced = [[] if part else begun[text] for text, pieces in enumerate(cut) for part in range(len(pieces))]
        found = self.search_ids(sources, forced, request, alignment, batch_tokens, progress)
        in_order = iter(self.read_out(found))
        return [
            self.joined(list(islice(in_order, len(pieces))), pieces, text if alignment else "")
            for pieces, text in zip(cut, normal, strict=True)
        ]

    def search_ids(
        self,
        sources: list[list[int]],
        prefixes: list[list[int]],
        request: Request,
        alignment: bool,
        batch_tokens: int | None,
        progress: runs.Progress,
    ) -> list[list[Hypothesis]]:
        # Only torch has a diverse beam. Where there is an `other`, nobody asked for CTranslate2 by name: torch may do it.
        engine = self.other() if self.other and request.groups > 1 else self.engine
        slots = batch_tokens or self.section.batch_tokens
        slots = engine.slots() if slots == "auto" else slots
        found: list[list[Hypothesis]] = [[] for _ in sources]
        done = 0
        lengths = [request.most_ids(*each) for each in zip(sources, prefixes, strict=True)]
        cells = engine.cells() // (request.rows * request.width)
        for batch in batches(sources, lengths, max(1, slots // request.rows), cells):
            pair = [sources[index] for index in batch], [prefixes[index] for index in batch]
            for index, hypotheses in zip(batch, engine.search(*pair, request, attention=alignment), strict=True):
                found[index] = hypotheses
            done += len(batch)
            progress("translating", done, len(sources), "sentences")
        return found

    def read_out(self, found: list[list[Hypothesis]]) -> list[list[ReadOut]]:
        """All hypotheses with their texts, which are decoded together."""
        texts = iter(self.vocabulary.decode([hypothesis.ids for hypotheses in found for hypothesis in hypotheses]))
        return [[(hypothesis, next(texts).translate(ONE_LINE)) for hypothesis in hypotheses] for hypotheses in found]

    def joined(self, found: list[list[ReadOut]], cut: list[Part], source: str) -> list[Translation]:
        """The n-th best of a text is made of the n-th best of its parts. With `source`, the text, words are aligned."""
        if not cut:
            return [Translation("", 0.0, [])]
        looked_at = word_numbers(source, source_places(source, cut, self.vocabulary.source)) if source else []
        results = []
        for rank in range(max(map(len, found))):
            chosen = [ranks[min(rank, len(ranks) - 1)] for ranks in found]
            text, places = "", []
            for number, (part, (hypothesis, own)) in enumerate(zip(cut, chosen, strict=True)):
                text += part.joint if number else ""
                places += [len(text) + at for at in target_places(hypothesis.ids, self.vocabulary)] if source else []
                text += own
            hypotheses = [hypothesis for hypothesis, _ in chosen]
            pairs = aligned(looked_at, word_numbers(text, places), hypotheses, cut) if source and text.strip() else []
            results.append(Translation(text, sum(hypothesis.score for hypothesis in hypotheses), pairs))
        return results


def aligned(source: list[int], target: list[int], chosen: list[Hypothesis], cut: list[Part]) -> Alignment:
    """For every word of the target those of the source that its subwords looked at most, given the words of all subwords."""
    pairs = set()
    source_at = target_at = 0
    for hypothesis, part in zip(chosen, cut, strict=True):
        count = len(part.ids) - 1  # the end mark is no word
        for number, row in enumerate(hypothesis.attention):
            most = max(range(count), key=row.__getitem__)
            pairs.add((source[source_at + most], target[target_at + number]))
        source_at, target_at = source_at + count, target_at + len(hypothesis.ids)
    return sorted(pairs)


def one_each(prefixes: list[str] | None, texts: list[str]) -> list[str]:
    """An empty prefix for every text where none are given."""
    if prefixes is None:
        return [""] * len(texts)
    if len(prefixes) != len(texts):
        raise DataError(f"{len(prefixes)} prefixes for {len(texts)} texts: one for each, empty where there is none")
    return prefixes


def spelled(prefixes: list[str], vocabulary: Vocabulary) -> list[list[int]]:
    """Their ids. What the vocabulary lacks would be forced, and read, as its sign for the unknown."""
    found = [ids[:-1] for ids in vocabulary.encode(prefixes)]
    for number, ids in enumerate(found, 1):
        if UNK in ids:
            raise DataError(
                f"prefix {number}: {prefixes[number - 1]!r} holds letters that the vocabulary of the model lacks; spell it "
                "with others, or end it before them"
            )
    return found


def request_for(section: Translate, **options: Any) -> Request:
    """The model's own way to search, changed by what is not None. Its beam is made wider where more is asked for than it finds, and
    whole groups of hypotheses are."""
    own = {key: getattr(section, key) for key in ("beam", "length_penalty", "extra_length")}
    given = {key: value for key, value in options.items() if value is not None}
    wanted = Request(**own | given)
    if "beam" not in given and not wanted.sample:
        groups = max(1, wanted.groups)
        wanted = replace(wanted, beam=-(-max(wanted.beam, wanted.n_best) // groups) * groups)
    return wanted.check()


def open_engine(folder: Path, vocabulary: Vocabulary, device: str, engine: str, precision: str) -> Engine:
    exported = is_ctranslate2(folder)
    if exported and engine == "torch":
        raise ConfigError(
            [f"{folder} is a CTranslate2 model; engine torch needs the model it was made from"], "translate"
        )
    if engine == "ctranslate2" and not exported and device not in ("auto", "cpu"):
        raise ConfigError(
            [f"engine ctranslate2 converts for the CPU, not for {device}; export it first, or choose torch"],
            "translate",
        )
    if takes_ctranslate2(folder, device, engine, precision):
        return CTranslate2Engine(folder, vocabulary, "cpu" if device == "auto" else device)
    from dragoman.parallel.mesh import pick_device, use_own_cores  # torch only where it is needed
    from dragoman.translate.torch_engine import TorchEngine

    chosen = pick_device(device)
    if chosen.type == "cpu":
        use_own_cores()
    model, _, _ = read_whole(folder)
    return TorchEngine(model.to(chosen), precision)


def takes_ctranslate2(folder: Path, device: str, engine: str, precision: str) -> bool:
    if engine == "ctranslate2" or is_ctranslate2(folder):
        return True
    if (engine, precision) != ("auto", "auto") or find_spec("ctranslate2") is None:
        return False
    from dragoman.parallel.mesh import pick_device

    return pick_device(device).type == "cpu"


def batches(sources: list[list[int]], lengths: list[int], slots: int, cells: int) -> Iterator[list[int]]:
    """Indices of sources of similar length, longest first: at most so many ids of sources, and so many that the translations may
    have (`lengths`), a batch being as long as its longest."""
    batch: list[int] = []
    longest = 0
    for index in sorted(range(len(sources)), key=lambda index: -len(sources[index])):
        rows, wider = len(batch) + 1, max(longest, lengths[index])
        full = rows * len(sources[(batch or [index])[0]]) > slots or rows * wider > cells or rows > MOST_SENTENCES
        if batch and full:
            yield batch
            batch, wider = [], lengths[index]
        batch.append(index)
        longest = wider
    if batch:
        yield batch
