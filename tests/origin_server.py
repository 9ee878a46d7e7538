"""A server on the loopback with the manners of real ones: it cuts, hangs, redirects, has no ranges, or has moved on."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Origin:
    """Paths with their bytes, and how each path behaves; `requests` remembers (path, Range or None)."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.etag = '"one"'
        self.cut_after: list[int] = []  # bytes of the next answers, one entry each
        self.redirects: dict[str, str] = {}
        self.released = threading.Event()
        self.requests: list[tuple[str, str | None]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def served():
    origin = Origin()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def head(self, status, **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()

        def do_GET(self):
            asked = self.headers.get("Range")
            origin.requests.append((self.path, asked))
            if self.path == "/hangs":
                origin.released.wait(30)
                self.close_connection = True
                return
            if self.path in origin.redirects:
                self.head(302, Location=origin.redirects[self.path], Content_Length="0")
                return
            body = origin.files.get(self.path)
            if body is None:
                self.head(404, Content_Length="0")
                return
            same = self.headers.get("If-Range") in (None, origin.etag)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and origin.ranges and same else 0
            if start and start >= len(body):
                self.head(416, Content_Range=f"bytes */{len(body)}", Content_Length="0")
                return
            facts = {"Content_Length": str(len(body) - start)} | ({"ETag": origin.etag} if origin.etag else {})
            if start:
                facts["Content_Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self.head(206 if start else 200, **facts)
            cut = origin.cut_after.pop(0) if origin.cut_after else None
            self.wfile.write(body[start:] if cut is None else body[start : start + cut])
            self.close_connection = cut is not None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    origin.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield origin
    finally:
        origin.released.set()
        server.shutdown()
        server.server_close()
