"""What is refused, and errors as they are told: {"detail": "one line"}, to clients of LibreTranslate {"error": "one line"}."""

from __future__ import annotations

import re

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WORDS = 300  # characters of an explanation
SURROGATE = re.compile("[\ud800-\udfff]")
FAILED = "the translation failed; the server's log says why"
LIBRE = ("/translate", "/detect", "/languages", "/frontend/settings")


def refuse_surrogates(text: str, where: str) -> None:
    """JSON can spell them, UTF-8 cannot."""
    if SURROGATE.search(text):
        raise HTTPException(422, f"{where}: half of a surrogate pair is not text")


def refuse_beyond(most: int, count: int, words: str, advice: str = "Send several requests") -> None:
    if count > most:
        raise HTTPException(413, f"{words.format(count)}; at most {most:,}. {advice}")


def come_back(words: str, seconds: float) -> HTTPException:
    return HTTPException(429, f"{words}; try again in {seconds:.0f} s", {"Retry-After": str(max(1, round(seconds)))})


def explain_errors(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, explain_invalid)
    app.add_exception_handler(AnyHTTPException, explain)
    app.add_exception_handler(Exception, explain_failure)


def answer(request: Request, status: int, words: str, headers: dict[str, str] | None = None) -> JSONResponse:
    key = "error" if request.url.path in LIBRE else "detail"
    return JSONResponse({key: words[:WORDS]}, status, headers)


async def explain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AnyHTTPException)
    return answer(request, error.status_code, str(error.detail), dict(error.headers or {}))


async def explain_invalid(request: Request, error: Exception) -> JSONResponse:
    """The problems in one line, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
    if "json" not in request.headers.get("content-type", ""):
        problems = ["send JSON, with the header Content-Type: application/json"]
    return answer(request, 422, "; ".join(problems))


async def explain_failure(request: Request, error: Exception) -> JSONResponse:
    """The server logs the traceback; the client learns that it is not at fault."""
    return answer(request, 500, FAILED)


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
