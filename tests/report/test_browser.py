"""The page as a browser shows it: figures drawn, nothing wider than a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.report import load_run
from dragoman.report.render import render_html

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
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"<pre>(.*?)</pre>", dom)
    assert found, dom[:500]
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


@pytest.mark.parametrize("width", [390, 1280])
def test_all_figures_are_drawn_and_nothing_sticks_out(story: Write, tmp_path: Path, width: int) -> None:
    seen = look(render_html(load_run(story(crash_at=455))), width, tmp_path)
    assert seen["figures"] == 12
    assert seen["content"] <= seen["visible"]


def test_dark_mode_turns_paper_and_ink(story: Write, tmp_path: Path) -> None:
    page = render_html(load_run(story()))
    light = look(page, 800, tmp_path)
    dark = look(page, 800, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (light["paper"], dark["paper"]) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")
    assert light["ink"] != dark["ink"]
