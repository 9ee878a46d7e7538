"""What is asked and answered, as the OpenAPI document tells it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, field_validator, model_validator

MOST_KEYS = 32
Texts = Annotated[list[str], FailFast()]  # one wrong text is enough: a million would be a million explanations


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def few_keys(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MOST_KEYS:
            raise ValueError(f"{len(given):,} keys; none of these requests has more than {MOST_KEYS}")
        return given


class TranslateRequest(Strict):
    texts: Texts
    source: str | None = Field(default=None, description="language code; needed when several models serve")
    target: str | None = None
    model: str | None = Field(default=None, description="name of a model, instead of languages")
    beam: int | None = Field(default=None, ge=1)
    alternatives: int = Field(default=0, ge=0, description="other translations of every text")
    alignment: bool = False


class Detail(BaseModel):
    text: str
    score: float | None
    alignment: list[tuple[int, int]]


class TranslateResponse(BaseModel):
    translations: list[str]
    details: list[list[Detail]] | None = Field(
        default=None, description="all translations, when more than one or alignment was asked for"
    )
    model: str


class StreamRequest(Strict):
    text: str
    source: str | None = None
    target: str | None = None
    model: str | None = None
    beam: int | None = Field(default=None, ge=1)


class LibreBody(BaseModel):
    """JSON or a form."""

    api_key: str | None = None


class DetectRequest(LibreBody):
    q: str


class LibreRequest(LibreBody):
    q: str | list[str]
    source: str = "auto"
    target: str
    format: str = Field(default="text", description="text or html")
    alternatives: int = Field(default=0, ge=0)

    @field_validator("q", mode="before")
    @classmethod
    def only_texts(cls, given: Any) -> Any:
        if isinstance(given, list) and not all(isinstance(text, str) for text in given):
            raise ValueError("not every text is a string")
        return given


class Problem(BaseModel):
    detail: str


class LibreProblem(BaseModel):
    error: str


WRONG: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": words}
    for code, words in (
        (400, "not JSON"),
        (401, "an API key is needed"),
        (404, "no such model or pair of languages"),
        (413, "too much in one request"),
        (422, "not understood"),
        (429, "too many requests, or too many waiting; see Retry-After"),
        (500, "the translation failed"),
        (503, "shutting down"),
    )
}
LIBRE_WRONG: dict[int | str, dict[str, Any]] = {code: entry | {"model": LibreProblem} for code, entry in WRONG.items()}
