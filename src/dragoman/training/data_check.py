"""The prepared data is compared with its checksums while the first steps are taken: one rank a host reads its copy once, beside
training. A checkpoint is written only after all hosts have done so, so that nothing learnt from damaged data is ever kept.
"""

from __future__ import annotations

import threading

from dragoman.data.encode import PreparedData
from dragoman.errors import DataError, RunError

LOOK_SECONDS = 0.1


class DataCheck:
    """`alone`: there is no other rank whose host could have a copy of its own."""

    def __init__(self, data: PreparedData, *, alone: bool):
        self.data, self.alone = data, alone
        self.error: DataError | OSError | None = None
        self.thread: threading.Thread | None = None
        self.all_sound = threading.Event()  # on every host
        self.given_up = False

    def start(self) -> None:
        self.thread = threading.Thread(target=self.read, name="data check", daemon=True)
        self.thread.start()

    def read(self) -> None:
        try:
            self.data.check("train", "valid")
        except (DataError, OSError) as error:
            self.error = error

    def result(self) -> None:
        """Raises what was found so far."""
        if self.error:
            raise self.error

    @property
    def unsure(self) -> bool:
        """Whether the copy of this host is not known to be sound."""
        return self.error is not None or (self.thread is not None and self.thread.is_alive())

    @property
    def pending(self) -> bool:
        return self.unsure if self.alone else not self.all_sound.is_set()

    def confirm(self) -> None:
        """All ranks have said that they are sure."""
        self.all_sound.set()

    def wait_for_all_hosts(self) -> None:
        """For the copy of this host; what the others found comes with the next question whether to stop, or when the run ends."""
        while self.thread and self.thread.is_alive() and not self.given_up:
            self.thread.join(LOOK_SECONDS)
        self.result()
        if not self.alone:
            self.all_sound.wait()
        if self.given_up:
            raise RunError("the run ended before all hosts had compared their data with its checksums")

    def give_up(self) -> None:
        """The run ends with an error: nobody will tell any more."""
        self.given_up = self.pending
        self.all_sound.set()
