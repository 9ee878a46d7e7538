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
    if len(vocabulary) != description.vocab_size:
        raise RunError(f"{folder}: the vocabulary has {len(vocabulary)} pieces, the model {description.vocab_size}")
    return model, description, vocabulary
