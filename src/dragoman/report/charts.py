"""Figures as inline SVG: RunRecord -> {name: svg}. A figure whose numbers are not recorded is left out.

matplotlib draws with the light colours below; afterwards each is replaced by a CSS variable, and the ink of axes and
letters by `currentColor`, so that one file serves screen, dark mode and print.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from dragoman.config.schedule import learning_rate
from dragoman.report import units
from dragoman.report.measures import checkpoint_size, rate_check, step_spans, step_times, time_split
from dragoman.report.read import RunRecord, number
from dragoman.runs import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawing = Callable[["Figure", RunRecord], bool]
"""Draws into the figure, and says whether there was anything to draw."""

INK = "#010203"  # stands for currentColor; a colour that nothing else uses
BLUE, ORANGE, GREEN, PURPLE, GREY = "#2563a8", "#c2611a", "#2f855a", "#7a52b3", "#8a929c"
VARIABLES = {BLUE: "--blue", ORANGE: "--orange", GREEN: "--green", PURPLE: "--purple", GREY: "--grey"}
WIDTH, HEIGHT = 5.6, 3.1  # inches of 72 units: small, so that letters stay readable on a phone
STEP = "step (updates done)"


def draw_all(record: RunRecord) -> dict[str, str]:
    """Every figure that the record has numbers for."""
    drawings: dict[str, tuple[Drawing, str, float]] = {
        "time_split": (time_bar, "Where the wall-clock time went", 1.75),
        "learning_rate": (rates, "Learning rate: logged values on the curve of the formula", HEIGHT),
        "training_set": (training_set, "Size of the training set by side", 1.45),
        "checkpoint_files": (checkpoint_files, "Size of the files of the newest checkpoint", 2.3),
        "checkpoint_size": (checkpoint_parts, "Checkpoint on disk against its prediction", 1.75),
        "step_time": (step_time, "Step time over the run, and its distribution", HEIGHT),
        "loss": (loss, "Training and validation loss", HEIGHT),
        "bleu": (bleu, "Validation BLEU", HEIGHT),
        "grad_norm": (gradient_norm, "Gradient norm", HEIGHT),
        "throughput": (throughput, "Throughput in target tokens per second", HEIGHT),
    }
    drawn = {name: draw(name, record, *what) for name, what in drawings.items()}
    return {name: svg for name, svg in drawn.items() if svg}


def draw(name: str, record: RunRecord, drawing: Drawing, label: str, height: float) -> str:
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        if not drawing(figure, record):
            return ""
        stream = StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    return inline(stream.getvalue(), name, label)


@contextmanager
def style() -> Iterator[None]:
    """Settings for one figure; none of them outlives it."""
    import matplotlib

    ink = dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], INK)
    settings = {
        "svg.fonttype": "none",  # letters stay letters: small, searchable, in the font of the page
        "svg.hashsalt": "dragoman",  # the same run gives the same bytes
        "text.parse_math": False,  # a `$` in a file name is a dollar
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.7,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GREY,
        "grid.alpha": 0.28,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        **ink,
    }
    with matplotlib.rc_context(settings):  # type: ignore[arg-type]
        yield


def inline(svg: str, name: str, label: str) -> str:
    """An SVG element for the middle of an HTML page: no prolog, no addresses, ids of its own, colours by variable."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(xmlns(:xlink)?|version|width|height)="[^"]*"', "", svg, count=5)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{name}-", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    return svg.replace(INK, "currentColor")


# --- curves ------------------------------------------------------------------------------------------------


def points(rows: list[Row], key: str) -> tuple[list[int], list[float]]:
    found = [(int(row["step"]), value) for row in rows if (value := number(row, key)) is not None]
    return [step for step, _ in found], [value for _, value in found]


def axes_over_steps(figure: Figure, unit: str) -> Axes:
    axes = figure.add_subplot()
    axes.set_xlabel(STEP)
    axes.set_ylabel(unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="x", integer=True, nbins=6)
    return axes


def curve(figure: Figure, rows: list[Row], key: str, unit: str, colour: str) -> bool:
    steps, values = points(rows, key)
    if not steps:
        return False
    axes = axes_over_steps(figure, unit)
    axes.plot(steps, values, color=colour, marker=dots(values), markersize=4)
    return True


def dots(values: list[float]) -> str:
    """A curve of few points shows them; a single point would be no curve at all."""
    return "o" if len(values) < 12 else ""


def loss(figure: Figure, record: RunRecord) -> bool:
    train, valid = points(record.train_rows, "loss"), points(record.valid_rows, "loss")
    if not train[0] and not valid[0]:
        return False
    axes = axes_over_steps(figure, "loss (nats per target token)")
    axes.plot(*train, color=BLUE, label="training, with dropout")
    axes.plot(*valid, color=ORANGE, marker="o", markersize=4.5, linestyle="--", label="validation")
    floor = number(record.environment, "model", "loss_floor")
    if floor is not None:
        axes.axhline(floor, color=GREY, linestyle=":", label=f"floor of label smoothing, {floor:.2f}")
    axes.legend()
    return True


def bleu(figure: Figure, record: RunRecord) -> bool:
    return curve(figure, record.valid_rows, "bleu", "sacreBLEU (0 to 100)", GREEN)


def gradient_norm(figure: Figure, record: RunRecord) -> bool:
    return curve(figure, record.train_rows, "grad_norm", "gradient norm", PURPLE)


def throughput(figure: Figure, record: RunRecord) -> bool:
    if not curve(figure, record.train_rows, "target_tokens_per_s", "target tokens/s", BLUE):
        return False
    axes = figure.axes[0]
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return True


def rates(figure: Figure, record: RunRecord) -> bool:
    check = rate_check(record)
    if check is None or record.config is None:
        return False
    axes, last = axes_over_steps(figure, "learning rate"), check.steps[-1]
    grid = sorted({1 + round(part * (last - 1) / 400) for part in range(401)})
    formula = learning_rate(record.config)
    axes.plot(grid, [formula(step - 1) for step in grid], color=GREY, linewidth=3.5, alpha=0.6, label="formula")
    every = max(1, len(check.steps) // 60)  # more dots than this hide the curve
    axes.plot(check.steps[::every], check.logged[::every], ".", color=BLUE, markersize=5, label="logged")
    if check.wrong:
        wrong = [(check.steps[at], check.logged[at]) for at in check.wrong]
        axes.plot(*zip(*wrong, strict=True), "x", color=ORANGE, markersize=7, label="not by the formula")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: units.rate(value))
    axes.legend()
    return True


def step_time(figure: Figure, record: RunRecord) -> bool:
    spans, times = step_spans(record), step_times(record)
    if times is None:
        return False
    over, histogram = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    steps, seconds = [span.step for span in spans], [span.seconds for span in spans]
    over.plot(steps, seconds, color=BLUE, linewidth=1.2, marker=dots(seconds), markersize=4)
    over.axhline(times.median, color=ORANGE, linestyle="--", label=f"median {units.duration(times.median)}")
    over.axhline(times.p95, color=PURPLE, linestyle=":", label=f"95 % below {units.duration(times.p95)}")
    over.set(xlabel=STEP, ylabel="step time (s)", ylim=(0, max(seconds) * 1.3))
    over.legend(loc="upper right", fontsize=9)
    over.locator_params(axis="x", integer=True, nbins=5)
    over.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    weights = [span.steps for span in spans]
    histogram.hist(seconds, weights=weights, bins=24, orientation="horizontal", color=BLUE)
    histogram.set_xlabel("steps")
    histogram.locator_params(axis="x", nbins=2)
    return True


# --- bars --------------------------------------------------------------------------------------------------


def stacked(axes: Axes, at: float, parts: list[tuple[str, float]], colours: list[str]) -> None:
    """One bar of several parts. A label that begins with `_` stays out of the legend."""
    left = 0.0
    for (label, value), colour in zip(parts, colours, strict=True):
        axes.barh(at, value, left=left, height=0.62, color=colour, label=label)
        left += value


def plain_bars(figure: Figure, bars: list[tuple[str, float]], colours: list[str]) -> bool:
    """Horizontal bars of bytes, the first on top, each with its size written at its end."""
    if not bars:
        return False
    axes = figure.add_subplot()
    axes.barh([name for name, _ in bars], [value / 1e6 for _, value in bars], height=0.6, color=colours)
    for at, (_, value) in enumerate(bars):
        written = units.decimal_size(value)
        axes.annotate(written, (value / 1e6, at), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("MB (10⁶ bytes)")
    return True


def time_bar(figure: Figure, record: RunRecord) -> bool:
    split = time_split(record)
    if split is None:
        return False
    axes = figure.add_subplot()
    shown = [(f"{name.lower()}, {units.duration(value)}", max(0.0, value)) for name, value in split.parts]
    per_unit, unit = next((pair for pair in ((3600.0, "h"), (60.0, "min")) if split.wall >= 2 * pair[0]), (1.0, "s"))
    named = {"Training steps": BLUE, "Validation": ORANGE, "Checkpoints": GREEN, "Lost work and time down": PURPLE}
    colours = [named.get(name, GREY) for name, _ in split.parts]
    stacked(axes, 0, [(name, value / per_unit) for name, value in shown], colours)
    axes.set(yticks=[], xlabel=f"wall clock ({unit})", xlim=(0, split.wall / per_unit))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2, fontsize=9)
    return True


def training_set(figure: Figure, record: RunRecord) -> bool:
    sides = {side: number(record.data, "train", f"{side}_bytes") for side in ("source", "target")}
    bars = [(str(record.data.get(f"{side}_lang", side)), value) for side, value in sides.items() if value is not None]
    return plain_bars(figure, bars, [BLUE, ORANGE])


def checkpoint_files(figure: Figure, record: RunRecord) -> bool:
    files = record.checkpoints[-1].files if record.checkpoints else ()
    return plain_bars(figure, [(file.name, float(file.bytes)) for file in files], [BLUE])


def checkpoint_parts(figure: Figure, record: RunRecord) -> bool:
    if not record.checkpoints:
        return False
    parts = checkpoint_size(record.checkpoints[-1], number(record.environment, "model", "parameters"))
    axes = figure.add_subplot()
    bytes_of = {"tensors": parts.tensors, "headers, vocabulary, descriptions": parts.total - parts.tensors}
    stacked(axes, 0, [(name, value / 1e6) for name, value in bytes_of.items()], [BLUE, ORANGE])
    stacked(axes, 1, [("_", (parts.predicted or 0) / 1e6)], [GREY])
    axes.set_yticks([0, 1], ["on disk", "not predicted" if parts.predicted is None else "predicted"])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("MB (10⁶ bytes)")
    figure.legend(loc="outside upper left", ncols=3, fontsize=9)
    return True
