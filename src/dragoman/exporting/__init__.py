"""A trained model, without the state of training, for whoever translates with it.

run, checkpoint or model folder --find_model--> weights, shape, vocabulary --write--> a new folder with a card and a manifest
"""

from __future__ import annotations

import time
from pathlib import Path

from dragoman import runs
from dragoman.errors import DragomanError, RunError

__all__ = ["export"]

KINDS = ("dragoman", "ctranslate2", "huggingface", "onnx")


def export(
    path: str | Path, out: str | Path, *, kind: str = "dragoman", quantization: str | None = None, licence: str = ""
) -> Path:
    """Write the model at `path` (a run: its best checkpoint) to the new folder `out`, whole or not at all.

    `kind`: "dragoman" for a model folder, "ctranslate2" (optionally with quantized weights), "huggingface" or "onnx"."""
    if kind not in KINDS:
        raise DragomanError(f"export: kind {kind!r} is not known; choose one of {', '.join(KINDS)}")
    if quantization is not None and kind != "ctranslate2":
        raise DragomanError(
            f"export: quantization = {quantization!r} is only for kind ctranslate2; the other formats keep fp32"
        )
    target = vacant(Path(out))
    from dragoman.exporting.card import write_card
    from dragoman.translate.models import find_model

    folder = find_model(Path(path))
    try:
        with runs.new_folder(target) as fresh:
            write(folder, fresh, kind, quantization)
            origin = facts(folder)
            write_card(fresh, folder, runs.run_around(folder), origin, kind, quantization, licence)
            runs.write_manifest(fresh, origin | {"kind": kind, "quantization": quantization})
    except OSError as error:
        raise RunError(f"{out}: the export could not be written ({error}). Nothing was left there") from error
    return Path(out)


def vacant(out: Path) -> Path:
    """The place to write to, with links followed; refused when something is there."""
    target = out.resolve()
    if not runs.vacant(target):
        raise RunError(f"{out}: exists and is not an empty folder; nothing was written. Name a new folder")
    return target


def write(folder: Path, fresh: Path, kind: str, quantization: str | None) -> None:
    """Each kind imports what it needs."""
    if kind == "ctranslate2":
        from dragoman.translate.ct2_model import write_ctranslate2

        write_ctranslate2(folder, fresh, quantization)
    elif kind == "huggingface":
        from dragoman.exporting.huggingface import write_huggingface

        write_huggingface(folder, fresh)
    elif kind == "onnx":
        from dragoman.exporting.onnx import write_onnx

        write_onnx(folder, fresh)
    else:
        from dragoman.model.folder import write_model
        from dragoman.translate.models import read_whole

        model, description, vocabulary = read_whole(folder)
        write_model(fresh, model.state_dict(), description, vocabulary.path)


def facts(folder: Path) -> runs.Row:
    """Where the model comes from: step and scores of its checkpoint, when it has them."""
    manifest = runs.read_json(folder / runs.MANIFEST) if (folder / runs.MANIFEST).is_file() else {}
    kept = ("step", "scores", "averaged_steps", "imported_from")
    return {key: manifest[key] for key in kept if key in manifest} | {"time": round(time.time(), 3)}
