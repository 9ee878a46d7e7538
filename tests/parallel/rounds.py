"""Several trainings, one after the other, in the same few processes: starting them takes longer than all the steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dragoman.parallel.launch import free_port

TESTS = Path(__file__).parents[1]


@dataclass
class Round:
    overrides: list[str]
    resume: bool = False


def run_rounds(ranks: int, rounds: list[Round], folder: Path) -> None:
    """All rounds over so many ranks."""
    plan = folder / "rounds.json"
    plan.write_text(json.dumps([[each.overrides, each.resume] for each in rounds]), encoding="utf-8")
    run_ranks(ranks, [sys.executable, __file__, str(plan)], folder)


def run_ranks(ranks: int, command: list[str], folder: Path) -> None:
    """So many processes of one command, which see the modules of tests; the first error of a rank is the error of the test."""
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    shared["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    errors = [(folder / f"rank-{rank}.err").open("w+", encoding="utf-8") for rank in range(ranks)]
    processes = [
        subprocess.Popen(command, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=errors[rank])
        for rank in range(ranks)
    ]
    deadline = time.monotonic() + 900
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes) or time.monotonic() > deadline:
            for process in processes:  # one alone would wait for the others
                process.kill()
        time.sleep(0.1)
    said = "".join(file.read() for file in errors if not file.seek(0))
    assert not any(process.returncode for process in processes), said


def agreed_port(place: Path) -> int:
    """Drawn by rank 0 when it is needed: of ports drawn long before, one may have been taken, or drawn twice."""
    if os.environ["RANK"] == "0":
        place.with_suffix(".new").write_text(str(free_port("127.0.0.1")), encoding="utf-8")
        place.with_suffix(".new").rename(place)
    while not place.exists():
        time.sleep(0.01)
    return int(place.read_text(encoding="utf-8"))


def main() -> None:
    import torch

    from dragoman.cli.stages import train
    from dragoman.config import load_config

    torch.set_num_threads(1)
    plan = Path(sys.argv[1])
    for number, (overrides, resume) in enumerate(json.loads(plan.read_text(encoding="utf-8"))):
        os.environ["MASTER_PORT"] = str(agreed_port(plan.with_name(f"port-{number}")))
        train(load_config("tiny", overrides), resume=resume)


if __name__ == "__main__":
    main()
