"""The report of a run that goes on: the page again and again, on loopback only. The browser asks whether anything is new and takes
over the new page without losing its place; nothing is asked of the run."""

from __future__ import annotations

import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dragoman.errors import RunError
from dragoman.report.read import load_run
from dragoman.runs import open_run

LOOPBACK = "127.0.0.1"
REST = 10.0  # times as long as drawing took: a page that is watched takes at most a tenth of a core from the run
SCRIPT = (Path(__file__).parent / "templates" / "renew.html").read_text(encoding="utf-8")
"""Of the stamp of a page, and twice of the milliseconds between two looks."""


class Live:
    """The newest page, drawn again when the run has written something, at most every few seconds."""

    def __init__(self, run: str | Path, every_seconds: float):
        self.folder, self.every = open_run(run), every_seconds
        self.lock = threading.Lock()
        self.drawn_at, self.took, self.drawn_from, self.html = 0.0, 0.0, "", ""

    def stamp(self) -> str:
        """Of the files that a page is drawn from."""
        files = [self.folder.metrics, self.folder.events, self.folder.environment, self.folder.scores]
        facts = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file()]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def page(self) -> str:
        from dragoman.report.render import render_html

        with self.lock:  # matplotlib draws one page at a time
            stamp, now = self.stamp(), time.monotonic()
            rested = now - self.drawn_at >= max(self.every, REST * self.took)
            if not self.html or (stamp != self.drawn_from and rested):
                pause = int(1000 * self.every)
                script = SCRIPT % (stamp, pause, pause)
                page = render_html(load_run(self.folder.path)).replace("</body>", script)
                self.html = page.replace("</head>", '<link rel="icon" href="data:,"></head>')  # or browsers ask for one
                self.drawn_from, self.drawn_at = stamp, time.monotonic()
                self.took = self.drawn_at - now
            return self.html


class Handler(BaseHTTPRequestHandler):
    live: Live

    def do_GET(self) -> None:
        try:
            if self.path == "/":
                self.answer(200, "text/html; charset=utf-8", self.live.page())
            elif self.path == "/stamp":
                self.live.page()
                self.answer(200, "text/plain", self.live.drawn_from)
            else:
                self.answer(404, "text/plain", "only / and /stamp are here")
        except RunError as error:
            self.answer(500, "text/plain", str(error))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the browser left

    def answer(self, status: int, kind: str, content: str) -> None:
        body = content.encode()
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A request every few seconds is no news."""


def server(run: str | Path, port: int = 0, every_seconds: float = 5.0) -> ThreadingHTTPServer:
    """Bound to loopback, not serving yet; port 0 takes a free one."""
    handler = type("RunHandler", (Handler,), {"live": Live(run, every_seconds)})
    try:
        return ThreadingHTTPServer((LOOPBACK, port), handler)
    except OSError as error:
        used = f"port {port} of {LOOPBACK} cannot be used ({error.strerror})"
        raise RunError(f"{used}; choose another with --port") from None
