"""`dragoman evaluate`: one model or several, scored, compared, and shown sentence by sentence."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from dragoman import runs
from dragoman.cli.checkpoints import chosen as checkpoints_of
from dragoman.cli.translating import Beam, Device, EngineName
from dragoman.errors import RunError


def evaluate(
    models: Annotated[
        list[Path], typer.Argument(help="Runs, checkpoints or models, one or several.", show_default=False)
    ],
    source: Annotated[
        Optional[str], typer.Option(help="Test text, source side.", show_default="the test set of the run")
    ] = None,
    reference: Annotated[Optional[str], typer.Option(help="Test text, target side.")] = None,
    named: Annotated[
        Optional[str], typer.Option("--set", help="A test set that sacreBLEU knows: wmt14, wmt14:de-en.")
    ] = None,
    metric: Annotated[
        Optional[list[str]],
        typer.Option(help="bleu, chrf, ter or comet; may be given several times.", show_default="bleu and chrf"),
    ] = None,
    tokenize: Annotated[
        Optional[str],
        typer.Option(
            help="How BLEU cuts words, by sacreBLEU's names: none for text that is tokenised already, zh, ja-mecab, ...",
            show_default="by the target language: 13a for most",
        ),
    ] = None,
    against: Annotated[
        Optional[Path], typer.Option(help="Another model, or a file of translations: paired bootstrap.")
    ] = None,
    every_checkpoint: Annotated[bool, typer.Option(help="Of a run all checkpoints, not the best alone.")] = False,
    average: Annotated[
        Optional[int], typer.Option(min=2, help="Of a run also the mean of its so many best checkpoints.")
    ] = None,
    html: Annotated[Optional[Path], typer.Option(help="Page by length, with the 500 worst sentences.")] = None,
    beam: Beam = None,
    device: Device = "auto",
    engine: EngineName = "auto",
) -> None:
    """Translate a test set and score it with sacreBLEU."""
    from dragoman.cli import progress, stages, tell
    from dragoman.exporting.average import choose

    options: dict[str, Any] = {
        "source": source, "reference": reference, "named": named, "metrics": metric, "tokenize": tokenize, "beam": beam,
        "device": device, "engine": engine, "against": against, "known": {},
    }  # fmt: skip
    chosen: list[Path] = []
    for model in models:
        chosen += checkpoints_of(model) if every_checkpoint and runs.RunFolder(model).exists() else [model]
    if html and len(chosen) + bool(average) > 1:
        raise RunError(f"--html is a page about one model; {len(chosen) + bool(average)} were named")
    if html:
        runs.check_place(html)
    of_means = models if average else []
    for model in of_means:
        choose(runs.RunFolder(model), None, average)  # refused now, not after the others were evaluated
    results: list[dict[str, Any]] = []
    try:
        with progress.shown() as shown:
            for each in chosen:
                results.append(stages.evaluate(each, html=html, progress=shown, **options))
            for model in of_means:
                results.append(averaged(model, average or 0, options | {"progress": shown}))
    finally:  # what is known is told, whatever happened to the next one
        tell.scores(results)


def averaged(run: Path, best: int, options: dict[str, Any]) -> dict[str, Any]:
    """The mean is made, measured, and not kept: `dragoman checkpoint average` keeps it."""
    from dragoman.cli import stages
    from dragoman.exporting.average import average

    with tempfile.TemporaryDirectory(prefix="dragoman-") as temporary:
        folder = average(run, Path(temporary) / "mean", best=best)
        return stages.evaluate(folder, run=runs.open_run(run), label=f"{run}, mean of the best {best}", **options)
