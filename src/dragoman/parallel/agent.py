"""The far end of `dragoman launch` and `dragoman doctor`: one process a host, at the end of ssh or of any other command that
runs another one elsewhere. It does what it is asked, line by line, and when the line is cut it ends every rank it started.

request   {"ask": 3, "do": "look", ...}               on standard input
answer    @dragoman {"ask": 3, ...}                   on standard output; what a login shell says beside it has no such mark
message   @dragoman {"rank": 1, "line": "..."}        while ranks run; {"ended": 0, ...} when they are done; {"alive": true} when beaten
"""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from dragoman import runs
from dragoman.config.load import load_config
from dragoman.parallel import network
from dragoman.parallel.ranks import LOOK_SECONDS, Crew, Place, cool, warm

MARK = "@dragoman "
SILENCE_SECONDS = 25.0  # without a word from the launcher: it is gone, or the network is; sooner than it gives us up and starts others
HUNG_SECONDS = 5.0  # for the request in hand when the launcher is gone: it hangs, and nobody waits for its answer

Message = dict[str, Any]


class Agent:
    """`inspect` says what this host has for a run file."""

    def __init__(self, inspect: Callable[[Path], Message]):
        self.inspect = inspect
        self.requests: queue.Queue[Message | None] = queue.Queue()
        self.writing = threading.Lock()
        self.crew: Crew | None = None
        self.attempt = 0
        self.listener: network.Listener | None = None
        self.files = tempfile.TemporaryDirectory(prefix="dragoman-")
        self.run_file = Path(self.files.name) / "run.toml"
        self.heard = time.monotonic()
        self.leaving = threading.Event()

    def serve(self) -> None:
        warm()
        threading.Thread(target=self.read, daemon=True).start()
        try:
            while self.take_turn():
                pass
        finally:
            self.leaving.set()
            if self.crew:
                self.crew.end()
            cool()
            self.files.cleanup()

    def read(self) -> None:
        try:
            for line in sys.stdin:
                self.requests.put(json.loads(line))
        finally:  # also when a line was cut in the middle
            self.requests.put(None)
            self.leave_what_hangs()

    def leave_what_hangs(self) -> None:
        """A request that hangs, in a dead network disk or in a start, does not come back to hear that the launcher is gone."""
        if self.leaving.wait(HUNG_SECONDS):
            return
        try:
            if crew := self.crew:
                crew.kill()
            cool()
            self.files.cleanup()
        finally:
            os._exit(1)

    def take_turn(self) -> bool:
        """One request, or a look at the ranks; False when the launcher is gone."""
        try:
            request = self.requests.get(timeout=LOOK_SECONDS)
            self.heard = time.monotonic()
        except queue.Empty:
            self.watch()
            return time.monotonic() - self.heard < SILENCE_SECONDS
        if request is None:
            return False
        if "ask" in request:
            self.answer(request)
        else:
            self.say({"alive": True})
        return True

    def answer(self, request: Message) -> None:
        """Every failure is an answer too: the launcher puts the name of the host before it."""
        try:
            found = getattr(self, f"do_{request['do']}")(request)
        except Exception as error:
            found = {"error": " ".join(str(error).split()) or type(error).__name__}
        self.say({"ask": request["ask"]} | found)

    def say(self, message: Message) -> None:
        with self.writing:
            print(MARK + json.dumps(message), flush=True)

    def watch(self) -> None:
        if self.crew and (outcome := self.crew.look()):
            ended = {"ended": outcome.code, "line": outcome.line, "failed_rank": outcome.rank, "kind": outcome.kind}
            self.say(ended | {"attempt": self.attempt, "reason_known": self.crew.reason_known})
            self.crew = None

    # --- what can be asked ---

    def do_look(self, request: Message) -> Message:
        versions = {name: metadata.version(name) for name in ("torch", "numpy")}
        versions["python"] = ".".join(map(str, sys.version_info[:3]))
        self.run_file.write_text(request["toml"], encoding="utf-8")
        found = self.inspect(self.run_file)
        versions = {"dragoman": found.pop("dragoman"), "dragoman's code": found.pop("code")} | versions
        return {"addresses": network.own_addresses(), "versions": versions} | found

    def do_speed(self, request: Message) -> Message:
        return {"mbit": network.link_mbit(request["interface"])}

    def do_resolve(self, request: Message) -> Message:
        return {"found": network.resolved(request["names"])}

    def do_clock(self, request: Message) -> Message:
        return {"time": time.time()}

    def do_listen(self, request: Message) -> Message:
        """For the others to find out whether they reach this host, at ports as training will use them."""
        self.do_deaf(request)  # an earlier meeting that came to nothing
        self.listener = network.Listener(request["addresses"], request["port"])
        return {"ports": self.listener.ports, "token": self.listener.token}

    def do_deaf(self, request: Message) -> Message:
        if self.listener:
            self.listener.close()
            self.listener = None
        return {}

    def do_mark(self, request: Message) -> Message:
        """A file for the others to look for."""
        self.mark = tempfile.NamedTemporaryFile(prefix=".dragoman-", dir=request["folder"])  # noqa: SIM115  # until unmarked
        return {"path": self.mark.name}

    def do_sees(self, request: Message) -> Message:
        return {"seen": Path(request["path"]).exists()}

    def do_unmark(self, request: Message) -> Message:
        self.mark.close()
        return {}

    def do_reach(self, request: Message) -> Message:
        return {"found": network.reach(request["targets"])}

    def do_measure(self, request: Message) -> Message:
        return network.measure(request["address"], request["port"], request["duration"])

    def do_start(self, request: Message) -> Message:
        """Ranks that run a command on the configuration that came with the request."""
        arguments = [str(self.run_file) if word == "RUN_FILE" else word for word in request["arguments"]]
        os.environ.update(request["environment"])
        place = Place(**request["place"])
        if self.crew:
            self.crew.end()
        self.attempt = request["attempt"]
        self.crew = Crew(place, arguments, self.attempt, self.pass_on)
        return {}

    def pass_on(self, rank: int, line: str) -> None:
        self.say({"rank": rank, "line": line})

    def do_note(self, request: Message) -> Message:
        """What ended ranks, here or elsewhere, into the run folder: the launcher may not see it."""
        run = runs.RunFolder(load_config(self.run_file).run.folder)
        for fault in request["faults"]:
            runs.note_fault(run, fault)
        return {}

    def do_signal(self, request: Message) -> Message:
        if self.crew:
            self.crew.hand_on(request["number"])
        return {}

    def do_end(self, request: Message) -> Message:
        """Ranks that lost those of another host: a moment for their last words, unless the reason is known; then they are ended."""
        if self.crew:
            self.crew.failed_at = min(self.crew.failed_at, time.monotonic())
            self.crew.reason_known |= request["reason_known"]
            self.watch()
        return {}
