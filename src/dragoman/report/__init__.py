"""The report: reads a run folder and answers the eleven questions in one HTML file, and the same as Markdown and JSON.

run folder --read--> RunRecord --measures--> numbers --questions--> answers --render--> report.html, report.md, report.json
                                       '------charts------> figures --'
"""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import RunError
from dragoman.report.answer import Answer
from dragoman.report.importers import import_run
from dragoman.report.questions import answers
from dragoman.report.read import RunRecord, load_run
from dragoman.runs import RunFolder, write_json, write_text

__all__ = ["Answer", "RunRecord", "diagnose", "import_run", "load_run", "write", "write_report"]


def diagnose(run: str | Path) -> list[Answer]:
    """The eleven answers about a run folder."""
    return answers(load_run(run))


def write_report(run: str | Path) -> tuple[Path, ...]:
    """Write report.html, report.md with its figures, and report.json into the run folder."""
    return write(load_run(run))


def write(record: RunRecord, into: RunFolder | None = None) -> tuple[Path, ...]:
    """Into the run folder, or elsewhere."""
    from dragoman.report.charts import draw_all, standalone  # jinja2 and matplotlib only when needed
    from dragoman.report.render import as_json, render_html, render_markdown

    folder, figures = into or record.folder, draw_all(record)
    try:
        write_text(folder.report_html, render_html(record, figures))
        write_text(folder.report_markdown, render_markdown(record, figures))
        write_json(folder.report_json, as_json(record))
        for name, svg in figures.items():
            if not name.endswith(("_by_tokens", "_by_time")):
                write_text(folder.figures / f"{name}.svg", standalone(svg))
    except OSError as error:
        raise RunError(f"{folder.path}: cannot write the report there ({error.strerror})") from error
    return folder.report_html, folder.report_markdown, folder.report_json
