"""A translator of ten lines, and doors around it."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("fastapi")

from dragoman.serve.app import create_app
from dragoman.serve.batcher import Batcher
from dragoman.serve.doors import Served
from dragoman.serve.limits import Limits
from dragoman.translate import Request, Translation

LIMITS = Limits(texts=3, characters_per_text=20, characters=50, beam=8, alternatives=3, body_bytes=2000)


class Shouter:
    """Translates into capitals, and notices when two ask at once."""

    def __init__(self):
        self.batches, self.requests = [], []
        self.busy, self.overlaps, self.go = threading.Lock(), 0, threading.Event()
        self.go.set()

    def search(self, texts, request, *, split=False, alignment=False):
        self.overlaps += not self.busy.acquire(blocking=False)
        self.go.wait(120)
        self.batches.append(list(texts))
        self.requests.append(request)
        self.busy.release()
        if "crash" in texts:
            raise RuntimeError("secret of the house")
        pairs = [[(n, n) for n in range(len(text.split()))] if alignment else [] for text in texts]
        return [
            [Translation(text.upper() + "!" * rank, -float(rank), own) for rank in range(request.n_best)]
            for text, own in zip(texts, pairs, strict=True)
        ]


def request_for(**options):
    return Request(**{"beam": 4} | {key: value for key, value in options.items() if value is not None}).check()


def behind(translator, name="demo", source="en", target="de", **options):
    return Served(name, source, target, Batcher(translator, **options), request_for)


@pytest.fixture
def shouter():
    return Shouter()


@pytest.fixture
def make():
    """Apps around shouters, closed at the end."""
    made = []

    def build(*served, limits=LIMITS, keys=None, cors=()):
        made.extend(served)
        return create_app(list(served), limits=limits, keys=keys, cors=cors)

    build.behind, build.limits, build.shouter = behind, LIMITS, Shouter
    yield build
    for each in made:
        each.batcher.translator.go.set()
        each.batcher.close(5)
