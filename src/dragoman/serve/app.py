"""The HTTP interface: what may be asked, and what is answered. Needs the extra `serve`; entered through server.py.

    POST /v1/translate {"texts": [...]}     ->  {"translations": [...]}      POST /v1/stream {"text": "..."}  ->  a JSON line a sentence
    POST /translate, /detect, GET /languages, /frontend/settings    as LibreTranslate, for its clients
    GET  /v1/models  /health  /ready  /metrics  /openapi.json  /docs  /      (the page for people)

Every error is answered with {"detail": "one line"}, to clients of LibreTranslate with {"error": "one line"}. The types of
requests are imported at the top of the module: FastAPI resolves annotations there, not inside functions.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError as NotDone
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from email import message_from_bytes
from email.policy import HTTP
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman import __version__
from dragoman.data.languages import code_of, is_spaced
from dragoman.errors import MissingExtra
from dragoman.serve.batcher import Batcher, Busy, Found, Job, Wish
from dragoman.serve.detect import Detector
from dragoman.serve.limits import Keys, Limits, Rate
from dragoman.serve.markup import Document, Passage, written
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
from dragoman.serve.names import name_of
from dragoman.serve.reference import reference
from dragoman.serve.refusals import FAILED, BodyLimit, explain, explain_failure, explain_invalid
from dragoman.translate.pieces import sentences as sentences_of
from dragoman.translate.request import Request as SearchRequest
from dragoman.translate.translator import Translation

Body = TypeVar("Body", bound=LibreBody)
SURROGATE = re.compile("[\ud800-\udfff]")
LOOK_SECONDS = 0.5  # between two looks whether the client is still there


@dataclass(frozen=True)
class Served:
    """A model behind the door."""

    name: str
    source: str
    target: str
    batcher: Batcher
    request_for: Callable[..., SearchRequest]  # of the search, from what is not None
    language_of: Callable[[str], str] = lambda text: (
        ""
    )  # the mark that a text for a model of several languages begins with


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

    def is_the_same(self, source: str, target: str) -> bool:
        """Whether nothing is to be done, as a language that is known here was asked for in itself."""
        known = {code_of(code) for each in self.served for code in (each.source, each.target)}
        return source == target and code_of(source) in known and not self.fitting(None, source, target)

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
        wanted = served.request_for(beam=beam)
        if alternatives:
            wanted = served.request_for(beam=max(wanted.beam, alternatives + 1), n_best=alternatives + 1)
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

    async def translate_html(
        self, request: Request, served: Served, documents: list[Document], alternatives: int
    ) -> list[list[str]]:
        """Every document and its alternatives."""
        whole = is_spaced(served.source) and is_spaced(served.target)
        cut = [document.pieces(whole=whole) for document in documents]
        passages = [piece for pieces in cut for piece in pieces if isinstance(piece, Passage)]
        refuse_beyond(self.limits.sentences, len(passages), "q: {:,} texts between tags")
        texts, has_tags = [passage.text.strip() for passage in passages], any(passage.elements for passage in passages)
        found = iter(await self.translate(request, served, texts, None, alternatives, alignment=has_tags))
        return [written(pieces, found) for pieces in cut]


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


def refuse_surrogates(text: str, where: str) -> None:
    """JSON can spell them, UTF-8 cannot."""
    if SURROGATE.search(text):
        raise HTTPException(422, f"{where}: half of a surrogate pair is not text")


def refuse_beyond(most: int, count: int, words: str, advice: str = "Send several requests") -> None:
    if count > most:
        raise HTTPException(413, f"{words.format(count)}; at most {most:,}. {advice}")


def come_back(words: str, seconds: float) -> HTTPException:
    return HTTPException(429, f"{words}; try again in {seconds:.0f} s", {"Retry-After": str(max(1, round(seconds)))})


def create_app(served: list[Served], *, limits: Limits, keys: Keys | None = None, cors: Sequence[str] = ()) -> FastAPI:
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
    if cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
            expose_headers=["Retry-After"],
        )
    return app


def add_translation(app: FastAPI, doors: Doors) -> None:
    async def enter(request: Request) -> None:  # without a wait in it, but FastAPI hands plain functions to threads
        """Before the request is looked at any closer."""
        doors.enter(request)

    @app.post("/v1/translate", responses=WRONG, dependencies=[Depends(enter)])
    async def translate(asked: TranslateRequest, request: Request) -> TranslateResponse:
        """Translations in the order of the texts; an empty text stays empty. A text may hold several sentences."""
        served = doors.find(asked.model, asked.source, asked.target)
        doors.check(asked.texts, asked.beam, asked.alternatives)
        found = await doors.translate(request, served, asked.texts, asked.beam, asked.alternatives, asked.alignment)
        details = None
        if asked.alternatives or asked.alignment:
            details = [[Detail(**vars(each) | {"score": finite(each.score)}) for each in text] for text in found]
        return TranslateResponse(translations=[text[0].text for text in found], details=details, model=served.name)

    @app.post(
        "/v1/stream",
        response_class=StreamingResponse,
        responses=WRONG | {200: {"content": {"application/x-ndjson": {}}, "description": "a line for every sentence"}},
        dependencies=[Depends(enter)],
    )
    async def stream(asked: StreamRequest, request: Request) -> Response:
        """A long text, sentence by sentence, as JSON lines {"source", "translation", "paragraph"} while the rest is translated. One that
        fails has an "error" instead of its translation."""
        served = doors.find(asked.model, asked.source, asked.target)
        limits = doors.limits
        refuse_beyond(limits.characters, len(asked.text), "text: {:,} characters")
        refuse_surrogates(asked.text, "text")
        sentences = await asyncio.to_thread(numbered_sentences, asked.text, served.source)
        refuse_beyond(limits.sentences, len(sentences), "text: {:,} sentences")
        doors.check([], asked.beam, 0)
        texts = [sentence for _, sentence in sentences]
        longest = max(map(len, texts))
        refuse_beyond(limits.characters_per_text, longest, "text: a sentence of {:,} characters", "Split the text")
        told = list(with_language(texts, served.language_of))
        job, futures = doors.submit(served, told, Wish(served.request_for(beam=asked.beam)))

        async def lines() -> AsyncIterator[str]:
            try:
                for (number, sentence), future in zip(sentences, futures, strict=True):
                    try:
                        outcome = {"translation": (await asyncio.wrap_future(future))[0].text}
                    except Exception:  # a border: the batcher has logged it, and the other sentences come
                        outcome = {"error": FAILED}
                    line = {"source": sentence, **outcome, "paragraph": number}
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


def with_language(sentences: list[str], language_of: Callable[[str], str]) -> Iterator[str]:
    """The language that one of them begins with is told with all that follow."""
    mark = ""
    for sentence in sentences:
        own = language_of(sentence)
        mark = own or mark
        yield f"{mark} {sentence}" if mark and not own and sentence else sentence


def add_libre(app: FastAPI, doors: Doors) -> None:
    @app.post("/translate", responses=LIBRE_WRONG, openapi_extra=body_of(LibreRequest))
    async def libretranslate(request: Request) -> dict[str, Any]:
        """The request of LibreTranslate, for its clients: JSON or a form, of text or HTML."""
        asked = await read_libre(request, LibreRequest)
        doors.enter(request, asked.api_key)
        if asked.format not in ("", "text", "html"):
            raise HTTPException(400, f"format: {asked.format!r}; text and html are translated here")
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        doors.check(texts, None, asked.alternatives)
        found, guess = await translated(doors, request, asked, texts)
        answer: dict[str, list[Any]] = {"translatedText": [text[0] for text in found]}
        if asked.alternatives:
            answer["alternatives"] = [text[1:] for text in found]
        if asked.source in ("auto", ""):
            answer["detectedLanguage"] = [guess] * len(texts)
        return {key: values[0] for key, values in answer.items()} if isinstance(asked.q, str) else answer

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
        return [{"code": code, "name": name_of(code), "targets": targets[code]} for code in codes]

    @app.get("/frontend/settings")
    async def frontend_settings() -> dict[str, Any]:
        """As LibreTranslate: what its page would show first, and what is allowed."""
        first, has_keys = doors.served[0], bool(doors.keys.keys)
        sides = {"source": first.source, "target": first.target}
        return {
            "apiKeys": has_keys,
            "charLimit": doors.limits.characters_per_text,
            "filesTranslation": False,
            "frontendTimeout": 500,  # ms that its page waits for another letter: its default
            "keyRequired": has_keys,
            "language": {side: {"code": code, "name": name_of(code)} for side, code in sides.items()},
            "suggestions": False,
            "supportedFilesFormat": [],
        }


async def translated(
    doors: Doors, request: Request, asked: LibreRequest, texts: list[str]
) -> tuple[list[list[str]], dict[str, Any]]:
    """Every text with its alternatives, and which language they are taken to be in."""
    if doors.is_the_same(asked.source, asked.target):
        return [[text] for text in texts], {}
    documents = await asyncio.to_thread(read_html, texts) if asked.format == "html" else []
    plain = [document.plain() for document in documents] or texts
    source, share = await doors.source_of(asked.source, asked.target, plain)
    served = doors.find(None, source, asked.target)
    guess = {"confidence": share, "language": served.source}
    if documents:
        return await doors.translate_html(request, served, documents, asked.alternatives), guess
    found = await doors.translate(request, served, texts, None, asked.alternatives, alignment=False)
    return [[each.text for each in text] for text in found], guess


def read_html(texts: list[str]) -> list[Document]:
    try:
        return list(map(Document, texts))
    except AssertionError as error:  # how the parser says it
        raise HTTPException(400, f"q: is no HTML ({error})") from None


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
        return page_of(reference(app.openapi()), "style-src 'unsafe-inline'")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def people() -> HTMLResponse:
        return page_of(page, policy)


def page_of(text: str, policy: str) -> HTMLResponse:
    """To which nothing is allowed but what the policy names."""
    policy = f"default-src 'none'; {policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return HTMLResponse(text, headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"})


def read_page() -> tuple[str, str]:
    """The page, and a policy that lets it run its own script and nothing else."""
    page = files("dragoman.serve").joinpath("page.html").read_text(encoding="utf-8")

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in found
        )

    return page, f"connect-src 'self'; img-src data:; script-src {hashes('script')}; style-src {hashes('style')}"


def add_metrics(app: FastAPI, served: list[Served]) -> None:
    registry = CollectorRegistry()
    requests = Counter("dragoman_requests", "Requests.", ["route", "status"], registry=registry)
    seconds = Histogram(
        "dragoman_request_seconds", "From the request to its answer.", ["route"], registry=registry,
        buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    )  # fmt: skip
    texts = Histogram(
        "dragoman_batch_texts", "Texts translated together.", ["model"], registry=registry,
        buckets=[2**n for n in range(9)],
    )  # fmt: skip
    failed = Counter("dragoman_failed_texts", "Texts that could not be translated.", ["model"], registry=registry)
    waiting = Gauge(
        "dragoman_waiting_characters", "Characters that wait to be translated.", ["model"], registry=registry
    )

    def tell(model: str, count: int, failures: int) -> None:
        texts.labels(model).observe(count)
        failed.labels(model).inc(failures)

    for each in served:
        failed.labels(each.name)
        each.batcher.told = partial(tell, each.name)
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
