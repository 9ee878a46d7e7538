"""What lives as long as a run is set aside: Python need not look at it again whenever it looks for garbage.

A compiled model is a million objects; looking at all of them made the GPU wait for a third of a second, every hundred steps."""

from __future__ import annotations

import gc


class Aside:
    """Whether it is done cannot be asked of Python: 3.12 sets objects aside that never die, all by itself."""

    def __init__(self) -> None:
        self.done = False

    def put(self) -> None:
        """Everything there is now, once."""
        if not self.done:
            gc.collect()
            gc.freeze()
            self.done = True

    def take_back(self) -> None:
        gc.unfreeze()
        self.done = False
