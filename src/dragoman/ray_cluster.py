"""A Ray cluster: that at RAY_ADDRESS, or one made on this host, which stays on loopback, as Ray asks nobody for a password."""

from __future__ import annotations

import os
import socket
from typing import Any

from dragoman.errors import DragomanError, require_extra


def connect(cores: int | None = None, *, quiet: bool = False) -> Any:
    """The module `ray`, connected. `cores`: of a cluster made here; `quiet`: what workers print is not shown."""
    ray = require_extra("ray", "ray", "--engine ray")
    place: dict[str, Any] = {
        "address": "local",
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "num_cpus": cores,
    }
    if address := os.environ.get("RAY_ADDRESS"):
        require_answer(address)
        place = {"address": address}
    try:
        ray.init(**place, logging_level="ERROR", log_to_driver=not quiet)
    except Exception as error:  # of any kind: where a busy machine does not start it in time it is a bare one
        raise DragomanError(f"Ray does not start: {str(error).splitlines()[0]}") from None
    return ray


def require_answer(address: str) -> None:
    """Ray itself waits for minutes, without a word."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if not port.isdigit():  # "auto", "local"
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise DragomanError(f"RAY_ADDRESS={address}: no Ray cluster answers there ({error})") from None
