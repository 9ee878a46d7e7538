"""dragoman trains neural machine translation models, distributed, and gives you a run that explains itself.

The names below are the ones we promise, together with the files of a run and of a model folder. They are imported when
they are used, so that `import dragoman` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load_config": "dragoman.config",
    "load_run": "dragoman.report",
    "diagnose": "dragoman.report",
    "prepare": "dragoman.cli.stages",
    "train": "dragoman.cli.stages",
    "evaluate": "dragoman.cli.stages",
    "export": "dragoman.exporting",
    "Translator": "dragoman.translate",
    "errors": "dragoman.errors",
}

__all__ = ["Translator", "diagnose", "errors", "evaluate", "export", "load_config", "load_run", "prepare", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    return home if name == "errors" else getattr(home, name)
