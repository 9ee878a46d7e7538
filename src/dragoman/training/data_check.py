"""The prepared data is compared with its checksums while the first steps are taken: one rank a host reads its copy once, beside
training. A checkpoint is written only after that, so that nothing learnt from damaged data is ever kept.
"""

from __future__ import annotations

import threading

from dragoman.data.encode import PreparedData
from dragoman.errors import DataError


class DataCheck:
    def __init__(self, data: PreparedData):
        self.data = data
        self.error: DataError | None = None
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self.read, name="data check", daemon=True)
        self.thread.start()

    def read(self) -> None:
        try:
            self.data.check("train", "valid")
        except DataError as error:
            self.error = error

    def result(self) -> None:
        """Raises what was found so far."""
        if self.error:
            raise self.error

    @property
    def running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def wait(self) -> None:
        if self.thread:
            self.thread.join()
        self.result()
