"""The HTTP interface: what may be asked, and what is answered. Needs the extra `serve`; entered through server.py.

    POST /v1/translate {"texts": [...]}     ->  {"translations": [...]}      POST /v1/stream {"text": "..."}  ->  a JSON line a sentence
    POST /translate, /detect, GET /languages, /frontend/settings    as LibreTranslate, for its clients
    GET  /v1/models  /health  /ready  /metrics  /openapi.json  /docs  /      (the page for people)

Every error is answered with {"detail": "one line"}, to clients of LibreTranslate (`libre`) with {"error": "one line"}. What all
routes need is in `doors`. The types of requests are imported at the top of the modules: FastAPI resolves annotations there, not
inside functions.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from dragoman import __version__
from dragoman.data.languages import is_spaced
from dragoman.serve.batcher import Wish
from dragoman.serve.doors import Doors, Served
from dragoman.serve.libre import add_libre
from dragoman.serve.limits import Keys, Limits
from dragoman.serve.messages import WRONG, Detail, StreamRequest, TranslateRequest, TranslateResponse
from dragoman.serve.metrics import add_metrics
from dragoman.serve.reference import reference
from dragoman.serve.refusals import FAILED, BodyLimit, explain_errors, refuse_beyond, refuse_surrogates
from dragoman.translate.pieces import sentences as sentences_of


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
    explain_errors(app)
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
    async def stream(asked: StreamRequest) -> Response:
        """A long text, sentence by sentence, as JSON lines {"source", "translation", "paragraph"} while the rest is translated. One that
        fails has an "error" instead of its translation."""
        served = doors.find(asked.model, asked.source, asked.target)
        limits = doors.limits
        refuse_beyond(limits.characters, len(asked.text), "text: {:,} characters")
        refuse_surrogates(asked.text, "text")
        sentences = await asyncio.to_thread(numbered_sentences, asked.text, served.source)
        refuse_beyond(limits.sentences, len(sentences), "text: {:,} sentences")
        doors.check([], asked.beam)
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


def finite(score: float) -> float | None:
    """JSON has no infinity."""
    return round(score, 6) if abs(score) < 1e30 else None
