"""The page: whole, escaped, needing nothing from outside, the same for the same run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_runs import Gpu, Made
from matplotlib.figure import Figure
from typer.testing import CliRunner

from dragoman.cli.main import app
from dragoman.report import charts, load_run, write_report
from dragoman.report.charts import draw_all
from dragoman.report.render import as_json, plain, render_html, render_markdown

Write = Callable[..., Path]
KINDS: dict[str, dict[str, Any]] = {
    "whole": {},
    "resumed": {"crash_at": 455},
    "killed": {"killed": True},
    "no validation": {"validation": False},
    "empty metrics": {"metrics": False},
    "no checkpoint": {"checkpoints": False},
    "tampered": {"tamper_from": 400},
    "one row": {"steps": 10},
}
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Balance(HTMLParser):
    """Every tag that opens is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_makes_a_whole_page(story: Write, kind: str) -> None:
    record = load_run(story(**KINDS[kind]))
    figures = draw_all(record)
    html, markdown = render_html(record, figures), render_markdown(record, figures)
    parser = Balance()
    parser.feed(html)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert {"script", "link", "img", "iframe"}.isdisjoint(parser.seen)
    assert "https://" not in html
    assert "http://" not in html
    assert re.findall(r"url\((?!#)", html) == []
    assert all(f"- **{number} " in markdown for number in range(1, 12))
    assert all(f"## {number}. " in markdown for number in range(1, 12))
    assert re.search(r"\b(nan|None|inf)\b", re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", html, flags=re.S)) is None


def test_a_whole_run_has_all_figures(tmp_path: Path) -> None:
    """One for each question, eight curves against three axes, processors and disks."""
    parser = Balance()
    parser.feed(render_html(load_run(Made(tmp_path / "run", hosts=2, ranks=2, gpu=Gpu()).write())))
    assert parser.seen.count("svg") == 11 + 8 * 3 + 2


def test_figures_take_their_colours_from_the_page(story: Write) -> None:
    figures = "".join(re.findall(r"<svg.*?</svg>", render_html(load_run(story())), flags=re.S))
    assert "currentColor" in figures
    assert "var(--blue, #2563a8)" in figures
    assert re.findall(r"#ffffff|#000000", figures) == []  # no background, no black on black


def test_text_of_strangers_is_shown_and_not_run(story: Write) -> None:
    record = load_run(story(probe="<script>alert('Hund')</script> | *und* `Katze`"))
    html, markdown = render_html(record), render_markdown(record)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert re.search(r"(?<!\\)<script", markdown) is None
    assert r"\| \*und\* \`Katze\`" in markdown


def test_the_first_screen_has_verdicts_and_the_score_with_its_signature(story: Write) -> None:
    html = render_html(load_run(story()))
    first = html[html.index("<header>") : html.index("</header>")]
    assert first.count('class="said"') == 11
    assert "BLEU 73.6" in first
    assert "nrefs:1|case:mixed" in first
    assert "1.23 million parameters" in first


def test_scores_of_a_test_set_go_before_those_of_validation(story: Write) -> None:
    folder = story()
    scores = '{"bleu": {"score": 71.2, "signature": "nrefs:1|tok:13a"}}'
    (folder / "scores.json").write_text(
        f'[{{"step": 600, "test_set": "test", "sentences": 500, "beam": 4, "scores": {scores}}}]'
    )
    markdown = render_markdown(load_run(folder))
    assert "**BLEU 71.2** (test, 500 sentences, beam 4, step 600; `nrefs:1|tok:13a`)" in markdown


def test_the_same_run_gives_the_same_bytes(story: Write) -> None:
    folder = story()
    assert render_html(load_run(folder)) == render_html(load_run(folder))


def test_a_long_run_keeps_a_small_page(tmp_path: Path) -> None:
    how = {"steps": 300_000, "log_every": 200, "valid_every": 400, "hosts": 2, "ranks": 2}
    html = render_html(load_run(Made(tmp_path / "run", gpu=Gpu(), network=0.05, **how).write()))
    assert len(html) < 2_000_000, "5 MB are the most"
    table = html[html.index("<h2>Validation</h2>") :].split("</table>")[0]
    assert "1 of 4 rows, and the last" in table
    assert 150 < table.count("<tr>") <= 202
    assert "<td>300,000</td>" in table


def test_both_files_are_written_into_the_run_folder(story: Write) -> None:
    folder = story()
    before = {path.name for path in folder.iterdir()}
    names = ("report.html", "report.md", "report.json")
    assert write_report(folder) == tuple(folder / name for name in names)
    assert {path.name for path in folder.iterdir()} - before == {*names, "figures"}


def test_the_json_says_what_the_page_says(story: Write) -> None:
    folder = story()
    write_report(folder)
    told, page = json.loads((folder / "report.json").read_text()), (folder / "report.md").read_text()
    assert [answer["number"] for answer in told["answers"]] == list(range(1, 12))
    assert all(plain(answer["verdict"]) in page for answer in told["answers"])
    assert all(plain(finding["title"]) in page for finding in told["findings"])
    for key in ("validation", "checkpoints"):
        assert [row[0] for row in told[key]["rows"]] == ["200", "400", "600"]
    assert {label for label, _ in told["machine"]} >= {"Ranks", "Host alpha"}
    assert told["probes"][0][0] == ["source", "The small dog sleeps."]
    assert any("spans.jsonl" in reason for reason in told["gaps"])


def test_tables_tell_what_each_corpus_gave_and_which_checkpoints_are_kept(tmp_path: Path) -> None:
    def described(run: Made) -> None:
        run.data_facts["train"]["corpora"] = {"news": {"read_pairs": 1200, "pairs": 1100, "dropped": {"too long": 100}}}

    shown = as_json(load_run(Made(tmp_path / "run", change=described).write()))
    assert shown["corpora"]["rows"] == [("news", "1,200", "1,100", "too long 100")]
    *gone, last = shown["checkpoints"]["rows"]
    assert (*last[:4], last[-1]) == ("4,000", "730.6 MB", "50.0 ms", "2.00 s", "yes")
    assert {row[-1] for row in gone} == {"no"}


def test_reading_a_run_starts_fast_and_without_torch() -> None:
    heavy = "{'torch', 'matplotlib', 'jinja2', 'numpy'} & set(sys.modules)"
    code = f"import sys, dragoman.report; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_figures_of_the_markdown_are_whole_files_beside_it(story: Write) -> None:
    from xml.etree import ElementTree

    folder = story()
    _, markdown, _ = write_report(folder)
    links = re.findall(r"!\[[^]]*\]\(([^)]*)\)", markdown.read_text(encoding="utf-8"))
    assert len(links) == len(set(links)) >= 9
    for link in links:
        svg = ElementTree.parse(folder / link).getroot()
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"


def test_a_torn_description_of_the_machine_is_not_called_missing(story: Write) -> None:
    folder = story(steps=10)
    (folder / "environment.json").write_text('{"torch": "2')
    page = render_html(load_run(folder), {})
    assert "environment.json is missing" not in page
    assert re.search(r"Not recorded</t[hd]>\s*<td[^>]*>environment.json (cannot be read|is empty or torn)", page)


def test_the_figure_of_gpus_is_no_saw_tooth_of_hosts(tmp_path: Path) -> None:
    """One card is always at 100 %, the other at 20 %, and no two samples are of the same instant."""

    def differ(run: Made) -> None:
        for host, percent in ((0, 100.0), (1, 20.0)):
            for row in run.telemetry[host]:
                row["time"] += 0.37 * host
                row["gpus"] = [card | {"utilization_percent": percent} for card in row["gpus"]]

    record = load_run(Made(tmp_path / "run", hosts=2, gpu=Gpu(), change=differ).write())
    charts.gpus(figure := Figure(), record)
    shown = figure.axes[0].lines[0].get_ydata()
    assert len(shown) > 30
    assert set(shown[1:-1]) == {60.0}


def test_a_report_that_is_written_elsewhere_has_the_name_of_its_run(tmp_path: Path) -> None:
    folder, out = Made(tmp_path / "english-german", steps=500).write(), tmp_path / "out"
    result = CliRunner().invoke(app, ["report", str(folder), "-o", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (out / "report.md").read_text().startswith("# english-german")
    assert list((out / "figures").iterdir())
    assert not (folder / "report.md").exists()
