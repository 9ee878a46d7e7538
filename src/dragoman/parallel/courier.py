"""Exchanges that run beside the computing, in the order in which they were handed in: on all ranks the same, so nobody waits for
somebody who waits for him. On a CPU a thread does them, as gloo holds up whoever calls it; on a GPU a stream of its own.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch.futures import Future

Result = TypeVar("Result")

PATIENT = 5  # how much nicer its thread is then
LAST_SECONDS = 10.0  # for what is on its way when the process ends; one whose partner is gone may never come back


class Courier:
    def __init__(self, device: torch.device, *, patient: bool = False):
        """`patient`: its exchanges have time, so computing goes first where both want a core."""
        self.device, self.patient = device, patient
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        if self.stream is None:
            self.thread = threading.Thread(target=self.run, name="courier", daemon=True)
            self.thread.start()
            atexit.register(self.end)

    def hand_in(self, work: Callable[[], Result]) -> Future[Result]:
        """Its result in time. Waiting for it waits for the exchange; on a GPU only the stream does."""
        if self.stream is None:
            future: Future[Result] = Future()
            self.waiting.put((work, future))
            return future
        future = Future(devices=[self.device])
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            future.set_result(work())
        return future

    def run(self) -> None:
        if self.patient and sys.platform == "linux":  # elsewhere a thread has no priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness() + PATIENT)
        while found := self.waiting.get():
            work, future = found
            try:
                future.set_result(work())
            except Exception as error:  # raised where the result is waited for
                future.set_exception(error)  # type: ignore[arg-type]  # it is meant for errors
            del found, work, future  # or the model of the last exchange would live as long as this thread

    def end(self) -> None:
        """Before Python does: a thread that is inside torch then would abort the process."""
        self.waiting.put(None)
        self.thread.join(LAST_SECONDS)


def niceness() -> int:
    """Of this thread: Linux counts threads as processes here."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
