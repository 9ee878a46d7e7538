"""The real server in a process of its own, with a real model of random weights behind it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch

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


def test_a_real_server_answers_as_the_translator_does(folder):
    code = f"from pathlib import Path; from dragoman.serve.server import serve; serve([Path({str(folder)!r})], port=0)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout.readline().startswith(f"{folder}: en to de, "), server.stderr.read()
            line = server.stdout.readline()
            assert line.startswith("serving at http://127.0.0.1:")
            address = line.split(" at ")[1].split()[0]
            assert httpx.get(f"{address}/ready", timeout=20).json() == {"status": "ready"}
            answer = httpx.post(f"{address}/v1/translate", json={"texts": TEXTS, "beam": 2}, timeout=20).json()
            assert answer["translations"] == Translator.load(folder, "cpu").translate(TEXTS, beam=2)
            assert answer["translations"][0]
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=20)


def test_a_busy_port_is_said_in_one_line_before_the_model_is_read():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DragomanError, match=rf"^port {port} at 127\.0\.0\.1 is in use\. Choose another port"):
            serve([Path("no/such/model")], port=port)
    with pytest.raises(RunError, match="no such folder"):
        serve([Path("no/such/model")], port=port)


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


def test_without_the_extra_a_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtra, match=r"serving needs the extra 'serve'.*pip install 'dragoman\[serve\]'"):
        serve([Path("no/such/model")])


def test_two_models_of_one_name_are_refused(folder, tmp_path):
    twin = tmp_path / folder.name
    twin.symlink_to(folder)
    with pytest.raises(DragomanError, match="two models are called"):
        serve([folder, twin], port=0)
