"""The server under load: requests/s and latency at 1, 8 and 64 clients, memory, twice its capacity, kill -9 and restart.

    python bench/serve.py models/first-int8 --seconds 60

Starts `dragoman serve` as a process of its own and asks it for one sentence at a time, from its own test sentences or --source.
Clients wait for their answer before they ask again, as people and programs do; for twice the capacity requests come by the clock,
whatever the answers are, and where nothing is refused it was no overload (`overload` is false): a server may be too fast for these
clients, and a load shorter than the wait that it allows (1 s) refuses nobody. Every answer that is neither 200 nor 429 is an error.
Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from dragoman.errors import DragomanError, RunError

MOST_DOUBLINGS = 6
SENTENCES = ["The cat sleeps.", "My brother sees a small house.", "Which suitcase may Clara give my polite son?"]


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


async def ask(client: httpx.AsyncClient, text: str) -> tuple[int, float]:
    """Status (0: no answer) and milliseconds."""
    start = time.perf_counter()
    try:
        status = (await client.post("/v1/translate", json={"texts": [text]})).status_code
    except httpx.HTTPError:
        status = 0
    return status, 1000 * (time.perf_counter() - start)


async def closed(address: str, texts: list[str], clients: int, seconds: float) -> list[tuple[int, float]]:
    """So many clients, each with one question at a time."""
    found: list[tuple[int, float]] = []
    end = time.perf_counter() + seconds

    async def one(number: int, client: httpx.AsyncClient) -> None:
        while time.perf_counter() < end:
            found.append(await ask(client, texts[(number + len(found)) % len(texts)]))
            if found[-1][0] == 0:
                await asyncio.sleep(0.1)

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        await asyncio.gather(*(one(number, client) for number in range(clients)))
    return found


async def open_loop(address: str, texts: list[str], per_second: float, seconds: float) -> list[tuple[int, float]]:
    """So many requests a second, by the clock."""
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        tasks, start = [], time.perf_counter()
        for number in range(int(per_second * seconds)):
            await asyncio.sleep(max(0.0, start + number / per_second - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(client, texts[number % len(texts)])))
        return await asyncio.gather(*tasks)


def summary(found: list[tuple[int, float]], seconds: float) -> dict[str, Any]:
    codes = Counter(status for status, _ in found)
    good = sorted(took for status, took in found if status == 200)
    points = statistics.quantiles(good, n=100) if len(good) > 1 else [good[0] if good else 0.0] * 99
    return {
        "requests_per_s": round(len(good) / seconds, 1),
        "p50_ms": round(points[49], 1), "p95_ms": round(points[94], 1), "p99_ms": round(points[98], 1),
        "refused": codes[429], "errors": len(found) - codes[200] - codes[429],
    }  # fmt: skip


def overloaded(server: Server, texts: list[str], capacity: float, seconds: float) -> dict[str, Any]:
    """Twice the capacity. Clients that wait for answers may not find it: what is answered in full at twice the rate was no overload,
    so the rate is doubled until something is refused. `overload` says whether that was reached: these clients have limits, too."""
    for _ in range(MOST_DOUBLINGS):
        offered = 2 * capacity
        start = time.perf_counter()
        found = asyncio.run(open_loop(server.address, texts, offered, seconds))
        took = time.perf_counter() - start
        row = summary(found, took) | {"memory_mib": round(server.memory(), 1), "offered_per_s": round(offered, 1)}
        if row["refused"] or row["errors"] or row["requests_per_s"] < 0.9 * offered:
            break
        capacity = row["requests_per_s"]
    return row | {"overload": row["refused"] > 0}


def killed(server: Server, texts: list[str], seconds: float) -> dict[str, Any]:
    """kill -9 in the middle of the load, and up again at the same port: how long until it answers."""

    async def story() -> tuple[list[tuple[int, float]], float]:
        load = asyncio.create_task(closed(server.address, texts, 8, seconds))
        await asyncio.sleep(seconds / 4)
        server.end(signal.SIGKILL)
        start = time.perf_counter()
        await asyncio.to_thread(server.start)
        return await load, time.perf_counter() - start

    found, again = asyncio.run(story())
    last = found[-8:]
    return {"seconds_until_up": round(again, 2), "answers_after": all(status == 200 for status, _ in last)}


def main() -> None:
    options = parse()
    texts = Path(options.source).read_text(encoding="utf-8").splitlines() if options.source else SENTENCES
    server = Server(options.model, 0)
    rows: dict[str, dict[str, Any]] = {}
    try:
        asyncio.run(closed(server.address, texts, 4, 2))
        before = server.memory()
        for clients in options.clients:
            found = asyncio.run(closed(server.address, texts, clients, options.seconds))
            rows[f"{clients} clients"] = summary(found, options.seconds) | {"memory_mib": round(server.memory(), 1)}
        most = max(row["requests_per_s"] for row in rows.values())
        rows["twice the capacity"] = overloaded(server, texts, most, options.seconds / 2)
        facts = {
            "memory_growth_mib": round(server.memory() - before, 1),
            "kill": killed(server, texts, max(12.0, options.seconds / 4)),
        }
    finally:
        server.end()
    columns = list(next(iter(rows.values())))
    table = Table("load", *columns)
    for name, row in rows.items():
        table.add_row(name, *(str(row[column]) for column in columns))
    Console(highlight=False).print(table)
    print(json.dumps({"bench": "serve", "seconds": options.seconds, **facts, "loads": rows}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run, model folder or CTranslate2 model")
    parser.add_argument("--source", help="sentences to ask for, one a line")
    parser.add_argument("--seconds", type=float, default=60.0, help="of every load")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except DragomanError as error:
        print(f"bench/serve.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
