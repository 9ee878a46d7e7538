"""A model folder: weights, shape and vocabulary, and nothing of training. Every checkpoint is one, with more beside it.

model.safetensors   model.toml   vocabulary.model   source.model (where the source has a vocabulary of its own, or is cut by other rules)

What is read of it without its weights needs no torch: another engine starts in half a second.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from dragoman.config.load import check, toml_value
from dragoman.config.schema import Model, Translate
from dragoman.errors import AWAY, RunError
from dragoman.runs import write_text

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.model.transformer import Transformer

FORMAT = 2  # 1 knew neither model.style nor model.activation
WEIGHTS, DESCRIPTION, VOCABULARY = "model.safetensors", "model.toml", "vocabulary.model"
SOURCE_VOCABULARY = "source.model"  # beside the other


@dataclass(frozen=True)
class Description:
    """What model.toml says."""

    model: Model
    vocab_size: int
    source_lang: str
    target_lang: str
    translate: Translate
    source_vocab_size: int = 0  # 0: one vocabulary for both sides


def write_model(folder: Path, weights: dict[str, Tensor], description: Description, vocabulary: Path) -> None:
    write_tensors(folder / WEIGHTS, weights)
    write_description(folder, description, vocabulary)


def write_description(folder: Path, description: Description, vocabulary: Path) -> None:
    """All but the weights."""
    write_text(folder / DESCRIPTION, describe(description))
    shutil.copyfile(vocabulary, folder / VOCABULARY)
    if (source := vocabulary.with_name(SOURCE_VOCABULARY)).is_file():
        shutil.copyfile(source, folder / SOURCE_VOCABULARY)


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, str] | None = None) -> None:
    from safetensors.torch import save_file

    try:
        path.touch()
        mode = path.stat().st_mode  # as the user wants new files to be; safetensors would hide it from everybody else
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, facts)
        path.chmod(mode)
    except SafetensorError as error:
        raise RunError(f"{path}: could not be written ({error})") from None


def describe(description: Description) -> str:
    top = {
        "format": FORMAT,
        "source_lang": description.source_lang,
        "target_lang": description.target_lang,
        "vocab_size": description.vocab_size,
        **({"source_vocab_size": description.source_vocab_size} if description.source_vocab_size else {}),
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
        config, problems = check({name: content[name] for name in ("model", "translate")})
        sizes = {"vocab_size": content["vocab_size"], "source_vocab_size": content.get("source_vocab_size", 0)}
        for name, size in sizes.items():
            if not isinstance(size, int) or size < (name == "vocab_size"):
                problems.append(f"{name} = {size!r} is no number of subwords")
        languages = content["source_lang"], content["target_lang"]
        problems += [f"{language!r} is no language" for language in languages if not isinstance(language, str)]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    except KeyError as error:
        raise RunError(f"{path}: damaged ({error.args[0]} is missing)") from None
    if problems:
        raise RunError(f"{path}: damaged ({'; '.join(problems)})")
    return Description(config.model, sizes["vocab_size"], *languages, config.translate, sizes["source_vocab_size"])


def read_weights(folder: Path) -> dict[str, Tensor]:
    return read_tensors(folder / WEIGHTS)


def read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        path.open("rb").close()  # safetensors loses the number of an error
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> Exception:
    """A disk that is away says nothing about the file."""
    away = isinstance(error, OSError) and error.errno in AWAY
    return error if away else RunError(f"{path}: missing or damaged ({error})")


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """To read one tensor at a time."""
    from safetensors import safe_open

    try:
        path.open("rb").close()  # as above
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from None


def read_model(folder: Path) -> tuple[Transformer, Description]:
    """The model, ready to translate."""
    from dragoman.model.transformer import Transformer

    description = read_description(folder)
    model = Transformer(description.model, description.vocab_size, description.source_vocab_size)
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
