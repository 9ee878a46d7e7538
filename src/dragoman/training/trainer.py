"""The story of a run: prepare the state, take steps, write down what happened, do what is due, stop together.

resume or begin -> [ step -> record -> validate when due -> checkpoint when due -> stop? ] -> last words
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from dragoman import runs
from dragoman.config.load import to_toml
from dragoman.config.schedule import learning_rate
from dragoman.config.schema import Config
from dragoman.data.encode import PreparedData
from dragoman.data.loader import Step, prefetched, steps, tiles
from dragoman.errors import DriftError, RunError, TrainingError
from dragoman.model.folder import Description
from dragoman.model.loss import SequenceLoss
from dragoman.model.transformer import Transformer
from dragoman.monitor.sampler import sampling
from dragoman.monitor.sinks import Metrics, sinks
from dragoman.parallel.choose import strategy_for
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import from_main, gather, sum_over_ranks, wait_for_all
from dragoman.parallel.sharded import Sharded
from dragoman.parallel.timing import TIMED_EVERY, exchange_seconds, time_exchanges
from dragoman.training import checkpoint, facts, fault, memory, optim, owner, start
from dragoman.training.average import Average
from dragoman.training.data_check import DataCheck
from dragoman.training.precision import arithmetic_of, resolve
from dragoman.training.recorded import Recorded
from dragoman.training.state import TrainState
from dragoman.training.step import update
from dragoman.training.straggler import Lookout, Straggler
from dragoman.training.validate import even_slice, validation_loss
from dragoman.training.watchdog import START, Watchdog
from dragoman.training.window import Totals, Window

log = logging.getLogger(__name__)

MOST_BAD_STEPS = 10  # in a row without a finite gradient, then the run goes back to a checkpoint
MOST_ROLL_BACKS = 2  # in one go; a third time it would only happen again
MOST_WAITS = 60  # quarters of train.timeout_seconds that the last checkpoint waits for the one before
STOP_EVERY = 10  # steps between two questions whether a rank was asked to stop
SAME_SECONDS = 1.0  # a stop that reaches a rank by two ways (the launcher, and a scheduler that tells everybody) is one
STOPS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}  # and the reason that is given


@dataclass
class Moment:
    """What a task may look at: the model in evaluation mode at one step. Every rank gets one."""

    step: int
    model: Transformer
    mesh: Mesh
    run: runs.RunFolder


class Task(Protocol):
    """Something measured beside the validation loss. All ranks run it together and return the same numbers."""

    def run(self, moment: Moment) -> dict[str, Any]: ...


def blocks(objective: nn.Module) -> list[nn.Module]:
    """The parts that strategies handle one at a time."""
    model = objective.model
    assert isinstance(model, Transformer)
    return [*model.encoder, *model.decoder]


def set_aside() -> None:
    """What lives now, lives as long as the run: Python need not look at it again whenever it looks for garbage. A compiled model
    is a million objects; looking at all of them made the GPU wait for a third of a second, every hundred steps."""
    gc.collect()
    gc.freeze()


class Trainer:
    """One run on one rank. Built once, then `run` tells the story."""

    def __init__(
        self,
        config: Config,
        data: PreparedData,
        mesh: Mesh,
        tasks: list[Task],
        version: str,
        progress: runs.Progress,
        start_from: Path | None = None,
    ):
        self.config, self.data, self.mesh = config, data, mesh
        self.tasks, self.version, self.progress = tasks, version, progress
        self.folder = runs.RunFolder(config.run.folder)
        self.train_data, self.valid_data = data.encoded("train"), data.encoded("valid")
        self.train_slice = even_slice(self.train_data, len(self.valid_data))
        facts.check_fits(data, config)
        names = gather(mesh, resolve(config.train.precision, mesh.device))
        self.arithmetic = arithmetic_of(names[0] if len(set(names)) == 1 else "fp32", mesh.device)
        self.compiled = config.train.compile == "on" or (config.train.compile == "auto" and mesh.device.type == "cuda")
        self.packing = facts.packing_of(data, config)
        self.share = facts.share_of(config, mesh)
        self.stages = facts.stages_of(data, config)
        self.rate = learning_rate(config)
        self.identity = facts.identity(config, data, self.packing, self.share, self.stages) | {"dragoman": version}
        model = Transformer(config.model, len(data.vocabulary), data.vocabulary.source_size)
        model.init_weights(config.run.seed)
        model.to(mesh.device)
        self.taken = start.take(model, data.vocabulary, start_from) if start_from else None
        self.frozen = start.freeze(model, config.train.freeze)
        if self.arithmetic.name == "fp8":
            model.use_eight_bits()
        self.objective = SequenceLoss(model, config.train.label_smoothing)
        self.strategy = strategy_for(config.parallel, mesh, blocks, self.whole_objective)
        self.strategy.shard(self.objective)  # before the optimizer is made: parameters may be other ones then
        average = Average(model, config.train.average_decay) if config.train.average_decay else None
        self.state = TrainState(model, optim.build(model, config.train), self.arithmetic.scaler(), average)
        langs = config.data.source_lang, config.data.target_lang
        sizes = len(data.vocabulary), data.vocabulary.source_size
        self.description = Description(config.model, sizes[0], *langs, config.translate, sizes[1])
        self.started = time.time()
        self.metrics: Metrics | None = None  # on the main rank only
        self.writer = checkpoint.Writer()
        self.data_check = DataCheck(data)
        self.watchdog = Watchdog(self.folder.stacks(mesh.rank), config.train.timeout_seconds)
        self.fault = fault.wanted()
        self.bad_steps = self.roll_backs = 0
        self.disk_full = False
        self.changed: list[str] = []  # keys of the configuration since the run was started last
        self.generation = 0  # of this run: a number for every start, on the main rank
        self.stop_reason = ""  # when this rank was asked to stop
        self.host_of: dict[int, str] = {}  # by rank
        self.lookout, self.straggler = Lookout(), -1
        self.first_of_host = False  # writes its telemetry and checks its copy of the data
        self.validated: tuple[int, dict[str, Any]] = (-1, {})

    # --- the story ---

    def begin(self, *, resume: bool) -> None:
        """Restore the newest sound checkpoint, or start a run folder. A run that has done all its steps is left alone."""
        facts.check_folder(self.folder, resume=resume)
        self.watchdog.learn_start(runs.read_rows(self.folder.events) if resume else [])
        with self.watchdog.watching():
            self.set_up(resume=resume)

    def set_up(self, *, resume: bool) -> None:
        found = checkpoint.newest_sound(self.folder) if resume and self.mesh.is_main else None
        source = from_main(self.mesh, found)  # one rank chooses for all
        if source is not None:
            self.changed = facts.changes(self.folder, self.config)
            facts.check_same(runs.read_json(source / checkpoint.TRAINING), self.identity, self.changed, source)
            checkpoint.restore(source, self.state, self.strategy)
        if len(set(gather(self.mesh, (self.state.step, self.state.position)))) > 1:
            raise TrainingError(
                f"{self.folder.path}: ranks restored different checkpoints; is it the same folder on every host?"
            )
        if resume:
            changed = f"; changed since: {', '.join(self.changed)}" if self.changed else ""
            what = (
                ("resuming", f"from {source}{changed}")
                if source
                else ("starting", f"nothing to resume in {self.folder.path}")
            )
            self.progress(what[0], self.state.step, self.config.train.max_steps, what[1])
        if self.config.train.tokens_per_gpu == "auto" and not self.done:
            self.share = replace(self.share, micro_rows=self.rows_for_all())
        hosts = facts.hosts(self.mesh)  # an exchange: nobody writes before everybody has read
        self.first_of_host = any(self.mesh.rank == entry["ranks"][0] for entry in hosts)
        self.host_of = {rank: entry["host"] for entry in hosts for rank in entry["ranks"]}
        if self.mesh.is_main and not self.done:
            checkpoint.tidy(self.folder, self.state.step)
            self.write_facts(hosts, resumed=source is not None)
            if self.taken and source is None:
                runs.write_json(self.folder.start, self.taken | {"frozen": self.frozen})
                self.progress("starting", 0, self.config.train.max_steps, start.told(self.taken))
        wait_for_all(self.mesh)

    def run(self) -> str:
        """Train to the end; returns the reason for stopping."""
        if self.done:
            return "max_steps"
        monitor = self.config.monitor
        if self.mesh.is_main:
            self.metrics = Metrics(self.folder.metrics, sinks(self.folder, monitor))
        telemetry = monitor.telemetry and self.first_of_host
        with self.listening():  # until the last checkpoint is written
            try:
                with (
                    sampling(self.folder.telemetry, monitor.interval_seconds, enabled=telemetry),
                    self.watchdog.watching(),
                ):
                    if self.first_of_host:
                        self.data_check.start()
                    reason = self.loop()
            finally:
                self.writer.finish()
            self.data_check.wait()
            self.writer.finish_well()
        self.event("stop", reason=reason, seconds=round(time.time() - self.started, 3))
        if self.metrics:
            self.put_down(self.metrics.close)
            owner.release(self.folder, self.generation)
        wait_for_all(self.mesh)
        return reason

    def loop(self) -> str:
        """Steps until there is a reason to stop. Validation and checkpoints always follow a row of metrics."""
        state = self.state
        wrapped = self.wrapped()
        time_exchanges(wrapped)
        self.strategy.settle(partial(self.pass_for_nothing, wrapped))
        pin = self.mesh.device.type == "cuda"
        position = (state.position, self.stages, state.step)
        ahead = prefetched(steps(self.train_data, self.packing, self.share, *position), pin=pin)
        try:
            with closing(ahead) as stream:
                return self.take_steps(stream, wrapped)
        finally:
            gc.unfreeze()

    def wrapped(self) -> nn.Module:
        """The objective as it learns: for all ranks, compiled, recorded."""
        wrapped = self.strategy.wrap(self.objective, compiled=self.compiled).train()
        alone = self.mesh.world == 1 and self.mesh.device.type == "cuda"
        if alone and self.compiled and self.config.train.cuda_graphs:
            return Recorded(wrapped, self.mesh.device).train()
        return wrapped

    def pass_for_nothing(self, wrapped: nn.Module) -> None:
        """Forward and backward over empty rows."""
        batch = tiles(self.train_data, [[]] * self.share.rows_per_micro_batch, self.packing.width)
        with self.arithmetic():
            loss, _ = wrapped(*batch.to(self.mesh.device).tensors())
        loss.backward()
        self.state.optimizer.zero_grad(set_to_none=True)

    def take_steps(self, stream: Iterator[Step], wrapped: nn.Module) -> str:
        train, state = self.config.train, self.state
        window = Window(self.mesh, train.clip_norm)
        timed: list[tuple[float, float]] = []  # the exchange that was timed last
        while not self.done:
            window.clock.mark("other")
            asked = time.perf_counter()
            step = next(stream)
            window.data_seconds += time.perf_counter() - asked
            window.clock.mark("idle")
            rate = self.rate(state.step)
            optim.set_rate(state.optimizer, rate)
            how = (self.strategy, train, self.arithmetic, self.config.run.seed, window.clock)
            try:
                loss_sum, norm = update(state, wrapped, step, *how)
            except RuntimeError as error:
                if not memory.ran_out(error):
                    raise
                raise self.out_of_memory() from None
            self.writer.check()
            self.data_check.result()
            if self.watchdog.where == START:
                self.event("first_step", seconds=round(time.time() - self.started, 3))
            self.watchdog.beat()
            if self.fault:
                self.fault.happen(self.mesh.rank, state.step, state.model)
            window.add(loss_sum, norm, step.source_tokens, step.target_tokens, step.slots)
            if state.step % TIMED_EVERY == 0 and (spent := exchange_seconds(wrapped)):
                window.exchanges.append(spent)
                timed = [spent]
            stopping = self.asked_to_stop()
            if stopping or self.due(train.log_every, self.config.validation.every, self.config.checkpoint.every):
                # A short window may have no timed step: it is not without exchange.
                window.exchanges = window.exchanges or timed
                reason = self.look_back(window.close(), rate, stopping)
                if reason:
                    return reason
                if self.mesh.device.type == "cuda" and not gc.get_freeze_count():
                    set_aside()
                window = Window(self.mesh, train.clip_norm)
        return "max_steps"

    def look_back(self, totals: Totals, rate: float, stopping: str) -> str | None:
        """Write down what a window was, and do what is due after it; returns a reason to stop."""
        if totals.skipped < totals.steps:
            self.record(totals, rate)
        else:
            self.nothing_learnt(totals)
            if not (stopping or self.last):
                return None
        return self.do_what_is_due(stopping)

    def asked_to_stop(self) -> str:
        """The reason when some rank was; all ranks learn it at the same step. The exchange waits for the device, so not at every."""
        if self.mesh.world == 1:
            return self.stop_reason
        if self.state.step % STOP_EVERY:
            return ""
        asked = sum_over_ranks(self.mesh, [float(self.stop_reason == reason) for reason in STOPS.values()])
        return next((reason for reason, ranks in zip(STOPS.values(), asked, strict=True) if ranks), "")

    # --- when no step is good any more ---

    def nothing_learnt(self, totals: Totals) -> None:
        """No step since the last row had a finite gradient. A few may be chance, or fp16 looking for its scale."""
        self.event("skipped", steps=totals.skipped)
        self.bad_steps += totals.skipped
        if self.bad_steps >= MOST_BAD_STEPS:
            self.roll_back()

    def roll_back(self) -> None:
        """Back to the newest sound checkpoint, and on with the data that comes next."""
        self.writer.finish()
        found = checkpoint.newest_sound(self.folder) if self.mesh.is_main else None
        source = from_main(self.mesh, found)
        self.roll_backs += 1
        if source is None or self.roll_backs > MOST_ROLL_BACKS:
            self.event("stop", reason="diverged", seconds=round(time.time() - self.started, 3))
            raise TrainingError(
                f"step {self.state.step}: no gradient was finite in the last {self.bad_steps} steps; training diverged. Lower "
                "schedule.learning_rate, raise schedule.warmup_steps or set train.clip_norm; "
                f"checkpoints are in {self.folder.checkpoints}"
            )
        lost, behind = self.state.step, self.state.position
        checkpoint.restore(source, self.state, self.strategy)
        self.state.position, self.bad_steps = behind, 0
        if self.mesh.is_main:
            self.forget_lost_rows()
        self.event("roll_back", from_step=lost, checkpoint=source.name)
        detail = f"no gradient was finite since; back from step {lost} to {source.name}"
        self.progress("rolling back", self.state.step, self.config.train.max_steps, detail)

    def whole_objective(self) -> SequenceLoss:
        """Another one like ours, for strategies that cut ours into pieces."""
        model = Transformer(self.config.model, len(self.data.vocabulary), self.data.vocabulary.source_size).to(
            self.mesh.device
        )
        return SequenceLoss(model, self.config.train.label_smoothing)

    # --- memory ---

    def rows_for_all(self) -> int:
        """As many rows per micro-batch as fit the fullest device of all ranks."""
        rows = min(gather(self.mesh, self.rows_that_fit()))
        if rows == 0:
            raise TrainingError(
                f"not one row of train.tile_width = {self.packing.width} fits into the memory of {self.mesh.device}; is another "
                "process using it? Otherwise choose a smaller model"
            )
        return rows

    def rows_that_fit(self) -> int:
        if isinstance(self.strategy, Sharded) and self.mesh.device.type == "cuda":
            raise TrainingError(
                f'parallel.strategy = "{self.config.parallel.strategy}": finding out what fits would have ranks wait for each other; '
                "set train.tokens_per_gpu"
            )
        return memory.rows_that_fit(self.objective, self.share, self.packing, self.arithmetic)

    def out_of_memory(self) -> TrainingError:
        """In words, with a value that fits now."""
        self.state.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        used = self.share.rows_per_micro_batch * self.packing.width
        if isinstance(self.strategy, Sharded):  # trying what fits would have ranks wait for each other
            remedy = f"try train.tokens_per_gpu={max(self.packing.width, used // 2)}"
        else:
            fitting = self.rows_that_fit() * self.packing.width
            remedy = (
                f"train.tokens_per_gpu={fitting} fits" if fitting else "not even one row fits: choose a smaller model"
            )
        return TrainingError(
            f"step {self.state.step}: {self.mesh.device} ran out of memory with train.tokens_per_gpu = {used}; {remedy}. "
            f"Checkpoints are in {self.folder.checkpoints}"
        )

    # --- records ---

    def record(self, totals: Totals, rate: float) -> None:
        """One row of metrics, from sums that are the same on every rank."""
        state, self.bad_steps = self.state, 0
        state.train_seconds += totals.seconds
        if totals.skipped:
            self.event("skipped", steps=totals.skipped)
        row = facts.metrics_row(state, totals, rate, len(self.train_data))
        if self.metrics:
            self.put_down(self.metrics.write, row)
            self.put_down(runs.append_row, self.folder.spans, facts.spans_row(state.step, totals))
        detail = f"loss {totals.loss:.3f}, {row['target_tokens_per_s']:,.0f} target tokens/s"
        self.progress("training", state.step, self.config.train.max_steps, detail)
        log.info("step %d: %s, lr %.2e, %.3f s a step", state.step, detail, rate, row["step_seconds"])
        self.name_straggler(self.lookout.look(totals.spans))

    def name_straggler(self, found: Straggler | None) -> None:
        """Once, when a rank begins to hold the others up, and once when it no longer does."""
        rank = found.rank if found else -1
        if rank == self.straggler:
            return
        if found:
            host = self.host_of[rank]
            self.event("straggler", host=host, **asdict(found))
            self.progress("straggler", self.state.step, self.config.train.max_steps, found.sentence(host))
        else:
            self.event("straggler_gone", rank=self.straggler)
        self.straggler = rank

    def event(self, name: str, at: int | None = None, **facts: Any) -> None:
        step = self.state.step if at is None else at
        if self.mesh.is_main:
            self.put_down(runs.append_row, self.folder.events, {"event": name, "step": step, **facts})
        log.info("%s at step %d %s", name, step, facts or "")

    def put_down(self, write: Callable[..., None], *what: Any) -> None:
        """A row that a full disk does not take is told, once, and training goes on: it is the weights that count."""
        try:
            write(*what)
            self.disk_full = False
        except OSError as error:
            if not self.disk_full:
                detail = f"a row could not be written ({error}); training goes on"
                self.progress("disk", self.state.step, self.config.train.max_steps, detail)
            self.disk_full = True

    # --- what is due ---

    @property
    def last(self) -> bool:
        return self.state.step == self.config.train.max_steps

    @property
    def done(self) -> bool:
        return self.state.step >= self.config.train.max_steps

    def due(self, *every: int) -> bool:
        return self.last or any(self.state.step % each == 0 for each in every)

    def do_what_is_due(self, stopping: str) -> str | None:
        """Validate and save; returns a reason to stop, the same on every rank."""
        validation, keeping = self.config.validation, self.config.checkpoint
        if self.mesh.world > 1 and self.due(validation.every, keeping.every):
            self.check_replicas()
        improved = False
        if self.due(validation.every):
            with self.watchdog.section("validation"):
                improved = self.validate()
        no_better = validation.patience and self.state.stale_validations >= validation.patience
        if stopping or no_better or self.due(keeping.every) or (improved and keeping.keep_best):
            with self.watchdog.section("checkpoint"):
                self.save(must=bool(stopping or no_better or self.last))
        if no_better:
            return "patience"
        return stopping if stopping and not self.last else None

    def check_replicas(self) -> None:
        """All ranks hold the same weights, to the bit; whoever does not is named, before it is validated or saved."""
        if isinstance(self.strategy, Sharded):
            return  # nobody holds the same as another
        sums = [tensor.detach().double().sum() for tensor in self.strategy.agreed(self.state.model).values()]
        prints = gather(self.mesh, torch.stack(sums).sum().item())
        usual = max(prints, key=prints.count)
        other = [rank for rank, found in enumerate(prints) if found != usual]
        if other:
            self.event("drift", ranks=other)
            raise DriftError(
                f"step {self.state.step}: rank {', '.join(map(str, other))} holds other weights than the rest: a fault of memory, "
                f"device or network. The checkpoints in {self.folder.checkpoints} are from before; --resume goes on from there"
            )

    def validate(self) -> bool:
        """Validation loss and all tasks; returns whether the chosen metric is better than ever before."""
        start = time.perf_counter()
        width = self.packing.width
        slots = self.share.rows_per_micro_batch * width
        how = (self.mesh, width, slots, self.arithmetic)
        with self.state.to_be_used(), self.strategy.looking(self.objective) as objective:
            assert isinstance(objective, SequenceLoss)
            scores: dict[str, Any] = validation_loss(objective, self.valid_data, *how)
            known = validation_loss(objective, self.train_slice, *how)
            scores |= {f"train_slice_{key}": known[key] for key in ("loss", "nll", "pairs")}
            moment = Moment(self.state.step, objective.model.eval(), self.mesh, self.folder)
            for task in self.tasks:
                scores |= task.run(moment)
        self.objective.train()
        self.validated = (self.state.step, scores)
        seconds = round(time.perf_counter() - start, 3)
        if self.metrics:
            self.put_down(self.metrics.write, {"kind": "valid", "step": self.state.step, **scores, "seconds": seconds})
        self.event("validation", seconds=seconds)
        bleu = f", BLEU {scores['bleu']:.1f}" if "bleu" in scores else ""
        detail = f"loss {scores['loss']:.3f}{bleu} ({seconds:.1f} s)"
        self.progress("validation", self.state.step, self.config.train.max_steps, detail)
        return self.is_best(scores)

    def is_best(self, scores: dict[str, Any]) -> bool:
        metric = self.config.checkpoint.metric
        if metric not in scores:
            return False
        best = self.state.best.get("score") if self.state.best.get("metric") == metric else None
        if checkpoint.better(scores[metric], best, metric):
            self.state.best = {"metric": metric, "score": scores[metric], "step": self.state.step}
            self.state.stale_validations = 0
            return True
        self.state.stale_validations += 1
        return False

    def save(self, *, must: bool) -> None:
        """The main rank copies the state and goes on; a thread writes the copy. Every rank must reach this line."""
        start, moment = time.perf_counter(), time.time()
        state, own = self.state, self.own_files()
        weights = self.strategy.agreed(state.model)
        moments = self.strategy.whole(optim.moments(state.optimizer, state.model))
        if not self.mesh.is_main:
            return
        # The one before waits for the check of the data: on a slow disk longer than the other ranks wait for this one.
        if not must and self.writer.busy and self.data_check.running:
            checkpoint.drop_own(own)
            return
        if not self.before_is_written(must=must):  # two copies at once would be too many
            checkpoint.drop_own(own)
            slow = RunError("the one before is still being written; raise checkpoint.every, or use a faster disk")
            self.saving_failed(state.step, slow)
            return
        step, validated = self.validated
        scores = validated if step == self.state.step else {}
        numbers = {key: value for key, value in scores.items() if isinstance(value, float)}
        taken = checkpoint.snapshot(state, weights, moments, self.identity, numbers, own)
        stalled = round(time.perf_counter() - start, 3)

        def write() -> None:
            self.data_check.wait()  # what was learnt from damaged data is not kept
            began = time.perf_counter()
            written = checkpoint.write(self.folder, taken, self.description, self.data.vocabulary.path, self.generation)
            checkpoint.prune(self.folder, self.config.checkpoint)
            spent = round(time.perf_counter() - began, 3)
            when = {"stalled_at": round(moment, 3), "seconds": stalled, "write_seconds": spent}
            self.event("checkpoint", taken.step, **when, bytes=written)

        self.writer.start(write, partial(self.saving_failed, taken.step))

    def before_is_written(self, *, must: bool) -> bool:
        """A slow disk is no hang: it is waited for, but not so long that the other ranks, who wait too, give up."""
        for _ in range(MOST_WAITS if must else 1):
            if self.writer.finish(self.config.train.timeout_seconds / 4):
                return True
            self.watchdog.since = time.monotonic()
        return False

    def own_files(self) -> list[Path]:
        """What ranks have for themselves they write themselves, before the rest is written. Every rank must reach this line."""
        try:
            path = checkpoint.write_own(self.folder, self.state, self.strategy)
        except (OSError, RunError) as error:
            self.saving_failed(self.state.step, error)
            path = None  # resumed from there, this rank takes what all agree on
        written = gather(self.mesh, path)
        return [path for path in written if path and path.is_file()]  # a host with a disk of its own keeps it to itself

    def saving_failed(self, step: int, error: Exception) -> None:
        self.event("checkpoint_failed", step, error=str(error))
        detail = f"the checkpoint of step {step} could not be written ({error}); training goes on, older ones are kept"
        self.progress("checkpoint", step, self.config.train.max_steps, detail)

    # --- beginnings ---

    def write_facts(self, hosts: list[dict[str, Any]], *, resumed: bool) -> None:
        """Configuration, environment and data of the run; after a resume, rows of lost steps are taken out."""
        environment = facts.environment(self.config, self.mesh, self.share, self.data.vocabulary)
        own = {"dragoman": self.version, "precision": self.arithmetic.name, "compile": self.compiled, "hosts": hosts}
        own["exchange"] = facts.exchange(
            self.config, hosts, self.share, self.state.model, gloo=self.mesh.device.type == "cpu"
        )
        runs.write_text(self.folder.config, to_toml(self.config))  # first: it makes the folder a run
        self.generation = owner.claim(self.folder)
        runs.write_json(self.folder.environment, environment | own)
        runs.write_json(self.folder.data, self.data.manifest)
        lost = self.forget_lost_rows()
        if resumed:
            changed: dict[str, Any] = {"changed": self.changed} if self.changed else {}
            self.event("resume", ranks=self.mesh.world, lost_steps=lost, **changed)
        else:  # lost steps: it was killed before its first checkpoint
            self.event("start", ranks=self.mesh.world, **({"lost_steps": lost} if lost else {}))

    def forget_lost_rows(self) -> int:
        """Take the rows of steps out that will be done again; returns how many steps these were."""
        rows = runs.read_rows(self.folder.metrics)
        runs.write_rows(self.folder.metrics, [row for row in rows if row["step"] <= self.state.step])
        return max([row["step"] for row in rows], default=self.state.step) - self.state.step

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask for a stop, with a checkpoint, within a few steps; a second one stops at once."""

        since = float("inf")

        def ask(number: int, frame: FrameType | None) -> None:
            nonlocal since
            if self.stop_reason:
                if time.monotonic() - since > SAME_SECONDS:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)
                return
            since = time.monotonic()
            self.stop_reason = STOPS[signal.Signals(number)]
            self.progress(
                "stopping", self.state.step, self.config.train.max_steps, "with a checkpoint; once more: at once"
            )
            log.warning("signal %d: stopping within %d steps", number, STOP_EVERY)

        previous = {}
        try:
            for name in STOPS:
                previous[name] = signal.signal(name, ask)
        except ValueError:  # not the main thread: whoever called us owns the signals
            pass
        try:
            yield
        finally:
            for name, handler in previous.items():
                signal.signal(name, handler)
