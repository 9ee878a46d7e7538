"""What the type of the weights costs: BLEU of a trained model in every type of CTranslate2, against the model itself.

    python bench/quantise.py runs/first --source newstest.en --reference newstest.de
    python bench/quantise.py runs/first --set wmt14/full --device cuda
    python bench/quantise.py runs/first --types float32 int8                 # on the test set of the run

A machine without fast arithmetic of a type computes it in another (column `computed as`): the weights are rounded all the same, so
what rounding costs can be measured anywhere. Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import border
from rich.console import Console
from rich.table import Table

from dragoman.evaluation.evaluate import run_of
from dragoman.evaluation.metrics import score
from dragoman.evaluation.sets import test_set
from dragoman.exporting import export
from dragoman.model.folder import read_description
from dragoman.parallel.mesh import pick_device
from dragoman.translate import Translator
from dragoman.translate.models import find_model

TYPES = ["float32", "float16", "bfloat16", "int8_float16", "int8"]


def measure(translator: Translator, pairs: list[tuple[str, str]], beam: int | None) -> dict[str, Any]:
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    start = time.perf_counter()
    translations = translator.translate(sources, beam=beam)
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds, 2), **score(sources, translations, references, ["bleu"])["bleu"]}


def main() -> None:
    options = parse()
    folder, device = find_model(Path(options.model)), pick_device(options.device).type
    described = read_description(folder)
    languages = (described.source_lang, described.target_lang)
    run = run_of(Path(options.model))
    name, pairs = test_set(run, options.source, options.reference, options.set, languages)
    pairs = pairs[: options.sentences]
    original = Translator.read(folder, device, engine="torch", precision="fp32")
    rows = {"the model, fp32": measure(original, pairs, options.beam) | {"computed_as": "torch"}}
    base = rows["the model, fp32"]["score"]
    with tempfile.TemporaryDirectory(prefix="dragoman-") as temporary:
        for kind in options.types:
            out = export(folder, Path(temporary) / kind, kind="ctranslate2", quantization=kind)
            translator = Translator.read(out, device)
            found = measure(translator, pairs, options.beam)
            size = (out / "model.bin").stat().st_size / 1e6
            arithmetic = translator.engine.translator.compute_type  # type: ignore[attr-defined]
            lost = round(base - found["score"], 2)
            rows[kind] = found | {"computed_as": arithmetic, "megabytes": round(size, 1), "lost": lost}
            print(f"{kind}: BLEU {found['score']:.2f}, {lost:+.2f} lost", file=sys.stderr, flush=True)
    tell(name, rows)
    worst = max(row.get("lost", 0.0) for row in rows.values())
    facts = {"bench": "quantise", "test_set": name, "sentences": len(pairs), "device": device, "most_lost": worst}
    print(json.dumps(facts | {"weights": rows}, ensure_ascii=False))


def tell(name: str, rows: dict[str, dict[str, Any]]) -> None:
    table = Table(f"weights ({name})", "computed as", "model.bin, MB", "BLEU", "lost", "seconds")
    for kind, row in rows.items():
        size, lost = str(row.get("megabytes", "-")), str(row.get("lost", "-"))
        table.add_row(kind, row["computed_as"], size, f"{row['score']:.2f}", lost, str(row["seconds"]))
    Console(highlight=False).print(table)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run, checkpoint or model folder")
    parser.add_argument("--source", help="test text; without it the test set of the run")
    parser.add_argument("--reference")
    parser.add_argument("--set", help="a test set that sacreBLEU knows")
    parser.add_argument("--sentences", type=int, help="at most")
    parser.add_argument("--beam", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--types", nargs="+", default=TYPES)
    return parser.parse_args()


if __name__ == "__main__":
    border.run(main)
