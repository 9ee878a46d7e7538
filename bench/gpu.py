"""The figures of transformer-base and transformer-big that need a GPU, one command after the other, each with a limit.

    python bench/gpu.py                                         # at most 97 minutes, on one GPU
    python bench/gpu.py --only decode overhead --out figures    # some of them; what they printed lies in figures/NAME.txt

Takes data/english-german as `dragoman prepare recipes/english-german.toml` leaves it, and the text of its validation set in
corpora/english-german (`marian` of four more, see SETS).
`train` makes the model that `decode` translates with, in a run folder that must
not be there yet. Prints the last line of each, a JSON object or what the
command ended with; its own last line is one JSON object with all of them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

DATA = "data/english-german"
CORPORA = "corpora/english-german"
TEXT = f"{CORPORA}/newstest2013"
SETS = ["newstest2013", "europarl", "tatoeba", "multi30k", "ted"]  # validation sets, in CORPORA too
RUN = "runs/english-german-fp8"
RESIDUAL = ["model.attention_dropout=0.0", "model.relu_dropout=0.0"]
NARROW = ["train.tile_width=64", "train.wide_tile_width=128"]
OWN = [sys.executable, "-m", "dragoman"]
FAILED = re.compile(r"ended with code |not done after ")
BASE_FP8 = ["transformer-base", f"data.folder={DATA}", "train.precision=fp8", "train.batch_tokens=131072", *RESIDUAL]


def script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name(name)), *arguments]


COMMANDS: dict[str, tuple[int, list[str]]] = {  # seconds at most, and what is run
    "kernels": (90, [sys.executable, "tests/model/kernel_cases.py", "cuda"]),
    "tests": (
        480,
        [sys.executable, "-m", "pytest", "tests/training", "tests/translate", "-k", "on_a_gpu or pinned or recorded or a_gpu_finds"],
    ),
    "train": (600, [*OWN, "train", "recipes/english-german.toml", "train.precision=fp8", f"run.folder={RUN}"]),
    "decode": (
        300,
        script(
            "decode.py", RUN, "--source", f"{TEXT}.en", "--reference", f"{TEXT}.de", "--device", "cuda", "--sentences", "3000",
            "--batches", "256", "1024", "3000", "--systems", "torch", "hugging face",
        ),
    ),
    "decode random": (
        240,
        script(
            "decode.py", "--device", "cuda", "--sentences", "8192", "--batches", "512", "2048", "--systems", "torch",
            "hugging face",
        ),
    ),
    "base": (
        600,
        script(
            "peers.py", *RESIDUAL, "--data", DATA, "--tokens", "32768", "65536", "131072", "--own-tokens", "131072",
            "--multiples", "1", "--peers", "dragoman-fp8", "dragoman", "marian-compiled", "marian", "--seconds", "15", "--batches", "200",
        ),
    ),
    "big": (
        720,
        script(
            "peers.py", "--preset", "transformer-big", "model.dropout=0.1", *RESIDUAL, *NARROW,
            "--data", DATA, "--tokens", "65536", "131072", "--multiples", "1", "--own-tokens", "131072", "262144", "--peers",
            "dragoman-fp8", "dragoman", "marian-compiled", "--seconds", "26", "--batches", "60",
        ),
    ),
    "fp8": (
        600,
        script(
            "curves.py", "transformer-big", f"data.folder={DATA}", "train.batch_tokens=32768", "train.tokens_per_gpu=32768",
            "schedule.warmup_steps=200", "schedule.learning_rate=0.25", "model.dropout=0.1", "--steps", "1000", "--every", "50",
            "--precisions", "bf16", "fp8",
        ),
    ),
    "all dropouts": (
        180, [*OWN, "bench", "train", "transformer-base", f"data.folder={DATA}", "train.batch_tokens=131072"]
    ),
    "big all dropouts": (
        180,
        [*OWN, "bench", "train", "transformer-big", f"data.folder={DATA}", "train.precision=fp8", *NARROW, "train.batch_tokens=262144"],
    ),
    "big loop": (
        240,
        [
            *OWN, "bench", "train", "transformer-big", f"data.folder={DATA}", "train.precision=fp8", *NARROW,
            "train.batch_tokens=262144", "model.dropout=0.1", *RESIDUAL, "--steps", "30", "--warmup", "10",
        ],
    ),
    "base loop": (180, [*OWN, "bench", "train", *BASE_FP8, "--steps", "300", "--warmup", "50"]),
    "base step": (120, [*OWN, "bench", "step", *BASE_FP8, "--profile"]),
    "marian": (  # after the same nine minutes
        900,
        script(
            "marian.py", "recipes/english-german.toml", "schedule.learning_rate=0.0007", "schedule.warmup_steps=1500",
            "--minutes", "9", "--tokens", "65536", "--multiple", "8", "--batch-sentences", "2048", "--evaluate-every", "180",
            *(word for name in SETS for word in ("--valid", f"{name}={CORPORA}/{name}.en,{CORPORA}/{name}.de")),
        ),
    ),
    "wrappers": (
        180,
        script(
            "wrappers.py", "transformer-base", f"data.folder={DATA}", "train.batch_tokens=65536", *RESIDUAL,
        ),
    ),
    "overhead": (
        180, script("overhead.py", "transformer-base", f"data.folder={DATA}", "train.batch_tokens=65536", "--rounds", "4")
    ),
}  # fmt: skip


def last_line(command: list[str], seconds: int, log: Path) -> str:
    with open(log, "w", encoding="utf-8") as written:
        try:
            code = subprocess.run(
                command, stdout=written, stderr=subprocess.STDOUT, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return f"not done after {seconds} s"
    last = log.read_text(encoding="utf-8").strip().rpartition("\n")[2]
    return f"ended with code {code}: {last}" if code else last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="NAME", help=", ".join(COMMANDS)
    )
    parser.add_argument("--out", default="figures", help="folder for what the commands print")
    options = parser.parse_args()
    out, found = Path(options.out), {}
    out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        limit, command = COMMANDS[name]
        start = time.perf_counter()
        if name == "decode" and FAILED.match(found.get("train", "")):
            found[name] = "left out: its model is not that of this call"
        else:
            found[name] = last_line(command, limit, out / f"{name.replace(' ', '-')}.txt")
        print(f"{name} ({time.perf_counter() - start:.0f} s): {found[name]}", flush=True)
    print(json.dumps({"bench": "gpu", "said": found}))


if __name__ == "__main__":
    main()
