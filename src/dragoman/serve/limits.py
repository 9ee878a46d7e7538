"""Who may ask, how much, and how often."""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import ConfigError, DataError

MOST_CALLERS = 10_000  # whose rate is remembered


@dataclass
class Limits:
    """What one request may ask for, and how often a caller may ask. What is 0 here follows from the others."""

    texts: int = 256
    characters_per_text: int = 10_000
    characters: int = 200_000  # of all texts of a request
    sentences: int = 0  # of a text that is streamed
    beam: int = 16
    alternatives: int = 0
    body_bytes: int = 0
    requests_per_minute: int = 0  # of one key or address; 0: any number
    wait_seconds: float = 1.0  # a request that would wait longer is refused

    def __post_init__(self) -> None:
        self.sentences = self.sentences or max(100, self.characters // 20)
        self.alternatives = self.alternatives or max(1, self.beam // 2)
        self.body_bytes = self.body_bytes or 2**16 + 12 * self.characters  # two escapes of JSON for each, at worst


class Rate:
    """A bucket of tokens for every caller: it holds a minute's worth and fills evenly."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic):
        self.per_minute, self.clock = per_minute, clock
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, caller: str) -> float:
        """Takes a token and returns 0, or returns the seconds until there is one."""
        if not self.per_minute:
            return 0.0
        now = self.clock()
        tokens, since = self.buckets.pop(caller, (float(self.per_minute), now))
        tokens = min(float(self.per_minute), tokens + (now - since) * self.per_minute / 60)
        allowed = tokens >= 1
        self.buckets[caller] = (tokens - 1 if allowed else tokens, now)
        while len(self.buckets) > MOST_CALLERS:
            self.buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) * 60 / self.per_minute


class Keys:
    """API keys, one a line of a file; without a file everybody may ask."""

    def __init__(self, path: Path | None):
        self.keys: list[bytes] = []
        if path is None:
            return
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: the API keys cannot be read ({error})") from None
        self.keys = [line.strip().encode() for line in lines if line.strip() and not line.startswith("#")]
        if not self.keys:
            raise ConfigError([f"{path}: holds no API key; write one a line"], "serve")

    def accept(self, key: str | None) -> bool:
        """Compared in time that does not depend on how much of the key is right."""
        given = (key or "").encode(errors="replace")
        return not self.keys or any(hmac.compare_digest(given, known) for known in self.keys)
