"""The HTTP interface with a translator of ten lines behind it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from support import wait_until

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from dragoman.errors import ConfigError, DataError
from dragoman.serve.batcher import Busy, weight
from dragoman.serve.detect import Detector
from dragoman.serve.doors import all_done
from dragoman.serve.limits import Keys, Limits, Rate
from dragoman.serve.names import name_of
from dragoman.serve.server import check_origins

JSON = {"content-type": "application/json"}


@pytest.fixture
def client(make, shouter):
    with TestClient(make(make.behind(shouter)), raise_server_exceptions=False) as client:
        yield client


def test_translates_in_order(client, shouter):
    answer = client.post("/v1/translate", json={"texts": ["b", "Grüße ☃", ""]})
    assert (answer.status_code, answer.json()["translations"]) == (200, ["B", "GRÜSSE ☃", ""])
    assert client.post("/v1/translate", json={"texts": []}).json()["translations"] == []
    client.post("/v1/translate", json={"texts": ["a"], "beam": 8})
    assert [request.beam for request in shouter.requests] == [4, 8]


def test_alternatives_and_alignments(client):
    answer = client.post("/v1/translate", json={"texts": ["b"], "alternatives": 2, "alignment": True}).json()
    assert [each["text"] for each in answer["details"][0]] == ["B", "B!", "B!!"]
    assert answer["details"][0][0] == {"text": "B", "score": 0.0, "alignment": [[0, 0]]}
    assert client.post("/v1/translate", json={"texts": ["b"]}).json()["details"] is None


def test_describes_itself(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}
    about = client.get("/v1/models").json()
    assert about["models"] == [{"name": "demo", "source": "en", "target": "de", "spaced": True}]
    assert about["limits"]["texts"] == 3
    page = client.get("/")
    assert "<title>dragoman</title>" in page.text
    assert "http" not in page.text.replace("http-equiv", ""), "no external resources"
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_several_models_by_language_or_name(make, shouter):
    other = make.shouter()
    app = make(make.behind(shouter), make.behind(other, "back", "de", "en"), make.behind(other, "third", "de", "fr"))
    with TestClient(app) as client:
        for asked, model in (
            ({"source": "en", "target": "de"}, "demo"),
            ({"target": "en"}, "back"),
            ({"source": "de", "target": "fr"}, "third"),
            ({"model": "third"}, "third"),
        ):
            assert client.post("/v1/translate", json={"texts": ["a"], **asked}).json()["model"] == model
        for asked in ({"source": "en", "target": "fr"}, {"source": "tlh"}, {"model": "nobody"}):
            answer = client.post("/v1/translate", json={"texts": ["a"], **asked})
            assert answer.status_code == 404
            assert "there are: demo (en to de), back (de to en), third (de to fr)" in answer.json()["detail"]
        for asked, those in (
            ({}, "demo (en to de), back (de to en), third (de to fr)"),
            ({"source": "de"}, "back (de to en), third (de to fr)"),
        ):
            answer = client.post("/v1/translate", json={"texts": ["a"], **asked})
            assert (answer.status_code, f"several models fit: {those}" in answer.json()["detail"]) == (404, True)
        guess = client.post("/translate", json={"q": "a", "source": "auto", "target": "fr"}).json()
        assert guess["detectedLanguage"]["language"] == "de"
        assert client.get("/languages").json()[0] == {"code": "de", "name": "German", "targets": ["en", "fr"]}


def test_languages_are_found_however_they_are_spelled(make):
    pairs = {"one": ("eng", "deu"), "two": ("en-GB", "fr"), "three": ("en-US", "fr"), "four": ("fr", "de-AT")}
    with TestClient(make(*(make.behind(make.shouter(), name, *pair) for name, pair in pairs.items()))) as client:

        def model(source, target):
            return client.post("/v1/translate", json={"texts": ["a"], "source": source, "target": target}).json()

        assert model("en", "de")["model"] == model("EN_us", "ger")["model"] == "one"
        assert model("en-US", "fr")["model"] == "three", "as it is spelled before anything else"
        assert "several models fit: two (en-GB to fr), three (en-US to fr)" in model("en", "fr")["detail"]
        assert "no model for that" in model("de", "en")["detail"]
        libre = client.post("/translate", json={"q": "a", "source": "fr", "target": "de"})
        assert libre.json() == {"translatedText": "A"}


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"texts": ["a"] * 4}, 413, "texts: 4 of them; at most 3"),
        ({"texts": ["a", "b" * 21]}, 413, "texts.1: 21 characters; at most 20"),
        ({"texts": ["b" * 18] * 3}, 413, "texts: 54 characters in all; at most 50"),
        ({"texts": ["a" * 2001]}, 413, "request: more than 2,000 bytes"),
        ({"texts": ["a"], "beam": 9}, 422, "beam: 9; at most 8"),
        ({"texts": ["a"], "alternatives": 4}, 422, "alternatives: 4; at most 3"),
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
    answer = client.post("/v1/translate", content=json.dumps(asked), headers=JSON)
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert len(answer.json()["detail"]) < 400
    assert not shouter.batches


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/stream", "/translate"])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b"[" * 1500])
def test_refuses_what_is_not_json(client, path, content):
    answer = client.post(path, content=content, headers=JSON)
    assert answer.status_code in (400, 422)
    assert isinstance(answer.json()["error" if path == "/translate" else "detail"], str)


@pytest.mark.parametrize("path", ["/v1/translate", "/translate"])
def test_a_million_mistakes_are_explained_once(client, path):
    """Explanations would take more memory than the request."""
    key = "q" if path == "/translate" else "texts"
    many = client.post(path, json={key: [1] * 500, "target": "de"})
    assert many.status_code in (400, 422)
    assert "".join(many.json().values()).count("string") <= 2
    strange = client.post("/v1/translate", json={"texts": ["a"], **{f"k{n}": 0 for n in range(100)}})
    assert (strange.status_code, "101 keys" in strange.json()["detail"]) == (422, True)


def test_a_form_is_told_to_be_json(client):
    """What `curl -d` sends when nobody tells it otherwise."""
    form = client.post(
        "/v1/translate", content=b'{"texts": ["a"]}', headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert (form.status_code, "Content-Type: application/json" in form.json()["detail"]) == (422, True)


def test_a_long_request_is_refused_also_when_it_does_not_say_its_length(client):
    chunks = (b" " * 1000 for _ in range(100))
    answer = client.post("/v1/translate", content=chunks, headers=JSON)
    assert (answer.status_code, "more than 2,000 bytes" in answer.json()["detail"]) == (413, True)


def test_a_failure_is_answered_and_keeps_its_secrets(client):
    answer = client.post("/v1/translate", json={"texts": ["crash"]})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "server's log" in answer.json()["detail"]
    assert client.post("/v1/translate", json={"texts": ["a"]}).json()["translations"] == ["A"]
    told = client.get("/metrics").text
    assert 'dragoman_requests_total{route="/v1/translate",status="500"} 1.0' in told
    assert 'dragoman_requests_total{route="/v1/translate",status="200"} 1.0' in told


def test_a_long_text_comes_sentence_by_sentence(make, shouter):
    limits = replace(make.limits, characters=200)
    with TestClient(make(make.behind(shouter), limits=limits)) as client:
        answer = client.post("/v1/stream", json={"text": "One. Two is more.\n\nThree."})
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [(line["paragraph"], line["translation"]) for line in lines] == [
            (0, "ONE."),
            (0, "TWO IS MORE."),
            (1, ""),
            (2, "THREE."),
        ]
        refused = client.post("/v1/stream", json={"text": "a" * 201})
        assert (refused.status_code, "201 characters; at most 200" in refused.json()["detail"]) == (413, True)


def test_every_sentence_of_a_stream_is_told_the_language_that_its_text_begins_with(make, shouter):
    served = replace(make.behind(shouter), language_of=lambda text: text[:5] if text.startswith(">>") else "")
    with TestClient(make(served)) as client:
        answer = client.post("/v1/stream", json={"text": ">>d<< One. Two is more.\n\nThree.\n>>f<< Four. Five."})
        lines = [json.loads(line) for line in answer.text.splitlines()]
    sources = [">>d<< One.", "Two is more.", "", "Three.", ">>f<< Four.", "Five."]
    assert [line["source"] for line in lines] == sources
    marks = [">>D<< ONE.", ">>D<< TWO IS MORE.", "", ">>D<< THREE.", ">>F<< FOUR.", ">>F<< FIVE."]
    assert [line["translation"] for line in lines] == marks


def test_a_sentence_that_fails_does_not_take_the_rest_of_its_stream_with_it(make, shouter):
    with TestClient(make(make.behind(shouter))) as client:
        answer = client.post("/v1/stream", json={"text": "One.\ncrash\nThree."})
        assert [json.loads(line) for line in answer.text.splitlines()] == [
            {"source": "One.", "translation": "ONE.", "paragraph": 0},
            {"source": "crash", "error": "the translation failed; the server's log says why", "paragraph": 1},
            {"source": "Three.", "translation": "THREE.", "paragraph": 2},
        ]
        assert 'dragoman_failed_texts_total{model="demo"} 1.0' in client.get("/metrics").text


# --- LibreTranslate ----------------------------------------------------------------------------------------


def test_clients_of_libretranslate(client):
    one = {"q": "hello", "source": "en", "target": "de"}
    assert client.post("/translate", json=one).json() == {"translatedText": "HELLO"}
    assert client.post("/translate", data=one).json() == {"translatedText": "HELLO"}
    many = client.post("/translate", json={"q": ["a", "b"], "source": "auto", "target": "de", "alternatives": 1}).json()
    assert (many["translatedText"], many["alternatives"]) == (["A", "B"], [["A!"], ["B!"]])
    assert many["detectedLanguage"] == [{"confidence": 100, "language": "en"}] * 2
    for asked, status, words in (
        ({"q": "a", "source": "en", "target": "tlh"}, 404, "no model for that"),
        ({"q": "a"}, 400, "target: Field required"),
        ({**one, "format": "html", "q": "<![a[b]]>"}, 400, "is no HTML"),
        ({**one, "format": "html", "q": "<i></i>" * 3}, 413, "at most 20"),
        ({**one, "format": "pdf"}, 400, "text and html are translated here"),
        ({**one, "q": "a" * 21}, 413, "at most 20"),
    ):
        answer = client.post("/translate", json=asked)
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


def test_what_else_clients_of_libretranslate_send(client):
    one = {"q": "hellö", "source": "en", "target": "de"}
    parts = {key: (None, value) for key, value in one.items()}
    assert client.post("/translate", files=parts).json() == {"translatedText": "HELLÖ"}
    assert client.post("/translate", json=one | {"format": ""}).json() == {"translatedText": "HELLÖ"}
    page = one | {"format": "html", "q": "you &amp; me"}
    assert client.post("/translate", json=page).json() == {"translatedText": "YOU &amp; ME"}
    assert client.get("/translate").json() == {"error": "Method Not Allowed"}
    for body in (b"", b"--x", b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n\xff\r\n--x--'):
        broken = client.post("/translate", content=body, headers={"content-type": "multipart/form-data; boundary=x"})
        assert (broken.status_code, list(broken.json())) == (400, ["error"])


def field(name, value, more=b""):
    return b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name, more, value)


LANGUAGES, END = field(b"source", b"en") + field(b"target", b"de"), b"--x--\r\n"
MULTIPART, URLENCODED = "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        (MULTIPART, field(b"q", b"a") + LANGUAGES + END, 200),
        (MULTIPART, field(b"=?utf-8?q?a?= " * 9999, b"a") + field(b"q", b"a") + LANGUAGES + END, 400),
        (MULTIPART, field(b"q", b"a", b"; a=b" * 9999) + LANGUAGES + END, 400),
        (MULTIPART, field(b"q", b"a", b"\r\na: b" * 9999) + LANGUAGES + END, 400),
        (MULTIPART, field(b"q", b"a", b'; filename="a"') + LANGUAGES + END, 400),
        (MULTIPART, field(b"q", b"a") + LANGUAGES + field(b"a", b"") * 1000 + END, 400),
        (f"{MULTIPART}; x*", field(b"q", b"a") + LANGUAGES + END, 200),
        ("multipart/form-data", field(b"q", b"a") + LANGUAGES + END, 400),
        (URLENCODED, b"q=a&source=en&target=de", 200),
        (URLENCODED, b"q=a&source=en&target=de" + b"&a" * 1000, 400),
    ],
)
def test_forms_that_would_take_long_to_read_are_refused(make, shouter, kind, body, status):
    """One that is being read keeps all other requests waiting, and nobody has been asked for a key yet."""
    with TestClient(make(make.behind(shouter), limits=replace(make.limits, body_bytes=10**6))) as client:
        answer = client.post("/translate", content=body, headers={"content-type": kind})
    assert (answer.status_code, list(answer.json())) == (status, ["translatedText" if status == 200 else "error"])


def test_html_goes_in_and_comes_out(make, shouter):
    """What Mastodon sends: always HTML, several at once."""
    limits = replace(make.limits, characters_per_text=300, characters=500, sentences=8)
    app = make(make.behind(shouter), make.behind(make.shouter(), "third", "en", "ja"), limits=limits)
    with TestClient(app) as client:

        def ask(*texts, **options):
            asked = {"q": list(texts), "source": "en", "target": "de", "format": "html", **options}
            return client.post("/translate", json=asked).json()

        mention = '<span translate="no">@<b>me</b></span>'
        post = f"<p>{mention} one &amp; <b>two</b><br>three</p><style>p > a {{}}</style>"
        found = ask(post, "<b>tick & tock", "")
        assert found["translatedText"] == [
            f"<p>{mention} ONE &amp; <b>TWO</b><br>THREE</p><style>p > a {{}}</style>",
            "<b>TICK &amp; TOCK",
            "",
        ]
        assert [text for batch in shouter.batches for text in batch] == ["one & two", "three", "tick & tock"]
        assert ask("<i>a</i> b", alternatives=1)["alternatives"] == [["<i>A</i> B!"]]
        assert ask("one <b>two</b> &lt;", target="ja")["translatedText"] == ["ONE <b>TWO</b> &lt;"]
        refused = ask("<p>a" * 9)
        assert refused["error"] == "q: 9 texts between tags; at most 8. Send several requests"


def test_a_text_in_its_own_language_stays_as_it_is(client, shouter):
    asked = {"q": ["a <b>", ""], "source": "en", "target": "en", "format": "html", "alternatives": 1}
    assert client.post("/translate", json=asked).json() == {"translatedText": asked["q"], "alternatives": [[], []]}
    unknown = client.post("/translate", json=asked | {"source": "fr", "target": "fr"})
    assert (unknown.status_code, shouter.batches) == (404, [])


def test_what_the_page_of_libretranslate_asks_first(client):
    settings = client.get("/frontend/settings").json()
    assert settings["language"] == {
        "source": {"code": "en", "name": "English"},
        "target": {"code": "de", "name": "German"},
    }
    assert (settings["charLimit"], settings["keyRequired"], settings["filesTranslation"]) == (20, False, False)


@pytest.mark.parametrize(
    ("code", "name"), [("de", "German"), ("deu", "German"), ("pt_BR", "Portuguese (BR)"), ("tlh", "tlh"), ("", "")]
)
def test_languages_have_names(code, name):
    assert name_of(code) == name


def test_pages_of_other_origins_may_ask_only_where_they_were_named(make, shouter):
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for cors, allowed in (((), None), (("https://a.example",), "https://a.example"), (("https://b.example",), None)):
        with TestClient(make(make.behind(shouter), cors=cors)) as client:
            for answer in (
                client.options("/v1/translate", headers=preflight),
                client.post("/v1/translate", json={"texts": ["a"]}, headers={"origin": "https://a.example"}),
                client.post("/v1/translate", json={"texts": 1}, headers={"origin": "https://a.example"}),
            ):
                assert answer.headers.get("access-control-allow-origin") == allowed
    check_origins(["*", "https://a.example:8080"])
    for origin in ("a.example", "https://a.example/"):
        with pytest.raises(ConfigError, match="is no origin; write https://"):
            check_origins([origin])


def test_limits_follow_from_each_other():
    assert (Limits().sentences, Limits().alternatives) == (10_000, 8)
    large = Limits(characters=5_000_000, beam=4)
    assert (large.sentences, large.alternatives, large.body_bytes > 12 * 5_000_000) == (250_000, 2, True)
    assert Limits(body_bytes=7).body_bytes == 7


def test_the_source_language_is_guessed_only_where_several_could_be_meant(make, shouter):
    pytest.importorskip("py3langid")
    asked = {"q": ["Das ist ein sehr kleines Haus am Rande der Stadt"], "source": "auto", "target": "fr"}
    with TestClient(make(make.behind(shouter, "one", "en", "fr"))) as client:
        assert client.post("/detect", json={"q": "ganz gleich"}).json() == [{"confidence": 100.0, "language": "en"}]
        assert client.post("/translate", json=asked | {"q": "egal"}).json()["detectedLanguage"]["language"] == "en"
    limits = replace(make.limits, characters_per_text=100, characters=100)
    both = make.behind(make.shouter(), "one", "en", "fr"), make.behind(make.shouter(), "two", "de", "fr")
    with TestClient(make(*both, limits=limits)) as client:
        found = client.post("/detect", data={"q": asked["q"][0]}).json()
        assert [each["language"] for each in found] == ["de", "en"]
        assert found[0]["confidence"] > 90
        assert client.post("/translate", json=asked).json()["detectedLanguage"][0]["language"] == "de"
        assert client.post("/detect", json={"q": "a" * 101}).status_code == 413
        assert client.post("/detect", json={}).json()["error"].startswith("q: Field required")


@pytest.mark.parametrize("sources", [("en", "deu"), ("eng", "deu"), ("en_GB", "de-AT"), ("tlh", "de")])
def test_languages_are_told_apart_however_they_are_spelled(sources):
    pytest.importorskip("py3langid")
    detect = Detector(list(sources))
    first, second = detect("Das ist ein sehr kleines Haus am Rande der Stadt")
    assert (first[0], second[0]) == sources[::-1]
    assert first[1] > 90
    in_all = sum(share for _, share in detect("Une très petite maison au bord de la rivière, dit le facteur"))
    assert in_all == pytest.approx(0 if sources[0] == "tlh" else 100, abs=5), "one that it does not know may be meant"


def test_how_sure_a_guess_is(make, monkeypatch):
    both = make.behind(make.shouter(), "one", "eng", "fra"), make.behind(make.shouter(), "two", "deu", "fra")
    with TestClient(make(*both)) as client:
        monkeypatch.setattr(client.app.state.doors, "detector", lambda text: [("deu", 61.5), ("eng", 38.5)])
        answer = client.post("/translate", json={"q": "a", "source": "auto", "target": "fra"}).json()
    assert answer["detectedLanguage"] == {"confidence": 61.5, "language": "deu"}


def test_without_an_identifier_the_language_has_to_be_named(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    app = make(make.behind(make.shouter(), "one", "en", "fr"), make.behind(make.shouter(), "two", "de", "fr"))
    with TestClient(app) as client:
        for path in ("/detect", "/translate"):
            refused = client.post(path, json={"q": "a", "source": "auto", "target": "fr"})
            assert (refused.status_code, "name the source language" in refused.json()["error"]) == (400, True)
        named = client.post("/translate", json={"q": "a", "source": "de", "target": "fr"})
        assert named.json() == {"translatedText": "A"}


def test_a_page_about_the_interface_without_anything_from_elsewhere(client):
    page = client.get("/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http" not in page.text, "no external resources"
    for path in client.get("/openapi.json").json()["paths"]:
        assert f" {path}</h2>" in page.text
    assert "<code>alternatives</code></td><td>integer</td><td>other translations of every text" in page.text
    assert "<code>q</code></td><td>string or array of string, needed" in page.text


# --- who may ask, and how often ----------------------------------------------------------------------------


def test_keys(make, shouter, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nopen-sesame\n\n")
    with TestClient(make(make.behind(shouter), keys=Keys(file))) as client:
        asked = {"texts": ["a"]}
        for headers in ({}, {"authorization": "Bearer open"}, {"x-api-key": "ösame".encode("latin-1")}):
            answer = client.post("/v1/translate", json=asked, headers=headers)
            assert (answer.status_code, "API key" in answer.json()["detail"]) == (401, True)
        nonsense = client.post("/v1/translate", json={"texts": [1] * 9}, headers={"x-api-key": "wrong"})
        assert nonsense.status_code == 401, "nothing of a stranger is looked at any closer"
        for headers in ({"authorization": "Bearer open-sesame"}, {"x-api-key": "open-sesame"}):
            assert client.post("/v1/translate", json=asked, headers=headers).status_code == 200
        libre = {"q": "a", "source": "en", "target": "de"}
        assert client.post("/translate", json=libre | {"api_key": "open-sesame"}).status_code == 200
        assert client.post("/translate", json=libre | {"api_key": "x"}).status_code == 401
        assert client.get("/health").status_code == 200
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match="holds no API key"):
        Keys(file)
    with pytest.raises(DataError, match="cannot be read"):
        Keys(tmp_path / "missing")


def test_the_rate_of_a_caller():
    now = [0.0]
    rate = Rate(6, lambda: now[0])
    assert [rate.wait("a") for _ in range(6)] == [0.0] * 6
    assert rate.wait("a") == pytest.approx(10.0)
    assert rate.wait("b") == 0.0
    now[0] = 10.5
    assert rate.wait("a") == 0.0
    assert rate.wait("a") > 0
    assert Rate(0).wait("a") == 0.0


def test_too_many_requests_are_told_when_to_come_back(make, shouter):
    with TestClient(make(make.behind(shouter), limits=replace(make.limits, requests_per_minute=2))) as client:
        codes = [client.post("/v1/translate", json={"texts": ["a"]}) for _ in range(3)]
    assert [answer.status_code for answer in codes] == [200, 200, 429]
    assert "more than 2 requests a minute" in codes[2].json()["detail"]
    assert int(codes[2].headers["retry-after"]) >= 1


# --- batches -----------------------------------------------------------------------------------------------


def test_what_waits_is_translated_together_and_nobody_starves(client, shouter):
    shouter.go.clear()
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(client.post, "/v1/translate", json={"texts": ["first"]})
        wait_until(lambda: shouter.busy.locked())
        waiting = [pool.submit(client.post, "/v1/translate", json={"texts": [f"{n}a", f"{n}b"]}) for n in range(7)]
        other = pool.submit(client.post, "/v1/translate", json={"texts": ["wide"], "beam": 7})
        batcher = client.app.state.doors.served[0].batcher
        wait_until(lambda: batcher.waiting_characters == 14 * weight("0a") + weight("wide"))
        assert client.get("/health").json()["status"] == "ok"
        assert "dragoman_waiting_characters" in client.get("/metrics").text
        shouter.go.set()
        assert first.result().json()["translations"] == ["FIRST"]
        answers = [answer.result().json()["translations"] for answer in waiting]
        assert answers == [[f"{n}A", f"{n}B"] for n in range(7)]
        assert other.result().json()["translations"] == ["WIDE"]
    assert sorted(map(len, shouter.batches)) == [1, 1, 14]
    assert shouter.overlaps == 0


def test_when_too_much_waits_requests_are_refused_at_once(make, shouter):
    served = make.behind(shouter, most_wait_seconds=0.001)
    shouter.go.clear()
    with TestClient(make(served)) as client, ThreadPoolExecutor(3) as pool:
        running = pool.submit(client.post, "/v1/translate", json={"texts": ["a" * 20]})
        wait_until(
            lambda: shouter.busy.locked() and served.batcher.wait_for(0) == 0
        )  # longer than it was expected to take
        waiting = pool.submit(client.post, "/v1/translate", json={"texts": ["b" * 15] * 3})
        wait_until(lambda: served.batcher.waiting_characters > 100)
        refused = client.post("/v1/translate", json={"texts": ["c"]})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "too many requests are waiting" in refused.json()["detail"]
        shouter.go.set()
        assert (running.result().status_code, waiting.result().status_code) == (200, 200)
        assert client.post("/v1/translate", json={"texts": ["c"]}).status_code == 200


def test_a_long_request_does_not_hold_up_a_short_one(make, shouter):
    """Round by round, a text of each: the short one is done before the long one is."""
    served = make.behind(shouter, batch_characters=50)
    shouter.go.clear()
    served.batcher.submit(["x"], wish := request_wish(served))
    _, long = served.batcher.submit([f"long {n}" for n in range(20)], wish)
    _, short = served.batcher.submit(["short"], wish)
    shouter.go.set()
    assert short[0].result(10)[0].text == "SHORT"
    assert long[-1].result(10)[0].text == "LONG 19"
    place = next(number for number, batch in enumerate(shouter.batches) if "short" in batch)
    assert place < len(shouter.batches) - 5
    served.batcher.close(5)


def test_a_batch_is_filled_in_turns_and_no_further(make, shouter):
    """Seven requests, two texts a batch: who was in the last one is behind those who were not."""
    served = make.behind(shouter, batch_characters=60)
    shouter.go.clear()
    served.batcher.submit(["first"], wish := request_wish(served))
    wait_until(lambda: shouter.busy.locked())
    futures = [served.batcher.submit([f"{n} a" * 4, f"{n} b" * 4], wish)[1] for n in range(7)]
    shouter.go.set()
    assert all(future.result(10) for both in futures for future in both)
    assert [len(batch) for batch in shouter.batches] == [1] + [2] * 7
    assert [text[2] for batch in shouter.batches[1:] for text in batch] == ["a"] * 7 + ["b"] * 7
    served.batcher.close(5)


def test_who_has_begun_counts_in_full(make, shouter):
    """Under load a new request takes the turns of every one that ends: half-done ones are no shorter wait."""
    served = make.behind(shouter, batch_characters=60, most_wait_seconds=2.0)
    batcher = served.batcher
    shouter.go.clear()
    batcher.submit(["x"], wish := request_wish(served))
    wait_until(lambda: shouter.busy.locked())
    batcher.speed = 1000.0
    begun, _ = batcher.submit(["a" * 480] * 2, wish)
    begun.texts.popleft()  # a turn later
    assert batcher.wait_for(1000) == pytest.approx(1.0, abs=0.05)
    assert batcher.wait_for(200) == pytest.approx(0.2, abs=0.05)
    shouter.go.set()
    batcher.close(5)


def test_the_loop_is_woken_once_for_all_texts_of_a_request(monkeypatch):
    futures = [Future() for _ in range(50)]

    async def wait():
        loop, woken = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *each: (woken.append(each), wake(*each)))
        done = all_done(futures)
        thread = threading.Thread(target=lambda: [future.set_result([]) for future in futures])
        thread.start()
        await asyncio.wait_for(done, 10)
        thread.join()
        await asyncio.wait_for(all_done([]), 10)
        return len(woken)

    assert asyncio.run(wait()) == 1


def test_the_batch_in_hand_is_waited_for_too(make, shouter):
    served = make.behind(shouter, most_wait_seconds=2.0)
    shouter.go.clear()
    served.batcher.submit(["x" * 80_000], wish := request_wish(served))
    wait_until(lambda: shouter.busy.locked())
    with pytest.raises(Busy) as busy:
        served.batcher.submit(["short"], wish)
    assert 5 < busy.value.seconds < 16
    shouter.go.set()
    wait_until(lambda: not served.batcher.in_hand)
    _, taken = served.batcher.submit(["an idle server takes any" * 10_000], wish)
    assert taken[0].result(10)
    served.batcher.close(5)


def test_one_text_that_fails_fails_alone(make, shouter):
    served = make.behind(shouter)
    shouter.go.clear()
    served.batcher.submit(["first"], wish := request_wish(served))
    wait_until(lambda: shouter.busy.locked())
    (_, good), (_, bad) = (served.batcher.submit([text], wish) for text in ("good", "crash"))
    shouter.go.set()
    assert good[0].result(10)[0].text == "GOOD"
    with pytest.raises(RuntimeError):
        bad[0].result(10)
    served.batcher.close(5)


def test_what_is_learnt_about_the_speed(make, shouter):
    batcher = make.behind(shouter, batch_characters=4000, most_wait_seconds=1.0).batcher
    batcher.learn(40, 0.1)
    assert batcher.speed == 5000, "a small batch is slow whatever the machine"
    batcher.learn(4000, 8.0)
    assert batcher.speed < 1500, "eight seconds were slow"
    batcher.learn(4000, 0.5)
    assert batcher.speed > 2000
    for _ in range(20):
        batcher.learn(60, 0.6)
    assert batcher.speed < 200, "a machine that takes so long for a few words is slow, though no large batch ever came"
    batcher.close(5)


def test_a_short_request_is_not_refused_for_a_long_one(make, shouter):
    """It waits for its own share of the turns, not for all that waits."""
    served = make.behind(shouter, most_wait_seconds=1.0)
    shouter.go.clear()
    wish = request_wish(served)
    served.batcher.submit(["first"], wish)
    wait_until(lambda: shouter.busy.locked())
    served.batcher.submit([f"{n:04d}" * 10 for n in range(500)], wish)
    assert served.batcher.waiting_characters / served.batcher.speed > 5
    _, short = served.batcher.submit(["short"], wish)
    with pytest.raises(Busy):
        served.batcher.submit(["l" * 6000], wish)
    shouter.go.set()
    assert short[0].result(10)[0].text == "SHORT"
    served.batcher.close(5)


def test_blanks_are_answered_at_once_and_make_nobody_look_fast(make, shouter):
    served = make.behind(shouter)
    shouter.go.clear()
    before = served.batcher.speed
    for _ in range(3):
        _, found = served.batcher.submit([""] * 200 + [" \n"] * 56, request_wish(served))
        assert [future.result(0)[0].text for future in found] == [""] * 256
    assert (served.batcher.speed, served.batcher.waiting_characters, shouter.batches) == (before, 0, [])


def test_a_stream_has_a_limit_of_sentences(make, shouter):
    with TestClient(make(make.behind(shouter), limits=replace(make.limits, sentences=4))) as client:
        assert client.post("/v1/stream", json={"text": "a.\nb.\n\nc."}).status_code == 200
        refused = client.post("/v1/stream", json={"text": "\n" * 9})
        endless = client.post("/v1/stream", json={"text": "Fine. " + "a" * 21})
    assert (refused.status_code, "10 sentences; at most 4" in refused.json()["detail"]) == (413, True)
    assert (endless.status_code, endless.json()["detail"]) == (
        413,
        "text: a sentence of 21 characters; at most 20. Split the text",
    )


def test_from_the_signal_on_nobody_is_sent_here(make, shouter):
    app = make(make.behind(shouter))
    with TestClient(app) as client:
        assert client.get("/ready").status_code == 200
        app.state.doors.stopping = lambda: True
        assert client.get("/ready").status_code == 503
        assert client.post("/v1/translate", json={"texts": ["a"]}).status_code == 200, "who is here already is served"


def request_wish(served):
    from dragoman.serve.batcher import Wish

    return Wish(served.request_for())


def test_what_a_client_left_behind_is_not_translated(make, shouter):
    served = make.behind(shouter)
    shouter.go.clear()
    served.batcher.submit(["first"], wish := request_wish(served))
    wait_until(lambda: shouter.busy.locked())
    left, _ = served.batcher.submit(["nobody waits for this"], wish)
    _, stays = served.batcher.submit(["but for this"], wish)
    left.cancel()
    shouter.go.set()
    assert stays[0].result(10)[0].text == "BUT FOR THIS"
    assert shouter.batches == [["first"], ["but for this"]]
    served.batcher.close(5)


def test_closing_finishes_what_waits_and_takes_nothing_new(make, shouter):
    app = make(make.behind(shouter))
    with TestClient(app) as client:
        assert client.post("/v1/translate", json={"texts": ["a"]}).status_code == 200
    after = TestClient(app)
    assert after.get("/ready").status_code == 503
    assert after.post("/v1/translate", json={"texts": ["a"]}).status_code == 503
