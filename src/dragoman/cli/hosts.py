"""`dragoman launch`, `doctor`, `plan`, and the agent that the first two start on every host."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from dragoman import __version__
from dragoman.config import load_config
from dragoman.errors import ConfigError, DataError, DragomanError
from dragoman.runs import digest_of

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
Resume = Annotated[bool, typer.Option(help="Continue from the newest sound checkpoint of run.folder.")]
Fault = Annotated[
    Optional[str],
    typer.Option(help="See a run survive: kill, stop, hang, exit or drift:rank=R,step=S.", show_default=False),
]

OWN_SHELL = "sh -c 'exec sh -c \"$1\"'"


def cluster_of(hosts: str, shell: str | None, folder: str | None, python: str | None, interface: str, port: int) -> Any:
    from dragoman.parallel.hosts import SSH, Cluster, parse_hosts

    place, named = folder or str(Path.cwd()), parse_hosts(hosts)
    usual = OWN_SHELL if [name for name, _ in named] == ["localhost"] else SSH  # no ssh to oneself
    return Cluster(named, shell or usual, place, python or sys.executable, interface, port)


def fault_environment(text: str | None) -> dict[str, str]:
    """What ranks read it from."""
    if not text:
        return {}
    from dragoman.training import fault

    fault.parse(text)
    return {fault.VARIABLE: text}


COMMAND = "DRAGOMAN_COMMAND"


def command_environment() -> dict[str, str]:
    """What the first rank tells a user who has stopped it to go on with. Whoever starts ranks says it; torchrun does not."""
    again = [] if "--resume" in sys.argv else ["--resume"]
    own = (
        "what started the ranks, with --resume"
        if "RANK" in os.environ
        else shlex.join(["dragoman", *sys.argv[1:], *again])
    )
    return {COMMAND: os.environ.get(COMMAND) or own}


# What means nothing with --slurm, and what means nothing without it.
NOT_SLURM = ("hosts", "simulate_fault", "port", "rsh")
SLURM_ONLY = ("nodes", "tasks", "sbatch")


def refuse_unused(context: typer.Context, *, slurm: bool) -> None:
    """An option that would be dropped without a word."""
    for name in NOT_SLURM if slurm else SLURM_ONLY:
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            why = "Slurm says where ranks are" if slurm else "it is for --slurm"
            raise ConfigError([f"means nothing {'with' if slurm else 'without'} --slurm: {why}; leave it out"], option)


def launch(
    context: typer.Context,
    run_file: RunFile,
    overrides: Overrides = None,
    hosts: Hosts = "",
    resume: Resume = False,
    restarts: Annotated[
        int, typer.Option(min=0, help="Times to start again from the newest checkpoint when something dies or hangs.")
    ] = 0,
    simulate_fault: Fault = None,
    interface: Interface = "",
    port: Port = 0,
    rsh: Shell = None,
    folder: Folder = None,
    python: Python = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Write a job script for Slurm and submit it, instead.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Hosts to ask Slurm for.")] = 2,
    tasks: Annotated[int, typer.Option(min=1, help="Processes on each of them, one a GPU.")] = 1,
    sbatch: Annotated[
        Optional[list[str]], typer.Option(help="More for Slurm, as --gpus-per-node=4.", show_default=False)
    ] = None,
) -> None:
    """Train on several hosts, started from here; they need the installed package and the prepared data, nothing else."""
    refuse_unused(context, slurm=slurm)
    config = load_config(run_file, overrides)
    if slurm:
        from dragoman.parallel import slurm as job

        place, interpreter = folder or str(Path.cwd()), python or sys.executable
        how = (interpreter, place, interface, sbatch or [], restarts)
        text = job.script(run_file, overrides or [], nodes, tasks, *how)
        raise typer.Exit(job.submit(text, Path(f"{Path(run_file).stem}.sbatch")))
    from dragoman.cli.progress import need_no_reader
    from dragoman.parallel.hosts import launch_on_hosts

    need_no_reader()
    cluster = cluster_of(hosts, rsh, folder, python, interface, port)
    arguments = ["train", "RUN_FILE", *(["--resume"] if resume else [])]
    environment = {**fault_environment(simulate_fault), **command_environment()}
    raise typer.Exit(launch_on_hosts(cluster, config, arguments, environment, restarts))


def doctor(
    run_file: RunFile,
    overrides: Overrides = None,
    hosts: Hosts = "localhost",
    interface: Interface = "",
    port: Port = 0,
    rsh: Shell = None,
    folder: Folder = None,
    python: Python = None,
) -> None:
    """Look at hosts and the network between them before a run: what is wrong, and what to do. Exit code 0: go; 1: no."""
    config = load_config(run_file, overrides)
    from dragoman.cli.forecast import parameters, vocabulary
    from dragoman.model import size
    from dragoman.parallel.doctor import examine

    count, learning = parameters(config, vocabulary(config))
    checkpoint = size.checkpoint_bytes(count, averaged=config.train.average_decay > 0, trainable=learning)
    cluster = cluster_of(hosts, rsh, folder, python, interface, port)
    verdicts = []
    marks = {"ok": "ok     ", "warning": "WARNING", "stop": "STOP   "}
    for finding in examine(cluster, config, checkpoint, size.FP32_BYTES * learning):
        verdicts.append(finding.verdict)
        lines = [f"{marks[finding.verdict]} {finding.text}{f'; {finding.remedy}' if finding.remedy else ''}"]
        print("\n    ".join([*lines, *finding.heard]), flush=True)
    go = "stop" not in verdicts
    print(f"{'go' if go else 'no'}: {verdicts.count('stop')} to mend, {verdicts.count('warning')} to look at")
    raise typer.Exit(0 if go else 1)


def probe(count_bytes: int, device: str) -> None:
    """One rank of an all-reduce that the doctor times; first it says where it computes, which may be in the way of the rest."""
    import torch

    from dragoman.parallel.mesh import joined, pick_device

    print(f"device {pick_device(device, int(os.environ['LOCAL_RANK'])).type}", flush=True)
    with joined(device, 300) as mesh:
        numbers = torch.ones(count_bytes // 4, device=mesh.device)
        for _ in range(2 if mesh.world > 1 else 0):  # connections are made in the first
            torch.distributed.barrier()
            start = time.perf_counter()
            torch.distributed.all_reduce(numbers)
            if mesh.device.type == "cuda":
                torch.cuda.synchronize(mesh.device)
        if mesh.is_main and mesh.world > 1:
            print(f"seconds {time.perf_counter() - start}", flush=True)


def plan(
    run_file: RunFile,
    overrides: Overrides = None,
    hosts: Annotated[int, typer.Option(min=1, help="Machines.")] = 2,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs, or processes, on each of them.")] = 1,
    bandwidth: Annotated[str, typer.Option(help="Of one machine's link: 1gbit, 100mbit, 25gbit.")] = "10gbit",
    latency_ms: Annotated[float, typer.Option(min=0.0, help="There and back between two machines.")] = 0.1,
    run: Annotated[
        Optional[Path],
        typer.Option(help="A run of this model, to take the time of computing from.", show_default=False),
    ] = None,
    compute_seconds: Annotated[
        Optional[float], typer.Option(min=1e-6, help="Of one step on all GPUs, without exchange.", show_default=False)
    ] = None,
    tflops: Annotated[float, typer.Option(min=0.001, help="Peak of one GPU, where neither is given.")] = 312.0,
    tokens: Annotated[float, typer.Option(min=1.0, help="Target tokens to train on, for time and cost.")] = 1e9,
    price: Annotated[float, typer.Option(min=0.0, help="Of one GPU for an hour.")] = 2.0,
) -> None:
    """Say before a run what each strategy will cost on so many machines, and which to take."""
    config = load_config(run_file, overrides)
    from dragoman.cli import forecast

    found = forecast.computing(config, hosts * gpus, run, compute_seconds, tflops)
    setting = forecast.setting_of(config, hosts, gpus, found.seconds, bandwidth, latency_ms, fitting=found.at_once)
    forecast.tell(config, setting, found.source, bandwidth, tokens, price)


def refuse_for_ranks(options: dict[str, Any]) -> None:
    """They are for whoever starts ranks, which has happened: dropped without a word they would be missed after the first fault."""
    if given := [name for name, value in options.items() if value]:
        told = f"{' and '.join(given)}: this is a rank that torchrun, Slurm or Ray has started; say there how many, and how often again"
        raise ConfigError([told], "dragoman train")


def agent() -> None:
    """The far end of `launch` and `doctor`; answers on standard input and output."""
    from dragoman.parallel.agent import Agent

    Agent(inspect).serve()


def inspect(run_file: Path) -> dict[str, Any]:
    """What this host has for a run. A problem is told, not raised: versions that differ may be its cause."""
    from dragoman.monitor import host

    found = {"dragoman": __version__, "code": digest_of_code(), "data_digest": "", "problem": ""} | host.describe()
    try:
        config = load_config(run_file)
        found["disk"] = host.disk(Path(config.run.folder))
        found["data_digest"] = digest_of_data(config.data.folder)
    except DragomanError as error:
        found["problem"] = str(error)
    except OSError as error:
        found["problem"] = (
            f"run.folder cannot be written to ({error.strerror}); make room, or choose another disk for it"
        )
    return found


def digest_of_code() -> str:
    """Two checkouts of one version may be of other days."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return digest_of([file.read_text(encoding="utf-8") for file in files])[:8]


def digest_of_data(folder: str) -> str:
    """Of a prepared folder whose files are all there and as long as they should be: a copy may have been interrupted."""
    from dragoman.data.encode import PreparedData

    try:
        data = PreparedData(folder)
        for part in ("train", "valid"):
            data.encoded(part)
    except OSError as error:
        raise DataError(
            f"data.folder {folder} cannot be read ({error}); copy it there, or let this user read it"
        ) from None
    return str(data.manifest["digest"])
