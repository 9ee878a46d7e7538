"""Our own model folder: weights in fp32, shape, vocabulary. Only a model that can translate is written."""

from __future__ import annotations

from pathlib import Path

from dragoman.data.subwords import Vocabulary
from dragoman.errors import RunError
from dragoman.model import folder as model_folder
from dragoman.model.transformer import Transformer


def write_weights(folder: Path, fresh: Path) -> None:
    model, description, vocabulary = read_whole(folder)
    model_folder.write_model(fresh, model.state_dict(), description, vocabulary.path)


def read_whole(folder: Path) -> tuple[Transformer, model_folder.Description, Vocabulary]:
    """The three parts of a model, refused when they do not belong together."""
    model, description = model_folder.read_model(folder)
    vocabulary = Vocabulary(folder / model_folder.VOCABULARY)
    found, wanted = (len(vocabulary), vocabulary.source_size), (description.vocab_size, description.source_vocab_size)
    if found != wanted:
        which = found[0] == wanted[0]  # then it is the source
        whose = "the source vocabulary" if which else "the vocabulary"
        raise RunError(f"{folder}: {whose} has {found[which]} pieces, the model {wanted[which]}")
    return model, description, vocabulary
