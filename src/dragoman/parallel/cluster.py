"""Ranks on a Ray cluster: Ray Train finds room for them, and starts all again when one of them or its node is lost. Each runs the
same command as everywhere else, in a process of its own: a worker of Ray may neither catch signals nor end by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path
from typing import Any

from dragoman import ray_cluster, runs
from dragoman.errors import TrainingError
from dragoman.parallel.launch import free_port, listening, pause, resumed, stopped_well, worth_another
from dragoman.parallel.ranks import FAILED, RESTART, STOPS, Outcome, Place, die_with_parent, kind_of

LOOK_SECONDS = 0.5  # between two looks at signals and ranks
ROOM_SECONDS = 20.0  # without a word of any rank: Ray has found no room for them, or has lost them all
GATHER_SECONDS = 10.0  # for word of the rank that failed first, which its worker may notice last


def launch_on_ray(
    processes: int | None,
    arguments: list[str],
    environment: dict[str, str],
    device: str,
    restarts: int,
    run: runs.RunFolder,
) -> int:
    """Run `python -m dragoman ARGUMENTS`, which trains in `run`, in several ranks; the cluster is RAY_ADDRESS, or one made on this
    host. This folder and those of the run file must be visible on every node. Returns the exit code."""
    storage = run.path.absolute().parent  # for Ray's notes
    storage.mkdir(parents=True, exist_ok=True)
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    ray = ray_cluster.connect()
    try:
        with listening() as received, tempfile.TemporaryDirectory(prefix=".ray-", dir=storage) as notes:
            desk = ray.remote(num_cpus=0)(Desk).options(scheduling_strategy=on_this_node(ray)).remote()
            told = {"arguments": arguments, "desk": desk, "run": str(run.path.absolute())}
            told |= {"folder": str(Path.cwd()), "environment": environment}
            return run_ranks(ray, desk, trainer_of(ray, processes, told, device, restarts, notes), received)
    finally:
        ray.shutdown()


def on_this_node(ray: Any) -> Any:
    """A node that is lost takes what ran there with it. Ray would choose any; the loss of this one ends the launcher anyway."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def trainer_of(ray: Any, processes: int | None, told: dict[str, Any], device: str, restarts: int, notes: str) -> Any:
    """`told`: to every worker. `notes`: the folder for those of Ray."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    available = ray.cluster_resources()
    gpus = int(available.get("GPU", 0)) if device != "cpu" else 0  # of the cluster: this host may have none
    room, wanted = gpus or int(available.get("CPU", 0)), processes or max(1, gpus)
    if wanted > room:
        raise TrainingError(
            f"--nproc {wanted}: the Ray cluster has {room} {'GPUs' if gpus else 'CPUs'}; lower it or add nodes"
        )
    return TorchTrainer(
        be_worker,
        train_loop_config=told,
        torch_config=no_group(),
        scaling_config=ScalingConfig(num_workers=wanted, use_gpu=gpus > 0),
        run_config=RunConfig(storage_path=notes, failure_config=FailureConfig(max_failures=restarts)),
    )


def no_group() -> Any:
    """Ray's own group of torch would be made in the workers, by addresses that their host names stand for: loopback ones, on many
    machines, where two nodes never meet. Ranks make one by themselves, and know better. Those of a node see all its GPUs."""
    from ray.train.backend import Backend
    from ray.train.torch import TorchConfig

    class Neighbours(Backend):  # type: ignore[misc]
        share_cuda_visible_devices = True

    class NoGroup(TorchConfig):  # type: ignore[misc]
        backend_cls, train_func_context = Neighbours, nullcontext

    return NoGroup()


def run_ranks(ray: Any, desk: Any, trainer: Any, received: list[int]) -> int:
    fitting = beside(trainer.fit)
    handed_on, told = 0, False
    while not fitting.done():
        futures.wait([fitting], LOOK_SECONDS)
        for number in received[handed_on:]:
            ray.get(desk.hand_on.remote(number))
            handed_on += 1
        try:
            silence = ray.get(desk.silence.remote())
        except Exception:  # of Ray, that cannot be asked now; whether that ends the ranks is for the trainer to say
            continue
        if silence < ROOM_SECONDS:
            continue
        if received:  # nobody is there who could save or stop
            return 128 + received[0]
        if not told:
            told = True
            print(
                "dragoman: no rank has begun on Ray yet; when it waits for room, `ray status` tells for what",
                flush=True,
            )
    error = fitting.exception()  # whatever Ray calls it: ranks that failed too often, a cluster that went away
    if error:
        print(f"dragoman: on Ray: {' '.join(str(error).split())[:300]}", file=sys.stderr)
    codes: list[int] = ray.get(desk.codes.remote())
    if 2 in codes:
        return 2
    code = max([*codes, int(bool(error))])  # a rank that ended well does not make up for one that failed too often
    return 128 + received[0] if stopped_well(received, code) else code


def beside(work: Callable[[], Any]) -> futures.Future[Any]:
    """In a thread that holds up nobody's end; in the main thread Ray would take the signals."""
    future: futures.Future[Any] = futures.Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=do, name="ray", daemon=True).start()
    return future


class Desk:
    """What the launcher and all workers tell each other."""

    def __init__(self) -> None:
        self.heard = time.monotonic()  # when a worker asked for signals last, as each does all the time
        self.signals: list[int] = []
        self.begun: dict[int, int] = {}  # how often each rank was started
        self.ended: dict[int, int] = {}  # with which code, where starting again would not help
        self.faults: dict[int, list[tuple[int, runs.Row]]] = {}  # by attempt: weights and what to say of them
        self.noted: set[int] = set()  # attempts of which the fault is in the run folder

    def hand_on(self, number: int) -> None:
        self.signals.append(number)

    def begin(self, rank: int) -> int:
        self.begun[rank] = self.begun.get(rank, -1) + 1
        return self.begun[rank]

    def received(self) -> list[int]:
        self.heard = time.monotonic()
        return self.signals

    def silence(self) -> float:
        return time.monotonic() - self.heard

    def fail(self, attempt: int, weight: int, fault: runs.Row) -> None:
        """Both as an Outcome has them."""
        self.faults.setdefault(attempt, []).append((weight, fault))

    def reason_known(self, attempt: int) -> bool:
        """Ranks that lost another one fail too: all have told, or one of them for a reason of its own."""
        weights = [weight for weight, _ in self.faults[attempt]]
        return len(weights) == len(self.begun) or max(weights) > FAILED or 2 in self.codes()

    def take_fault(self, attempt: int) -> runs.Row | None:
        """The fault that ended an attempt, for the first who asks: all of them may end at any time."""
        if attempt in self.noted:
            return None
        self.noted.add(attempt)
        return max(self.faults[attempt], key=itemgetter(0))[1]

    def failures(self, attempt: int) -> int:
        """Attempts right before this one in which ranks failed and none was killed or hung."""
        count = 0
        while {fault["kind"] for _, fault in self.faults.get(attempt - count - 1, [])} == {"failed"}:
            count += 1
        return count

    def end(self, rank: int, code: int) -> None:
        self.ended[rank] = code

    def codes(self) -> list[int]:
        return list(self.ended.values())


def be_worker(config: dict[str, Any]) -> None:
    """One rank, on the node that Ray chose."""
    import ray

    environment, desk = own_environment(), config["desk"]
    rank = int(environment["RANK"])
    attempt = ray.get(desk.begin.remote(rank))
    settings = {**config["environment"], **environment, RESTART: str(attempt)}
    # Paths start where the command was given; a node of a cluster that was there before stands in another folder.
    folder = config["folder"] if Path(config["folder"]).is_dir() else None
    command = [sys.executable, "-m", "dragoman", *resumed(config["arguments"], attempt)]
    pause(ray.get(desk.failures.remote(attempt)), lambda: ray.get(desk.received.remote()))
    # A session of its own: a Ctrl-C at the terminal reaches it through the desk alone, once.
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **settings}, start_new_session=True, preexec_fn=die_with_parent
    )
    try:
        code = wait(process, lambda: ray.get(desk.received.remote()))
    finally:
        process.kill()
    tell_end(ray, desk, rank, attempt, code, runs.RunFolder(config["run"]))


def own_environment() -> dict[str, str]:
    """What torchrun would set. All workers of an attempt are here when it returns; rank 0 is where Ray knows its node."""
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero
    from ray.util import get_node_ip_address

    context = get_context()
    local, ranks_here = context.get_local_rank(), context.get_local_world_size()
    address, port = broadcast_from_rank_zero((get_node_ip_address(), free_port("")))
    first = context.get_world_rank() - local
    return Place(first, ranks_here, context.get_world_size(), address, port).environment(local)


def tell_end(ray: Any, desk: Any, rank: int, attempt: int, code: int, run: runs.RunFolder) -> None:
    """An error is what Ray starts all ranks again for. Nothing is worth that when they were asked to stop."""
    if ray.get(desk.received.remote()):
        code = 128 - code if -code in STOPS else code if code >= 0 else 1  # a stop may come before a rank can listen
    elif worth_another(code):
        line = f"rank {rank} ended with code {code}; see its log in the run folder"
        outcome = Outcome(code, line, rank, kind_of(code))
        ray.get(desk.fail.remote(attempt, outcome.weight, outcome.event(attempt)))
        if is_worth_another(ray, desk, attempt, run):
            raise RuntimeError(line)
    ray.get(desk.end.remote(rank, code))


def is_worth_another(ray: Any, desk: Any, attempt: int, run: runs.RunFolder) -> bool:
    """Notes what ended an attempt before Ray hears of it, which ends the other workers with whatever they know. A mistake of
    the user on another rank would only come again."""
    deadline = time.monotonic() + GATHER_SECONDS
    while not ray.get(desk.reason_known.remote(attempt)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    if 2 in ray.get(desk.codes.remote()):
        return False
    fault = ray.get(desk.take_fault.remote(attempt))
    if fault:
        runs.note_fault(run, fault)
    return True


def wait(process: subprocess.Popen[bytes], signals: Any) -> int:
    handed_on = 0
    while process.poll() is None:
        for number in signals()[handed_on:]:
            process.send_signal(signal.Signals(number))
            handed_on += 1
        time.sleep(LOOK_SECONDS)
    return process.returncode
