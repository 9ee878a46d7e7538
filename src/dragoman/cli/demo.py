"""The whole way in one command, on the embedded corpus and on any machine."""

from __future__ import annotations

from pathlib import Path

from dragoman.cli import progress, stages, tell
from dragoman.config import load_config
from dragoman.parallel.launch import launch
from dragoman.report import load_run, write_report
from dragoman.runs import RunFolder, write_text

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
"""


def run(folder: Path, processes: int) -> int:
    run_file = folder / "run.toml"
    write_text(run_file, RUN_FILE.format(folder=folder))
    config = load_config(run_file)
    with progress.shown() as shown:
        data = stages.prepare(config, progress=shown)
    tell.prepared(data.folder, data.manifest)
    done = RunFolder(config.run.folder).exists()
    code = launch(processes, ["train", str(run_file), *(["--resume"] if done else [])])
    if code:
        return code
    with progress.shown() as shown:
        result = stages.evaluate(config.run.folder, progress=shown)
    for example in result["examples"]:
        print(
            f"\nsource       {example['source']}\nreference    {example['reference']}\ntranslation  {example['translation']}"
        )
    print()
    tell.scores(result)
    rows = load_run(config.run.folder).train_rows
    print(
        f"average step: {rows[-1]['train_seconds'] / rows[-1]['step']:.3f} s over {rows[-1]['step']:,} steps, {processes} processes"
    )
    html, markdown = write_report(config.run.folder)
    print(f"report: {html} (and {markdown.name} beside it)")
    return 0
