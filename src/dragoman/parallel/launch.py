"""Start several ranks on this host and bring their first error back as one line."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import uuid

import torch

RESTART = "DRAGOMAN_RESTART"  # how often this run was started again
LAUNCHED = "DRAGOMAN_LAUNCHED"  # set for ranks whose errors the launcher prints


def started_by_launcher() -> bool:
    """Whether this process is one rank of several, whoever started them."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def visible_gpus(device: str) -> int:
    return torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0


def launch(processes: int, arguments: list[str], *, restarts: int = 0) -> int:
    """Run `python -m dragoman ARGUMENTS` in several ranks; returns the exit code. When a rank dies, all are started again
    with --resume, so many times; not when it had something to say to the user, or was asked to stop."""
    for attempt in range(restarts + 1):
        os.environ[RESTART] = str(attempt)
        again = ["--resume"] if attempt and "--resume" not in arguments else []
        code = launch_once(processes, [*arguments, *again])
        if code in (0, 2) or code >= 128:
            break
        if attempt < restarts:
            print(f"dragoman: starting again, {attempt + 1} of at most {restarts} times", file=sys.stderr)
    return code


def launch_once(processes: int, arguments: list[str]) -> int:
    """By torchrun's own agent."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[LAUNCHED] = "1"
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the ranks and the lines below say what happened
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "300")  # seconds for a last checkpoint after Ctrl-C
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.2,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "dragoman", *arguments)
    except ChildFailedError as error:
        # A rank with something to say to the user comes before those that failed because it was gone.
        rank, failure = min(error.failures.items(), key=lambda entry: (entry[1].exitcode != 2, entry[1].timestamp))
        if failure.message and failure.message != "<NONE>":
            print(failure.message, file=sys.stderr)
        else:
            print(
                f"dragoman: rank {rank} ended with code {failure.exitcode}; see its log in the run folder",
                file=sys.stderr,
            )
        return failure.exitcode if failure.exitcode > 0 else 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def report_error(line: str) -> None:
    """Hand the error line of a rank to whoever shows it: to the launcher's error file, or to the terminal."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"message": line, "timestamp": int(time.time())}, stream)
    if not (path and os.environ.get(LAUNCHED)):
        print(line, file=sys.stderr)
