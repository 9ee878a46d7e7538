"""Ranks that do one thing and know nothing of translation; imported by the fork server's copies."""

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

from dragoman.parallel.ranks import STACKS_SIGNAL, STOPS, saving


def rank(arguments, environment, out):
    """`arguments`: what each rank does, by rank, and a folder."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    *doing, folder = arguments
    what, place = doing[int(environment["RANK"])], Path(folder)
    if what in ("fail", "die"):
        time.sleep(0.2)
        while "save" in doing and not (place / "begun").exists():
            time.sleep(0.02)
    if what == "fail":
        sys.exit(3)
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "save":
        os.environ.update(environment)
        with saving():
            (place / "begun").touch()
            time.sleep(2.0)
            (place / "whole").touch()
    if what == "answer":  # hangs, and says where when it is asked
        with (place / "stacks").open("w") as file:
            faulthandler.register(STACKS_SIGNAL, file)
            time.sleep(600)
    if what == "wait":
        time.sleep(600)
