"""From model folders to a listening server. Loopback unless asked otherwise."""

from __future__ import annotations

import errno
import ipaddress
import logging
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import ConfigError, DragomanError, require_extra

log = logging.getLogger(__name__)


def serve(
    paths: list[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    device: str = "auto",
    engine: str = "auto",
    keys_file: Path | None = None,
    cors: Sequence[str] = (),
    **limits: float | None,
) -> None:
    """Answer requests until interrupted. Port 0 takes a free one; the printed address names it. `cors`: origins of pages that may ask
    from a browser. `limits` as in Limits."""
    for module in ("fastapi", "prometheus_client"):
        require_extra(module, "serve", "serving")
    uvicorn = require_extra("uvicorn", "serve", "serving")
    from dragoman.serve.app import create_app
    from dragoman.serve.batcher import Batcher
    from dragoman.serve.doors import Served
    from dragoman.serve.limits import Keys, Limits
    from dragoman.translate import Translator

    bounds = Limits(**{name: value for name, value in limits.items() if value is not None})  # type: ignore[arg-type]
    keys = Keys(keys_file)
    check_origins(cors)
    names = [path.resolve().name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError([f"two models are called {twice[0]!r}; rename one of the folders"], "serve")
    with listen(host, port) as listener:  # before the models are loaded: a busy port is said at once
        address = address_of(listener, bool(keys.keys))
        served = []
        for name, path in zip(names, paths, strict=True):
            translator = Translator.load(path, device, engine=engine)
            translator.translate(["."])  # the first translation is slower: nobody should wait for it
            batcher = Batcher(translator, most_wait_seconds=bounds.wait_seconds)
            language_of = translator.vocabulary.source.language_of
            served.append(Served(name, *translator.languages, batcher, translator.request, language_of))
            print(f"{path}: {' to '.join(translator.languages)}, {translator.engine.name}", flush=True)
        app = create_app(served, limits=bounds, keys=keys, cors=cors)
        print(f"serving at {address} (a page for people; POST /v1/translate); Ctrl-C stops it", flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=30, access_log=False)
        server = uvicorn.Server(config)
        app.state.doors.stopping = lambda: server.should_exit  # from the signal on, while requests are still answered
        server.run(sockets=[listener])


def check_origins(origins: Sequence[str]) -> None:
    """A browser compares them letter by letter: one with a path or a slash at its end would fit no page."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/]+", origin):
            raise ConfigError([f"--cors {origin}: is no origin; write https://example.org, or * for all"], "serve")


def listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((str(address[0]), port), family=family, backlog=1024)
        # asyncio does so only for sockets that say TCP, and this one says nothing: an answer's end might wait for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise DragomanError(
                f"port {port} at {host} is in use. Choose another port, or stop the program that has it"
            ) from None
        raise DragomanError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None


def address_of(listener: socket.socket, has_keys: bool = False) -> str:
    """The URL that reaches the listener; a warning when others reach it too."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback and not has_keys:
        log.warning(
            "warning: %s is not loopback; everybody who reaches port %d can translate; see --api-keys", host, port
        )
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
