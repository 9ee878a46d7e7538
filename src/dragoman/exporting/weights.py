"""Our own model folder: weights in fp32, shape, vocabulary. Only a model that can translate is written."""

from __future__ import annotations

from pathlib import Path

from dragoman.model import folder as model_folder
from dragoman.translate.models import read_whole


def write_weights(folder: Path, fresh: Path) -> None:
    model, description, vocabulary = read_whole(folder)
    model_folder.write_model(fresh, model.state_dict(), description, vocabulary.path)
