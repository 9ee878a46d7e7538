"""`dragoman serve`: models behind an HTTP door."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from dragoman.cli.translating import Device, EngineName


def serve(
    models: Annotated[
        list[Path],
        typer.Argument(
            help="Runs, checkpoints, model folders or CTranslate2 models, one or several.", show_default=False
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8000,
    device: Device = "auto",
    engine: EngineName = "auto",
    api_keys: Annotated[
        Optional[Path], typer.Option(help="File of keys, one a line; without it everybody may ask.")
    ] = None,
    cors: Annotated[
        Optional[list[str]],
        typer.Option(help="Origin whose pages may ask from a browser, or *; may be given several times."),
    ] = None,
    requests_per_minute: Annotated[
        Optional[int], typer.Option(min=0, help="Of one key or address.", show_default="any number")
    ] = None,
    wait_seconds: Annotated[
        Optional[float], typer.Option(min=0.1, help="Refuse requests that would wait longer.", show_default="1")
    ] = None,
    texts: Annotated[Optional[int], typer.Option(min=1, help="Most texts of a request.", show_default="256")] = None,
    characters: Annotated[
        Optional[int], typer.Option(min=1, help="Most characters of a request.", show_default="200,000")
    ] = None,
    characters_per_text: Annotated[
        Optional[int], typer.Option(min=1, help="Most characters of one text.", show_default="10,000")
    ] = None,
    beam: Annotated[
        Optional[int],
        typer.Option(min=1, max=100, help="Widest beam; half as many alternatives.", show_default="16"),
    ] = None,
) -> None:
    """Answer translation requests over HTTP: an API, LibreTranslate's API, and a page for people."""
    from dragoman.serve.server import serve as listen

    listen(
        models, host, port, device=device, engine=engine, keys_file=api_keys, cors=cors or (), requests_per_minute=requests_per_minute,
        wait_seconds=wait_seconds, texts=texts, characters=characters, characters_per_text=characters_per_text, beam=beam,
    )  # fmt: skip
