"""The loader alone: rows packed and tensors built from ids, with nobody to train on them.

    python bench/loader.py [PRESET-OR-RUN.TOML] [section.key=value ...]

The same as `dragoman bench loader`: prepared sentences where there are some, otherwise drawn ones with the lengths of WMT text.
Prints a table and, as its last line, one JSON object.
"""

import sys

from dragoman.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "loader"]
    main()
