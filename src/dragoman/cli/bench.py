"""`dragoman bench`: how fast this machine trains, as a table for people and one JSON line for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from dragoman.cli.hosts import Overrides
from dragoman.cli.tell import table
from dragoman.config import Config, load_config
from dragoman.runs import write_json

app = typer.Typer(
    help="Measure the speed of training: the real loop, the bare step, or the loader alone.", no_args_is_help=True
)

BASE, SMALL = "transformer-base", "tiny"  # where nobody names one; a CPU takes an hour for a few steps of the first
RunFile = Annotated[
    Optional[str],
    typer.Argument(help="A run file (TOML), or the name of a preset.", show_default=f"{BASE}, on a CPU {SMALL}"),
]
Steps = Annotated[int, typer.Option(min=1, help="Steps to measure.")]
Warmup = Annotated[int, typer.Option(min=1, help="Steps before that: compilation and the first allocations.")]
Peak = Annotated[Optional[float], typer.Option(min=0.001, help="Of one device, for the MFU.", show_default="its own")]
JsonFile = Annotated[Optional[Path], typer.Option("--json", help="Write the figures there too.", show_default=False)]

FORMULA = (
    "MFU = model TFLOP/s / (ranks x peak TFLOP/s); model FLOPs = 6 x weights in matrices x real tokens "
    "(2 forward, 4 backward), without attention scores and empty slots."
)
ROWS = {  # key: what it is, how it is written, its unit
    "device_name": ("device", "{}", ""),
    "data": ("sentences", "{}", ""),
    "precision": ("precision", "{}", ""),
    "compile": ("compiled", "{}", ""),
    "steps": ("steps measured", "{:,}", ""),
    "target_tokens_per_s": ("target tokens", "{:,.0f}", "tokens/s"),
    "median_target_tokens_per_s": ("  between two rows of metrics, median", "{:,.0f}", "tokens/s"),
    "source_tokens_per_s": ("source tokens", "{:,.0f}", "tokens/s"),
    "prefetched_target_tokens_per_s": ("target tokens, prefetched", "{:,.0f}", "tokens/s"),
    "steps_per_s": ("steps", "{:.3f}", "steps/s"),
    "prefetched_steps_per_s": ("steps, prefetched", "{:.3f}", "steps/s"),
    "step_seconds": ("one step", "{:.4f}", "s"),
    "forward_seconds": ("  forward", "{:.4f}", "s"),
    "backward_seconds": ("  backward", "{:.4f}", "s"),
    "optimizer_seconds": ("  optimizer", "{:.4f}", "s"),
    "other_seconds": ("  other", "{:.4f}", "s"),
    "exposed_seconds": ("  exchange that nothing hides", "{:.4f}", "s"),
    "idle_seconds": ("  device waiting for the host", "{:.4f}", "s"),
    "between_seconds": ("  between two rows of metrics", "{:.4f}", "s"),
    "data_seconds": ("host waiting for data, in one step", "{:.4f}", "s"),
    "restart_pairs": ("first step from the middle of this many pairs", "{:,}", "pairs"),
    "restart_seconds": ("  after", "{:.3f}", "s"),
    "large_restart_pairs": ("first step from the middle of this many pairs", "{:,}", "pairs"),
    "large_restart_seconds": ("  after", "{:.3f}", "s"),
    "row_fill": ("target slots with a real token", "{:.1%}", ""),
    "data_wait_share": ("waiting for data", "{:.1%}", "of a step"),
    "first_step_seconds": ("start until the first step was done", "{:.1f}", "s"),
    "model_tflops_per_s": ("model FLOPs", "{:.3f}", "TFLOP/s"),
    "peak_tflops": ("peak of one device, bf16", "{:g}", "TFLOP/s"),
    "mfu": ("MFU", "{:.1%}", ""),
    "peak_allocated_bytes": ("GPU memory, allocated at most", "{:,.0f}", "bytes"),
    "peak_reserved_bytes": ("GPU memory, reserved at most", "{:,.0f}", "bytes"),
    "peak_process_bytes": ("memory of the process, at most", "{:,.0f}", "bytes"),
}


def chosen(run_file: str | None, overrides: list[str] | None) -> Config:
    if run_file is None:
        from dragoman.parallel.mesh import pick_device

        run_file = SMALL if pick_device("auto").type == "cpu" else BASE
    return load_config(run_file, overrides)


@app.command()
def train(
    run_file: RunFile = None,
    overrides: Overrides = None,
    steps: Steps = 100,
    warmup: Warmup = 20,
    peak_tflops: Peak = None,
    json_file: JsonFile = None,
) -> None:
    """The real training loop, with loader and logging; also over several ranks, with torchrun."""
    config = chosen(run_file, overrides)
    from dragoman.benchmark.train import measure_training
    from dragoman.cli import progress

    with progress.shown() as shown:
        found = measure_training(config, steps=steps, warmup=warmup, peak_tflops=peak_tflops, progress=shown)
    tell(found, json_file)


@app.command()
def step(
    run_file: RunFile = None,
    overrides: Overrides = None,
    steps: Steps = 20,
    warmup: Warmup = 10,
    profile: Annotated[bool, typer.Option(help="Also the kernels that take the time, by torch's profiler.")] = False,
    peak_tflops: Peak = None,
    json_file: JsonFile = None,
) -> None:
    """The bare step on batches that are there already: forward, backward, optimizer and the rest."""
    config = chosen(run_file, overrides)
    from dragoman.benchmark.step import measure_step

    tell(measure_step(config, count=steps, warmup=warmup, peak_tflops=peak_tflops, profile=profile), json_file)


@app.command()
def loader(
    run_file: RunFile = None,
    overrides: Overrides = None,
    steps: Steps = 50,
    json_file: JsonFile = None,
) -> None:
    """The loader alone: packing and tensors, made when asked for and by the thread that works ahead."""
    config = load_config(run_file or BASE, overrides)
    from dragoman.benchmark.loader import measure_loader

    tell(measure_loader(config, count=steps), json_file)


def tell(found: dict[str, Any] | None, path: Path | None) -> None:
    """On the rank that has the figures: the table, then the JSON line, then the file."""
    if found is None:
        return
    from rich.console import Console

    speeds = [
        [label, "not known; see --peak-tflops" if found[key] is None else form.format(found[key]), unit]
        for key, (label, form, unit) in ROWS.items()
        if key in found
    ]
    table([f"bench {found['bench']}", "", "unit"], speeds)
    if "kernels" in found:
        kinds = [[kind, f"{spent:.3f}"] for kind, spent in found["kinds_ms_per_step"].items()]
        table(["kind of work", "ms a step"], kinds)
        table(["kernel", "ms a step", "share", "calls a step"], map(kernel_row, found["kernels"]))
    if "mfu" in found:
        Console(highlight=False).print(FORMULA)
    print(json.dumps(found, ensure_ascii=False))
    if path:
        write_json(path, found)


def kernel_row(kernel: dict[str, Any]) -> list[str]:
    numbers = f"{kernel['ms_per_step']:.3f}", f"{kernel['share']:.1%}", f"{kernel['calls_per_step']:g}"
    return [kernel["name"][:100], *numbers]
