"""The whole way in one command, on the embedded corpus and on any machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from dragoman.cli import progress, stages, tell
from dragoman.config import load_config
from dragoman.errors import RunError
from dragoman.parallel.launch import launch
from dragoman.report import load_run, write_report
from dragoman.runs import RunFolder, vacant, write_text

RUN_FILE = """# Written by `dragoman demo`. Change it and run the stages yourself:
#   dragoman prepare {folder}/run.toml && dragoman train {folder}/run.toml --nproc 2
preset = "tiny"

[run]
folder = "{folder}/runs/tiny"

[data]
folder = "{folder}/data"
corpus = "grammar"

[train]
device = "cpu"

[schedule]
policy = "cosine"
learning_rate = 0.006
warmup_steps = 100
"""


def make_room(folder: Path, run_file: Path) -> None:
    """A demo before this one is replaced; a folder of somebody else is not."""
    if vacant(folder):
        return
    if not (run_file.is_file() and run_file.read_text(encoding="utf-8").startswith(RUN_FILE.splitlines()[0])):
        raise RunError(
            f"{folder}: is not empty and holds no demo; it is left alone. Name another: dragoman demo FOLDER"
        )
    for old in (folder / "data", folder / "runs" / "tiny"):
        shutil.rmtree(old, ignore_errors=True)


def run(folder: Path, processes: int) -> int:
    run_file = folder / "run.toml"
    make_room(folder, run_file)
    write_text(run_file, RUN_FILE.format(folder=folder))
    config = load_config(run_file)
    with progress.shown() as shown:
        data = stages.prepare(config, progress=shown)
    tell.prepared(data.folder, data.manifest)
    code = launch(processes, ["train", str(run_file)], RunFolder(config.run.folder))
    if code:
        return code
    with progress.shown() as shown:
        result = stages.evaluate(config.run.folder, progress=shown)
    for example in result["examples"]:
        print("", *(f"{side:13s}{example[side]}" for side in ("source", "reference", "translation")), sep="\n")
    print()
    tell.scores([result])
    last = load_run(config.run.folder).train_rows[-1]
    seconds = last["train_seconds"] / last["step"]
    print(f"average step: {seconds:.3f} s over {last['step']:,} steps, {processes} processes")
    page, *others = write_report(config.run.folder)
    print(f"report: {page} (beside it {', '.join(path.name for path in others)})")
    return 0
