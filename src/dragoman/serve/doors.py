"""What all routes share: who may enter, which model is meant, what is too much to ask, and the translating itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError as NotDone
from dataclasses import dataclass

from fastapi import HTTPException, Request

from dragoman.data.languages import code_of
from dragoman.serve.batcher import Batcher, Busy, Found, Job, Wish
from dragoman.serve.detect import Detector
from dragoman.serve.limits import Keys, Limits, Rate
from dragoman.serve.refusals import come_back, refuse_beyond, refuse_surrogates
from dragoman.translate.request import Request as SearchRequest
from dragoman.translate.translator import Translation

LOOK_SECONDS = 0.5  # between two looks whether the client is still there


@dataclass(frozen=True)
class Served:
    """A model behind the door."""

    name: str
    source: str
    target: str
    batcher: Batcher
    request_for: Callable[..., SearchRequest]  # of the search, from what is not None
    # The mark that a text for a model of several languages begins with.
    language_of: Callable[[str], str] = lambda text: ""


class Doors:
    """What all routes share."""

    def __init__(self, served: list[Served], limits: Limits, keys: Keys):
        self.served, self.limits, self.keys = served, limits, keys
        self.rate = Rate(limits.requests_per_minute)
        self.detector = Detector([each.source for each in served])
        self.stopping: Callable[[], bool] = lambda: False  # whether the server was asked to stop

    def enter(self, request: Request, key: str | None = None) -> None:
        """Keys first, then the rate of whoever asks."""
        header = request.headers.get("authorization", "")
        given = key or request.headers.get("x-api-key") or (header[7:] if header[:7].lower() == "bearer " else None)
        if not self.keys.accept(given):
            raise HTTPException(401, "an API key is needed: Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"})
        caller = (given if self.keys.keys else None) or (request.client.host if request.client else "")
        if wait := self.rate.wait(caller):
            raise come_back(f"more than {self.limits.requests_per_minute} requests a minute", wait)

    def find(self, model: str | None, source: str | None, target: str | None) -> Served:
        """The one model that is meant; an error names what there is."""
        if source in ("auto", ""):
            source = None
        fitting = self.fitting(model, source, target)
        if not fitting or len({(each.source, each.target) for each in fitting}) > 1:
            there = ", ".join(f"{each.name} ({each.source} to {each.target})" for each in fitting or self.served)
            words = "several models fit" if fitting else "no model for that; there are"
            raise HTTPException(404, f"{words}: {there}. Name source and target, or model")
        return fitting[0]

    def fitting(self, model: str | None, source: str | None, target: str | None) -> list[Served]:
        """Languages as the models spell them, or where none does, however they are spelled: de-AT and deu are de."""
        for spelled in (str, code_of):
            found = [
                each
                for each in self.served
                if model in (None, each.name)
                and (source is None or spelled(source) == spelled(each.source))
                and (target is None or spelled(target) == spelled(each.target))
            ]
            if found:
                return found
        return []

    def check(self, texts: list[str], beam: int | None = None, alternatives: int = 0) -> None:
        limits = self.limits
        refuse_beyond(limits.texts, len(texts), "texts: {:,} of them")
        for index, text in enumerate(texts):
            refuse_beyond(limits.characters_per_text, len(text), f"texts.{index}: {{:,}} characters", "Split the text")
            refuse_surrogates(text, f"texts.{index}")
        refuse_beyond(limits.characters, sum(map(len, texts)), "texts: {:,} characters in all")
        if beam is not None and beam > limits.beam:
            raise HTTPException(422, f"beam: {beam}; at most {limits.beam}")
        if alternatives > limits.alternatives:
            raise HTTPException(422, f"alternatives: {alternatives}; at most {limits.alternatives}")

    def submit(self, served: Served, texts: list[str], wish: Wish) -> tuple[Job, list[Found]]:
        try:
            return served.batcher.submit(texts, wish)
        except Busy as busy:
            if served.batcher.closing:
                raise HTTPException(503, "the server is shutting down") from None
            raise come_back("too many requests are waiting", busy.seconds) from None

    async def translate(
        self, request: Request, served: Served, texts: list[str], beam: int | None, alternatives: int, alignment: bool
    ) -> list[list[Translation]]:
        """All translations of what was checked; nothing more is done for a client that has left."""
        n_best = alternatives + 1
        wanted = served.request_for(beam=max(beam, n_best) if beam else None, n_best=n_best)
        job, futures = self.submit(served, texts, Wish(wanted, alignment))
        done = all_done(futures)
        try:
            while not (await asyncio.wait([done], timeout=LOOK_SECONDS))[0]:
                if await request.is_disconnected():
                    job.cancel()
            return [distinct(future.result()) for future in futures]
        except (asyncio.CancelledError, NotDone):
            job.cancel()
            raise HTTPException(499, "the client left") from None


def all_done(futures: list[Found]) -> asyncio.Future[None]:
    """Done when all are. The loop is woken once for all texts of a request: each time costs the translating thread its turn at Python."""
    loop, lock, left = asyncio.get_running_loop(), threading.Lock(), len(futures)
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def count(_: Found) -> None:
        nonlocal left
        with lock:
            left -= 1
        if left == 0 and not loop.is_closed():
            loop.call_soon_threadsafe(finish)

    for future in futures:
        future.add_done_callback(count)
    if not futures:
        finish()
    return done


def distinct(found: list[Translation]) -> list[Translation]:
    """The same text may be found twice, cut into other subwords."""
    return list({each.text: each for each in reversed(found)}.values())[::-1]
