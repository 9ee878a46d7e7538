"""`dragoman translate`: raw text in, raw text out, from files, pipes or a person."""

from __future__ import annotations

import io
import json
import sys
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from dragoman.errors import ConfigError, DataError
from dragoman.runs import check_place, write_text

if TYPE_CHECKING:
    from dragoman.translate import Request, Translation, Translator

ModelPath = Annotated[
    Path, typer.Argument(help="A run, a checkpoint, a model folder or a CTranslate2 model.", show_default=False)
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
EngineName = Annotated[
    str, typer.Option(help="torch, ctranslate2, or auto: CTranslate2 on a CPU where it is installed.")
]
Beam = Annotated[
    Optional[int], typer.Option(min=1, help="Hypotheses followed at once; 1 is greedy.", show_default="of the model")
]


def translate(
    model: ModelPath,
    sources: Annotated[
        Optional[list[Path]],
        typer.Argument(help="Text files, one sentence a line, one after the other.", show_default="standard input"),
    ] = None,
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", help="Where to write.", show_default="standard output")
    ] = None,
    beam: Beam = None,
    length_penalty: Annotated[
        Optional[float],
        typer.Option(min=0.0, help="alpha in score / ((5 + length) / 6)^alpha.", show_default="of the model"),
    ] = None,
    n_best: Annotated[int, typer.Option(min=1, help="Translations of every line, as JSON lines.")] = 1,
    scores: Annotated[bool, typer.Option(help="With scores, as JSON lines.")] = False,
    alignments: Annotated[bool, typer.Option(help="With words that belong together, as JSON lines.")] = False,
    prefixes: Annotated[
        Optional[Path], typer.Option(help="File of what each translation must begin with, one a line, or empty.")
    ] = None,
    split: Annotated[bool, typer.Option(help="A line may hold several sentences: translate each by itself.")] = False,
    groups: Annotated[int, typer.Option(min=1, help="Groups of the beam that avoid each other's words.")] = 1,
    diversity: Annotated[float, typer.Option(min=0.0, help="What a word costs that another group has taken.")] = 0.5,
    sample: Annotated[bool, typer.Option(help="Draw translations at random instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 draws likelier words.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Draw among so many words; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest words of this probability in all.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of drawing.")] = 1,
    batch_tokens: Annotated[
        Optional[int], typer.Option(min=1, help="Source subwords translated at once.", show_default="of the model")
    ] = None,
    processes: Annotated[
        Optional[int], typer.Option(min=1, help="Processes that share the work.", show_default="one per GPU, or 1")
    ] = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    precision: Annotated[str, typer.Option(help="Of torch: fp32, fp16, bf16, or auto: fp16 on a GPU.")] = "auto",
) -> None:
    """Translate raw text, line by line, in order; empty lines stay empty."""
    texts = [line for path in sources for line in read(path) or []] if sources else read(None)
    given = read(prefixes) if prefixes else None
    if output:
        check_place(output)
    if texts is None:
        refuse_in_conversation({"--output": output, "--prefixes": prefixes, "--processes": processes})
    from dragoman.cli import progress
    from dragoman.model.folder import read_description
    from dragoman.translate import Translator, crew
    from dragoman.translate.models import find_model
    from dragoman.translate.translator import request_for, takes_ctranslate2

    asked = {
        "beam": beam, "length_penalty": length_penalty, "n_best": n_best, "groups": groups, "diversity": diversity,
        "sample": sample, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
    }  # fmt: skip
    opening = {"device": device, "engine": engine, "precision": precision}
    options: dict[str, Any] = {
        "prefixes": given, "split": split, "alignment": alignments, "batch_tokens": batch_tokens
    }  # fmt: skip
    as_json = n_best > 1 or scores or alignments
    folder = find_model(model)  # once: while a run trains its best checkpoint may become another one
    if texts is None:
        translator = Translator.read(folder, **opening)
        converse(translator, translator.request(**asked), options, as_json)
        return
    together = processes or crew.usual_number(folder, device, engine)
    if sample and together > 1 and takes_ctranslate2(folder, **opening):
        together = 1  # which of several gets which lines is chance, and each goes on drawing where it was
    if len(texts) > together > 1:
        request = request_for(read_description(folder).translate, **asked)
        with progress.shown() as shown:
            found = crew.search_together(together, folder, opening, texts, request, options, shown)
    else:
        translator = Translator.read(folder, **opening)
        request = translator.request(**asked)
        with progress.shown() as shown:
            found = translator.search(texts, request, progress=shown, **options)
    write(told(texts, found, as_json), output)


def read(path: Path | None) -> list[str] | None:
    """All lines; None when a person sits at the terminal."""
    if path is None and sys.stdin.isatty():
        return None
    if path and path.is_dir():
        raise DataError(
            f"{path}: is a folder, not a text file. The model is named first: dragoman translate MODEL [FILES]"
        )
    try:
        raw = path.read_bytes() if path else sys.stdin.buffer.read()
        text = raw.decode("utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path or 'standard input'}, line {line}: not UTF-8; convert it first, for example with iconv"
        ) from None
    return text.removesuffix("\n").split("\n") if text else []


def told(texts: list[str], found: list[list[Translation]], as_json: bool) -> list[str]:
    if not as_json:
        return [translations[0].text for translations in found]
    return [
        json.dumps({"source": text, "translations": list(map(entry, translations))}, ensure_ascii=False)
        for text, translations in zip(texts, found, strict=True)
    ]


def entry(found: Translation) -> dict[str, Any]:
    """JSON has no infinity: a model of NaNs has no score."""
    return vars(found) | {"score": round(found.score, 4) if isfinite(found.score) else None}


def write(lines: list[str], path: Path | None) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if path:
        write_text(path, text)
    else:
        sys.stdout.buffer.write(text.encode())  # UTF-8 whatever the locale says


def refuse_in_conversation(given: dict[str, Any]) -> None:
    problems = [f"{name} is for the lines of a file; name the file, or pipe it in" for name in given if given[name]]
    if problems:
        raise ConfigError(problems, "translate")


def converse(translator: Translator, request: Request, options: dict[str, Any], as_json: bool) -> None:
    print("One sentence a line; Ctrl-D to leave.", file=sys.stderr)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # a slip of the keyboard does not end it
    for line in sys.stdin:
        text = line.strip()
        write(told([text], translator.search([text], request, **options), as_json), None)
        sys.stdout.flush()
