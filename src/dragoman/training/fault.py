"""Faults on demand, to see that a run survives them: `--simulate-fault kill:rank=1,step=40`."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from torch import nn

from dragoman.errors import DragomanError
from dragoman.parallel.ranks import started_again

VARIABLE = "DRAGOMAN_FAULT"
KINDS = ("kill", "stop", "hang", "exit", "drift")


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int
    step: int

    def happen(self, rank: int, step: int, model: nn.Module) -> None:
        """Only before the first restart: the run should live on."""
        if (rank, step) != (self.rank, self.step) or started_again():
            return
        if self.kind == "hang":
            time.sleep(1e6)
        elif self.kind == "exit":
            os._exit(1)
        elif self.kind == "drift":
            tensor = next(model.parameters()).data
            own = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # FSDP2: its piece, without an exchange
            own[0] += 1e-3
        else:
            os.kill(os.getpid(), signal.SIGKILL if self.kind == "kill" else signal.SIGSTOP)


def parse(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    try:
        numbers = {key: int(value) for key, value in (part.split("=") for part in rest.split(","))}
        if kind not in KINDS:
            raise ValueError
        return Fault(kind, numbers.pop("rank"), numbers.pop("step"))
    except (ValueError, KeyError):
        raise DragomanError(
            f"--simulate-fault {text!r}: write it as KIND:rank=R,step=S with KIND one of {', '.join(KINDS)}"
        ) from None


def wanted() -> Fault | None:
    text = os.environ.get(VARIABLE)
    return parse(text) if text else None
