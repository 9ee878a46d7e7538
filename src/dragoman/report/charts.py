"""Figures as inline SVG: RunRecord -> {name: svg}. A figure whose numbers are not recorded is left out.

matplotlib draws with the light colours below; afterwards each is replaced by a CSS variable, and the ink of axes and
letters by `currentColor`, so that one file serves screen, dark mode and print.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from html import escape
from io import StringIO
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dragoman.report import measures, units
from dragoman.report.read import NotRecorded, RunRecord, number, text

STYLE = Path(__file__).parent / "templates" / "figures.mplstyle"
INK = "#010203"  # stands for currentColor; a colour that nothing else uses
BLUE, ORANGE, GREEN, PURPLE, GREY = "#2563a8", "#c2611a", "#2f855a", "#7a52b3", "#8a929c"
VARIABLES = {BLUE: "--blue", ORANGE: "--orange", GREEN: "--green", PURPLE: "--purple", GREY: "--grey"}
WIDTH, HEIGHT = 5.6, 3.1  # inches of 72 units: small, so that letters stay readable on a phone
FEW = 12  # a curve of fewer points shows them; a single point would be no curve at all


def draw_all(record: RunRecord) -> dict[str, str]:
    """Every figure that the record has numbers for."""
    throughput = partial(curve, "train", "target_tokens_per_s", "target tokens/s", BLUE)
    drawings: dict[str, tuple[Callable[[Figure, RunRecord], None], float, str]] = {
        "time_split": (time_bar, 1.75, "Where the wall-clock time went"),
        "learning_rate": (rates, HEIGHT, "Learning rate: logged values on the curve of the formula"),
        "training_set": (training_set, 1.45, "Size of the training set by side"),
        "checkpoint_files": (checkpoint_files, 2.3, "Size of the files of the newest checkpoint"),
        "checkpoint_size": (checkpoint_parts, 1.75, "Checkpoint on disk against its prediction"),
        "step_time": (step_time, HEIGHT, "Step time over the run, and its distribution"),
        "loss": (loss, HEIGHT, "Training and validation loss"),
        "bleu": (partial(curve, "valid", "bleu", "sacreBLEU (0 to 100)", GREEN), HEIGHT, "Validation BLEU"),
        "grad_norm": (partial(curve, "train", "grad_norm", "gradient norm", PURPLE), HEIGHT, "Gradient norm"),
        "throughput": (throughput, HEIGHT, "Throughput in target tokens per second"),
    }
    figures = {}
    for name, (drawing, height, label) in drawings.items():
        with suppress(NotRecorded), matplotlib.rc_context(fname=STYLE):
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            drawing(figure, record)
            figures[name] = inline(figure, name, label)
    return figures


def inline(figure: Figure, name: str, label: str) -> str:
    """An SVG element for the middle of an HTML page: no prolog, no addresses, ids of its own, colours by variable."""
    stream = StringIO()
    figure.savefig(stream, format="svg", transparent=True)
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", stream.getvalue(), flags=re.DOTALL)
    svg = re.sub(r'\s(xmlns(:xlink)?|version|width|height)="[^"]*"', "", svg, count=5)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\1{name}-", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    return svg.replace(INK, "currentColor")


def standalone(svg: str) -> str:
    """The same figure as a file of its own: with its name spaces, on paper of its own."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return svg.replace("<svg", f'<svg {spaces} style="background: white; color: #1b1f24"', 1)


def over_steps(axes: Axes, unit: str, ticks: int = 6) -> Axes:
    axes.set(xlabel="step (updates done)", ylabel=unit)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", integer=True, nbins=ticks)
    return axes


def curve(kind: str, key: str, unit: str, colour: str, figure: Figure, record: RunRecord) -> None:
    steps, values = measures.series(record.train_rows if kind == "train" else record.valid_rows, key)
    if not values:
        raise NotRecorded(f"no {kind} row has {key}")
    axes = over_steps(figure.add_subplot(), unit)
    axes.plot(steps, values, color=colour, marker="o" if len(values) < FEW else "", markersize=4)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    if kind == "train":
        axes.set_ylim(bottom=0)


def loss(figure: Figure, record: RunRecord) -> None:
    train, valid = measures.series(record.train_rows, "loss"), measures.series(record.valid_rows, "loss")
    if not train[0] and not valid[0]:
        raise NotRecorded("no row has a loss")
    axes = over_steps(figure.add_subplot(), "loss (nats per target token)")
    axes.plot(*train, color=BLUE, label="training, with dropout")
    axes.plot(*valid, color=ORANGE, marker="o", markersize=4.5, linestyle="--", label="validation")
    floor = number(record.environment, "model", "loss_floor")
    if floor is not None:
        axes.axhline(floor, color=GREY, linestyle=":", label=f"floor of label smoothing, {floor:.2f}")
    axes.legend()


def rates(figure: Figure, record: RunRecord) -> None:
    check = measures.RateCheck(record)
    axes, last = over_steps(figure.add_subplot(), "learning rate"), check.steps[-1]
    grid = sorted({1 + round(part * (last - 1) / 400) for part in range(401)})
    axes.plot(grid, [check.formula(step - 1) for step in grid], color=GREY, linewidth=3.5, alpha=0.6, label="formula")
    every = max(1, len(check.steps) // 60)  # more dots than this hide the curve
    axes.plot(check.steps[::every], check.logged[::every], ".", color=BLUE, markersize=5, label="logged")
    if check.wrong:
        steps, logged = [check.steps[at] for at in check.wrong], [check.logged[at] for at in check.wrong]
        axes.plot(steps, logged, "x", color=ORANGE, markersize=7, label="not by the formula")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: units.rate(value))
    axes.legend()


def step_time(figure: Figure, record: RunRecord) -> None:
    times, spans = measures.StepTimes(record), measures.step_spans(record)
    steps, weights, seconds, _ = zip(*spans, strict=True)
    over, histogram = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    over_steps(over, "step time (s)", ticks=5).set_ylim(0, max(seconds) * 1.3)
    over.plot(steps, seconds, color=BLUE, linewidth=1.2, marker="o" if len(spans) < FEW else "", markersize=4)
    over.axhline(times.median, color=ORANGE, linestyle="--", label=f"median {units.duration(times.median)}")
    over.axhline(times.p95, color=PURPLE, linestyle=":", label=f"95 % below {units.duration(times.p95)}")
    over.legend(loc="upper right", fontsize=9)
    histogram.hist(seconds, weights=weights, bins=24, orientation="horizontal", color=BLUE)
    histogram.set_xlabel("steps")
    histogram.locator_params(axis="x", nbins=2)


def time_bar(figure: Figure, record: RunRecord) -> None:
    split = measures.TimeSplit(record)
    per_unit, unit = next((pair for pair in ((3600.0, "h"), (60.0, "min")) if split.wall >= 2 * pair[0]), (1.0, "s"))
    colours = {"Training steps": BLUE, "Validation": ORANGE, "Checkpoints": GREEN, "Lost work and time down": PURPLE}
    axes, left = figure.add_subplot(), 0.0
    for name, seconds in split.parts:
        width, label = max(0.0, seconds) / per_unit, f"{name.lower()}, {units.duration(seconds)}"
        axes.barh(0, width, left=left, height=0.62, color=colours.get(name, GREY), label=label)
        left += width
    axes.set(yticks=[], xlabel=f"wall clock ({unit})", xlim=(0, split.wall / per_unit))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2, fontsize=9)


def byte_bars(figure: Figure, bars: list[tuple[str, float, str]]) -> Axes:
    """Horizontal bars of (name, bytes, colour), the first on top, each with its size written at its end."""
    axes = figure.add_subplot()
    for at, (_, num_bytes, colour) in enumerate(bars):
        axes.barh(at, num_bytes / 1e6, height=0.6, color=colour)
        end, size = (num_bytes / 1e6, at), units.decimal_size(num_bytes)
        axes.annotate(size, end, (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.set_xlabel("MB (10⁶ bytes)")
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.grid(visible=False, axis="y")
    return axes


def training_set(figure: Figure, record: RunRecord) -> None:
    source, target = (number(record.data, "train", f"{side}_bytes") for side in ("source", "target"))
    if source is None or target is None:
        raise NotRecorded("data.json does not give the bytes of the training set")
    from_lang, to_lang = (text(record.data, f"{side}_lang") or side for side in ("source", "target"))
    byte_bars(figure, [(from_lang, source, BLUE), (to_lang, target, ORANGE)])


def checkpoint_files(figure: Figure, record: RunRecord) -> None:
    files = measures.newest_checkpoint(record).files
    byte_bars(figure, [(name, num_bytes, BLUE) for name, num_bytes in files.items()])


def checkpoint_parts(figure: Figure, record: RunRecord) -> None:
    newest, predicted = measures.newest_checkpoint(record), measures.predicted_bytes(record)
    prediction = [("predicted", predicted, GREY)] if predicted else []
    axes = byte_bars(figure, [("on disk", newest.bytes, ORANGE), *prediction])
    (tensors,), rest = axes.barh(0, newest.tensor_bytes / 1e6, height=0.6, color=BLUE), axes.patches[0]
    labels = ["tensors", "headers, vocabulary, descriptions"]
    figure.legend([tensors, rest], labels, loc="outside upper left", ncols=2, fontsize=9)
