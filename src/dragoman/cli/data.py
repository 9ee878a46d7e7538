"""`dragoman data`: public corpora by name, and what is in a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from dragoman.errors import DataError

if TYPE_CHECKING:
    from dragoman.data.inspect import Section
    from dragoman.data.public import Corpus

app = typer.Typer(help="Get public corpora by name, and look into a corpus.", no_args_is_help=True)

BAR_WIDTH, BESIDE_BARS = 30, 18  # characters: of a bar at most, and of the numbers beside each
PIPE_WIDTH = 120
SHORT = 16  # characters: a number, a name
COLOURS = ("blue", "yellow")
NOT_LISTED = {
    "newstestNNNN-xx-yy": "test sets of WMT, 2008 to 2020; --from and --to say which there are",
    "mtdata:ID": "any of the 290,000 corpora that mtdata knows (extra mtdata; `mtdata list -id` names them)",
}


@app.command("list")
def list_corpora(
    source: Annotated[str, typer.Option("--from", help="Source language, like en.")] = "",
    target: Annotated[str, typer.Option("--to", help="Target language, like de.")] = "",
) -> None:
    """Name the corpora and test sets that `data get` knows."""
    from rich.console import Console

    from dragoman.data import public

    found = public.listed(source, target)
    rows = [[each.name, f"{each.pairs:,}" if each.pairs else "", size_of(each), each.about] for each in found]
    if not (source and target):
        families = {f"{name}-xx-yy": entry["about"] for name, entry in public.table()["family"].items()}
        rows += [[name, "", "", about] for name, about in (families | NOT_LISTED).items()]
    Console(highlight=False).print(plain_table(["name", "pairs", "download", ""], rows))


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name of `dragoman data list`, or mtdata:ID.", show_default=False)],
    folder: Annotated[Path, typer.Option(help="Where corpora live; this one gets a folder of its own there.")] = Path(
        "corpora"
    ),
    keep: Annotated[bool, typer.Option(help="Keep the archives after unpacking.")] = False,
) -> None:
    """Download a corpus, check it, and unpack it into aligned text files."""
    from dragoman.cli import progress
    from dragoman.data import public
    from dragoman.runs import read_json

    if name.startswith("mtdata:"):
        print("asking mtdata; the first time it makes its index, which takes half a minute", flush=True)
    corpus = public.find(name)
    print(f"{corpus.name}: {corpus.about}\nlicence: {corpus.licence}\ndownload: {size_of(corpus)}", flush=True)
    with progress.shown() as shown:
        place = public.get(corpus, folder, shown, keep=keep)
    pairs = read_json(place / public.ORIGIN)["pairs"]
    print(f"{place}: " + ", ".join(f"{part} {number:,} pairs" for part, number in pairs.items()))
    recipe = Path("recipes") / f"{corpus.name}.toml"
    keys = f"for a run file:\n{public.data_keys(corpus, place)}"
    print(f"next: dragoman prepare {recipe}" if recipe.is_file() else keys)


@app.command()
def verify(folder: Annotated[Path, typer.Argument(help="A prepared folder.", show_default=False)]) -> None:
    """Read prepared data again and compare it with its checksums; exit code 2 when a file is damaged."""
    from dragoman.data.corpus import PARTS
    from dragoman.data.encode import PreparedData

    data = PreparedData(folder)
    for part in filter(data.has, PARTS):
        data.check(part)
        print(f"{folder}: {part} is sound")


@app.command()
def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            help="Text of the source side, a file that holds both sides (.tsv, .jsonl, .tmx, .zip), or a prepared folder.",
            show_default=False,
        ),
    ],
    other: Annotated[Optional[Path], typer.Argument(help="Text of the target side.", show_default=False)] = None,
    html: Annotated[Optional[Path], typer.Option(help="Write a page for the browser too.", show_default=False)] = None,
    source: Annotated[str, typer.Option("--from", help="Source language, in TMX files and archives.")] = "en",
    target: Annotated[str, typer.Option("--to", help="Target language.")] = "de",
    form: Annotated[
        str, typer.Option("--format", help="lines, sgm, tsv, jsonl or tmx, where no name says it.")
    ] = "auto",
    keys: Annotated[tuple[str, str], typer.Option(help="Keys of JSON lines.")] = ("source", "target"),
) -> None:
    """Sizes, lengths, vocabulary, drops, duplicates and suspicious pairs of a corpus."""
    from rich.console import Console

    from dragoman.cli import progress
    from dragoman.config import load_config
    from dragoman.config.load import toml_value
    from dragoman.data import inspect as looking
    from dragoman.runs import write_text

    for each in filter(None, (path, other)):
        if not Path(str(each).partition("!")[0]).exists():
            raise DataError(f"{each}: no such file or folder")
    names = ("source_lang", "target_lang", "format", "source_key", "target_key")
    reading = dict(zip(names, (source, target, form, *keys), strict=True))
    data = load_config(overrides=[f"data.{key}={toml_value(value)}" for key, value in reading.items()]).data
    with progress.shown() as shown:
        sections = looking.inspect(path, other, shown, data)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    for section in sections:
        tell(section, console)
    if html:
        write_text(html, looking.to_html(sections, f"{path} and {other}" if other else str(path)))
        print(html)


def tell(section: Section, console: Any) -> None:
    from rich.text import Text

    console.print(Text(f"\n{section.title}", style="bold"))
    if section.note:
        console.print(Text(section.note))
    if section.rows:
        console.print(plain_table(section.header, section.rows))
    if section.bars:
        largest = max(1, *(count for _, counts in section.bars for count in counts))
        header = ["", *(cell for name in section.series for cell in (name, ""))]
        width = max(4, min(BAR_WIDTH, console.width // len(section.series) - BESIDE_BARS))
        console.print(plain_table(header, [bar_row(label, counts, largest, width) for label, counts in section.bars]))


def bar_row(label: str, counts: list[int], largest: int, width: int) -> list[Any]:
    from rich.text import Text

    row: list[Any] = [label]
    for count, colour in zip(counts, COLOURS, strict=False):
        eighths = round(8 * width * count / largest) or (count > 0)
        row += [Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style=colour), f"{count:,}"]
    return row


def plain_table(header: list[str], rows: list[list[Any]]) -> Any:
    """Cells are text, never markup: sentences hold brackets. Long ones are broken; numbers and names never."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for at, cell in enumerate(header):
        short = all(len(str(row[at])) <= SHORT for row in rows)
        grid.add_column(Text(cell), no_wrap=short, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return grid


def size_of(corpus: Corpus) -> str:
    untold = sum(not archive.bytes for archive in corpus.archives.values())
    known = f"{corpus.bytes / 1e6:,.1f} MB" if corpus.bytes else ""
    return " + ".join(filter(None, [known, f"{untold} file{'s' * (untold > 1)}" if untold else ""]))
