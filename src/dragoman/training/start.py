"""Fine-tuning: a run that starts from the weights of another model, and keeps some of them as they are."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.config.load import toml_value
from dragoman.data.subwords import BOS, Vocabulary
from dragoman.errors import ConfigError, RunError
from dragoman.model import folder as model_folder
from dragoman.model.transformer import Transformer

BY_PIECE, SOURCE = ("embedding.weight", "output_bias"), "source_embedding.weight"  # one row a subword


@torch.no_grad()
def take(model: Transformer, vocabulary: Vocabulary, source: Path) -> dict[str, Any]:
    """Put the tensors of a model folder into `model`, by name and shape; returns what was taken and what was not."""
    shape = model_folder.read_description(source).model
    for key in ("style", "activation", "heads"):
        wanted, ours = getattr(shape, key), getattr(model.section, key)
        if wanted != ours:
            raise RunError(
                f"{source}: is a model of {key} {toml_value(wanted)}, the run file has {toml_value(ours)}; "
                f"set model.{key} = {toml_value(wanted)}"
            )
    given = model_folder.read_weights(source)
    theirs = Vocabulary(source / model_folder.VOCABULARY)
    places = dict.fromkeys(BY_PIECE, same_pieces(theirs, vocabulary))
    places[SOURCE] = same_pieces(theirs.source, vocabulary.source)
    report: dict[str, Any] = {"from": str(source), "taken": [], "rows": {}, "new": [], "left": []}
    own = model.state_dict()
    for name, tensor in own.items():
        if name in places and name in given and given[name].shape[1:] == tensor.shape[1:]:
            report["rows"][name] = {"taken": take_rows(tensor, given[name], places[name]), "of": len(tensor)}
        elif name in given and given[name].shape == tensor.shape:
            tensor.copy_(given[name])
            report["taken"].append(name)
        else:
            report["new"].append(name)
    report["left"] = sorted(name for name in given if name not in own or name in report["new"])
    if not report["taken"]:
        raise RunError(
            f"{source}: not one of its tensors fits this model; make [model] of the run file as in its model.toml"
        )
    return report


def same_pieces(theirs: Vocabulary, ours: Vocabulary) -> dict[int, int]:
    """Where a subword of theirs stands in our vocabulary."""
    places = {ours.processor.id_to_piece(index): index for index in range(len(ours))}
    pieces = ((index, theirs.processor.id_to_piece(index)) for index in range(len(theirs)))
    return {index: places.get(piece, index) for index, piece in pieces if piece in places or index <= BOS}


def take_rows(tensor: Tensor, given: Tensor, places: dict[int, int]) -> int:
    theirs, ours = (torch.tensor(list(side)) for side in (places.keys(), places.values()))
    tensor[ours.to(tensor.device)] = given[theirs].to(tensor.device)
    return len(places)


def told(report: dict[str, Any]) -> str:
    rows = "".join(f", {count['taken']:,} of {count['of']:,} rows of {name}" for name, count in report["rows"].items())
    new = f"; new: {', '.join(report['new'])}" if report["new"] else ""
    return f"from {report['from']}: {len(report['taken'])} tensors{rows}{new}"


def freeze(model: Transformer, patterns: tuple[str, ...]) -> list[str]:
    """Tensors of these names get no gradient; returns them."""
    names = [name for name, _ in model.named_parameters()]
    problems = [
        f"train.freeze: no tensor is called {pattern!r}; there are {names[0]}, {names[1]}, ..."
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    frozen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if len(frozen) == len(names):
        problems.append("train.freeze keeps every tensor: nothing would be learnt")
    if problems:
        raise ConfigError(problems)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return frozen
