"""What every rank needs, done once a host: ranks are copies of a process that has imported this (`parallel.ranks`)."""

from contextlib import suppress

from dragoman.cli import main, progress, stages, tell

__all__ = ["progress", "stages", "tell"]

main.command()
with suppress(ImportError):  # a rank with a bad installation says so itself
    import tensorboard.summary.writer.event_file_writer  # noqa: F401
