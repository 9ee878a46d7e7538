"""From a model folder to a listening server. Loopback unless asked otherwise: there is no password on this door."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from pathlib import Path

from dragoman.errors import DragomanError, require_extra

log = logging.getLogger(__name__)


def serve(path: str | Path, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Answer requests until interrupted. Port 0 takes a free one; the printed address names it."""
    require_extra("fastapi", "serve", "serving")
    uvicorn = require_extra("uvicorn", "serve", "serving")
    from dragoman.serve.app import Limits, create_app
    from dragoman.translate import Translator

    with listen(host, port) as listener:  # before the model is loaded: a busy port is said at once
        address = address_of(listener)
        translator = Translator.load(path)
        app = create_app(translator, name=Path(path).resolve().name, limits=Limits())
        print(f"serving {path} at {address} (POST /translate, GET /health); Ctrl-C stops it", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise DragomanError(
                f"port {port} at {host} is in use. Choose another port, or stop the program that has it"
            ) from None
        raise DragomanError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None


def address_of(listener: socket.socket) -> str:
    """The URL that reaches the listener; a warning when others reach it too."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback:
        log.warning("warning: %s is not loopback; everybody who reaches port %d can translate, no password", host, port)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
