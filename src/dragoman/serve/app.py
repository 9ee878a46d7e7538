"""The HTTP interface: what may be asked, and what is answered. Needs the extra `serve`; entered through server.py.

    POST /translate {"texts": [...], "beam": 4}  ->  {"translations": [...]}
    GET  /health    GET /

Every error is answered with {"detail": "one line"}: 413 for too much, 422 for what cannot be understood.
The types of requests live at the top of the module: FastAPI resolves annotations there, not inside functions.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WORDS = 300  # characters of an explanation


class Translates(Protocol):
    """What `create_app` needs of a translator."""

    def translate(self, texts: list[str], *, beam: int | None = None) -> list[str]: ...


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    texts: int = 256
    characters_per_text: int = 10_000
    beam: int = 16
    body_bytes: int = 32 * 2**20  # texts x characters in UTF-8 with room to spare


class TranslateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    texts: list[str]
    beam: int | None = Field(default=None, ge=1)


class TranslateResponse(BaseModel):
    translations: list[str]


def create_app(translator: Translates, *, name: str, limits: Limits) -> FastAPI:
    app = FastAPI(title=f"dragoman: {name}", docs_url=None, redoc_url=None)  # their pages load scripts from elsewhere
    app.add_middleware(BodyLimit, limit=limits.body_bytes)
    app.add_exception_handler(RequestValidationError, explain_invalid)
    app.add_exception_handler(Exception, explain_failure)
    lock = threading.Lock()

    # Not async: FastAPI runs it in a worker thread, so /health answers while the model is busy.
    @app.post("/translate")
    def translate(asked: TranslateRequest) -> TranslateResponse:
        check(asked, limits)
        with lock:  # one translation at a time: the model fills the device by itself
            return TranslateResponse(translations=translator.translate(asked.texts, beam=asked.beam))

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "model": name}

    @app.get("/")
    async def about() -> dict[str, Any]:
        paths = {
            "POST /translate": {"texts": ["one sentence each"], "beam": "optional"},
            "GET /health": {},
            "GET /openapi.json": {},
        }
        return {"service": "dragoman", "model": name, "paths": paths, "limits": asdict(limits)}

    return app


def check(asked: TranslateRequest, limits: Limits) -> None:
    count, most = len(asked.texts), limits.characters_per_text
    if count > limits.texts:
        raise HTTPException(413, f"texts: {count:,} of them; at most {limits.texts:,}. Send several requests")
    for index, text in enumerate(asked.texts):
        if len(text) > most:
            raise HTTPException(413, f"texts.{index}: {len(text):,} characters; at most {most:,}. Split the text")
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # JSON can spell them, UTF-8 cannot
            raise HTTPException(422, f"texts.{index}: half of a surrogate pair is not text")
    if asked.beam is not None and asked.beam > limits.beam:
        raise HTTPException(422, f"beam: {asked.beam}; at most {limits.beam}")


async def explain_invalid(request: Request, error: Exception) -> JSONResponse:
    """The problems in one line, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
    if "json" not in request.headers.get("content-type", ""):
        problems = ["send JSON, with the header Content-Type: application/json"]
    return JSONResponse({"detail": "; ".join(problems)[:WORDS]}, 422)


async def explain_failure(request: Request, error: Exception) -> JSONResponse:
    """The server logs the traceback; the client learns that it is not at fault."""
    return JSONResponse({"detail": "the translation failed; the server's log says why"}, 500)


class BodyLimit:
    """Stops reading a request that is too long, whatever its headers promise."""

    def __init__(self, app: ASGIApp, limit: int):
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise HTTPException(413, f"request: more than {self.limit:,} bytes. Send several requests")
            return message

        await self.app(scope, counted, send)
