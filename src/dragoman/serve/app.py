"""The HTTP interface: what may be asked, and what is answered. Needs the extra `serve`; entered through server.py.

    POST /v1/translate {"texts": [...]}     ->  {"translations": [...]}      POST /v1/stream {"text": "..."}  ->  a JSON line a sentence
    POST /translate, /detect, GET /languages    as LibreTranslate, for its clients
    GET  /v1/models  /health  /ready  /metrics  /openapi.json  /docs  /      (the page for people)

Every error is answered with {"detail": "one line"}, to clients of LibreTranslate with {"error": "one line"}. The types of
requests are imported at the top of the module: FastAPI resolves annotations there, not inside functions.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError as NotDone
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from email import message_from_bytes
from email.policy import HTTP
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman import __version__
from dragoman.data.languages import code_of, is_spaced
from dragoman.errors import MissingExtra
from dragoman.serve.batcher import Batcher, Busy, Job, Wish
from dragoman.serve.detect import Detector
from dragoman.serve.limits import Keys, Limits, Rate
from dragoman.serve.messages import (
    LIBRE_WRONG,
    WRONG,
    Detail,
    DetectRequest,
    LibreBody,
    LibreRequest,
    StreamRequest,
    TranslateRequest,
    TranslateResponse,
)
from dragoman.serve.reference import reference
from dragoman.serve.refusals import BodyLimit, explain, explain_failure, explain_invalid
from dragoman.translate.pieces import sentences as sentences_of
from dragoman.translate.request import Request as SearchRequest
from dragoman.translate.translator import Translation

Body = TypeVar("Body", bound=LibreBody)
SURROGATE = re.compile("[\ud800-\udfff]")
LOOK_SECONDS = 0.5  # between two looks whether the client is still there


STYLED = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
PLAIN = {"X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True)
class Served:
    """A model behind the door."""

    name: str
    source: str
    target: str
    batcher: Batcher
    request_for: Callable[..., SearchRequest]  # of the search, from what is not None


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
            most = self.limits.requests_per_minute
            raise HTTPException(429, f"more than {most} requests a minute; try again in {wait:.0f} s", later(wait))

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

    async def detect(self, text: str) -> list[tuple[str, float]]:
        """In a thread: loading the identifier takes a second, the first time."""
        try:
            return await asyncio.to_thread(self.detector, text)
        except MissingExtra as error:
            raise HTTPException(400, f"{error}. Or name the source language") from None

    async def source_of(self, source: str, target: str, texts: list[str]) -> tuple[str, float]:
        """The language that is named, or the only one that can be meant, or the likeliest of several; and how sure that is, in per cent."""
        possible = {each.source for each in self.fitting(None, None, target)}
        if source not in ("auto", "") or len(possible) < 2:
            return source, 100.0
        return next(each for each in await self.detect(" ".join(texts)) if each[0] in possible)

    def check(self, texts: list[str], beam: int | None, alternatives: int) -> None:
        limits = self.limits
        if len(texts) > limits.texts:
            raise HTTPException(413, f"texts: {len(texts):,} of them; at most {limits.texts:,}. Send several requests")
        for index, text in enumerate(texts):
            if len(text) > limits.characters_per_text:
                most = limits.characters_per_text
                raise HTTPException(413, f"texts.{index}: {len(text):,} characters; at most {most:,}. Split the text")
            refuse_surrogates(text, f"texts.{index}")
        if (total := sum(map(len, texts))) > limits.characters:
            raise HTTPException(
                413, f"texts: {total:,} characters in all; at most {limits.characters:,}. Send several requests"
            )
        if beam is not None and beam > limits.beam:
            raise HTTPException(422, f"beam: {beam}; at most {limits.beam}")
        if alternatives > limits.alternatives:
            raise HTTPException(422, f"alternatives: {alternatives}; at most {limits.alternatives}")

    def begin(
        self, served: Served, texts: list[str], beam: int | None, alternatives: int, alignment: bool = False
    ) -> tuple[Job, list[Future[list[Translation]]]]:
        self.check(texts, beam, alternatives)
        wanted = served.request_for(beam=beam)
        if alternatives:
            wanted = served.request_for(beam=max(wanted.beam, alternatives + 1), n_best=alternatives + 1)
        return self.submit(served, texts, Wish(wanted, alignment))

    def submit(self, served: Served, texts: list[str], wish: Wish) -> tuple[Job, list[Future[list[Translation]]]]:
        try:
            return served.batcher.submit(texts, wish)
        except Busy as busy:
            if served.batcher.closing:
                raise HTTPException(503, "the server is shutting down") from None
            words = f"too many requests are waiting; try again in {busy.seconds:.0f} s"
            raise HTTPException(429, words, later(busy.seconds)) from None

    async def finish(
        self, request: Request, job: Job, futures: list[Future[list[Translation]]]
    ) -> list[list[Translation]]:
        """All translations; nothing more is done for a client that has left."""
        done = all_done(futures)
        try:
            while not (await asyncio.wait([done], timeout=LOOK_SECONDS))[0]:
                if await request.is_disconnected():
                    job.cancel()
            return [distinct(future.result()) for future in futures]
        except (asyncio.CancelledError, NotDone):
            job.cancel()
            raise HTTPException(499, "the client left") from None


def all_done(futures: list[Future[list[Translation]]]) -> asyncio.Future[None]:
    """Done when all are. The loop is woken once for all texts of a request: each time costs the translating thread its turn at Python."""
    loop, lock, left = asyncio.get_running_loop(), threading.Lock(), len(futures)
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def count(_: Future[list[Translation]]) -> None:
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


def refuse_surrogates(text: str, where: str) -> None:
    """JSON can spell them, UTF-8 cannot."""
    if SURROGATE.search(text):
        raise HTTPException(422, f"{where}: half of a surrogate pair is not text")


def later(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, round(seconds)))}


def create_app(served: list[Served], *, limits: Limits, keys: Keys | None = None) -> FastAPI:
    doors = Doors(served, limits, keys or Keys(None))

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.gather(*(asyncio.to_thread(each.batcher.close, 30.0) for each in served))

    # FastAPI's own pages load scripts from elsewhere; ours is at /docs.
    app = FastAPI(title="dragoman", version=__version__, docs_url=None, redoc_url=None, lifespan=life)
    app.state.doors = doors
    app.add_middleware(BodyLimit, limit=limits.body_bytes)
    app.add_exception_handler(RequestValidationError, explain_invalid)
    app.add_exception_handler(AnyHTTPException, explain)
    app.add_exception_handler(Exception, explain_failure)
    add_translation(app, doors)
    add_libre(app, doors)
    add_facts(app, doors)
    add_metrics(app, served)
    return app


def add_translation(app: FastAPI, doors: Doors) -> None:
    async def enter(request: Request) -> None:  # without a wait in it, but FastAPI hands plain functions to threads
        """Before the request is looked at any closer."""
        doors.enter(request)

    @app.post("/v1/translate", responses=WRONG, dependencies=[Depends(enter)])
    async def translate(asked: TranslateRequest, request: Request) -> TranslateResponse:
        """Translations in the order of the texts; an empty text stays empty. A text may hold several sentences."""
        served = doors.find(asked.model, asked.source, asked.target)
        job, futures = doors.begin(served, asked.texts, asked.beam, asked.alternatives, asked.alignment)
        found = await doors.finish(request, job, futures)
        wanted = asked.alternatives or asked.alignment
        details = (
            [[Detail(**vars(each) | {"score": finite(each.score)}) for each in text] for text in found]
            if wanted
            else None
        )
        return TranslateResponse(translations=[text[0].text for text in found], details=details, model=served.name)

    @app.post(
        "/v1/stream",
        response_class=StreamingResponse,
        responses=WRONG | {200: {"content": {"application/x-ndjson": {}}, "description": "a line for every sentence"}},
        dependencies=[Depends(enter)],
    )
    async def stream(asked: StreamRequest, request: Request) -> Response:
        """A long text, sentence by sentence, as JSON lines {"source", "translation", "paragraph"} while the rest is translated."""
        served = doors.find(asked.model, asked.source, asked.target)
        if len(asked.text) > doors.limits.characters:
            most = doors.limits.characters
            raise HTTPException(413, f"text: {len(asked.text):,} characters; at most {most:,}. Send several requests")
        refuse_surrogates(asked.text, "text")
        sentences = await asyncio.to_thread(numbered_sentences, asked.text, served.source)
        if len(sentences) > (most := doors.limits.sentences):
            raise HTTPException(413, f"text: {len(sentences):,} sentences; at most {most:,}. Send several requests")
        doors.check([], asked.beam, 0)
        texts = [sentence for _, sentence in sentences]
        if (longest := max(map(len, texts))) > (most := doors.limits.characters_per_text):
            raise HTTPException(413, f"text: a sentence of {longest:,} characters; at most {most:,}. Split the text")
        job, futures = doors.submit(served, texts, Wish(served.request_for(beam=asked.beam)))

        async def lines() -> AsyncIterator[str]:
            try:
                for (number, sentence), future in zip(sentences, futures, strict=True):
                    best = (await asyncio.wrap_future(future))[0]
                    line = {"source": sentence, "translation": best.text, "paragraph": number}
                    yield json.dumps(line) + "\n"  # in ASCII: some clients take U+2028 for the end of a line
            finally:
                job.cancel()

        return StreamingResponse(lines(), media_type="application/x-ndjson")


def numbered_sentences(text: str, language: str) -> list[tuple[int, str]]:
    """With the paragraph of each; an empty paragraph is an empty sentence."""
    return [
        (number, sentence)
        for number, paragraph in enumerate(text.split("\n"))
        for sentence in (sentences_of(paragraph, language) if paragraph.strip() else [""])
    ]


def add_libre(app: FastAPI, doors: Doors) -> None:
    @app.post("/translate", responses=LIBRE_WRONG, openapi_extra=body_of(LibreRequest))
    async def libretranslate(request: Request) -> dict[str, Any]:
        """The request of LibreTranslate, for its clients: JSON or a form; text only."""
        asked = await read_libre(request, LibreRequest)
        doors.enter(request, asked.api_key)
        if asked.format not in ("", "text", "html"):
            raise HTTPException(400, f"format: {asked.format!r}; text is translated here, and html without tags")
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        written: Callable[[str], str] = str
        if asked.format == "html":
            if any("<" in text for text in texts):
                raise HTTPException(400, "format: 'html' with tags is not translated here; send the text between them")
            texts, written = list(map(html.unescape, texts)), html.escape
        doors.check(texts, None, asked.alternatives)
        source, share = await doors.source_of(asked.source, asked.target, texts)
        served = doors.find(None, source, asked.target)
        job, futures = doors.begin(served, texts, None, asked.alternatives)
        found = await doors.finish(request, job, futures)
        best = [written(text[0].text) for text in found]
        others = [[written(each.text) for each in text[1:]] for text in found]
        alone = isinstance(asked.q, str)
        answer: dict[str, Any] = {"translatedText": best[0] if alone else best}
        if asked.alternatives:
            answer["alternatives"] = others[0] if alone else others
        if asked.source in ("auto", ""):
            language = {"confidence": share, "language": served.source}
            answer["detectedLanguage"] = language if alone else [language] * len(texts)
        return answer

    @app.post("/detect", responses=LIBRE_WRONG, openapi_extra=body_of(DetectRequest))
    async def detect(request: Request) -> list[dict[str, Any]]:
        """As LibreTranslate: how likely a text is in each of the languages that are translated from."""
        asked = await read_libre(request, DetectRequest)
        doors.enter(request, asked.api_key)
        doors.check([asked.q], None, 0)
        return [{"confidence": share, "language": code} for code, share in await doors.detect(asked.q)]

    @app.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """As LibreTranslate: every language with those it is translated into."""
        codes = sorted({code for each in doors.served for code in (each.source, each.target)})
        targets = {code: sorted({each.target for each in doors.served if each.source == code}) for code in codes}
        return [{"code": code, "name": code, "targets": targets[code]} for code in codes]


def body_of(kind: type[LibreBody]) -> dict[str, Any]:
    schema = {"schema": kind.model_json_schema()}
    kinds = {"application/json": schema, "application/x-www-form-urlencoded": schema, "multipart/form-data": schema}
    return {"requestBody": {"content": kinds, "required": True}}


async def read_libre(request: Request, kind: type[Body]) -> Body:
    body, type_ = await request.body(), request.headers.get("content-type", "")
    try:
        if "form" in type_:
            form = read_parts(body, type_) if "multipart" in type_ else parse_qs(body.decode(), keep_blank_values=True)
            return kind.model_validate({key: values if len(values) > 1 else values[0] for key, values in form.items()})
        return kind.model_validate(json.loads(body))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise HTTPException(400, problems) from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "neither JSON nor a form in UTF-8") from None


def read_parts(body: bytes, content_type: str) -> dict[str, list[str]]:
    """The fields of a multipart form."""
    message = message_from_bytes(b"Content-Type: %b\r\n\r\n%b" % (content_type.encode(), body), policy=HTTP)
    form: dict[str, list[str]] = {}
    for part in message.iter_parts():
        content = part.get_payload(decode=True)
        name = part.get_param("name", header="content-disposition")
        form.setdefault(str(name), []).append(content.decode() if isinstance(content, bytes) else "")
    return form


def add_facts(app: FastAPI, doors: Doors) -> None:
    page, policy = read_page()

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Alive, also while translations are running."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: WRONG[503]})
    async def ready() -> dict[str, str]:
        """Ready to translate: no longer when the server was asked to stop."""
        if doors.stopping() or not all(each.batcher.thread.is_alive() for each in doors.served):
            raise HTTPException(503, "not ready")
        return {"status": "ready"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        known = [
            {"name": each.name, "source": each.source, "target": each.target, "spaced": is_spaced(each.target)}
            for each in doors.served
        ]
        return {"models": known, "limits": asdict(doors.limits), "needs_key": bool(doors.keys.keys)}

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(reference(app.openapi()), headers={"Content-Security-Policy": STYLED, **PLAIN})

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def people() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy, **PLAIN})


def read_page() -> tuple[str, str]:
    """The page, and a policy that lets it run its own script and nothing else."""
    page = files("dragoman.serve").joinpath("page.html").read_text(encoding="utf-8")

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in found
        )

    policy = f"default-src 'none'; connect-src 'self'; img-src data:; script-src {hashes('script')}; style-src {hashes('style')}"
    return page, f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def add_metrics(app: FastAPI, served: list[Served]) -> None:
    registry = CollectorRegistry()
    requests = Counter("dragoman_requests", "Requests.", ["route", "status"], registry=registry)
    seconds = Histogram(
        "dragoman_request_seconds", "From the request to its answer.", ["route"], registry=registry,
        buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    )  # fmt: skip
    texts = Histogram(
        "dragoman_batch_texts",
        "Texts translated together.",
        ["model"],
        registry=registry,
        buckets=[2**n for n in range(9)],
    )
    waiting = Gauge(
        "dragoman_waiting_characters", "Characters that wait to be translated.", ["model"], registry=registry
    )
    for each in served:
        each.batcher.told = lambda count, _, name=each.name: texts.labels(name).observe(count)  # type: ignore[misc]
        waiting.labels(each.name).set_function(lambda batcher=each.batcher: batcher.waiting_characters)  # type: ignore[misc]

    app.add_middleware(Measured, requests=requests, seconds=seconds)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class Measured:
    """Counts requests, by route and status. Plain ASGI: Starlette's own middleware makes a task for every request."""

    def __init__(self, app: ASGIApp, requests: Counter, seconds: Histogram):
        self.app, self.requests, self.seconds = app, requests, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.perf_counter(), 500  # unless it is answered

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never the raw path: anybody can invent one
            self.requests.labels(route, str(status)).inc()
            self.seconds.labels(route).observe(time.perf_counter() - start)


def finite(score: float) -> float | None:
    """JSON has no infinity."""
    return round(score, 6) if abs(score) < 1e30 else None
