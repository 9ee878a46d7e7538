"""The exception tree. A user's mistake raises one of these and becomes one line and exit code 2.

DragomanError
|-- ConfigError        a key, a value or a rule of the configuration
|-- DataError          corpora, prepared folders, vocabularies
|-- RunError           run folders, checkpoints, model folders
|-- TrainingError      a run that cannot go on (diverged, ranks disagree)
|   '-- DriftError     ranks hold different weights; starting again helps
|-- Unfinished         work that was stopped from outside (full disk, no memory); what it finished is kept
'-- MissingExtra       an optional part that is not installed

Our own mistakes are assertions and keep their traceback.
"""

from __future__ import annotations

import errno
import importlib
from types import ModuleType
from typing import Any

# A disk of the network that does not answer: nothing is known of what lies there, and at the next try it may be back.
AWAY = {
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
}
# Errors of a file system or a network that may be gone at the next try.
PASSING = AWAY | {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EADDRINUSE}


class DragomanError(Exception):
    """What is wrong, where, and what to do about it, in one line."""

    exit_code = 2


class ConfigError(DragomanError):
    """One or more problems of a configuration, all reported at once."""

    def __init__(self, problems: list[str], where: str = "configuration"):
        self.problems = problems
        self.where = where
        listed = problems[0] if len(problems) == 1 else "".join(f"\n  - {problem}" for problem in problems)
        count = "" if len(problems) == 1 else f"{len(problems)} problems:"
        super().__init__(f"{where}: {count}{listed}")

    def __reduce__(self) -> tuple[Any, ...]:
        """It may come from another process."""
        return type(self), (self.problems, self.where)


class DataError(DragomanError):
    pass


class RunError(DragomanError):
    pass


class TrainingError(DragomanError):
    pass


class DriftError(TrainingError):
    """Ranks that should hold the same weights do not. Starting again from a checkpoint helps: no mistake of the user."""

    exit_code = 1


class Unfinished(DragomanError):
    pass


class MissingExtra(DragomanError):
    pass


def require_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say which pip line installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{purpose} needs the extra '{extra}' ({error}). Install it with: pip install '.[{extra}]', in the folder of dragoman"
        ) from error
