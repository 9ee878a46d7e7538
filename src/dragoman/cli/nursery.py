"""What every rank needs, done once a host: ranks are copies of a process that has imported this (`parallel.ranks`)."""

import encodings.idna  # noqa: F401  # of every host name
from contextlib import suppress

import safetensors.torch  # noqa: F401
import torch._dynamo  # noqa: F401  # of every optimizer, which imports it when it is made: half of a start

from dragoman.cli import main, progress, stages, tell

__all__ = ["progress", "stages", "tell"]

main.command()
with suppress(Exception):  # a rank that needs it says so itself; others do not
    import tensorboard.compat.proto.event_pb2
    import tensorboard.compat.proto.summary_pb2
    import tensorboard.summary.writer.record_writer  # noqa: F401
