"""The page as a browser shows it: figures drawn, nothing wider than a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import Gpu, Made

from dragoman.errors import RunError
from dragoman.report import load_run, watch
from dragoman.report.render import render_html
from dragoman.report.watch import Live, server

Write = Callable[..., Path]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1600"]

# A frame is as narrow as we like, which a headless window is not; srcdoc lets the outer page look inside.
OUTER = """<!DOCTYPE html><body><iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe><script>
addEventListener('load', () => {{
  const inside = document.querySelector('iframe').contentDocument, root = inside.documentElement;
  const drawn = [...inside.querySelectorAll('figure svg')].map(svg => svg.getBoundingClientRect());
  document.body.innerHTML = '<pre>' + JSON.stringify({{
    visible: root.clientWidth, content: root.scrollWidth,
    figures: drawn.filter(box => box.width > 200 && box.height > 60).length,
    paper: getComputedStyle(inside.body).backgroundColor, ink: getComputedStyle(inside.body).color,
  }}) + '</pre>';
}});
</script></body>"""


def look(page: str, width: int, tmp_path: Path, *flags: str) -> dict[str, Any]:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on PATH: the look of the page is not tested here")
    outer = tmp_path / "outer.html"
    outer.write_text(OUTER.format(width=width, page=html.escape(page)), encoding="utf-8")
    command = [browser, *FLAGS, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", outer.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r"<pre>(.*?)</pre>", dom)
    assert found, dom[:500]
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


@pytest.mark.parametrize("width", [390, 1280])
def test_all_figures_are_drawn_and_nothing_sticks_out(story: Write, tmp_path: Path, width: int) -> None:
    seen = look(render_html(load_run(story(crash_at=455))), width, tmp_path)
    assert seen["figures"] == 13
    assert seen["content"] <= seen["visible"]


def test_dark_mode_turns_paper_and_ink(story: Write, tmp_path: Path) -> None:
    page = render_html(load_run(story()))
    light = look(page, 800, tmp_path)
    dark = look(page, 800, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (light["paper"], dark["paper"]) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")
    assert light["ink"] != dark["ink"]


def browse(address: str, tmp_path: Path, *flags: str) -> tuple[str, list[str]]:
    """The page after its scripts ran for some (virtual) seconds, and what they wrote to the console."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on PATH: the look of the page is not tested here")
    command = [
        browser,
        *FLAGS,
        *flags,
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        address,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_is_quiet_and_its_figures_can_be_changed_by_keyboard(tmp_path: Path) -> None:
    """Radio buttons and links are reached with the tab key because they are what they seem to be."""
    folder = Made(tmp_path / "run", hosts=2, ranks=2, gpu=Gpu(), network=0.3).write()
    page = tmp_path / "page.html"
    probe = """<script>addEventListener('load', () => {
      const shown = kind => [...document.querySelectorAll('.curves .by-' + kind)].filter(f => f.getBoundingClientRect().height > 60).length;
      const before = [shown('step'), shown('time')];
      document.getElementById('x-time').focus();
      const focused = document.activeElement.id;
      document.getElementById('x-time').click();
      const reach = document.querySelectorAll('a[href], input, [tabindex="0"]').length;
      document.body.innerHTML = '<pre>' + JSON.stringify({before, after: [shown('step'), shown('time')], focused, reach}) + '</pre>';
    });</script></body>"""
    page.write_text(render_html(load_run(folder)).replace("</body>", probe), encoding="utf-8")
    dom, console = browse(page.as_uri(), tmp_path)
    seen = json.loads(html.unescape(re.findall(r"<pre>(.*?)</pre>", dom)[0]))
    assert console == []
    assert (seen["before"], seen["after"], seen["focused"]) == ([8, 0], [0, 8], "x-time")
    assert seen["reach"] > 20


@pytest.mark.parametrize("refusals", [0, 3])
def test_the_live_page_renews_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
    """The run goes on after the browser has asked twice; the browser shows it without being told, also after answers that are
    no pages, because a file could not be read for a moment."""
    folder = Made(tmp_path / "run", reason="").write()
    real, asked, draw, refused = Live.stamp, [], Live.page, []

    def page(live: Live) -> str:
        if live.html and len(refused) < refusals:
            refused.append(1)
            raise RunError("metrics.jsonl cannot be read")
        return draw(live)

    def stamp(live: Live) -> str:
        asked.append(1)
        if len(asked) == 4:
            with (folder / "metrics.jsonl").open("a") as stream:
                stream.write('{"time": 1763209000.0, "kind": "train", "step": 4050, "loss": 2.5}\n')
        return real(live)

    monkeypatch.setattr(Live, "stamp", stamp)
    monkeypatch.setattr(Live, "page", page)
    monkeypatch.setattr(watch, "REST", 0.0)
    focus = '<script>addEventListener("load", () => document.getElementById("x-time").focus());'
    focus += "setInterval(() => document.body.dataset.focus = document.activeElement.id, 100);</script></body>"
    monkeypatch.setattr(watch, "SCRIPT", watch.SCRIPT.replace("</body>", focus.replace("%", "%%")))
    with server(folder, every_seconds=0.3) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.server_address[1]}/"
        dom, console = browse(address, tmp_path, "--virtual-time-budget=20000")
        listening.shutdown()
        thread.join()
    assert len(asked) >= 4
    assert "Step 4,050" in dom
    assert 'data-focus="x-time"' in dom, "the keyboard is where it was"
    assert [line for line in console if "status of 500" not in line] == []
    assert len(refused) == refusals
