"""`dragoman launch`, `doctor`, `plan`, and the agent that the first two start on every host."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from dragoman import __version__
from dragoman.config import load_config, to_toml
from dragoman.errors import DragomanError

RunFile = Annotated[str, typer.Argument(help="A run file (TOML), or the name of a preset.", show_default=False)]
Overrides = Annotated[
    Optional[list[str]], typer.Argument(help="section.key=value, as many as you like.", show_default=False)
]
Hosts = Annotated[
    str,
    typer.Option(help="NAME:PROCESSES with commas between; without a number one process per GPU.", show_default=False),
]
Shell = Annotated[
    Optional[str], typer.Option("--rsh", help="Command that runs a command on a host.", show_default="ssh")
]
Folder = Annotated[
    Optional[str],
    typer.Option(help="Where to work on every host; paths are relative to it.", show_default="this folder"),
]
Python = Annotated[
    Optional[str], typer.Option(help="Python that has dragoman, on every host.", show_default="this one")
]
Interface = Annotated[
    str, typer.Option(help="Network interface that leads to the other hosts.", show_default="the one that works")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Of rank 0, on the first host.", show_default="a free one")]


def cluster_of(hosts: str, shell: str | None, folder: str | None, python: str | None, interface: str, port: int) -> Any:
    from dragoman.parallel.hosts import SSH, Cluster, parse_hosts

    place = folder or str(Path.cwd())
    return Cluster(parse_hosts(hosts), shell or SSH, place, python or sys.executable, interface, port)


def launch(
    run_file: RunFile,
    overrides: Overrides = None,
    hosts: Hosts = "",
    resume: Annotated[bool, typer.Option(help="Continue from the newest sound checkpoint of run.folder.")] = False,
    restarts: Annotated[
        int, typer.Option(min=0, help="Times to start again from the newest checkpoint when something dies or hangs.")
    ] = 0,
    interface: Interface = "",
    port: Port = 0,
    rsh: Shell = None,
    folder: Folder = None,
    python: Python = None,
) -> None:
    """Train on several hosts, started from here; they need the installed package and the prepared data, nothing else."""
    config = load_config(run_file, overrides)
    from dragoman.parallel.hosts import launch_on_hosts

    cluster = cluster_of(hosts, rsh, folder, python, interface, port)
    again = " ".join(shlex.quote(word) for word in ["dragoman", *sys.argv[1:]])
    arguments = ["train", "RUN_FILE", *(["--resume"] if resume else [])]
    environment = {"DRAGOMAN_COMMAND": again}
    raise typer.Exit(launch_on_hosts(cluster, to_toml(config), arguments, environment, restarts))


def agent() -> None:
    """The far end of `launch` and `doctor`; answers on standard input and output."""
    from dragoman.parallel.agent import Agent

    Agent(inspect).serve()


def inspect(run_file: Path) -> dict[str, Any]:
    """What this host has for a run. A problem is told, not raised: versions that differ may be its cause."""
    from dragoman.monitor import host

    found = {"dragoman": __version__, "data_digest": "", "problem": ""} | host.describe()
    try:
        from dragoman.data.encode import PreparedData

        found["data_digest"] = PreparedData(load_config(run_file).data.folder).manifest["digest"]
    except DragomanError as error:
        found["problem"] = str(error)
    return found
