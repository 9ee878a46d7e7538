"""How long the report of a long run takes, and how big it gets.

    python bench/report.py [--steps 300000] [--log-every 100]

Writes the folder of a made-up run on two hosts with two GPUs each (the one that tests judge) and reports it in a process of its own,
imports included. The last line is one JSON object; the aim for 300,000 steps is under 10 s and 5 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from made_runs import Gpu, Made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--log-every", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        how = {"steps": options.steps, "log_every": options.log_every, "valid_every": 4000}
        run = Made(Path(folder) / "run", hosts=2, ranks=2, gpu=Gpu(), network=0.05, wave=0.5, **how).write()
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "dragoman", "report", str(run)], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        sizes = {
            name: round((run / name).stat().st_size / 1e6, 3) for name in ("report.html", "report.md", "report.json")
        }
    facts = {"bench": "report", "steps": options.steps, "rows": options.steps // options.log_every}
    print(json.dumps(facts | {"seconds": round(seconds, 2), "megabytes": sizes}))


if __name__ == "__main__":
    main()
