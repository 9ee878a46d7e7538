"""One run on several hosts, started from one of them or from anywhere else: an agent on each, reached by ssh or by any other
command that runs a command elsewhere. What would stop the run is found before a rank starts, and said with the host's name.

connect -> look (versions, data, interfaces) -> meet (who reaches whom, over which address) -> start -> watch -> end

Agents outlive an attempt: after a failure only the hosts that were lost are connected and looked at again.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from dragoman.config import Config, to_toml
from dragoman.errors import ConfigError, TrainingError
from dragoman.parallel import network
from dragoman.parallel.agent import MARK, Message
from dragoman.parallel.launch import PORTS, before_another, listening, resumed, stopped_well, worth_another
from dragoman.parallel.ranks import Outcome, Place
from dragoman.runs import Row

ASK_NOBODY = " -o BatchMode=yes"
SSH_FAILED = 255  # its exit code where it did not come to run the command
SSH = f"ssh{ASK_NOBODY} -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=4"
ANSWER_SECONDS = 25.0
BEAT_SECONDS = 5.0  # between two signs of life to the agents
SILENCE_SECONDS = 30.0  # without an answer to them: it is gone
RETURN_SECONDS = 60.0  # for a host that is started again to be reachable
RETRY_SECONDS = 0.5
START_SECONDS = 120.0  # for ranks to begin: torch may come from a cold network disk
LEAVE_SECONDS = 3.0
SHARE = "put run.folder on a disk that all hosts share"
EACH_SAVES = "with this strategy every host writes a part of each checkpoint"
LAST_WORDS = 4  # lines of what the remote shell said
LAST_WORDS_SECONDS = 2.0  # for them, where something else keeps its pipes open


@dataclass(frozen=True)
class Cluster:
    """What the user said about the hosts."""

    hosts: list[tuple[str, int]]  # name, ranks; 0: as many as it has GPUs
    shell: str = SSH
    folder: str = "."
    python: str = "python3"
    interface: str = ""
    port: int = 0


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """a:2,b:2 or a,b"""
    hosts = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        name, colon, count = part.partition(":")
        if not name or (colon and not (count.isdecimal() and int(count))):
            raise ConfigError([f"{part!r} is not a host; write NAME or NAME:PROCESSES, with commas between"], "--hosts")
        hosts.append((name, int(count) if colon else 0))
    names = [name for name, _ in hosts]
    if not hosts:
        raise ConfigError(["names no host; write them with their processes, as a:2,b:2"], "--hosts")
    if len(set(names)) < len(names):
        raise ConfigError([f"{text!r} names a host twice"], "--hosts")
    return hosts


@dataclass(eq=False)
class Host:
    """One of them, as seen from the launcher."""

    name: str
    ranks: int
    facts: Message = field(default_factory=dict)
    interface: str = ""
    address: str = ""
    port: int = 0  # at which it listens while hosts meet
    ended: Message | None = None
    lost: bool = False
    heard: float = 0.0  # when it said something last
    received: list[int] = field(default_factory=list)  # signals to the launcher: no answer is waited for then

    def connect(self, command: list[str], inbox: queue.Queue[tuple[Host, Message]]) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, errors="replace", start_new_session=True, **pipes)
        self.answers: dict[int, queue.Queue[Message]] = {}
        self.words: list[str] = []
        self.asked = 0
        self.writing = threading.Lock()  # beats come from a thread of their own
        self.readers = [threading.Thread(target=self.read, args=(inbox,), daemon=True)]
        self.readers.append(threading.Thread(target=self.overhear, daemon=True))
        for reader in self.readers:
            reader.start()

    def read(self, inbox: queue.Queue[tuple[Host, Message]]) -> None:
        try:
            for line in self.process.stdout or ():
                said, mark, rest = line.partition(MARK)  # a login shell may set a title, and end no line
                if said.strip():
                    self.words.append(said.strip())
                if not mark:
                    continue
                message = json.loads(rest)
                self.heard = time.monotonic()
                if "ask" in message:
                    self.answers[message["ask"]].put(message)
                elif "alive" not in message:
                    inbox.put((self, message))
        except ValueError:  # a line that was cut in the middle is the last one
            pass
        finally:
            self.lost = True
            inbox.put((self, {"lost": True}))

    def overhear(self) -> None:
        for line in self.process.stderr or ():
            self.words.append(line.strip())

    def send(self, message: Message) -> None:
        # It may be gone: whoever waits for it learns that by itself.
        with self.writing, suppress(OSError, ValueError):
            assert self.process.stdin
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def ask(self, do: str, seconds: float = ANSWER_SECONDS, **details: Any) -> Message:
        self.asked += 1
        number, answer = self.asked, queue.Queue[Message]()
        self.answers[number] = answer
        self.send({"ask": number, "do": do, **details})
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(queue.Empty):
                found = answer.get(timeout=0.1)
                if "error" in found:
                    raise self.error(found["error"])
                return found
            if self.received:
                raise self.error(f"was asked to {do} when the launch was stopped")
            if self.process.poll() is not None and answer.empty():
                for reader in self.readers:
                    reader.join(LAST_WORDS_SECONDS)
                raise self.unreachable()
        self.kill()  # it gets another agent when the run is started again
        raise self.error(f"did not answer within {seconds:.0f} s; is it overloaded, or its file system hanging?")

    def error(self, reason: str) -> TrainingError:
        return TrainingError(f"host {self.name}: {reason}")

    def unreachable(self) -> TrainingError:
        """Why the agent could not be started, in one line with a remedy."""
        said, code = " / ".join([word for word in self.words if word][-LAST_WORDS:]), self.process.poll()
        its_own = code != SSH_FAILED
        # 126 and 127: its shell cannot run the program, or found none.
        if its_own and ("No module named" in said or code in (126, 127)):
            return self.error(
                f"its Python cannot start dragoman ({said}); install the same version there, or name a Python that has it with --python"
            )
        if its_own and re.search(r"\bcd:", said):
            return self.error(f"{said}; name a folder that it has with --folder")
        command = " ".join(self.process.args[:-1])  # type: ignore[index,arg-type]
        remedy = f"try: {command} true"
        if "Host key verification failed" in said:
            remedy = f"accept its key once, by hand: {command.replace(ASK_NOBODY, '')} true"
        return self.error(f"cannot be reached ({said or f'code {code}'}); {remedy}")

    def leave(self) -> None:
        with self.writing, suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()  # the agent ends its ranks and itself
        try:
            self.process.wait(timeout=LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()

    def kill(self) -> None:
        """Our end of the line, with all that a remote shell of the user's own making has started for it."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class Fleet:
    """All hosts of a run. Use as a context: leaving it ends every process on every host."""

    def __init__(self, cluster: Cluster, config: Config, received: list[int], *, resumes: bool = False):
        self.cluster, self.config, self.received, self.resumes = cluster, config, received, resumes
        self.inbox: queue.Queue[tuple[Host, Message]] = queue.Queue()
        self.hosts = [self.connected(name, ranks) for name, ranks in cluster.hosts]
        self.port, self.running = cluster.port, 0
        self.left = threading.Event()
        self.untold: list[Row] = []  # faults that are not yet in the run folder

    def connected(self, name: str, ranks: int) -> Host:
        agent = f"cd {shlex.quote(self.cluster.folder)} && exec {shlex.quote(self.cluster.python)} -m dragoman agent"
        host = Host(name, ranks, received=self.received)
        try:
            host.connect([*shlex.split(self.cluster.shell), name, agent], self.inbox)
        except (OSError, ValueError) as error:
            raise host.error(
                f"{self.cluster.shell!r} cannot be run here ({error}); install ssh, or name another command with --rsh"
            ) from None
        return host

    def __enter__(self) -> Fleet:
        threading.Thread(target=self.beat, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.left.set()
        self.each(Host.leave)

    def beat(self) -> None:
        """A sign of life for every agent, now and then, whatever else is done here: a terminal that is paused or a reader that takes
        no more lines (`| less`) holds up whoever prints."""
        while not self.left.wait(BEAT_SECONDS):
            for host in self.hosts:
                host.send({"do": "beat"})

    def each(self, work: Callable[[Host], Any]) -> list[Any]:
        """On all hosts at once; the first error in their order is raised when all are done."""
        results: dict[str, Any] = {}

        def run(host: Host) -> None:
            try:
                results[host.name] = work(host)
            except Exception as error:
                results[host.name] = error

        threads = [threading.Thread(target=run, args=(host,)) for host in self.hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [results[host.name] for host in self.hosts]
        for result in found:
            if isinstance(result, Exception):
                raise result
        return found

    # --- before anything starts ---

    def gather(self, patience: float) -> None:
        """Every host has an agent and is reached by the others; for so many seconds it is waited for those that are lost."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return self.take_up()
            except TrainingError:
                if self.received or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)

    def take_up(self) -> None:
        for place, host in enumerate(self.hosts):
            if host.asked and (host.lost or host.process.poll() is not None):
                host.leave()
                self.hosts[place] = self.connected(host.name, host.ranks)
        if all(host.address for host in self.hosts):  # nobody was lost: only the port of rank 0 is another one
            self.port = self.listening_at(self.hosts[0])["ports"][0]
            self.hosts[0].ask("deaf")
            return
        self.look()
        self.check_same()
        self.check_shared()
        self.meet()
        self.stop_listening()
        told = ", ".join(f"{host.name} ({host.ranks} x {host.address}, {host.interface})" for host in self.hosts)
        print(f"hosts: {told}; rank 0 listens at port {self.port}", flush=True)

    def look(self) -> None:
        """Ask every host what it has."""

        def one(host: Host) -> None:
            host.facts = host.ask("look", toml=to_toml(self.config))
            if self.config.train.device == "cpu":
                host.facts["gpus"] = []
            host.ranks = host.ranks or max(1, len(host.facts["gpus"]))

        self.each(one)

    def check_same(self) -> None:
        for error in self.differences():
            raise error

    def differences(self) -> Iterator[TrainingError]:
        """That would end in wrong results or a hang."""
        first = self.hosts[0]
        for host in self.hosts:
            for name, version in host.facts["versions"].items():
                expected = first.facts["versions"][name]
                if version != expected:
                    yield host.error(
                        f"has {name} {version}, host {first.name} has {expected}; install the same on both"
                    )
        with_gpus = [host.name for host in self.hosts if host.facts["gpus"] and self.config.train.device != "cpu"]
        for host in self.hosts if with_gpus else ():
            if not host.facts["gpus"]:
                yield host.error(f"shows no GPU, host {with_gpus[0]} does; mend its driver, or set train.device")
        for host in self.hosts:
            if host.facts["problem"]:
                yield host.error(host.facts["problem"])
            elif host.facts["data_digest"] != first.facts["data_digest"] != "":
                yield host.error(
                    f"its prepared data is not that of host {first.name} (digest {host.facts['data_digest'][:12]}, not "
                    f"{first.facts['data_digest'][:12]}); copy the folder of host {first.name} there"
                )

    def check_shared(self) -> None:
        """Whoever goes on from a checkpoint reads it on every host."""
        host = self.apart()
        if host and self.all_hosts_save():
            raise host.error(f"{self.apart_why()}; {SHARE}: {EACH_SAVES}")
        if host and self.resumes:
            raise host.error(f"{self.apart_why()}; {SHARE}, or start without --resume and --restarts")
        if host:
            print(f"host {host.name}: {self.apart_why()}; --resume and --restarts will not work", flush=True)

    def all_hosts_save(self) -> bool:
        """Whether the moments of a checkpoint come from several hosts: the first one would wait for files that it never sees."""
        chosen = self.config.parallel
        return chosen.strategy == "fsdp" or (
            chosen.strategy == "hybrid" and chosen.ranks_per_island > self.hosts[0].ranks
        )

    def apart(self) -> Host | None:
        """A host whose run.folder is not that of the first one."""
        first, *others = self.hosts
        if not others or "disk" not in first.facts:
            return None
        path = first.ask("mark", folder=first.facts["disk"]["folder"])["path"]
        try:
            return next((host for host in others if not host.ask("sees", path=path)["seen"]), None)
        finally:
            first.ask("unmark")

    def apart_why(self) -> str:
        return f"does not see what host {self.hosts[0].name} writes to run.folder ({self.hosts[0].facts['disk']['folder']})"

    def meet(self) -> None:
        """Choose an address of every host that all others reach; the port of host 0 is tried by the same token."""
        if len(self.hosts) == 1:
            only = self.hosts[0]
            only.interface = self.cluster.interface or "lo"
            only.address = self.own_addresses(only).get(only.interface, "127.0.0.1")
            self.port = self.listening_at(only)["ports"][0]
            return
        for host in self.hosts:
            host.address = ""
        listening = self.each(self.listening_at)
        targets = {
            host.name: {
                "addresses": list(self.own_addresses(host).values()),
                "ports": at["ports"],
                "token": at["token"],
            }
            for host, at in zip(self.hosts, listening, strict=True)
        }
        tried = self.each(lambda host: host.ask("reach", targets=without(targets, host.name))["found"])
        for host in self.hosts:
            answers = {
                other: found[host.name] for other, found in zip(self.hosts, tried, strict=True) if other is not host
            }
            self.choose_address(host, targets[host.name]["ports"], answers)
        self.port = listening[0]["ports"][0]

    def listening_at(self, host: Host) -> Message:
        addresses = [host.address] if host.address else list(self.own_addresses(host).values())
        return host.ask("listen", addresses=addresses, port=self.cluster.port if host is self.hosts[0] else None)

    def stop_listening(self) -> None:
        self.each(lambda host: host.ask("deaf"))

    def own_addresses(self, host: Host) -> dict[str, str]:
        addresses: dict[str, str] = host.facts["addresses"]
        wanted = self.cluster.interface
        if not wanted:
            return {name: addresses[name] for name in network.candidates(addresses)}
        if wanted not in addresses:
            known = ", ".join(f"{name} ({address})" for name, address in addresses.items())
            raise host.error(f"has no interface {wanted} that is up; it has {known}. Name one of them with --interface")
        return {wanted: addresses[wanted]}

    def choose_address(self, host: Host, ports: list[int], answers: dict[Host, dict[str, list[str]]]) -> None:
        """The first of its addresses that all others reach. `answers`: why they do not, by address and port."""
        host.port = ports[-1]
        for interface, address in self.own_addresses(host).items():
            if not any(any(found[address]) for found in answers.values()):
                host.interface, host.address = interface, address
                return
        for other, found in answers.items():
            reasons = "; ".join(
                f"{address}: {next(filter(None, whys))}" for address, whys in found.items() if any(whys)
            )
            if reasons or not found:
                nearest = min(found.values(), key=lambda whys: sum(map(bool, whys)), default=[""])
                closed = next((port for port, why in zip(ports, nearest, strict=False) if why), ports[0])
                raise other.error(
                    f"cannot connect to host {host.name} at port {closed} ({reasons or 'it has no address'}); open TCP between the hosts, "
                    f"in both directions, at {self.range_of(closed)}, or name another network with --interface"
                )

    def range_of(self, port: int) -> str:
        """What to open for a port that was tried, in words."""
        if port == self.cluster.port:
            return f"port {port} (--port)"
        if PORTS[0] <= port < PORTS[1]:
            return f"ports {PORTS[0]} to {PORTS[1] - 1}, of which rank 0 takes one, or at the one that you name with --port"
        return "the ports that the system chooses (sysctl net.ipv4.ip_local_port_range)"

    # --- a run ---

    def attempt(self, arguments: list[str], environment: dict[str, str], attempt: int) -> Outcome:
        self.gather(RETURN_SECONDS if attempt else 0.0)
        if self.received:  # Ctrl-C before anything has begun
            return Outcome()
        self.note()
        try:
            self.start(arguments, environment, attempt)
        except TrainingError:
            self.tell("end", reason_known=True)  # those that have begun
            raise
        return self.watch()

    def start(self, arguments: list[str], environment: dict[str, str], attempt: int) -> None:
        world, first = sum(host.ranks for host in self.hosts), 0
        starting = {}
        for host in self.hosts:
            host.ended = None
            starting[host.name] = Place(first, host.ranks, world, self.hosts[0].address, self.port, host.interface)
            first += host.ranks
        shared: dict[str, Any] = {"arguments": arguments, "environment": environment, "attempt": attempt}
        self.running = attempt
        self.each(lambda host: host.ask("start", START_SECONDS, place=asdict(starting[host.name]), **shared))
        for host in self.hosts:
            host.heard = time.monotonic()

    def note(self, *faults: Row) -> None:
        """By the first host that is there; when none is, later."""
        self.untold += faults
        for host in self.hosts if self.untold else ():
            if not host.lost:
                with suppress(TrainingError):
                    host.ask("note", faults=self.untold)
                    self.untold = []
                    return

    def watch(self) -> Outcome:
        """Until all hosts have ended; returns the outcome of whoever failed, and not because of another one if that is known."""
        handed_on = 0
        verdict = Outcome()
        while any(host.ended is None for host in self.hosts):
            for number in self.received[handed_on:]:
                handed_on += 1
                self.tell("signal", number=number)
            self.give_up_silent()
            with suppress(queue.Empty):
                host, message = self.inbox.get(timeout=0.2)
                failure = self.hear(host, message) if host in self.hosts else None  # not the last word of a lost one
                if failure and failure.weight > verdict.weight:
                    if not verdict.code and not self.received:
                        self.tell("end", reason_known="lost" in message or message["reason_known"])
                    verdict = failure
        return verdict

    def give_up_silent(self) -> None:
        """A host that lost its power says no goodbye, and TCP would wait for it for a quarter of an hour."""
        for host in self.hosts:
            if host.ended is None and time.monotonic() - host.heard > SILENCE_SECONDS:
                host.words.append(f"silent for {SILENCE_SECONDS:.0f} s")
                host.heard = time.monotonic()
                host.kill()
                host.lost = True
                self.inbox.put((host, {"lost": True}))  # a rank that hangs there may hold on to the line's other end

    def tell(self, do: str, **details: Any) -> None:
        """Without waiting for an answer: a host may be gone."""
        for host in self.hosts:
            if host.ended is None:
                host.answers.setdefault(0, queue.Queue())
                host.send({"ask": 0, "do": do, **details})

    def hear(self, host: Host, message: Message) -> Outcome | None:
        """A line of a rank is shown; the end of a host is noted; a failure is returned."""
        if "rank" in message:
            print(f"[{host.name}/{message['rank']}] {message['line']}", flush=True)
        elif "ended" in message and message["attempt"] == self.running:
            host.ended = message
            if message["ended"]:
                line, rank = message["line"].removeprefix("dragoman: "), message["failed_rank"]
                return Outcome(
                    int(message["ended"]), f"host {host.name}, rank {rank}: {line}", rank, message["kind"], host.name
                )
        elif message.get("lost") and host.ended is None:
            host.ended = message
            line = f"host {host.name}: the connection was lost ({' / '.join(host.words[-2:]) or 'it said nothing'})"
            return Outcome(1, line, kind="lost", host=host.name)
        return None


def without(targets: dict[str, Message], name: str) -> dict[str, Message]:
    return {other: target for other, target in targets.items() if other != name}


def launch_on_hosts(
    cluster: Cluster, config: Config, arguments: list[str], environment: dict[str, str], restarts: int
) -> int:
    """Run `dragoman ARGUMENTS` on all hosts, RUN_FILE standing for the configuration; returns the exit code. After a failure
    that is no mistake of the user everything is started anew with --resume, with other ports: no host is special."""
    resumes, failures = restarts > 0 or "--resume" in arguments, 0
    with listening() as received, Fleet(cluster, config, received, resumes=resumes) as fleet:
        for attempt in range(restarts + 1):
            try:
                outcome = fleet.attempt(resumed(arguments, attempt), environment, attempt)
            except TrainingError as error:
                if attempt == 0 and not received:
                    raise
                # Not back yet: that costs one of the restarts, not the run.
                outcome = Outcome(128 + received[0] if received else 1, f"{error}", kind="lost", host="")
            if stopped_well(received, outcome.code):
                return 128 + received[0]
            if outcome.line:
                print(f"dragoman: {outcome.line}", file=sys.stderr)
            if received or not worth_another(outcome.code):
                return outcome.code
            fleet.note(outcome.event(attempt))
            failures = failures + 1 if outcome.kind == "failed" else 0
            before_another(attempt, restarts, failures, received)
    return outcome.code
