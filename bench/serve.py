"""The server under load: requests/s and latency at 1, 8 and 64 clients, memory, twice its capacity, kill -9 and restart.

    python bench/serve.py models/first-int8 --seconds 60          # needs wrk (apt install wrk)

Starts `dragoman serve` as a process of its own; wrk asks it for one sentence at a time, from sentences of its own or --source. Clients
wait for their answer before they ask again, as people and programs do. For twice the capacity every request has 32 sentences, so that
translating and not the reading of requests is what there is too much of; clients are many, and each comes back a second after its
answer, whether that was a translation or a refusal; more come until that many requests are made.
Latencies are those of translations; among refusals they are the slowest of all answers, which is at least what they took. Every
answer that is neither 200 nor 429 is an error. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import border
import psutil
from rich.console import Console
from rich.table import Table

from dragoman.errors import RunError

PAUSE_MS = 1000
MOST_CLIENTS = 4000
TOGETHER = 32
SENTENCES = ["The cat sleeps.", "My brother sees a small house.", "Which suitcase may Clara give my polite son?"]
SCRIPT = """
local bodies = {%(bodies)s}
local threads = {}
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
good, refused, other, at = 0, 0, 0, 0

function setup(thread) table.insert(threads, thread) end

function request()
  at = at %% #bodies + 1
  return wrk.format(nil, "/v1/translate", nil, bodies[at])
end

function delay() return %(pause)d end

function response(status)
  if status == 200 then good = good + 1 elseif status == 429 then refused = refused + 1 else other = other + 1 end
end

function done(summary, latency, requests)
  local function all(name)
    local sum = 0
    for _, thread in ipairs(threads) do sum = sum + thread:get(name) end
    return sum
  end
  local good, refused, other = all("good"), all("refused"), all("other")
  local lost = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  local share = good / math.max(1, good + refused + other)
  local function slowest(percent) return latency:percentile(100 - (100 - percent) * share) / 1000 end
  io.write(string.format(
    '\\n{"seconds": %%.3f, "good": %%d, "refused": %%d, "errors": %%d, "p50_ms": %%.1f, "p95_ms": %%.1f, "p99_ms": %%.1f}\\n',
    summary.duration / 1e6, good, refused, other + lost, slowest(50), slowest(95), slowest(99)))
end
"""


class Server:
    """`dragoman serve` in a process of its own, at one port."""

    def __init__(self, model: str, port: int):
        self.model, self.port = model, port
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "dragoman", "serve", self.model, "--port", str(self.port), "--device", "cpu"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        for line in self.process.stdout:
            if found := re.search(r"http://\S+", line):
                self.address = found[0]
                self.port = int(self.address.rsplit(":", 1)[1])
                return
        raise RunError(f"{self.model}: the server did not start")

    def memory(self) -> float:
        return psutil.Process(self.process.pid).memory_info().rss / 2**20

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(60)


class Load:
    """wrk, with so many clients for so long."""

    def __init__(
        self, server: Server, texts: list[str], clients: int, seconds: float, *, pause_ms: int = 0, together: int = 1
    ):
        asked = [[texts[(first + more) % len(texts)] for more in range(together)] for first in range(len(texts))]
        self.script = Path(tempfile.mkstemp(suffix=".lua")[1])
        bodies = ", ".join(f"[==[{json.dumps({'texts': each})}]==]" for each in asked)
        self.script.write_text(SCRIPT % {"bodies": bodies, "pause": pause_ms}, encoding="utf-8")
        words = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:.0f}s", "--timeout", "60s", "-s", str(self.script)]
        self.process = subprocess.Popen([*words, server.address], stdout=subprocess.PIPE, text=True)

    def result(self) -> dict[str, Any]:
        said = self.process.communicate()[0]
        self.script.unlink()
        if self.process.returncode:
            raise RunError(f"wrk ended with code {self.process.returncode}: {said}")
        return json.loads(said.splitlines()[-1])


def loaded(server: Server, texts: list[str], clients: int, seconds: float, **how: int) -> dict[str, Any]:
    found = Load(server, texts, clients, seconds, **how).result()
    good, took = found.pop("good"), found.pop("seconds")
    rate = {"requests_per_s": round(good / took, 1), "offered_per_s": round((good + found["refused"]) / took, 1)}
    return rate | found | {"memory_mib": round(server.memory(), 1)}


def overloaded(server: Server, texts: list[str], seconds: float) -> dict[str, dict[str, Any]]:
    """Its capacity for long requests; and twice that or more: clients are doubled until they ask for that much."""
    capacity = loaded(server, texts, 2, seconds, together=TOGETHER)
    clients = max(8, round(4 * capacity["requests_per_s"]))  # who also wait for their answers
    while True:
        row = loaded(server, texts, clients, seconds, pause_ms=PAUSE_MS, together=TOGETHER)
        if row["offered_per_s"] >= 2 * capacity["requests_per_s"]:
            return {f"2 clients, {TOGETHER} sentences": capacity, f"{clients} clients, {TOGETHER} sentences": row}
        if 2 * clients > MOST_CLIENTS:
            raise RunError(f"{clients} clients did not overload the server")
        clients *= 2


def killed(server: Server, texts: list[str], seconds: float) -> dict[str, Any]:
    """kill -9 in the middle of the load, and up again at the same port: how long until it answers."""
    load = Load(server, texts, 8, seconds)
    time.sleep(seconds / 4)
    server.end(signal.SIGKILL)
    start = time.perf_counter()
    server.start()
    ask(server, texts[0])
    again = time.perf_counter() - start
    load.result()
    ask(server, texts[0])
    return {"seconds_until_it_answers": round(again, 2)}


def ask(server: Server, text: str) -> None:
    body = json.dumps({"texts": [text]}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server.address + "/v1/translate", body, headers), timeout=60):
        pass


def main() -> None:
    options = parse()
    texts = Path(options.source).read_text(encoding="utf-8").splitlines() if options.source else SENTENCES
    if shutil.which("wrk") is None:
        raise RunError("wrk is not installed; apt install wrk")
    server = Server(options.model, 0)
    rows: dict[str, dict[str, Any]] = {}
    try:
        loaded(server, texts, 4, 2)
        before = server.memory()
        for clients in options.clients:
            rows[f"{clients} clients"] = loaded(server, texts, clients, options.seconds)
        growth = server.memory() - before
        rows |= overloaded(server, texts, options.seconds / 2)
        facts = {"memory_growth_mib": round(growth, 1), "kill": killed(server, texts, max(12.0, options.seconds / 4))}
    finally:
        server.end()
    columns = list(next(iter(rows.values())))
    table = Table("load", *(column.replace("_", " ") for column in columns))
    for name, row in rows.items():
        table.add_row(name, *(str(row[column]) for column in columns))
    Console(highlight=False, width=120).print(table)
    print(json.dumps({"bench": "serve", "seconds": options.seconds, **facts, "loads": rows}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run, model folder or CTranslate2 model")
    parser.add_argument("--source", help="sentences to ask for, one a line")
    parser.add_argument("--seconds", type=float, default=60.0, help="of every load")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    return parser.parse_args()


if __name__ == "__main__":
    border.run(main)
