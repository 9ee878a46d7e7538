"""Where numbers go: always into metrics.jsonl, and into TensorBoard event files when asked."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from dragoman.runs import Row, append_row

log = logging.getLogger(__name__)


class Metrics:
    """Rows of numbers of one run."""

    def __init__(self, path: Path, tensorboard: Path | None):
        self.path = path
        self.writer = event_writer(tensorboard) if tensorboard else None

    def write(self, row: Row) -> None:
        append_row(self.path, row)
        if self.writer:
            self.write_summary(self.writer, row)

    @staticmethod
    def write_summary(writer: Any, row: Row) -> None:
        # TensorBoard's own writer: torch's needs torch, and this room starts without it.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {
            key: value for key, value in row.items() if isinstance(value, (int, float)) and key not in ("step", "time")
        }
        values = [Summary.Value(tag=f"{row['kind']}/{key}", simple_value=value) for key, value in numbers.items()]
        writer.add_event(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))
        writer.flush()

    def close(self) -> None:
        if self.writer:
            self.writer.close()


def event_writer(folder: Path) -> Any:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    return EventFileWriter(str(folder))
