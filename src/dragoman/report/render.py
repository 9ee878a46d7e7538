"""RunRecord -> one HTML page that needs nothing else, and the same in Markdown. What the page says is put together
here, how it looks is up to the two templates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, select_autoescape

from dragoman.report import units
from dragoman.report.answer import Evidence, Table
from dragoman.report.charts import AXES, CURVES, draw_all
from dragoman.report.findings import findings
from dragoman.report.machine import interfaces
from dragoman.report.measures import last_step, series
from dragoman.report.questions import answers
from dragoman.report.read import RunRecord, number, once, section, sections, text
from dragoman.report.time_questions import why_it_stopped
from dragoman.runs import Row, step_of

Figures = dict[str, str]
MOST_ROWS = 200  # of a table


def render_html(record: RunRecord, figures: Figures | None = None) -> str:
    """Figures that are drawn already may be handed in."""
    return template("report.html.j2").render(page(record), **drawn(record, figures))


def render_markdown(record: RunRecord, figures: Figures | None = None) -> str:
    """The figures are files of their own here, in a folder beside it."""
    shown = drawn(record, figures) | {"folder": record.folder.figures.name}
    return template("report.md.j2").render(page(record), **shown) + "\n"


def as_json(record: RunRecord) -> dict[str, Any]:
    """All that the page says, in its words, for programs."""
    shown = page(record)
    tables = {key: shown[key]._asdict() for key in ("validation", "corpora", "checkpoints")}
    given = [{"question": answer.question, **asdict(answer)} for answer in shown["answers"]]
    return shown | tables | {"answers": given, "findings": [finding._asdict() for finding in shown["findings"]]}


def drawn(record: RunRecord, figures: Figures | None) -> dict[str, Any]:
    figures = figures or draw_all(record)
    used = {answer.figure for answer in page(record)["answers"]}
    return {"figures": figures, "axes": AXES, "curves": curves(figures, used)}


def template(name: str) -> Template:
    files, escaped = FileSystemLoader(Path(__file__).parent / "templates"), select_autoescape(["html.j2"])
    environment = Environment(loader=files, autoescape=escaped, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["plain"] = plain
    return environment.get_template(name)


def plain(words: str) -> str:
    """Text that Markdown shows as it is. A `*` between spaces is a product and needs no escape."""
    escaped = re.sub(r"([\\`|<\[])|(?<! )(\*)|(\*)(?! )", r"\\\1\2\3", words)
    return " ".join(escaped.split())


@once
def page(record: RunRecord) -> dict[str, Any]:
    """What both templates show."""
    found = findings(record)
    return {
        "name": record.folder.path.resolve().name,
        "summary": summary(record),
        "status": f"Step {units.count(last_step(record))}: {why_it_stopped(record)}",
        "scores": final_scores(record),
        "answers": answers(record),
        "findings": found,
        "serious": [finding.title for finding in found if finding.severity == "serious"],
        "probes": probes(record),
        "validation": validation(record),
        "corpora": corpora(record),
        "checkpoints": checkpoints(record),
        "machine": machine(record),
        "gaps": list(record.missing.values()),
    }


def curves(figures: Figures, used: set[str]) -> list[tuple[str, str, str]]:
    """Figures that no answer shows: name, title, and the axis it is drawn against where there is a choice."""
    shown = [(f"{name}_by_{x}", title, x) for name, (title, _) in CURVES.items() for x in AXES]
    shown += [("processors", "Processors of the hosts", ""), ("disks", "Disks of the hosts", "")]
    return [(name, title, x) for name, title, x in shown if name in figures and name not in used]


def summary(record: RunRecord) -> str:
    """What the run was, in one line; what is not recorded is left out."""
    environment, data, ranks = record.environment, record.data, number(record.environment, "world_size")
    languages = [text(data, key) for key in ("source_lang", "target_lang")]
    device, name = text(environment, "device"), text(environment, "device_name")
    device = f"{device} ({name})" if name else device
    corpus = f" from the corpus “{text(data, 'corpus')}”" if text(data, "corpus") else ""
    parts = [
        " to ".join(languages) if all(languages) else "",
        units.rough(number(environment, "model", "parameters"), "parameters"),
        units.count(number(data, "train", "pairs"), "pairs") + corpus,
        " on ".join(filter(None, [units.plural(ranks, "rank") if ranks else "", device])),
        text(environment, "precision"),
    ]
    known = [part for part in parts if part and units.NOT_RECORDED not in part]
    gaps = "; ".join(record.missing[name] for name in ("environment.json", "data.json") if name in record.missing)
    return ", ".join(known) or f"What it was is not recorded ({gaps or f'{record.origin} does not tell'})"


def final_scores(record: RunRecord) -> list[tuple[str, str, str]]:
    """The newest score of every test set, or else those of the last validation: name and value, of what, signature."""
    names, found = {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}, []
    for row in {text(row, "test_set"): row for row in record.scores}.values():
        of_what = f"{text(row, 'test_set')}, {text(row, 'sentences')} sentences, beam {text(row, 'beam')}"
        found.append((f"{of_what}, step {units.count(number(row, 'step'))}", section(row, "scores")))
    if not found and (row := record.last_valid):
        of_what = f"validation at step {row['step']:,}, {units.count(number(row, 'bleu_sentences'), 'sentences')}"
        scores = {name: {"score": row.get(name), "signature": row.get(f"{name}_signature")} for name in names}
        found.append((of_what, scores))
    return [
        (f"{names.get(name, name)} {value:.1f}", of_what, text(scores[name], "signature") or "no signature recorded")
        for of_what, scores in found
        for name in scores
        if (value := number(scores, name, "score")) is not None
    ]


def probes(record: RunRecord) -> list[Evidence]:
    """Of every probe sentence: source, reference, and its first, middle and last translation."""
    steps, found = sorted(record.probes), dict[str, Evidence]()
    for step in sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []:
        for sample in record.probes[step]:
            rows = found.setdefault(sample.source, [("source", sample.source), ("reference", sample.reference)])
            rows.append((f"step {step:,}", sample.translation))
    return list(found.values())


def validation(record: RunRecord) -> Table:
    formats = {"loss": ".3f", "nll": ".3f", "perplexity": ".2f", "bleu": ".1f", "chrf": ".1f"}
    rows = []
    for row in record.valid_rows:
        cells = ["-" if (value := number(row, key)) is None else format(value, how) for key, how in formats.items()]
        rows.append((f"{row['step']:,}", *cells, units.duration(number(row, "seconds"))))
    return shortened(("Step", "Loss (nats)", "NLL (nats)", "Perplexity", "BLEU", "chrF", "Time"), rows)


def shortened(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """Of a table by steps with hundreds of rows every so manieth, and the last; its first column says so."""
    every = -(-len(rows) // MOST_ROWS)
    if every < 2:
        return Table(columns, rows)
    return Table((f"{columns[0]} (1 of {every} rows, and the last)", *columns[1:]), [*rows[:-1:every], rows[-1]])


def corpora(record: RunRecord) -> Table:
    """What every corpus gave to the training set, and what was dropped of it and why."""
    rows = []
    for name, facts in section(record.data, "train", "corpora").items():
        counts = section(facts, "dropped")
        dropped = [f"{reason} {units.count(number(counts, reason))}" for reason in counts]
        read, kept = (units.count(number(facts, key)) for key in ("read_pairs", "pairs"))
        rows.append((name, read, kept, "; ".join(dropped) or "-"))
    return Table(("Corpus", "Pairs read", "Pairs kept", "Dropped"), rows)


def checkpoints(record: RunRecord) -> Table:
    """Every one that was written; those that lie in the folder still are kept."""
    kept, rows = {step_of(Path(each.name)) for each in record.checkpoints}, []
    losses = dict(zip(*series(record.valid_rows, "loss"), strict=True))
    for row in record.events_of("checkpoint"):
        if (step := number(row, "step")) is not None:
            size, loss = units.decimal_size(number(row, "bytes") or None), losses.get(int(step))
            stood, written = (units.duration(number(row, key)) for key in ("seconds", "write_seconds"))
            score = "-" if loss is None else f"{loss:.3f}"
            rows.append((f"{step:,.0f}", size, stood, written, score, "yes" if step in kept else "no"))
    return shortened(("Step", "Size", "Training stood still", "Written in", "Validation loss (nats)", "Kept"), rows)


def cards(host: Row) -> str:
    if "gpus" not in host:
        return f"GPUs {units.NOT_RECORDED}"
    found = sections(host, "gpus")
    names = ", ".join(filter(None, (text(gpu, "name") for gpu in found)))
    return f"GPUs {names}" if names else units.plural(len(found), "GPU") if found else "no GPU"


def machine(record: RunRecord) -> Evidence:
    names = {"started": "Started", "dragoman": "dragoman", "python": "Python", "torch": "PyTorch", "device": "Device"}
    names |= {"device_name": "Device name", "world_size": "Ranks", "backend": "Backend"}
    names |= {"precision": "Precision", "compile": "Compiled"}
    found = {label: text(record.environment, key) for key, label in names.items()}
    rows = [(label, {"True": "yes", "False": "no"}.get(value, value)) for label, value in found.items() if value]
    for host in record.hosts:
        ranks = host.get("ranks")
        links = [f"{name} {units.link_speed(speed)}" for name, speed in interfaces(host).items()]
        parts = [
            f"ranks {', '.join(map(str, ranks))}" if isinstance(ranks, list) else "",
            text(host, "cpu"),
            units.count(number(host, "cores"), "cores"),
            f"memory {units.size(number(host, 'memory_bytes'))}",
            cards(host),
            f"links {', '.join(links) or units.NOT_RECORDED}",
        ]
        rows.append((f"Host {text(host, 'host')}", "; ".join(filter(None, parts))))
    return rows or [("Not recorded", record.missing.get("environment.json", f"{record.origin} does not tell"))]
