"""The real server in a process of its own, with a real model of random weights behind it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from support import dragoman

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import httpx

from dragoman.config.schema import Model, Subwords, Translate
from dragoman.data.subwords import learn
from dragoman.errors import DragomanError, MissingExtra, RunError
from dragoman.model.folder import Description, write_model
from dragoman.model.transformer import Transformer
from dragoman.serve.server import address_of, listen, serve
from dragoman.translate import Translator

SHAPE = Model(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=32)
PATIENCE = 120.0  # seconds: a busy machine is no failure
TEXTS = ["the cat sees a house", "", "a house sees the cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    (folder / "learned").mkdir()
    pairs = [(TEXTS[0], "die Katze sieht ein Haus"), (TEXTS[2], "ein Haus sieht die Katze")]
    vocabulary = learn(
        map(pa.array, pairs), Subwords(vocab_size=30, kind="char"), folder / "learned" / "vocabulary.model"
    )
    model = Transformer(SHAPE, len(vocabulary))
    model.init_weights(seed=1)
    description = Description(SHAPE, len(vocabulary), "en", "de", Translate(extra_length=5))
    write_model(folder, model.state_dict(), description, vocabulary.path)
    return folder


@contextmanager
def running(folder, before=""):
    """The server in a process of its own, and its address; `before` is done in it first."""
    code = f"from pathlib import Path; from dragoman.serve.server import serve; {before}\nserve([Path({str(folder)!r})], port=0)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout.readline().startswith(f"{folder}: en to de, "), server.stderr.read()
            line = server.stdout.readline()
            assert line.startswith("serving at http://127.0.0.1:")
            yield server, line.split(" at ")[1].split()[0]
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def address(folder):
    with running(folder) as (_, address):
        yield address


def test_a_real_server_answers_as_the_translator_does(folder, address):
    assert httpx.get(f"{address}/ready", timeout=PATIENCE).json() == {"status": "ready"}
    answer = httpx.post(f"{address}/v1/translate", json={"texts": TEXTS, "beam": 2}, timeout=PATIENCE).json()
    assert answer["translations"] == Translator.load(folder, "cpu").translate(TEXTS, beam=2)
    assert answer["translations"][0]


def test_a_client_of_libretranslate(folder, address):
    """The published one, as it is."""
    library = pytest.importorskip("libretranslatepy")
    client = library.LibreTranslateAPI(address)
    assert client.translate(TEXTS[0], "en", "de") == Translator.load(folder, "cpu").translate(TEXTS[:1])[0]
    assert client.detect(TEXTS[0]) == [{"confidence": 100.0, "language": "en"}]
    assert [(language["code"], language["name"]) for language in client.languages()] == [
        ("de", "German"),
        ("en", "English"),
    ]
    page = {"q": f"<p>{TEXTS[0]}<br>the <b>cat</b></p>", "source": "en", "target": "de", "format": "html"}
    answer = httpx.post(f"{address}/translate", json=page, timeout=PATIENCE).json()["translatedText"]
    assert re.fullmatch(rf"<p>{re.escape(client.translate(TEXTS[0], 'en', 'de'))}<br>.*<b>.*</b>.*</p>", answer)


STRANGE = {
    "nothing": "",
    "control characters": "a\x00b\x07\x1b[31mc\x85d",
    "mixed scripts": "the кот 家 sees",
    "emoji": "😀👩‍👩‍👧‍👦 ❤️",
    "right to left": "\u202eשלום مرحبا",
    "lines": "a\r\nb\u2028c",
    "nobody's letters": "\ue000\uffff\U0010ffff",
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE.keys())
def test_whatever_is_asked_is_answered(address, text):
    with httpx.Client(base_url=address, timeout=PATIENCE) as client:
        answer = client.post("/v1/translate", json={"texts": [text, TEXTS[0]], "alignment": True, "alternatives": 1})
        assert (answer.status_code, len(answer.json()["translations"])) == (200, 2)
        libre = client.post("/translate", data={"q": text, "source": "en", "target": "de"})
        assert libre.json()["translatedText"] == answer.json()["translations"][0]
        lines = client.post("/v1/stream", json={"text": text}).text.splitlines()
        assert all("translation" in json.loads(line) for line in lines)
        assert len(lines) >= 1


def test_a_megabyte_without_a_space_is_refused_in_words(address):
    endless = "abcdefgh" * 125_000
    with httpx.Client(base_url=address, timeout=PATIENCE) as client:
        for path, body, words in (
            ("/v1/translate", {"texts": [endless]}, "texts.0: 1,000,000 characters; at most 10,000. Split the text"),
            ("/v1/stream", {"text": endless}, "text: 1,000,000 characters; at most 200,000. Send several requests"),
            (
                "/v1/stream",
                {"text": endless[:20_000]},
                "text: a sentence of 20,000 characters; at most 10,000. Split the text",
            ),
            (
                "/translate",
                {"q": endless, "target": "de"},
                "texts.0: 1,000,000 characters; at most 10,000. Split the text",
            ),
            ("/v1/translate", {"texts": [endless * 3]}, "request: more than 2,465,536 bytes. Send several requests"),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, list(answer.json().values())) == (413, [words])
        most = client.post("/v1/translate", json={"texts": [endless[:10_000]]})
        assert (most.status_code, bool(most.json()["translations"][0])) == (200, True), "what is allowed is translated"
        stream = client.post("/v1/stream", json={"text": endless[:10_000]})
        assert json.loads(stream.text)["translation"]


SLOW = """
import time; from dragoman.translate import Translator; search = Translator.search
def slowly(self, texts, *rest, **options):
    if texts == ["slow"]:
        print("translating", flush=True)
        while not Path({file!r}).exists(): time.sleep(0.01)
    return search(self, texts, *rest, **options)
Translator.search = slowly
"""


def test_a_request_in_flight_is_answered_after_the_signal(folder, tmp_path):
    file = tmp_path / "go on"
    with running(folder, SLOW.format(file=str(file))) as (server, address), ThreadPoolExecutor(2) as pool:
        asked = pool.submit(httpx.post, f"{address}/v1/translate", json={"texts": ["slow"]}, timeout=PATIENCE)
        assert server.stdout.readline() == "translating\n"
        server.send_signal(signal.SIGTERM)
        until_closed(address)
        assert not asked.done()
        file.touch()
        assert asked.result().status_code == 200
        assert asked.result().json()["translations"] == Translator.load(folder, "cpu").translate(["slow"])
        assert server.wait(PATIENCE) in (0, -signal.SIGTERM)


def until_closed(address):
    """Nobody new comes in."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if httpx.get(f"{address}/ready", timeout=PATIENCE).status_code == 503:
                return
        except httpx.HTTPError:
            return
        time.sleep(0.02)
    raise AssertionError("the server went on as if nothing had been said")


def test_a_busy_port_is_said_in_one_line_before_the_model_is_read():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DragomanError, match=rf"^port {port} at 127\.0\.0\.1 is in use\. Choose another port"):
            serve([Path("no/such/model")], port=port)
    with pytest.raises(RunError, match="no such folder"):
        serve([Path("no/such/model")], port=0)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_an_address_that_is_not_ours(host):
    with pytest.raises(DragomanError, match=f"^cannot listen at {host}, port 0: "):
        listen(host, 0)


def test_a_warning_when_others_can_reach_the_server(caplog):
    with listen("127.0.0.1", 0) as inside:
        assert address_of(inside) == f"http://127.0.0.1:{inside.getsockname()[1]}"
    assert not caplog.records
    with listen("0.0.0.0", 0) as outside:
        address_of(outside)
    assert "0.0.0.0 is not loopback" in caplog.text


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_addresses_are_written_in_brackets():
    try:
        listener = listen("::1", 0)
    except DragomanError:
        pytest.skip("no IPv6 loopback here")
    with listener:
        assert address_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_the_end_of_an_answer_waits_for_no_acknowledgement():
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_without_the_extra_a_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtra, match=r"serving needs the extra 'serve'.*pip install '\.\[serve\]'"):
        serve([Path("no/such/model")])


def test_two_models_of_one_name_are_refused(folder, tmp_path):
    twin = tmp_path / folder.name
    twin.symlink_to(folder)
    with pytest.raises(DragomanError, match="two models are called"):
        serve([folder, twin], port=0)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("model.toml", lambda content: content.replace(b"format = 2", b"format = 99"), "Install a newer dragoman"),
        ("model.toml", lambda content: content[:40], "damaged"),
        ("model.safetensors", lambda content: content[: len(content) // 2], "damaged"),
    ],
)
def test_a_folder_that_cannot_be_served_is_said_in_one_line(folder, tmp_path, name, change, words):
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    (broken / name).write_bytes(change((broken / name).read_bytes()))
    refused = dragoman("serve", str(folder), str(broken), "--port", "0", check=False)
    assert refused.returncode == 2
    (line,) = refused.stderr.strip().splitlines()
    assert str(broken) in line
    assert words in line
