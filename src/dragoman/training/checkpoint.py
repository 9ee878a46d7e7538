"""Checkpoints: a model folder and the state of training in one place, whole or not there at all.

    model.safetensors  model.toml  vocabulary.model   the model folder
    optimizer.safetensors  training.json              the rest of the state
    weights.safetensors   where the model is a moving average: the weights that training goes on with
    moments-00001.safetensors                         instead of optimizer.safetensors: a rank's piece of every moment (FSDP2)
    own-00001.safetensors                             what one rank has for itself, with some strategies
    manifest.json                                     sizes and checksums, written last

No pickle anywhere. Formats do not notice a flipped bit, so every file is checked against the manifest before it is used.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman import runs
from dragoman.config.schema import Checkpoint
from dragoman.errors import RunError
from dragoman.model import folder as model_folder
from dragoman.parallel.ranks import saving
from dragoman.parallel.strategy import Strategy, Tensors
from dragoman.training import optim, owner
from dragoman.training.state import TrainState

log = logging.getLogger(__name__)

OPTIMIZER, TRAINING = "optimizer.safetensors", "training.json"
OWN_WEIGHTS, OWN, PIECES = "weights.safetensors", "own-{:05d}.safetensors", "moments-{:05d}.safetensors"
UPDATES = "updates"
PIECES_SECONDS = 600.0  # until the main rank no longer waits for what another writes


@dataclass
class Snapshot:
    """The state of one step in the memory of the host: training goes on while it is written."""

    step: int
    weights: dict[str, Tensor]  # to be used: averaged where there is an average
    own_weights: dict[str, Tensor]  # then those of training; else nothing
    moments: dict[str, Tensor]
    numbers: dict[str, Any]
    scores: dict[str, float]
    own_files: list[Path]  # of ranks that have a state of their own, written already or just now


def snapshot(
    state: TrainState,
    weights: Tensors,
    moments: Tensors,
    identity: runs.Row,
    scores: dict[str, float],
    own: list[Path],
    memory: HostMemory,
) -> Snapshot:
    """`identity`: what must be the same on resume. `own`: files of ranks that have a state of their own."""
    numbers = state.numbers() | identity | {UPDATES: optim.updates(state.optimizer)}
    used, trained = (state.average.tensors, weights) if state.average else (weights, {})
    used, trained, moments = memory.copies("whole", used, trained, moments)
    return Snapshot(state.step, used, trained, moments, numbers, scores, own)


def own_folder(run: runs.RunFolder, step: int, claim: owner.Claim) -> Path:
    """Where ranks put what the main rank takes into the checkpoint. A cut-off rank of another generation has another one."""
    return run.checkpoints / f"{runs.step_name(step)}.{claim.word}.own.partial"


def write_own(folder: Path, state: TrainState, strategy: Strategy) -> Path | None:
    """What this rank has for itself, into a file that the main rank takes into the checkpoint: usually nothing; between two
    agreements weights, moments and the number of updates too, as islands skip a bad gradient each by itself."""
    own = strategy.own_state()
    if strategy.drifts:
        learning = [(name, each) for name, each in state.model.named_parameters() if each.requires_grad]
        own |= {f"weights.{name}": parameter.detach() for name, parameter in learning}
        own |= optim.moments(state.optimizer, state.model) | {UPDATES: torch.tensor(optim.updates(state.optimizer))}
    if strategy.seat is None or not own:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / OWN.format(strategy.seat)
    model_folder.write_tensors(path, own)
    return path


def write_pieces(path: Path, tensors: dict[str, Tensor]) -> None:
    """Whole or not at all; where it fails, the main rank is told by a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torso = path.with_suffix(".writing")
    try:
        with saving():
            model_folder.write_tensors(torso, tensors)
            torso.replace(path)
    except BaseException:
        with suppress(OSError):
            torso.unlink(missing_ok=True)
            path.with_suffix(".failed").touch()
        raise


def wait_for(files: list[Path], given_up: Callable[[], bool]) -> None:
    """What the other ranks write; not any more when the run ends with an error: who should write it may be gone."""
    until = time.monotonic() + PIECES_SECONDS
    while missing := [path for path in files if not path.is_file()]:
        if given_up():
            raise RunError(f"the run ended before {missing[0].name} was written")
        failed = [path for path in missing if path.with_suffix(".failed").exists()]
        if failed or time.monotonic() > until:
            raise RunError(
                f"{(failed or missing)[0].name} was not written; is there room on the disk, and is run.folder one for all hosts?"
            )
        time.sleep(0.05)


class HostMemory:
    """Where tensors are copied to, to be written while training goes on. From a GPU into pinned memory, which takes half a second to
    make and is kept for the next checkpoint. Torch would keep it too, but lets go of it whenever a CUDA graph is recorded."""

    def __init__(self) -> None:
        self.pinned: dict[tuple[str, int, str], Tensor] = {}

    def copies(self, purpose: str, *groups: Tensors) -> list[dict[str, Tensor]]:
        """All at once. The copies before, for the same purpose, must have been written."""
        found = [
            {name: self.place((purpose, number, name), tensor) for name, tensor in tensors.items()}
            for number, tensors in enumerate(groups)
        ]
        for tensors, places in zip(groups, found, strict=True):
            for name, place in places.items():
                place.copy_(tensors[name], non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies run behind our back until here
        return found

    def place(self, key: tuple[str, int, str], tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return torch.empty_like(tensor)
        place = self.pinned.get(key)
        if place is None or (place.shape, place.dtype) != (tensor.shape, tensor.dtype):
            self.pinned[key] = place = torch.empty_like(tensor, device="cpu", pin_memory=True)
        return place


def write(
    run: runs.RunFolder, taken: Snapshot, description: model_folder.Description, vocabulary: Path, claim: owner.Claim
) -> int:
    """Write a checkpoint, whole or not at all, and only while the run is still ours; returns its bytes."""
    with saving(), runs.new_folder(run.checkpoint(taken.step), partial(owner.committing, run, claim)) as fresh:
        model_folder.write_model(fresh, taken.weights, description, vocabulary)
        if taken.moments:
            model_folder.write_tensors(fresh / OPTIMIZER, taken.moments)
        if taken.own_weights:
            model_folder.write_tensors(fresh / OWN_WEIGHTS, taken.own_weights)
        runs.write_json(fresh / TRAINING, taken.numbers)
        for own in taken.own_files:
            own.replace(fresh / own.name)
        written_by = {"time": round(time.time(), 3), "generation": claim.generation}
        return runs.write_manifest(fresh, {"step": taken.step, **written_by, "scores": taken.scores})


class Writer:
    """One background thread that writes one checkpoint at a time. A failure is told, and training goes on: the older
    checkpoints are still there. Only when the last one fails, waiting for it raises the error."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None
        self.given_up = False  # the run ends with an error

    def start(self, work: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:
                self.error = error
                failed(error)

        self.finish()
        self.check()
        self.error = None
        self.thread = threading.Thread(target=run, name="checkpoint")
        self.thread.start()

    def check(self) -> None:
        """Going on has no sense when the run is somebody else's now."""
        if isinstance(self.error, owner.FencedError):
            raise self.error

    @property
    def busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def finish(self, seconds: float | None = None) -> bool:
        """Waits so long; whether nothing is being written any more."""
        if self.thread:
            self.thread.join(seconds)
        return not self.busy

    def finish_well(self) -> None:
        self.finish()
        self.check()
        if self.error:
            raise RunError(f"the last checkpoint could not be written: {self.error}") from self.error


@dataclass
class Found:
    """`source`: the newest checkpoint that is whole. `damaged`: newer ones by name, and what is wrong with each."""

    source: Path | None = None
    damaged: dict[str, str] = field(default_factory=dict)


def newest_sound(run: runs.RunFolder, before: int | None = None) -> Found:
    """A damaged one is named and passed over. `before`: rather one that was written before this step."""
    put_back(run)
    found, folders = Found(), runs.checkpoint_folders(run)
    if before is not None:
        folders.sort(key=lambda folder: (runs.step_of(folder) < before, runs.step_of(folder)))
    for checkpoint in reversed(folders):
        problem = runs.damage(checkpoint)
        if problem is None:
            found.source = checkpoint
            return found
        found.damaged[checkpoint.name] = problem
        log.warning("checkpoint %s is damaged: %s; looking for an older one", checkpoint.name, problem)
    if found.damaged:
        raise RunError(f"{run.checkpoints}: every checkpoint is damaged; nothing was changed. Start another run.folder")
    return found


def put_back(run: runs.RunFolder) -> None:
    """What a process was just replacing when it was killed."""
    for old in run.checkpoints.glob(f"step-*{runs.OLD}"):
        place = run.checkpoint(runs.step_of(old))
        if not place.exists():
            old.rename(place)


def restore(checkpoint: Path, state: TrainState, strategy: Strategy) -> None:
    """Put a checkpoint into `state` and `strategy`. A run that begins to average now begins with the weights as they are."""
    parameters = dict(state.model.named_parameters())

    def put(weights: dict[str, Tensor], moments: Iterable[tuple[str, Tensor]], updates: int) -> None:
        whole = {name: strategy.cut(parameters[name], tensor) for name, tensor in weights.items() if name in parameters}
        model_folder.load_weights(state.model, weights | whole, checkpoint / model_folder.WEIGHTS)
        cut = {name: strategy.cut(parameters[name.partition(".")[2]], tensor) for name, tensor in moments}
        optim.restore(state.optimizer, state.model, cut, updates)

    numbers = runs.read_json(checkpoint / TRAINING)
    state.restore_numbers(numbers)
    kept, trained = model_folder.read_weights(checkpoint), checkpoint / OWN_WEIGHTS
    updates = numbers.get(UPDATES, state.step)
    put(model_folder.read_tensors(trained) if trained.exists() else kept, moments_in(checkpoint), updates)
    if state.average:
        state.average.restore(kept)
    own = read_own(checkpoint, strategy)
    strategy.load_own(own)
    prefix = "weights."
    weights = {name.removeprefix(prefix): tensor for name, tensor in own.items() if name.startswith(prefix)}
    if strategy.drifts and weights:
        moments = [(name, tensor) for name, tensor in own.items() if name.startswith(optim.MOMENTS)]
        put(kept | weights, moments, int(own.get(UPDATES, updates)))


def moments_in(checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
    """One after the other: whoever needs a piece of each never holds all of them. Pieces are rows of the whole."""
    files = sorted(checkpoint.glob(PIECES.format(0).replace("00000", "*"))) or [checkpoint / OPTIMIZER]
    with ExitStack() as stack:
        opened = [stack.enter_context(model_folder.opened(path)) for path in files]
        names: list[str] = opened[0].keys()
        for name in names:
            parts = [each.get_tensor(name) for each in opened]
            yield name, torch.cat(parts) if len(parts) > 1 else parts[0]


def read_own(checkpoint: Path, strategy: Strategy) -> dict[str, Tensor]:
    """The file of one's own seat. With more islands than there were, some take that of another: its weights serve two."""
    files = sorted(checkpoint.glob(OWN.format(0).replace("00000", "*")))
    own = checkpoint / OWN.format(strategy.seat_to_read)
    if own not in files and strategy.drifts and files:
        own = files[strategy.seat_to_read % len(files)]
    return model_folder.read_tensors(own) if own in files else {}


def prune(run: runs.RunFolder, section: Checkpoint) -> None:
    """After a checkpoint was written: the newest is sound then, so whatever the others are, a sound one stays."""
    checkpoints, keep = runs.checkpoint_folders(run), (section.keep_last, section.keep_best, section.keep_every)
    kept = runs.worth_keeping(checkpoints, section.metric, *keep)
    for checkpoint in checkpoints:
        if checkpoint not in kept:
            runs.remove_folder(checkpoint)


def tidy(run: runs.RunFolder, step: int) -> None:
    """Before a run goes on from `step`: newer checkpoints (they are damaged) are set aside, so that they do not count
    as the last or the best; what killed processes left half done is removed."""
    for checkpoint in runs.checkpoint_folders(run):
        if runs.step_of(checkpoint) > step:
            aside = checkpoint.with_name(f"{checkpoint.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            checkpoint.rename(aside)
    for left in (".partial", ".removed", runs.OLD):
        for torso in run.checkpoints.glob(f"step-*{left}"):
            shutil.rmtree(torso, ignore_errors=True)


def better(score: float, than: float | None, metric: str) -> bool:
    """Than nothing, too. What is no number is no score: as the best, nothing would ever be better."""
    if than is None or not math.isfinite(than) or not math.isfinite(score):
        return math.isfinite(score)
    return score < than if metric in runs.LOWER_IS_BETTER else score > than
