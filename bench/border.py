"""The border of these scripts: a user's mistake is one line, with its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from dragoman.errors import DragomanError


def run(main: Callable[[], None]) -> None:
    try:
        main()
    except DragomanError as error:
        print(f"bench/{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
