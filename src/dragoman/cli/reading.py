"""`report` and `watch`: what runs have written, for people."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Optional

import typer

from dragoman.errors import RunError


def report(
    runs: Annotated[list[Path], typer.Argument(help="A run folder; several are compared.", show_default=False)],
    imported: Annotated[
        bool,
        typer.Option(
            "--import", help="Read logs of other systems: OpenSeq2Seq, fairseq, Hugging Face, TensorBoard, stated.toml."
        ),
    ] = False,
    run_file: Annotated[
        Optional[str],
        typer.Option(help="With --import: the run file or preset whose learning rate the log should show."),
    ] = None,
    output: Annotated[
        Optional[Path],
        typer.Option("--output", "-o", help="Folder to write to.", show_default="the run's own, or beside"),
    ] = None,
) -> None:
    """Write report.html, .md and .json: what the run was, and the answers to the questions people ask of it."""
    from dragoman.report import import_run, load_run, write
    from dragoman.report.compare import write_comparison
    from dragoman.runs import RunFolder

    if run_file and not imported:
        raise RunError("--run-file belongs to --import; a run folder has its own run.toml")
    records = [import_run(run, run_file) if imported else load_run(run) for run in runs]
    if len(records) > 1:
        written = write_comparison(records, output or records[0].folder.path.resolve().parent)  # beside the first
    else:
        written = write(records[0], RunFolder(output) if output else None)
    for path in written:
        print(path)


def watch(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 to serve the page at.")] = 8001,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 5.0,
    terminal: Annotated[bool, typer.Option(help="Show it here instead of in a browser.")] = False,
) -> None:
    """Follow a run: its report as a page that renews itself, or in the terminal."""
    if terminal:
        follow(run, every)
        return
    from dragoman.report.watch import LOOPBACK, server

    with server(run, port, every) as listening:
        print(f"http://{LOOPBACK}:{listening.server_address[1]}/  (Ctrl-C ends it; the run goes on)", flush=True)
        try:
            listening.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print()


def follow(run: Path, every: float) -> None:
    """Until the run stops, or somebody has seen enough."""
    from rich.console import Console
    from rich.live import Live

    from dragoman.report import load_run
    from dragoman.report.measures import stop_reason
    from dragoman.report.terminal import view

    with suppress(KeyboardInterrupt):
        record = load_run(run)
        with Live(view(record), console=Console(), auto_refresh=False) as live:
            while not stop_reason(record):
                time.sleep(every)
                record = load_run(run)
                live.update(view(record), refresh=True)
