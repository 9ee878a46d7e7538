"""Which folder is meant: a run (its best checkpoint), a checkpoint, a model folder, an export to CTranslate2. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman import runs
from dragoman.config import recorded_config
from dragoman.data.subwords import Vocabulary
from dragoman.errors import RunError
from dragoman.model import folder as model_folder

if TYPE_CHECKING:
    from dragoman.model.transformer import Transformer

CT2_WEIGHTS = "model.bin"


def find_model(path: Path) -> Path:
    """The folder with the weights: `path` itself, or the best checkpoint of the run at `path`."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "no such folder"
        raise RunError(f"{path}: {what}. Name the folder of a run, a checkpoint or an exported model")
    if not (path / model_folder.DESCRIPTION).is_file():
        if is_ctranslate2(path):
            raise RunError(f"{path}: a CTranslate2 model without {model_folder.DESCRIPTION}; export it again")
        run = runs.RunFolder(path)
        if not run.exists():
            raise RunError(f"{path}: holds no model. Name the folder of a run, a checkpoint or an exported model")
        return best_checkpoint(run)
    if (path / runs.MANIFEST).is_file() and (problem := runs.damage(path)):
        raise damaged(path, problem)
    return path


def is_ctranslate2(folder: Path) -> bool:
    return (folder / CT2_WEIGHTS).is_file()


def damaged(path: Path, problem: str) -> RunError:
    return RunError(f"{path}: damaged, {problem}. Name another checkpoint of the run")


def best_checkpoint(run: runs.RunFolder) -> Path:
    """The best one that is whole; of those without a score the newest."""
    metric = recorded_config(run.config).checkpoint.metric
    ranked = runs.best_checkpoints(run, metric) + runs.checkpoint_folders(run)[::-1]
    refusals = []
    for path in dict.fromkeys(ranked):  # verifying reads every byte: each of them once
        problem = runs.damage(path)
        if problem is None:
            return path
        refusals.append(damaged(path, problem))
    raise refusals[0] if refusals else RunError(f"{run.path}: has no checkpoint yet")


def read_whole(folder: Path) -> tuple[Transformer, model_folder.Description, Vocabulary]:
    """The three parts of a model, refused when they do not belong together."""
    if is_ctranslate2(folder):
        raise RunError(
            f"{folder}: a CTranslate2 model holds no weights to go on from; name the run or model it was made from"
        )
    model, description = model_folder.read_model(folder)
    vocabulary = Vocabulary(folder / model_folder.VOCABULARY)
    sizes = {
        "the vocabulary": (len(vocabulary), description.vocab_size),
        "the source vocabulary": (vocabulary.source_size, description.source_vocab_size),
    }
    for whose, (found, wanted) in sizes.items():
        if found != wanted:
            raise RunError(f"{folder}: {whose} has {found} pieces, the model {wanted}")
    return model, description, vocabulary
