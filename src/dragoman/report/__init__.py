"""The report: reads a run folder and answers the eleven questions in one HTML and one Markdown file.

run folder --read--> RunRecord --measures--> numbers --questions--> answers --render--> report.html, report.md
                                       '------charts------> figures --'
"""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import RunError
from dragoman.report.answer import Answer
from dragoman.report.questions import answers
from dragoman.report.read import RunRecord, load_run
from dragoman.runs import write_text

__all__ = ["Answer", "RunRecord", "diagnose", "load_run", "write_report"]


def diagnose(run: str | Path) -> list[Answer]:
    """The eleven answers about a run folder."""
    return answers(load_run(run))


def write_report(run: str | Path) -> tuple[Path, Path]:
    """Write report.html, and report.md with its figures, into the run folder."""
    from dragoman.report.charts import draw_all, standalone  # jinja2 and matplotlib only when needed
    from dragoman.report.render import render_html, render_markdown

    record = load_run(run)
    html, markdown = record.folder.report_html, record.folder.report_markdown
    figures = draw_all(record)
    try:
        write_text(html, render_html(record, figures))
        write_text(markdown, render_markdown(record, figures))
        for name, svg in figures.items():
            write_text(record.folder.figures / f"{name}.svg", standalone(svg))
    except OSError as error:
        raise RunError(f"{record.folder.path}: cannot write the report there ({error.strerror})") from error
    return html, markdown
