"""The scripts in bench/ are imported by their names, as they import each other."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
