"""A model folder: weights, shape and vocabulary, and nothing of training. Every checkpoint is one, with more beside it.

model.safetensors   model.toml   vocabulary.model
"""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.config.load import toml_value
from dragoman.config.schema import Model, Translate
from dragoman.errors import RunError
from dragoman.model.transformer import Transformer
from dragoman.runs import write_text

FORMAT = 1
WEIGHTS, DESCRIPTION, VOCABULARY = "model.safetensors", "model.toml", "vocabulary.model"


@dataclass(frozen=True)
class Description:
    """What model.toml says."""

    model: Model
    vocab_size: int
    source_lang: str
    target_lang: str
    translate: Translate


def write_model(folder: Path, weights: dict[str, Tensor], description: Description, vocabulary: Path) -> None:
    write_tensors(folder / WEIGHTS, weights)
    write_text(folder / DESCRIPTION, describe(description))
    shutil.copyfile(vocabulary, folder / VOCABULARY)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        path.touch()
        mode = path.stat().st_mode  # as the user wants new files to be; safetensors would hide it from everybody else
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
        path.chmod(mode)
    except SafetensorError as error:
        raise RunError(f"{path}: could not be written ({error})") from None


def describe(description: Description) -> str:
    top = {
        "format": FORMAT,
        "source_lang": description.source_lang,
        "target_lang": description.target_lang,
        "vocab_size": description.vocab_size,
    }
    lines = [f"{key} = {toml_value(value)}" for key, value in top.items()]
    for name in ("model", "translate"):
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {toml_value(value)}" for key, value in getattr(description, name).model_dump().items()]
    return "\n".join(lines) + "\n"


def read_description(folder: Path) -> Description:
    path = folder / DESCRIPTION
    if not path.is_file():
        raise RunError(f"{folder}: not a model folder ({DESCRIPTION} is missing)")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if content["format"] > FORMAT:
            raise RunError(
                f"{folder}: written in format {content['format']}, this version reads up to {FORMAT}. Install a newer dragoman"
            )
        sections = Model.model_validate(content["model"]), Translate.model_validate(content["translate"])
        return Description(
            sections[0], content["vocab_size"], content["source_lang"], content["target_lang"], sections[1]
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, ValidationError) as error:
        raise RunError(f"{path}: damaged ({str(error).splitlines()[0]})") from None


def read_weights(folder: Path) -> dict[str, Tensor]:
    return read_tensors(folder / WEIGHTS)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: missing or damaged ({error})") from None


def read_model(folder: Path) -> tuple[Transformer, Description]:
    """The model, ready to translate."""
    description = read_description(folder)
    model = Transformer(description.model, description.vocab_size)
    load_weights(model, read_weights(folder), folder / WEIGHTS)
    return model.eval(), description


def load_weights(model: Transformer, weights: dict[str, Tensor], where: Path) -> None:
    """All tensors by name and shape; what does not fit is named."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    if wrong:
        name = wrong[0]
        raise RunError(
            f"{where}: {len(wrong)} tensors do not fit the model; {name} is {given.get(name, 'missing')} "
            f"and should be {wanted.get(name, 'absent')}"
        )
    model.load_state_dict(weights)
