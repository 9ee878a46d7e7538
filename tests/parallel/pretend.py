"""Ranks that do one thing and know nothing of translation; imported by the fork server's copies."""

import os
import signal
import sys
import time
from pathlib import Path


def rank(arguments, environment, out):
    """`arguments`: what each rank does, by rank, and a folder."""
    *doing, folder = arguments
    what, place = doing[int(environment["RANK"])], Path(folder)
    if what == "fail":
        time.sleep(0.2)
        sys.exit(3)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "write":
        with (place / "big").open("wb") as file:
            for _ in range(25):
                file.write(bytes(2_000_000))
                time.sleep(0.1)
        (place / "whole").touch()
    if what == "wait":
        time.sleep(600)
