"""The live page: on loopback only, new when the run has written, the same in the terminal."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_runs import Made
from rich.console import Console

from dragoman.errors import RunError
from dragoman.report import load_run, watch
from dragoman.report.terminal import WIDTH, sparkline, view
from dragoman.report.watch import Live, server


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REST", 0.0)


@contextmanager
def serving(folder: Path, every: float = 0.0) -> Iterator[str]:
    with server(folder, every_seconds=every) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        host, port = listening.server_address[:2]
        assert host == "127.0.0.1"
        yield f"http://127.0.0.1:{port}"
        listening.shutdown()
        thread.join()


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=300) as answer:
        return answer.read().decode()


def add_row(folder: Path, step: int) -> None:
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"time": 1763209000.0, "kind": "train", "step": step, "loss": 2.5}) + "\n")


def test_the_page_is_new_when_the_run_has_written(tmp_path: Path) -> None:
    folder = Made(tmp_path / "run", reason="").write()
    with serving(folder) as address:
        page, stamp = get(f"{address}/"), get(f"{address}/stamp")
        assert "Step 4,000" in page
        assert stamp in page
        assert get(f"{address}/stamp") == stamp, "nothing new, nothing drawn"
        add_row(folder, 4050)
        assert get(f"{address}/stamp") != stamp
        assert "Step 4,050" in get(f"{address}/")


def test_a_page_that_takes_long_to_draw_is_drawn_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn on the host that trains."""
    folder = Made(tmp_path / "run", reason="").write()
    live = Live(folder, every_seconds=0.0)
    live.page()
    add_row(folder, 4050)
    monkeypatch.setattr(watch, "REST", 1e6)
    assert "Step 4,000" in live.page()
    monkeypatch.setattr(watch, "REST", 0.0)
    assert "Step 4,050" in live.page()


def test_nothing_else_is_served(tmp_path: Path) -> None:
    folder = Made(tmp_path / "run").write()
    with serving(folder) as address:
        for path in ("/run.toml", "/../run.toml", "/figures/"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(address + path)


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    folder = Made(tmp_path / "run").write()
    with server(folder) as taken, pytest.raises(RunError, match="choose another with --port"):
        server(folder, taken.server_address[1])


def test_the_terminal_shows_where_the_run_is_and_what_holds_it_up(tmp_path: Path) -> None:
    folder = Made(tmp_path / "run", data=0.4, planned=8000, reason="").write()
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(load_run(folder)))
    text = console.export_text()
    assert "4,000 of 8,000" in text
    assert "waiting for data bounds the step: 56.2 % of it" in text
    assert "█" in text


def test_sparklines_are_short_and_span_their_range() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0]) == "▁"
    assert sparkline([0.0, 1.0]) == "▁█"
    assert len(sparkline([float(n) for n in range(1000)])) == WIDTH
