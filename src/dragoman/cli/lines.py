"""Lines of text from files, pipes or a person, and back."""

from __future__ import annotations

import sys
from pathlib import Path

from dragoman.errors import DataError
from dragoman.runs import write_text
from dragoman.translate import Translator


def read(path: Path | None) -> list[str] | None:
    """All lines; None when a person sits at the terminal."""
    if path is None and sys.stdin.isatty():
        return None
    if path and path.is_dir():
        raise DataError(
            f"{path}: is a folder, not a text file. The model is named first: dragoman translate MODEL [FILE]"
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


def write(translations: list[str], path: Path | None) -> None:
    text = "".join(f"{line}\n" for line in translations)
    if path:
        write_text(path, text)
    else:
        sys.stdout.write(text)


def converse(translator: Translator, beam: int | None) -> None:
    print("One sentence a line; Ctrl-D to leave.", file=sys.stderr)
    for line in sys.stdin:
        print(translator.translate([line.strip()], beam=beam)[0], flush=True)
