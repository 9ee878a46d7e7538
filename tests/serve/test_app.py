"""The HTTP interface with a translator of ten lines behind it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from dragoman.serve.app import Limits, create_app

LIMITS = Limits(texts=3, characters_per_text=20, beam=8, body_bytes=2000)


class Shouter:
    """Translates into capitals, and notices when two ask at once."""

    def __init__(self):
        self.beams, self.busy, self.overlaps, self.go = [], threading.Lock(), 0, threading.Event()
        self.go.set()

    def translate(self, texts, *, beam=None):
        self.overlaps += not self.busy.acquire(blocking=False)
        self.go.wait(10)
        self.beams.append(beam)
        self.busy.release()
        if "crash" in texts:
            raise RuntimeError("secret of the house")
        return [text.upper() for text in texts]


@pytest.fixture
def shouter():
    return Shouter()


@pytest.fixture
def client(shouter):
    with TestClient(create_app(shouter, name="demo", limits=LIMITS), raise_server_exceptions=False) as client:
        yield client


def test_translates_in_order(client, shouter):
    answer = client.post("/translate", json={"texts": ["b", "Grüße ☃", ""]})
    assert (answer.status_code, answer.json()) == (200, {"translations": ["B", "GRÜSSE ☃", ""]})
    assert client.post("/translate", json={"texts": [], "beam": 8}).json() == {"translations": []}
    assert shouter.beams == [None, 8]


def test_describes_itself(client):
    assert client.get("/health").json() == {"status": "ok", "model": "demo"}
    about = client.get("/").json()
    assert about["model"] == "demo"
    assert about["limits"]["texts"] == 3
    described = client.get("/openapi.json").json()["paths"]
    assert {f"{method.upper()} {path}" for path, methods in described.items() for method in methods} == {
        *(path for path in about["paths"] if path != "GET /openapi.json"),
        "GET /",
    }


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"texts": ["a"] * 4}, 413, "texts: 4 of them; at most 3"),
        ({"texts": ["a", "b" * 21]}, 413, "texts.1: 21 characters; at most 20"),
        ({"texts": ["a" * 2001]}, 413, "request: more than 2,000 bytes"),
        ({"texts": ["a"], "beam": 9}, 422, "beam: 9; at most 8"),
        ({"texts": ["a"], "beam": 0}, 422, "body.beam: Input should be greater than or equal to 1"),
        ({"texts": ["a"], "beam": "4"}, 422, "body.beam: Input should be a valid integer"),
        ({"texts": "a"}, 422, "body.texts: Input should be a valid list"),
        ({"texts": [1] * 100}, 422, "body.texts.0: Input should be a valid string"),
        ({"text": ["a"]}, 422, "body.texts: Field required; body.text: Extra inputs are not permitted"),
        ({"texts": ["a", "\ud83d"]}, 422, "texts.1: half of a surrogate pair is not text"),
        ({"texts": ["a"], "\ud83d": 1}, 422, "body: Input should be a valid string"),
        ({"texts": ["a"], "key" * 300: 1}, 422, "body.keykey"),
        (["a"], 422, "body: Input should be"),
    ],
)
def test_refuses_in_words(client, shouter, asked, status, words):
    answer = client.post("/translate", content=json.dumps(asked), headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert len(answer.json()["detail"]) < 400
    assert not shouter.beams


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_refuses_what_is_not_json(client, content):
    answer = client.post("/translate", content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert isinstance(answer.json()["detail"], str)


def test_a_form_is_told_to_be_json(client):
    """What `curl -d` sends when nobody tells it otherwise."""
    form = client.post(
        "/translate", content=b'{"texts": ["a"]}', headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert (form.status_code, "Content-Type: application/json" in form.json()["detail"]) == (422, True)


def test_a_long_request_is_refused_also_when_it_does_not_say_its_length(client):
    chunks = (b" " * 1000 for _ in range(100))
    answer = client.post("/translate", content=chunks, headers={"content-type": "application/json"})
    assert (answer.status_code, "more than 2,000 bytes" in answer.json()["detail"]) == (413, True)


def test_a_failure_is_answered_and_keeps_its_secrets(client):
    answer = client.post("/translate", json={"texts": ["crash"]})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "server's log" in answer.json()["detail"]
    assert client.post("/translate", json={"texts": ["a"]}).json() == {"translations": ["A"]}


def test_one_translation_at_a_time_and_health_in_between(client, shouter):
    shouter.go.clear()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client.post, "/translate", json={"texts": [str(index)]}) for index in range(4)]
        assert client.get("/health").json()["status"] == "ok"
        shouter.go.set()
        assert [answer.result().json()["translations"] for answer in waiting] == [[str(index)] for index in range(4)]
    assert shouter.overlaps == 0
