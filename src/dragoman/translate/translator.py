"""Text in, text out: find the model, batch by length, search, and give the lines back in their order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman import runs
from dragoman.config import load_config
from dragoman.config.schema import Translate
from dragoman.data.subwords import Vocabulary
from dragoman.errors import RunError
from dragoman.model import folder as model_folder
from dragoman.model.transformer import Transformer
from dragoman.parallel.mesh import pick_device
from dragoman.translate.search import beam_search


class Translator:
    """A model and its vocabulary, ready to translate.

    >>> Translator.load("runs/demo").translate(["The cat sleeps."])  # doctest: +SKIP
    ['Die Katze schläft.']
    """

    def __init__(self, model: Transformer, vocabulary: Vocabulary, section: Translate):
        self.model, self.vocabulary, self.section = model, vocabulary, section

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Translator:
        """From a model folder, a checkpoint, or a run (its best checkpoint)."""
        return cls.read(find_model(Path(path)), device)

    @classmethod
    def read(cls, folder: Path, device: str = "auto") -> Translator:
        """From the folder that `find_model` found, and verified."""
        model, description = model_folder.read_model(folder)
        return cls(model.to(pick_device(device)), Vocabulary(folder / model_folder.VOCABULARY), description.translate)

    def translate(
        self,
        texts: list[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        progress: runs.Progress = runs.silent,
    ) -> list[str]:
        """One translation per text, in the same order; an empty text stays empty."""
        section = self.section.model_copy(
            update={
                key: value for key, value in (("beam", beam), ("length_penalty", length_penalty)) if value is not None
            }
        )
        normal = [" ".join(text.split()) for text in texts]
        sources = dict(zip(range(len(texts)), self.vocabulary.source.encode(normal), strict=True))
        waiting = {index: ids for index, ids in sources.items() if normal[index]}
        translations = [""] * len(texts)
        done = len(texts) - len(waiting)
        for batch in batches(waiting, section.batch_tokens):
            hypotheses = beam_search(self.model, [waiting[index] for index in batch], section)
            for index, text in zip(batch, self.vocabulary.decode([best[0].ids for best in hypotheses]), strict=True):
                translations[index] = text
            done += len(batch)
            progress("translating", done, len(texts), "sentences")
        return translations


def batches(sources: dict[int, list[int]], slots: int) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first, so that memory runs out at once or never."""
    batch: list[int] = []
    for index in sorted(sources, key=lambda index: -len(sources[index])):
        if batch and (len(batch) + 1) * len(sources[batch[0]]) > slots:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def find_model(path: Path) -> Path:
    """The folder with the weights: `path` itself, or the best checkpoint of the run at `path`."""
    if not path.is_dir():
        raise RunError(f"{path}: no such folder. Name a run, a checkpoint or an exported model")
    if (path / "model.bin").is_file():
        raise RunError(
            f"{path}: a CTranslate2 model; translate with the ctranslate2 package, or name the run it was made from"
        )
    if not (path / model_folder.DESCRIPTION).is_file():
        return best_checkpoint(runs.open_run(path))
    if (path / runs.MANIFEST).is_file() and (problem := runs.damage(path)):
        raise damaged(path, problem)
    return path


def damaged(path: Path, problem: str) -> RunError:
    return RunError(f"{path}: damaged, {problem}. Name another checkpoint of the run")


def best_checkpoint(run: runs.RunFolder) -> Path:
    """The best one that is whole; of those without a score the newest."""
    ranked = runs.best_checkpoints(run, load_config(run.config).checkpoint.metric) + runs.checkpoint_folders(run)[::-1]
    refusal = RunError(f"{run.path}: has no checkpoint yet")
    for number, path in enumerate(dict.fromkeys(ranked)):  # verifying reads every byte: each of them once
        problem = runs.damage(path)
        if problem is None:
            return path
        refusal = damaged(path, problem) if number == 0 else refusal
    raise refusal
