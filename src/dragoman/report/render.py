"""RunRecord -> one HTML page that needs nothing else, and the same in Markdown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dragoman.report import units
from dragoman.report.answer import Answer, Evidence, Table
from dragoman.report.measures import last_step, stop_reason
from dragoman.report.questions import answers, hosts, links, listed
from dragoman.report.read import RunRecord, number, section, text
from dragoman.report.time_questions import stop_in_words
from dragoman.runs import Row

TOPICS = {
    1: "Duration",
    6: "Learning rate",
    7: "Training set",
    8: "Checkpoint files",
    9: "Checkpoint size",
    10: "A step",
}
"""Signposts of the first screen, where the whole questions would take too much room."""

CURVES = {"loss": "Loss", "bleu": "BLEU", "throughput": "Throughput", "grad_norm": "Gradient norm"}
"""Figures that belong to no answered question."""


@dataclass(frozen=True)
class Score:
    name: str
    value: str
    of_what: str
    signature: str


@dataclass(frozen=True)
class Probe:
    """One sentence and its translations over time."""

    source: str
    reference: str
    translations: list[tuple[int, str]]


@dataclass(frozen=True)
class Page:
    """What both renderings show, in order."""

    name: str
    summary: str
    status: str
    scores: list[Score]
    answers: list[Answer]
    probes: list[Probe]
    validation: Table | None
    machine: Evidence
    gaps: Evidence

    @property
    def answered(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.answered]


def page(record: RunRecord) -> Page:
    return Page(
        name=record.name,
        summary=summary(record),
        status=status(record),
        scores=final_scores(record),
        answers=answers(record),
        probes=probes(record),
        validation=validation_table(record),
        machine=machine(record),
        gaps=[(file, reason) for file, reason in record.missing.items() if file != record.folder.scores.name],
    )


def render_html(record: RunRecord) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from dragoman.report.charts import draw_all

    figures = {name: Markup(svg) for name, svg in draw_all(record).items()}  # ours, and escaped by matplotlib
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    return template.render(page=page(record), figures=figures, curves=CURVES, topics=TOPICS)


# --- what the page says ------------------------------------------------------------------------------------


def summary(record: RunRecord) -> str:
    """What the run was, in one line."""
    model = number(record.environment, "model", "parameters")
    pairs = number(record.data, "train", "pairs")
    languages = [text(record.data, key) for key in ("source_lang", "target_lang")]
    ranks = number(record.environment, "world_size")
    device = " ".join(
        filter(None, [text(record.environment, "device"), in_brackets(text(record.environment, "device_name"))])
    )
    parts = [
        f"{' to '.join(languages)}" if all(languages) else "",
        f"{units.rough(model)} parameters" if model is not None else "",
        f"{units.count(pairs, 'pairs')} from the corpus “{text(record.data, 'corpus')}”" if pairs is not None else "",
        units.plural(ranks, "rank") + (f" on {device}" if device else "") if ranks is not None else device,
        text(record.environment, "precision"),
    ]
    return (
        ", ".join(part for part in parts if part) or "What it was is not recorded (no environment.json, no data.json)"
    )


def in_brackets(words: str) -> str:
    return f"({words})" if words else ""


def status(record: RunRecord) -> str:
    step = last_step(record)
    return f"{'No step logged' if step is None else f'Step {step:,}'}: {stop_in_words(stop_reason(record))}"


def final_scores(record: RunRecord) -> list[Score]:
    """The newest score of every test set, or else those of the last validation."""
    newest = {text(row, "test_set"): row for row in record.scores}
    found = [score for row in newest.values() for score in test_scores(row)]
    return found or (validation_scores(record.valid_rows[-1]) if record.valid_rows else [])


def test_scores(row: Row) -> list[Score]:
    of_what = f"{text(row, 'test_set')}, {text(row, 'sentences')} sentences, beam {text(row, 'beam')}, step "
    of_what += units.count(number(row, "step"))
    scores = {name: section(section(row, "scores"), name) for name in section(row, "scores")}
    return [
        Score(score_name(name), f"{value:.1f}", of_what, text(found, "signature") or "no signature recorded")
        for name, found in scores.items()
        if (value := number(found, "score")) is not None
    ]


def validation_scores(row: Row) -> list[Score]:
    sentences = units.count(number(row, "bleu_sentences"), "sentences")
    of_what = f"validation at step {int(row['step']):,}, {sentences}"
    return [
        Score(score_name(name), f"{value:.1f}", of_what, text(row, f"{name}_signature") or "no signature recorded")
        for name in ("bleu", "chrf")
        if (value := number(row, name)) is not None
    ]


def score_name(name: str) -> str:
    return {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}.get(name, name)


def probes(record: RunRecord) -> list[Probe]:
    """First, middle and last translation of every probe sentence."""
    steps = sorted(record.probes)
    if not steps:
        return []
    shown = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    found = []
    for sample in record.probes[steps[-1]]:
        over_time = [
            (step, match.translation)
            for step in shown
            for match in record.probes[step]
            if match.source == sample.source
        ]
        found.append(Probe(sample.source, sample.reference, over_time))
    return found


def validation_table(record: RunRecord) -> Table | None:
    if not record.valid_rows:
        return None
    columns = ("Step", "Loss (nats)", "NLL (nats)", "Perplexity", "BLEU", "chrF", "Time")
    keys = [("loss", ".3f"), ("nll", ".3f"), ("perplexity", ".2f"), ("bleu", ".1f"), ("chrf", ".1f")]
    rows = []
    for row in record.valid_rows:
        values = [format(value, how) if (value := number(row, key)) is not None else "-" for key, how in keys]
        rows.append((f"{int(row['step']):,}", *values, units.duration(number(row, "seconds"))))
    return Table(columns, rows)


def machine(record: RunRecord) -> Evidence:
    names = {"started": "Started", "dragoman": "dragoman", "python": "Python", "torch": "PyTorch"}
    names |= {"device": "Device", "device_name": "Device name", "world_size": "Ranks", "backend": "Backend"}
    names |= {"precision": "Precision", "compile": "Compiled"}
    found = {label: record.environment.get(key) for key, label in names.items()}
    rows = [(label, yes_or_no(value)) for label, value in found.items() if value is not None]
    return rows + [(f"Host {text(host, 'host')}", host_in_words(host)) for host in hosts(record)]


def host_in_words(host: Row) -> str:
    gpus = [text(gpu, "name") for gpu in listed(host, "gpus")]
    ranks = host.get("ranks")
    parts = [
        f"ranks {', '.join(map(str, ranks))}" if isinstance(ranks, list) else "",
        text(host, "cpu"),
        units.count(number(host, "cores"), "cores"),
        f"memory {units.size(number(host, 'memory_bytes'))}",
        f"GPUs {', '.join(gpus)}" if gpus else "no GPU",
        f"links {links(host)}",
    ]
    return "; ".join(part for part in parts if part)


def yes_or_no(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


# --- Markdown ----------------------------------------------------------------------------------------------


def render_markdown(record: RunRecord) -> str:
    shown = page(record)
    lines = [f"# {plain(shown.name)}", "", f"{plain(shown.summary)}.", "", f"{plain(shown.status)}.", ""]
    lines += [f"- **{answer.number} {TOPICS[answer.number]}:** {plain(answer.verdict)}" for answer in shown.answered]
    lines += ["", *markdown_scores(shown.scores), ""]
    for answer in shown.answers:
        lines += markdown_answer(answer)
    if shown.probes:
        lines += ["## Sample translations over time", ""]
        for probe in shown.probes:
            lines += markdown_probe(probe)
    if shown.validation:
        lines += ["## Validation", "", *markdown_table(shown.validation), ""]
    if shown.machine:
        lines += ["## Machine and versions", "", *markdown_table(Table(("What", "Value"), [*shown.machine])), ""]
    if shown.gaps:
        lines += ["## Not recorded", "", *(f"- {plain(reason)}" for _, reason in shown.gaps), ""]
    return "\n".join([*lines, "Figures are in report.html."]) + "\n"


def markdown_scores(scores: list[Score]) -> list[str]:
    if not scores:
        return ["No score is recorded yet."]
    return [f"**{score.name} {score.value}** ({plain(score.of_what)}; `{score.signature}`)  " for score in scores]


def markdown_answer(answer: Answer) -> list[str]:
    lines = [f"## {answer.number}. {plain(answer.question)}", "", f"**{plain(answer.verdict)}**", ""]
    if answer.evidence:
        lines += [*markdown_table(Table(("What", "Value"), [*answer.evidence])), ""]
    if answer.table:
        lines += [*markdown_table(answer.table), ""]
    return [*lines, f"How this was derived: {plain(answer.derivation)}", ""] if answer.derivation else lines


def markdown_probe(probe: Probe) -> list[str]:
    rows = [("source", probe.source), ("reference", probe.reference)]
    rows += [(f"step {step:,}", translation) for step, translation in probe.translations]
    return [*markdown_table(Table(("", "Text"), [*rows])), ""]


def markdown_table(table: Table) -> list[str]:
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    return ["| " + " | ".join(plain(cell) for cell in line) + " |" for line in lines]


def plain(words: str) -> str:
    """Text that Markdown shows as it is. A `*` between spaces is a product and needs no escape."""
    escaped = re.sub(r"([\\`|<\[])|(?<! )(\*)|(\*)(?! )", r"\\\1\2\3", words)
    return " ".join(escaped.split())
