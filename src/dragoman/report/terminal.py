"""A run in a terminal: where it is, how it learns, what holds it up."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dragoman.report import machine, units
from dragoman.report.findings import findings
from dragoman.report.machine_questions import bound_words
from dragoman.report.measures import last_step
from dragoman.report.read import NotRecorded, RunRecord, column, number
from dragoman.report.render import summary
from dragoman.report.time_questions import why_it_stopped

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # of a curve, in letters


def sparkline(values: list[float]) -> str:
    """A curve of at most WIDTH letters; of many values the mean of each stretch."""
    count = min(WIDTH, len(values))
    cut = [values[len(values) * at // count : len(values) * (at + 1) // count] for at in range(count)]
    means = [sum(part) / len(part) for part in cut]
    low, high = min(means, default=0.0), max(means, default=0.0)
    return "".join(BARS[round((value - low) / (high - low or 1.0) * (len(BARS) - 1))] for value in means)


def view(record: RunRecord) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    last, planned = last_step(record), record.config.train.max_steps if record.config else None
    pace = number(record.last_row, "step_seconds")
    left = ""
    if planned and last and pace and planned > last:
        left = f", {units.duration((planned - last) * pace)} of steps left"
    table.add_row("step", f"{units.count(last)} of {units.count(planned)}{left}")
    for name, rows, key in (
        ("training loss", record.train_rows, "loss"),
        ("validation loss", record.valid_rows, "loss"),
        ("BLEU", record.valid_rows, "bleu"),
        ("target tokens/s", record.train_rows, "target_tokens_per_s"),
        ("learning rate", record.train_rows, "learning_rate"),
    ):
        if values := column(rows, key):
            last_value = units.rate(values[-1]) if key == "learning_rate" else units.significant(values[-1])
            table.add_row(name, f"{last_value}  {sparkline(values)}")
    try:
        table.add_row("a step", bound_words(machine.waits(record)))
    except NotRecorded as reason:
        table.add_row("a step", f"what bounds it is not recorded yet: {reason}")
    told = [Text(f"{finding.severity}: {finding.title}: {finding.cause}") for finding in findings(record)]
    head = Text(f"{record.folder.path.resolve().name}: {summary(record)}", style="bold")
    return Group(head, Text(why_it_stopped(record)), table, *told)
