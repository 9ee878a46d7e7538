"""Figures as inline SVG: RunRecord -> {name: svg}. A figure whose numbers are not recorded is left out.

matplotlib draws with the light colours below; afterwards each is replaced by a CSS variable, and the ink of axes and
letters by `currentColor`, so that one file serves screen, dark mode and print.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from html import escape
from io import StringIO
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dragoman.config import Config
from dragoman.config.schedule import learning_rate
from dragoman.report import learning_questions as learning
from dragoman.report import machine, measures, units
from dragoman.report.read import NotRecorded, RunRecord, number, once, text
from dragoman.runs import Row

STYLE = Path(__file__).parent / "templates" / "figures.mplstyle"
INK = "#010203"  # stands for currentColor; a colour that nothing else uses
BLUE, ORANGE, GREEN, PURPLE, GREY, RED = "#2563a8", "#c2611a", "#2f855a", "#7a52b3", "#8a929c", "#b3373c"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY, RED)
VARIABLES = dict(zip(COLOURS, ("--blue", "--orange", "--green", "--purple", "--grey", "--red"), strict=True))
WIDTH, HEIGHT = 5.6, 3.1  # inches of 72 units: small, so that letters stay readable on a phone
MOST_POINTS = 500  # of a curve: more than a figure has pixels for
Drawing = Callable[[Figure, RunRecord], None]
Point = TypeVar("Point")
Rates = list[tuple[float, float]]
"""Times, and values."""
Measured = Callable[[Row], Iterable[tuple[float, float]]]
"""Host -> the same."""
FEW = 12  # a curve of fewer points shows them; a single point would be no curve at all


@contextmanager
def sheet(height: float = HEIGHT) -> Iterator[Figure]:
    with matplotlib.rc_context(fname=STYLE):
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def draw_all(record: RunRecord) -> dict[str, str]:
    """Every figure that the record has numbers for."""
    drawings: dict[str, tuple[Drawing, float, str]] = {
        "time_split": (time_bar, 1.75, "Where the wall-clock time went"),
        "trend": (trend, HEIGHT, "Validation scores, and the line through the last third of them continued"),
        "gap": (gap, HEIGHT, "Loss of validation text and of a slice of the training set, both without dropout"),
        "gpus": (gpus, HEIGHT, "GPUs over time: utilisation, SM activity, power against its limit"),
        "network": (network, HEIGHT, "Bytes sent and received per second by every host, with the capacity of the link"),
        "learning_rate": (rates, HEIGHT, "Learning rate: logged values on the curve of the formula"),
        "training_set": (training_set, 1.45, "Size of the training set by side"),
        "checkpoint_files": (checkpoint_files, 2.3, "Size of the files of the newest checkpoint"),
        "checkpoint_size": (checkpoint_parts, 1.75, "Checkpoint on disk against its prediction"),
        "step_time": (step_time, HEIGHT, "Step time over the run, and its distribution"),
        "step_and_network": (step_and_network, HEIGHT, "Step time against exposed communication and bytes per second"),
        "processors": (processors, HEIGHT, "Processors of every host over time: busy, and waiting for disks"),
        "disks": (disks, HEIGHT, "Bytes read from and written to the disks of every host per second"),
    }
    for x, name in product(AXES, CURVES):
        label, of_axis = CURVES[name]
        drawings[f"{name}_by_{x}"] = (partial(of_axis, x), HEIGHT, f"{label}, against {AXES[x]}")
    figures = {}
    for name, (drawing, height, label) in drawings.items():
        with suppress(NotRecorded), sheet(height) as figure:
            drawing(figure, record)
            figures[name] = inline(figure, name, label)
    return figures


def draw_comparison(records: list[RunRecord], names: list[str]) -> dict[str, str]:
    """The curves of several runs on top of each other: loss and BLEU against step and time, speed against step."""
    wanted = [("valid", key, x) for key, x in product(("loss", "bleu"), ("step", "time"))]
    wanted += [("train", "loss", "step"), ("train", "target_tokens_per_s", "step")]
    figures = {}
    for kind, key, x in wanted:
        with sheet() as figure:
            unit = f"{'validation' if kind == 'valid' else 'training'} {key.replace('_', ' ')}"
            axes = over_steps(figure.add_subplot(), unit)
            if x == "time":
                not_over_steps(axes, "wall clock (min)")
            for record, run, colour in zip(records, names, cycle(COLOURS), strict=False):
                with suppress(NotRecorded):
                    at, values = placed(record, kind, key, x)
                    factor = hours(record)[1] / 60 if x == "time" else 1.0
                    axes.plot([place * factor for place in at], values, color=colour, label=run)
            if axes.lines:
                axes.legend()
                name = f"{kind}_{key}_{x}"
                figures[name] = inline(figure, name, f"{kind} {key} against {x}")
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


def thinned(points: list[Point]) -> list[Point]:
    """As many as a figure can show, the last one among them."""
    return points[:: 1 + len(points) // MOST_POINTS] + points[-1:] if len(points) > MOST_POINTS else points


@once
def hours(record: RunRecord) -> tuple[float, float, str]:
    """When the run began, and how its times are counted."""
    begin = min((row["time"] for row in (*record.events, *record.train_rows) if "time" in row), default=None)
    if begin is None:
        raise NotRecorded("no row has a time")
    return begin, *unit_of(measures.end_time(record) - begin)


def unit_of(seconds: float) -> tuple[float, str]:
    """What a span of time is counted in."""
    return next((unit for unit in ((3600.0, "h"), (60.0, "min")) if seconds >= 2 * unit[0]), (1.0, "s"))


@once
def place(record: RunRecord, x: str) -> Callable[[Row], float | None]:
    """Where a row with a step and a time stands on an axis; None where that is not known."""
    if x == "step":
        return lambda row: number(row, "step")
    if x == "time":
        begin, unit, _ = hours(record)
        return lambda row: None if (time := number(row, "time")) is None else (time - begin) / unit
    tokens = {step: many / 1e6 for step, many in zip(*measures.series(record.train_rows, "target_tokens"), strict=True)}
    return lambda row: tokens.get(row["step"])


def placed(record: RunRecord, kind: str, key: str, x: str) -> tuple[list[float], list[float]]:
    """Places and values of the rows that have both, thinned to what a figure can show."""
    rows, where = record.train_rows if kind == "train" else record.valid_rows, place(record, x)
    known = [row for row in rows if number(row, key) is not None]
    found = [(at, float(row[key])) for row in thinned(known) if (at := where(row)) is not None]
    return [at for at, _ in found], [value for _, value in found]


def over(x: str, figure: Figure, record: RunRecord, unit: str) -> Axes:
    axes = over_steps(figure.add_subplot(), unit)
    if x == "step":
        return axes
    return not_over_steps(axes, "target tokens (million)" if x == "tokens" else f"wall clock ({hours(record)[2]})")


def not_over_steps(axes: Axes, label: str) -> Axes:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter("{x:,.4g}")
    return axes


def curve(kind: str, key: str, unit: str, colour: str, x: str, figure: Figure, record: RunRecord) -> None:
    at, values = placed(record, kind, key, x)
    if not values:
        raise NotRecorded(f"no {kind} row has {key}")
    axes = over(x, figure, record, unit)
    axes.plot(at, values, color=colour, marker="o" if len(values) < FEW else "", markersize=4)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    if kind == "train":
        axes.set_ylim(bottom=0)


def loss(x: str, figure: Figure, record: RunRecord) -> None:
    train, valid = (placed(record, kind, "loss", x) for kind in ("train", "valid"))
    if not train[0] and not valid[0]:
        raise NotRecorded("no row has a loss")
    axes = over(x, figure, record, "loss (nats per target token)")
    axes.plot(*train, color=BLUE, label="training, with dropout")
    axes.plot(*valid, color=ORANGE, marker="o", markersize=4.5, linestyle="--", label="validation")
    known = placed(record, "valid", "train_slice_loss", x)
    if known[0]:
        axes.plot(*known, color=GREEN, linestyle="-.", label="training slice, without dropout")
    floor = number(record.environment, "model", "loss_floor")
    if floor is not None:
        axes.axhline(floor, color=GREY, linestyle=":", label=f"floor of label smoothing, {floor:.2f}")
    axes.legend()


def phases(x: str, figure: Figure, record: RunRecord) -> None:
    where = place(record, x)
    found = [(at, window) for window in thinned(machine.windows(record)) if (at := where(window.row)) is not None]
    if not found:
        raise NotRecorded("no spans")
    names = {"forward": "forward", "backward": "backward", "exposed": "exposed communication", "optimizer": "optimizer"}
    names |= {"idle": "waiting for data or host", "other": "copies, books"}
    axes = over(x, figure, record, "seconds a step, mean of ranks")
    parts = [[window.mean(name) for _, window in found] for name in names]
    colours = (BLUE, PURPLE, ORANGE, GREEN, RED, GREY)
    axes.stackplot([at for at, _ in found], parts, colors=colours, labels=list(names.values()), alpha=0.85)
    figure.legend(loc="outside upper left", ncols=3, fontsize=9)


def memory(x: str, figure: Figure, record: RunRecord) -> None:
    rows, where = [row for _, row in sorted(record.spans.items())], place(record, x)
    most = [
        (at, max(used) / 1e9)
        for row in thinned(rows)
        if (used := machine.numbers(row, "memory_bytes")) and (at := where(row)) is not None
    ]
    if not most:
        raise NotRecorded("no spans")
    axes = over(x, figure, record, "GB (10⁹ bytes)")
    axes.plot(*zip(*most, strict=True), color=PURPLE, label="the fullest rank")
    if whole := machine.least_memory(record):
        axes.axhline(whole / 1e9, color=GREY, linestyle=":", label=f"its GPU has {units.decimal_size(whole)}")
    axes.set_ylim(bottom=0)
    axes.legend()


AXES = {"step": "step", "tokens": "target tokens", "time": "wall-clock time"}
CURVES: dict[str, tuple[str, Callable[[str, Figure, RunRecord], None]]] = {
    "loss": ("Loss", loss),
    "bleu": ("Validation BLEU", partial(curve, "valid", "bleu", "sacreBLEU (0 to 100)", GREEN)),
    "rate": ("Learning rate", partial(curve, "train", "learning_rate", "learning rate", BLUE)),
    "grad_norm": ("Gradient norm", partial(curve, "train", "grad_norm", "gradient norm", PURPLE)),
    "throughput": ("Throughput", partial(curve, "train", "target_tokens_per_s", "target tokens/s", BLUE)),
    "pace": ("Step time", partial(curve, "train", "step_seconds", "seconds a step, mean of a row", BLUE)),
    "phases": ("Parts of a step", phases),
    "memory": ("Memory", memory),
}


def trend(figure: Figure, record: RunRecord) -> None:
    """The last third of the validations, and the line that question 2 continues by 10 %."""
    found = learning.trend(record, "bleu") or learning.trend(record, "loss")
    if not found:
        raise NotRecorded("too few validations")
    steps, values = measures.series(record.valid_rows, found.key)
    axes = over_steps(figure.add_subplot(), "sacreBLEU (0 to 100)" if found.key == "bleu" else "validation loss (nats)")
    axes.plot(steps, values, color=GREEN, marker="o", markersize=4, label="validation")
    ends = [steps[-found.points], round(steps[-1] * learning.FURTHER)]
    line = [found.at(step) for step in ends]
    axes.plot(ends, line, color=ORANGE, linestyle="--", label="trend, continued by 10 % of steps")
    axes.legend()


def gap(figure: Figure, record: RunRecord) -> None:
    valid, known = (measures.series(record.valid_rows, key) for key in ("loss", "train_slice_loss"))
    if not valid[0]:
        raise NotRecorded("no validation")
    axes = over_steps(figure.add_subplot(), "loss without dropout (nats)")
    axes.plot(*valid, color=ORANGE, marker="o", markersize=4, label="validation")
    if known[0]:
        axes.plot(*known, color=GREEN, marker="o", markersize=4, linestyle="-.", label="slice of the training set")
        if valid[0] == known[0]:
            axes.fill_between(valid[0], valid[1], known[1], color=GREY, alpha=0.25, label="generalisation gap")
    axes.legend()


def gpu_percent(key: str, row: Row) -> float | None:
    watts, limit = number(row, "power_watts"), number(row, "power_limit_watts")
    return 100 * watts / limit if key == "power" and watts is not None and limit else number(row, key)


def over_cards(cards: list[list[Row]], value: Callable[[Row], float | None]) -> Rates:
    """Means of all cards over spans of two samples, or longer ones where there are many: no two hosts sample at the same instant."""
    times = [row["time"] for rows in cards for row in rows]
    gaps = [after["time"] - before["time"] for rows in cards for before, after in pairwise(rows)]
    long = max(2 * statistics.median(gaps or [0.5]), (max(times) - min(times)) / MOST_POINTS)
    spans: dict[float, dict[int, list[float]]] = {}
    for card, rows in enumerate(cards):
        for row in rows:
            if (found := value(row)) is not None:
                spans.setdefault(row["time"] // long, {}).setdefault(card, []).append(found)
    return [
        ((span + 0.5) * long, statistics.fmean(map(statistics.fmean, own.values())))
        for span, own in sorted(spans.items())
    ]


def gpus(figure: Figure, record: RunRecord) -> None:
    """Means over all cards the run used, so that sixteen of them are still a figure."""
    cards = list(machine.gpus(record, training=False).values())
    begin, unit, name = hours(record)
    if not cards:
        raise NotRecorded("no GPU was sampled")
    axes = figure.add_subplot()
    curves = {
        "utilization_percent": ("utilisation", GREY),
        "sm_percent": ("SM activity", BLUE),
        "power": ("power, of its limit", ORANGE),
    }
    for key, (label, colour) in curves.items():
        points = [((time - begin) / unit, value) for time, value in over_cards(cards, partial(gpu_percent, key))]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.1, label=label)
    axes.set(xlabel=f"wall clock ({name})", ylabel="%", ylim=(0, 105))
    figure.legend(loc="outside upper left", ncols=3, fontsize=9)


def by_host(figure: Figure, record: RunRecord, unit: str, ways: Mapping[str, Measured], size: float = 1.0) -> Axes:
    """Over time in units of this size, with a colour for every host and a style for everything that was measured on it."""
    begin, scale, name = hours(record)
    axes = figure.add_subplot()
    for host, colour in zip(record.hosts, cycle((BLUE, ORANGE, GREEN, PURPLE)), strict=False):
        for (way, measured), style in zip(ways.items(), ("-", "--"), strict=True):
            points = [((time - begin) / scale, value / size) for time, value in thinned(list(measured(host)))]
            if points:
                label = f"{text(host, 'host')}, {way}"
                axes.plot(*zip(*points, strict=True), color=colour, linestyle=style, linewidth=1.1, label=label)
    if not axes.lines:
        raise NotRecorded("no host was sampled")
    axes.set(xlabel=f"wall clock ({name})", ylabel=unit)
    axes.set_ylim(bottom=0)
    return axes


def network(figure: Figure, record: RunRecord) -> None:
    if len(record.hosts) < 2:
        raise NotRecorded("there is one host")
    ways = {way: partial(machine.nic_rates, record, key=f"{way}_bytes") for way in ("sent", "received")}
    axes = by_host(figure, record, "MB/s (10⁶ bytes)", ways, 1e6)
    speeds = [machine.link_mbit(machine.used_links(record, host)) for host in record.hosts]
    for speed in set(filter(None, speeds)):
        label = f"link, {units.link_speed(speed)} = {speed / 8:,.4g} MB/s"
        axes.axhline(speed / 8, color=GREY, linestyle="-.", label=label)
    figure.legend(loc="outside upper left", ncols=3, fontsize=9)


def processors(figure: Figure, record: RunRecord) -> None:
    def percent(key: str, host: Row) -> Rates:
        return [(row["time"], value) for row in record.samples(host) if (value := number(row, key)) is not None]

    ways = {"all cores": partial(percent, "cpu_percent"), "waiting for disks": partial(percent, "iowait_percent")}
    by_host(figure, record, "% of the time", ways)
    figure.legend(loc="outside upper left", ncols=2, fontsize=9)


def disks(figure: Figure, record: RunRecord) -> None:
    ways = {
        "read": lambda host: machine.rates(record.samples(host), "disk_read_bytes"),
        "written": lambda host: machine.rates(record.samples(host), "disk_write_bytes"),
    }
    by_host(figure, record, "MB/s (10⁶ bytes)", ways, 1e6)
    figure.legend(loc="outside upper left", ncols=2, fontsize=9)


def step_and_network(figure: Figure, record: RunRecord) -> None:
    host = machine.busiest(record)  # as the answer
    if len(record.hosts) < 2 or host is None:
        raise NotRecorded("one host, or no spans")
    found = thinned(list(zip(machine.windows(record), host.sent, strict=True)))
    left, right = figure.subplots(1, 2, sharey=True)
    seconds = [window.seconds for window, _ in found]
    per_s = [sent / window.steps / window.seconds / 1e6 for window, sent in found]
    left.plot([min(window.ranks["exposed"]) for window, _ in found], seconds, ".", color=BLUE)
    right.plot(per_s, seconds, ".", color=ORANGE)
    left.set(xlabel="exposed communication (s a step)", ylabel="step time (s)")
    right.set(xlabel="sent (MB/s)")
    left.set_ylim(bottom=0)


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


def draw_rate(config: Config, path: Path) -> None:
    """The curve of a schedule alone, before any run."""
    rate, last = learning_rate(config), config.train.max_steps
    grid = sorted({round(part * last / 1000) for part in range(1001)} | {max(0, config.schedule.warmup_steps - 1)})
    with sheet() as figure:
        axes = over_steps(figure.add_subplot(), "learning rate")
        axes.plot(grid, [rate(step) for step in grid], color=BLUE)
        axes.set_xlabel("step (counted from 0)")
        axes.set_ylim(bottom=0)
        figure.savefig(path, dpi=144)


def step_time(figure: Figure, record: RunRecord) -> None:
    times, spans = measures.StepTimes(record), measures.step_spans(record)
    _, weights, seconds, _ = zip(*spans, strict=True)
    over, histogram = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    over_steps(over, "step time (s)", ticks=5).set_ylim(0, max(seconds) * 1.3)
    curve = [(span.step, span.seconds) for span in thinned(spans)]
    marker = "o" if len(spans) < FEW else ""
    over.plot(*zip(*curve, strict=True), color=BLUE, linewidth=1.2, marker=marker, markersize=4)
    over.axhline(times.median, color=ORANGE, linestyle="--", label=f"median {units.duration(times.median)}")
    over.axhline(times.p95, color=PURPLE, linestyle=":", label=f"95 % below {units.duration(times.p95)}")
    over.legend(loc="upper right", fontsize=9)
    histogram.hist(seconds, weights=weights, bins=24, orientation="horizontal", color=BLUE)
    histogram.set_xlabel("steps")
    histogram.locator_params(axis="x", nbins=2)


def time_bar(figure: Figure, record: RunRecord) -> None:
    split = measures.TimeSplit(record)
    per_unit, unit = unit_of(split.wall)
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
    prediction = [("predicted", predicted.bytes, GREY)] if predicted else []
    axes = byte_bars(figure, [("on disk", newest.bytes, ORANGE), *prediction])
    (tensors,), rest = axes.barh(0, newest.tensor_bytes / 1e6, height=0.6, color=BLUE), axes.patches[0]
    labels = ["tensors", "headers, vocabulary, descriptions"]
    figure.legend([tensors, rest], labels, loc="outside upper left", ncols=2, fontsize=9)
