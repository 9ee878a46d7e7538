"""`dragoman export` and `dragoman import`: models for other programs, and of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from dragoman.cli.translating import ModelPath

Output = Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)]


def export(
    model: ModelPath,
    output: Output,
    kind: Annotated[str, typer.Option("--to", help="dragoman, ctranslate2, huggingface or onnx.")] = "dragoman",
    quantization: Annotated[
        Optional[str], typer.Option(help="For ctranslate2: int8, int8_float16, float16, ...")
    ] = None,
    licence: Annotated[str, typer.Option(help="For the model card, as Hugging Face spells it: cc-by-4.0, ...")] = "",
) -> None:
    """Write a model folder without the state of training, or a model in another program's format, with a model card."""
    from dragoman.exporting import export as write

    print(write(model, output, kind=kind, quantization=quantization, licence=licence))


def import_model(
    model: Annotated[
        Path, typer.Argument(help="Folder of a Marian (OPUS-MT) or Pegasus model of transformers.", show_default=False)
    ],
    output: Output,
) -> None:
    """Turn a model of Hugging Face transformers into a model folder: to translate, to serve, to fine-tune."""
    from dragoman.exporting.huggingface import import_model as write

    print(write(model, output))
