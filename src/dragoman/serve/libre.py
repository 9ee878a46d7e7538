"""The routes of LibreTranslate, for its clients: POST /translate, POST /detect, GET /languages, GET /frontend/settings.

Each reads its request itself, as that may be JSON or a form."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import FastAPI, HTTPException, Request
from pydantic import ValidationError

from dragoman.data.languages import code_of, is_spaced
from dragoman.errors import MissingExtra
from dragoman.serve.doors import Doors, Served
from dragoman.serve.markup import Document, Passage, written
from dragoman.serve.messages import LIBRE_WRONG, DetectRequest, LibreBody, LibreRequest
from dragoman.serve.names import name_of
from dragoman.serve.refusals import refuse_beyond

Body = TypeVar("Body", bound=LibreBody)

MOST_FIELDS = 1_000  # of a form; several texts are as many


def add_libre(app: FastAPI, doors: Doors) -> None:
    @app.post("/translate", responses=LIBRE_WRONG, openapi_extra=body_of(LibreRequest))
    async def libretranslate(request: Request) -> dict[str, Any]:
        """The request of LibreTranslate, for its clients: JSON or a form, of text or HTML."""
        asked = await read_libre(request, LibreRequest)
        doors.enter(request, asked.api_key)
        if asked.format not in ("", "text", "html"):
            raise HTTPException(400, f"format: {asked.format!r}; text and html are translated here")
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        doors.check(texts, alternatives=asked.alternatives)
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
        doors.check([asked.q])
        return [{"confidence": share, "language": code} for code, share in await languages_of(doors, asked.q)]

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
    if is_the_same(doors, asked.source, asked.target):
        return [[text] for text in texts], {}
    documents = await asyncio.to_thread(read_html, texts) if asked.format == "html" else []
    source, share = asked.source, 100.0
    possible = {each.source for each in doors.fitting(None, None, asked.target)}
    if source in ("auto", "") and len(possible) > 1:
        plain = " ".join([document.plain() for document in documents] or texts)
        source, share = next(each for each in await languages_of(doors, plain) if each[0] in possible)
    served = doors.find(None, source, asked.target)
    guess = {"confidence": share, "language": served.source}
    if documents:
        return await translate_html(doors, request, served, documents, asked.alternatives), guess
    found = await doors.translate(request, served, texts, None, asked.alternatives, alignment=False)
    return [[each.text for each in text] for text in found], guess


def is_the_same(doors: Doors, source: str, target: str) -> bool:
    """Whether nothing is to be done, as a language that is known here was asked for in itself."""
    known = {code_of(code) for each in doors.served for code in (each.source, each.target)}
    return source == target and code_of(source) in known and not doors.fitting(None, source, target)


async def languages_of(doors: Doors, text: str) -> list[tuple[str, float]]:
    """In a thread: loading the identifier takes a second, the first time."""
    try:
        return await asyncio.to_thread(doors.detector, text)
    except MissingExtra as error:
        raise HTTPException(400, f"{error}. Or name the source language") from None


async def translate_html(
    doors: Doors, request: Request, served: Served, documents: list[Document], alternatives: int
) -> list[list[str]]:
    """Every document and its alternatives."""
    whole = is_spaced(served.source) and is_spaced(served.target)
    cut = [document.pieces(whole=whole) for document in documents]
    passages = [piece for pieces in cut for piece in pieces if isinstance(piece, Passage)]
    refuse_beyond(doors.limits.sentences, len(passages), "q: {:,} texts between tags")
    texts, has_tags = [passage.text.strip() for passage in passages], any(passage.elements for passage in passages)
    found = iter(await doors.translate(request, served, texts, None, alternatives, alignment=has_tags))
    return [written(pieces, found) for pieces in cut]


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
    """Before any key is known, which may be a field of it: so in a time that nobody can stretch."""
    type_ = request.headers.get("content-type", "")
    try:
        text = (await request.body()).decode()
        if "form" not in type_:
            return kind.model_validate(json.loads(text))
        form = await parts_of(request) if "multipart" in type_ else fields_of(text)
        return kind.model_validate({key: values if len(values) > 1 else values[0] for key, values in form.items()})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise HTTPException(400, problems) from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "neither JSON nor a form in UTF-8") from None


async def parts_of(request: Request) -> dict[str, list[Any]]:
    size = len(await request.body())
    async with request.form(max_files=0, max_fields=MOST_FIELDS, max_part_size=size) as form:
        return {key: form.getlist(key) for key in form}


def fields_of(text: str) -> dict[str, list[str]]:
    return parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
