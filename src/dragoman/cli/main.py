"""Commands, one per stage. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Optional

import typer

from dragoman import __version__
from dragoman.cli import bench, checkpoints, data, evaluating, explain, exports, hosts, reading, serving, translating
from dragoman.cli.hosts import Overrides, RunFile
from dragoman.config import load_config, presets, to_toml
from dragoman.errors import PASSING, DragomanError
from dragoman.runs import RunFolder

app = typer.Typer(
    name="dragoman",
    help="Train neural machine translation models, distributed, and get a run that explains itself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench.app, name="bench")
app.add_typer(checkpoints.app, name="checkpoint")
app.add_typer(data.app, name="data")
app.command()(hosts.launch)
app.command()(hosts.doctor)
app.command()(hosts.plan)
app.command(hidden=True)(hosts.agent)
app.command(hidden=True)(hosts.probe)
app.add_typer(explain.app, name="explain")
app.command()(reading.report)
app.command()(reading.watch)


class Engine(StrEnum):
    local = "local"
    ray = "ray"


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        print(f"dragoman {__version__}")
        raise typer.Exit


@app.command()
def prepare(
    run_file: RunFile,
    overrides: Overrides = None,
    force: Annotated[bool, typer.Option(help="Replace data that was prepared with other settings.")] = False,
    workers: Annotated[
        Optional[int], typer.Option(min=1, help="Processes that clean and encode.", show_default="one per core")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="Who does the work: this host, or a Ray cluster.")] = Engine.local,
) -> None:
    """Clean the corpus, learn the vocabulary, and turn text into ids. Interrupted, it goes on where it was."""
    config = load_config(run_file, overrides, for_prepare=True)
    from dragoman.cli import progress, tell
    from dragoman.data.prepare import prepare as prepare_data  # without the other stages, which import torch

    try:
        with progress.shown() as shown:
            on_ray = engine is Engine.ray
            data = prepare_data(config, __version__, force=force, workers=workers, on_ray=on_ray, progress=shown)
    except KeyboardInterrupt:
        print("interrupted; finished shards are kept, the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    tell.prepared(data.folder, data.manifest)


@app.command()
def train(
    run_file: RunFile,
    overrides: Overrides = None,
    nproc: Annotated[
        Optional[int], typer.Option(min=1, help="Processes on this host.", show_default="one per GPU, or 1")
    ] = None,
    resume: hosts.Resume = False,
    engine: Annotated[
        Engine, typer.Option(help="Who starts the processes: this host, or a Ray cluster.")
    ] = Engine.local,
    restarts: Annotated[
        int, typer.Option(min=0, help="Times to start again from the newest checkpoint when a process dies or hangs.")
    ] = 0,
    simulate_fault: hosts.Fault = None,
) -> None:
    """Train a model; over several processes with --nproc or torchrun."""
    config = load_config(run_file, overrides)
    environment = {**hosts.fault_environment(simulate_fault), **hosts.command_environment()}
    os.environ.update(environment)
    from dragoman.cli import progress, stages, tell
    from dragoman.parallel.cluster import launch_on_ray
    from dragoman.parallel.launch import launch, started_by_launcher, visible_gpus

    progress.need_no_reader()
    if started_by_launcher():
        hosts.refuse_for_ranks({"--nproc": nproc, "--restarts": restarts, "--engine ray": engine is Engine.ray})
    else:
        stages.check_ready(config, resume=resume)
        arguments = ["train", run_file, *(overrides or []), *(["--resume"] if resume else [])]
        run = RunFolder(config.run.folder)
        if engine is Engine.ray:
            raise typer.Exit(launch_on_ray(nproc, arguments, environment, config.train.device, restarts, run))
        processes = nproc or max(1, visible_gpus(config.train.device))
        if processes > 1 or restarts:
            raise typer.Exit(launch(processes, arguments, run, restarts=restarts))
    with progress.shown() as shown:
        reason = stages.train(config, resume=resume, progress=shown)
    if os.environ.get("RANK", "0") == "0":
        tell.trained(config.run.folder, os.environ[hosts.COMMAND], reason)
    if reason in stages.STOP_CODES:
        raise typer.Exit(stages.STOP_CODES[reason])


app.command()(evaluating.evaluate)
app.command()(translating.translate)


@app.command()
def config(
    run_file: Annotated[
        Optional[str], typer.Argument(help="A run file or preset to resolve.", show_default="the defaults")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Print every option with its explanation, default and resolved value, as a run file."""
    print(f'# Presets: {", ".join(presets())}. Start a run file with preset = "tiny" and write down what differs.\n')
    print(to_toml(load_config(run_file, overrides), explained=True), end="")


app.command()(exports.export)
app.command("import")(exports.import_model)
app.command()(serving.serve)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where to put everything.")] = Path("demo"),
    nproc: Annotated[int, typer.Option(min=1, help="Processes to train with.")] = 2,
) -> None:
    """The whole way on the embedded corpus: prepare, train, evaluate, translate, report; minutes on two cores."""
    from dragoman.cli.demo import run

    raise typer.Exit(run(folder, nproc))


@cache
def command() -> Callable[[], None]:
    """The whole command line. Typer takes a while to build it: once a host, not once a rank (`cli.nursery`)."""
    return typer.main.get_command(app)


def main() -> None:
    """The border: a user's mistake becomes one line and exit code 2, everything else keeps its traceback."""
    try:
        command()()
    except DragomanError as error:
        fail(f"dragoman: {error}", error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; nothing more to say
        sys.exit(141)
    except OSError as error:  # a full disk, a folder without permission; a rank may be started again after what passes
        fail(f"dragoman: {error}", 1 if "RANK" in os.environ and error.errno in PASSING else 2)
    except Exception:
        if "RANK" not in os.environ:
            raise
        fail(f"dragoman: rank {os.environ['RANK']} failed: {traceback.format_exc()}", 1)


def fail(line: str, code: int) -> None:
    """One rank of several hands its line to the launcher, so that it is shown once."""
    if "RANK" in os.environ:
        from dragoman.parallel.ranks import report_error

        report_error(line)
        sys.stdout.flush()
        sys.stderr.flush()
        # At once: everybody waits for this, and torch takes seconds to tidy up after a rank that is gone.
        os._exit(code)
    print(line, file=sys.stderr)
    sys.exit(code)
