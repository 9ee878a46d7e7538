"""A background thread that writes one row of telemetry a second, per host. It never blocks nor raises into training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.monitor import gpu, host
from dragoman.runs import append_row

log = logging.getLogger(__name__)


@contextmanager
def sampling(path: Path, interval_seconds: float, *, enabled: bool) -> Iterator[None]:
    """Sample this host into a file while the block runs."""
    if not enabled:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=sample_until, args=(stop, path, interval_seconds), name="telemetry", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=2.0)


def sample_until(stop: threading.Event, path: Path, interval_seconds: float) -> None:
    cards, failed = None, ""
    with suppress(Exception):
        host.sample()  # shares of processor time count from the call before
    while not stop.wait(interval_seconds):
        try:
            cards = cards or gpu.Cards()
            append_row(path, {**host.sample(), "gpus": cards.sample()})
        except Exception as error:  # a full disk or a vanished counter must not end a training run
            if str(error) != failed:
                log.warning("telemetry: %s; this sample is left out, training goes on", error)
            failed = str(error)
