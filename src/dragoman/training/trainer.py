"""The story of a run: prepare the state, take steps, write down what happened, do what is due, stop together.

resume or begin -> [ step -> record -> validate when due -> checkpoint when due -> stop? ] -> last words
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import nn

from dragoman import runs
from dragoman.config.load import to_toml
from dragoman.config.schedule import learning_rate
from dragoman.config.schema import Config
from dragoman.data.encode import PreparedData
from dragoman.data.loader import Share, Step, prefetched, steps, tiles
from dragoman.errors import DragomanError, DriftError, RunError, TrainingError
from dragoman.model import ops
from dragoman.model.folder import Description
from dragoman.model.loss import SequenceLoss
from dragoman.model.transformer import Transformer
from dragoman.monitor.sampler import sampling
from dragoman.parallel.choose import strategy_for
from dragoman.parallel.mesh import Mesh
from dragoman.parallel.reduce import from_main, gather, wait_for_all
from dragoman.parallel.timing import TIMED_EVERY, exchange_seconds, time_exchanges
from dragoman.training import checkpoint, facts, fault, memory, optim, owner, replicas, start
from dragoman.training.average import Average
from dragoman.training.compiling import compile_parts, uncompiled
from dragoman.training.data_check import DataCheck
from dragoman.training.divergence import Judge
from dragoman.training.garbage import Aside
from dragoman.training.logbook import Logbook
from dragoman.training.precision import arithmetic_of
from dragoman.training.recorded import Recorded
from dragoman.training.saving import Saver
from dragoman.training.state import TrainState
from dragoman.training.step import ANY_FINITE, update
from dragoman.training.stopping import TIME_LIMIT, Stopping
from dragoman.training.validate import even_slice, validation_loss
from dragoman.training.watchdog import END, START, Watchdog
from dragoman.training.window import Totals, Window

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE = "patience"
ROLLED_BACK = "rolled back"  # a reason not to stop but to read on from where training now is
CHECK_SECONDS = 0.1  # between two looks whether all hosts have compared their data with its checksums


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
        watchdog: Watchdog | None = None,
    ):
        self.config, self.data, self.mesh = config, data, mesh
        self.tasks, self.version = tasks, version
        self.folder = runs.RunFolder(config.run.folder)
        self.train_data, self.valid_data = data.encoded("train"), data.encoded("valid")
        self.train_slice = even_slice(self.train_data, len(self.valid_data))
        facts.check_fits(data, config)
        self.arithmetic = arithmetic_of(facts.precision_of(config, mesh, self.folder), mesh.device)
        compiling = config.train.compile == "on" or (config.train.compile == "auto" and self.worth_compiling())
        self.compiled = all(gather(mesh, compiling))  # it decides how often ranks exchange before the first step
        self.packing = facts.packing_of(data, config)
        self.share = facts.share_of(config, mesh)
        self.stages = facts.stages_of(data, config)
        self.rate = learning_rate(config)
        self.identity = facts.identity(config, data, self.packing, self.share, self.stages) | {"dragoman": version}
        ops.look_at(mesh.device)
        self.objective = self.fresh_objective()
        model = self.objective.model
        model.init_weights(config.run.seed)
        model.to(mesh.device)
        self.taken = start.take(model, data.vocabulary, start_from) if start_from else None
        self.frozen = start.freeze(model, config.train.freeze)
        if self.arithmetic.name == "fp8" and not model.use_eight_bits() and mesh.is_main:
            log.warning(
                'train.precision = "fp8": this model has no matrix for it (see docs/training.md); it is as bf16'
            )
        self.strategy = strategy_for(config.parallel, mesh, blocks, self.twin)
        self.strategy.shard(self.objective)  # before the optimizer is made: parameters may be other ones then
        average = Average(model, config.train.average_decay) if config.train.average_decay else None
        self.state = TrainState(model, optim.build(model, config.train), self.arithmetic.scaler(), average)
        pieces, langs = data.vocabulary, (config.data.source_lang, config.data.target_lang)
        self.description = Description(config.model, len(pieces), *langs, config.translate, pieces.source_size)
        self.logbook = Logbook(self.folder, mesh, self.state, config.train.max_steps, progress)
        self.data_check = DataCheck(data, alone=mesh.world == 1)
        self.stopping = Stopping(mesh, self.data_check)
        self.watchdog = watchdog or Watchdog(self.folder.stacks(mesh.rank), config.train.timeout_seconds)
        self.watchdog.tell = self.logbook.hang
        what = (config, self.folder, mesh, self.state, self.strategy, self.description, data.vocabulary.path)
        self.saver = Saver(*what, self.identity, self.data_check, self.watchdog, self.logbook)
        self.judge = Judge(len(data.vocabulary), one_mixture=len(self.stages) < 2)
        self.fault = fault.wanted()
        self.changed: list[str] = []  # keys of the configuration since the run was started last
        self.aside = Aside()
        self.first_of_host = False  # writes its telemetry and checks its copy of the data

    def worth_compiling(self) -> bool:
        """On a GPU, where that is possible; a host that cannot says so itself."""
        if self.mesh.device.type != "cuda":
            return False
        why = ops.cannot_compile(self.mesh.device)
        if why and not self.mesh.local_rank:
            log.warning("nothing is compiled, and training is slower: %s", why)
        return not why

    def fresh_objective(self) -> SequenceLoss:
        """Model and loss of this run; also for strategies that cut ours into pieces and want another one."""
        vocabulary = self.data.vocabulary
        model = Transformer(self.config.model, len(vocabulary), vocabulary.source_size)
        return SequenceLoss(model, self.config.train.label_smoothing)

    def twin(self) -> SequenceLoss:
        """It learns as ours does; its weights are its own."""
        objective = self.fresh_objective().to(self.mesh.device)
        start.freeze(objective.model, self.config.train.freeze)
        if self.arithmetic.name == "fp8":
            objective.model.use_eight_bits()
        return objective

    # --- the story ---

    def begin(self, *, resume: bool) -> None:
        """Restore the newest sound checkpoint, or start a run folder. A run that has done all its steps is left alone."""
        self.watchdog.alive()
        facts.check_folder(self.folder, resume=resume)
        found = checkpoint.newest_sound(self.folder) if resume and self.mesh.is_main else checkpoint.Found()
        source = from_main(self.mesh, found.source)  # one rank chooses for all
        if source is not None:
            self.check_copies(source)
            self.changed = facts.changes(self.folder, self.config, self.arithmetic.name)
            facts.check_same(runs.read_json(source / checkpoint.TRAINING), self.identity, self.changed, source)
            checkpoint.restore(source, self.state, self.strategy)
        if len(set(gather(self.mesh, (self.state.step, self.state.position)))) > 1:
            raise TrainingError(
                f"{self.folder.path}: ranks restored different checkpoints; is it the same folder on every host?"
            )
        if source:
            cost = max(map(runs.step_of, map(Path, found.damaged)), default=0) - self.state.step
            damaged = f"; damaged: {', '.join(found.damaged)}, which costs {cost} steps" if found.damaged else ""
            changed = f"; changed since: {', '.join(self.changed)}" if self.changed else ""
            self.logbook.tell("resuming", f"from {source}{damaged}{changed}")
        elif resume:
            self.logbook.tell("starting", f"nothing to resume in {self.folder.path}")
        if self.config.train.tokens_per_gpu == "auto" and not self.done:
            self.share = replace(self.share, micro_rows=self.rows_for_all())
        hosts = facts.hosts(self.mesh)  # an exchange: nobody writes before everybody has read
        self.first_of_host = any(self.mesh.rank == entry["ranks"][0] for entry in hosts)
        self.logbook.host_of = {rank: entry["host"] for entry in hosts for rank in entry["ranks"]}
        if self.mesh.is_main and not self.done:
            self.write_facts(hosts, found)
            if self.taken and source is None:
                runs.write_json(self.folder.start, self.taken | {"frozen": self.frozen})
                self.logbook.tell("starting", start.told(self.taken))
        self.saver.claim = from_main(self.mesh, self.saver.claim)
        self.learn_what_is_usual()

    def run(self) -> str:
        """Train to the end; returns the reason for stopping."""
        self.watchdog.alive()
        if self.done:
            return "max_steps"
        if self.time_is_up(0.0):  # in an earlier start
            self.end(TIME_LIMIT)
            return TIME_LIMIT
        if self.no_better and not self.state.owes_validation:  # likewise
            patience = self.config.validation.patience
            self.logbook.tell("stopping", f"the run ended by validation.patience = {patience}; raise it to go on")
            self.end(PATIENCE)
            return PATIENCE
        monitor = self.config.monitor
        self.logbook.open(monitor)
        file = self.folder.telemetry / f"{self.logbook.host_of[self.mesh.rank]}.jsonl"
        telemetry = sampling(file, monitor.interval_seconds, enabled=monitor.telemetry and self.first_of_host)
        listening = self.stopping.listening(partial(self.logbook.tell, "stopping"))
        with listening, self.logbook.closed_on_failure():  # until the last checkpoint is written
            try:
                with telemetry:
                    if self.first_of_host:
                        self.data_check.start()
                    reason = self.loop()
            except BaseException as error:
                self.data_check.give_up()
                self.saver.writer.given_up = True
                if isinstance(error, DragomanError):
                    self.logbook.fault(error)
                raise
            finally:
                self.watchdog.enter(END)
                self.saver.writer.finish()
            self.saver.writer.finish_well()
        self.end(reason)
        return reason

    def end(self, reason: str) -> None:
        self.logbook.stop(reason)
        self.logbook.close()
        if self.mesh.is_main and self.saver.claim:
            self.logbook.put_down(owner.release, self.folder, self.saver.claim)
        wait_for_all(self.mesh)

    def loop(self) -> str:
        """Steps until there is a reason to stop. Validation and checkpoints always follow a row of metrics."""
        wrapped = self.wrapped()
        time_exchanges(wrapped)
        self.within_memory(wrapped, self.settle, wrapped)
        pin = self.mesh.device.type == "cuda"
        if self.state.owes_validation and (over := self.within_memory(wrapped, self.do_what_is_due, "")):
            return over
        reason = ROLLED_BACK
        try:
            while reason == ROLLED_BACK:  # steps are counted anew then, and with them the stages of the data
                with closing(prefetched(self.coming_steps(), pin=pin)) as stream:
                    reason = self.take_steps(stream, wrapped)
            return reason
        finally:
            self.aside.take_back()

    def coming_steps(self) -> Iterator[Step]:
        """From where training is."""
        position = (self.state.position, self.stages, self.state.step)
        return steps(self.train_data, self.packing, self.share, *position)

    def wrapped(self) -> nn.Module:
        """The objective as it learns: for all ranks, compiled, recorded."""
        wrapped = self.strategy.wrap(self.objective).train()
        if self.compiled:
            compile_parts(self.objective.model)
        alone = self.mesh.world == 1 and self.mesh.device.type == "cuda"
        if alone and self.compiled and self.config.train.cuda_graphs:
            return Recorded(wrapped, self.mesh.device).train()
        return wrapped

    def settle(self, wrapped: nn.Module) -> None:
        """Before the first step. Where steps are compiled, wide rows are passed over too: compiling them would stop a run in
        mid-epoch."""
        shapes = [(self.share, self.packing.width)]
        if self.compiled and self.packing.wide_width:
            shapes.append((self.share.widened(self.packing), self.packing.wide_width))
        self.strategy.settle(partial(self.pass_for_nothing, wrapped, shapes), needed=len(shapes) > 1)

    def pass_for_nothing(self, wrapped: nn.Module, shapes: list[tuple[Share, int]]) -> None:
        """Forward and backward over empty rows: of the shapes to come where they are compiled, otherwise one row will do."""
        for share, width in shapes:
            batch = tiles(self.train_data, [[]] * (share.rows_per_micro_batch if self.compiled else 1), width)
            with self.arithmetic():
                loss, _ = wrapped(*batch.to(self.mesh.device).tensors())
            loss.backward()
            self.state.optimizer.zero_grad(set_to_none=True)

    def take_steps(self, stream: Iterator[Step], wrapped: nn.Module) -> str:
        train, state = self.config.train, self.state
        window = self.new_window()
        timed: list[tuple[float, float]] = []  # the exchange that was timed last
        while not self.done:
            window.clock.mark("other")
            asked = time.perf_counter()
            step = next(stream)
            window.data_seconds += time.perf_counter() - asked
            window.clock.mark("idle")
            rate = self.rate(state.step)
            optim.set_rate(state.optimizer, rate)
            how = (self.strategy, train, self.arithmetic, self.config.run.seed, window.clock, window.norm_limit)
            loss_sum, norm = self.within_memory(wrapped, update, state, wrapped, step, *how)
            self.saver.writer.check()
            self.data_check.result()
            if self.watchdog.where == START:
                self.logbook.event("first_step", seconds=round(time.time() - self.logbook.started, 3))
                if self.mesh.device.type == "cuda":
                    self.aside.put()
            self.watchdog.beat()
            self.logbook.note_step()
            if self.fault:
                self.fault.happen(self.mesh.rank, state.step, state.model)
            window.add(loss_sum, norm, step.source_tokens, step.target_tokens, step.slots)
            if state.step % TIMED_EVERY == 0 and (spent := exchange_seconds(wrapped)):
                window.exchanges.append(spent)
                timed = [spent]
            compare = self.config.parallel.compare_every
            if compare and state.step % compare == 0:
                self.check_replicas()
            stopping = self.stopping.asked(state.step, time_is_up=self.time_is_up(time.perf_counter() - window.since))
            if stopping or self.due(train.log_every, self.config.validation.every, self.config.checkpoint.every):
                # A short window may have no timed step: it is not without exchange.
                window.exchanges = window.exchanges or timed
                reason = self.within_memory(wrapped, self.look_back, window.close(), rate, stopping)
                if reason:
                    return reason
                window = self.new_window()
        return "max_steps"

    def new_window(self) -> Window:
        """fp16 looks for its scale by gradients that are too long: there the scaler alone decides."""
        limit = ANY_FINITE if self.state.scaler.is_enabled() else self.judge.norm_limit
        return Window(self.mesh, self.config.train.clip_norm, limit)

    def time_is_up(self, seconds: float) -> bool:
        """`seconds`: since the last row of metrics."""
        hours = self.config.train.max_hours
        return hours > 0 and self.state.train_seconds + seconds >= hours * 3600

    def look_back(self, totals: Totals, rate: float, stopping: str) -> str | None:
        """Write down what a window was, and do what is due after it; returns a reason to stop, or to read on from elsewhere."""
        if totals.skipped:
            self.logbook.event("skipped", steps=totals.skipped)
        if totals.skipped < totals.steps:
            self.record(totals, rate)
        wrong = self.judge.look(totals, self.state.step)
        if wrong:
            with self.watchdog.section("roll back"):
                self.roll_back(wrong)
        if (wrong or self.judge.doubtful) and not (stopping or self.done):
            return ROLLED_BACK if wrong else None
        return self.do_what_is_due(stopping)

    # --- when no step is good any more ---

    def roll_back(self, reason: str) -> None:
        """Back to a sound checkpoint from before it went wrong, and on with the data that comes next."""
        self.wait_for_data_checks()  # the checkpoint that is being written does so too
        self.saver.writer.finish()
        newest = max(map(runs.step_of, runs.checkpoint_folders(self.folder)), default=0)
        before = self.judge.before(newest)
        found = checkpoint.newest_sound(self.folder, before).source if self.mesh.is_main else None
        source = from_main(self.mesh, found)
        if not self.judge.may_roll_back(self.state.step) or source is None:
            self.logbook.stop("diverged")
            raise TrainingError(
                f"step {self.state.step}: {reason}; training diverged. Lower "
                "schedule.learning_rate, raise schedule.warmup_steps or set train.clip_norm; "
                f"checkpoints are in {self.folder.checkpoints}"
            )
        self.check_copies(source)
        lost, behind = self.state.step, self.state.position
        checkpoint.restore(source, self.state, self.strategy)
        if behind.stage == self.state.position.stage:
            self.state.position = behind
        if self.mesh.is_main:
            assert self.saver.claim
            owner.require(self.folder, self.saver.claim)
            checkpoint.tidy(self.folder, self.state.step)
            self.logbook.put_down(self.logbook.forget_lost_rows)
        self.learn_what_is_usual()
        self.stopping.forget()
        steps = {"from_step": lost, "lost_steps": lost - self.state.step}
        self.logbook.event("roll_back", **steps, checkpoint=source.name, reason=reason)
        self.logbook.tell("rolling back", f"{reason}; back from step {lost} to {source.name}")

    def learn_what_is_usual(self) -> None:
        """From all rows, which the main rank reads. The others get what it keeps of them: a long run has megabytes of rows."""
        if self.mesh.is_main:
            self.judge.learn(self.usual_rows())
        self.judge.remember(from_main(self.mesh, self.judge.usual))

    def usual_rows(self) -> list[tuple[float, float]]:
        """Loss and longest gradient of all rows."""
        rows = runs.read_rows(self.folder.metrics)
        train = [(row.get("loss"), row.get("largest_grad_norm")) for row in rows if row.get("kind") == "train"]
        return [(loss, norm) for loss, norm in train if isinstance(loss, float) and isinstance(norm, float)]

    # --- memory ---

    def rows_for_all(self) -> int:
        """As many rows per micro-batch as fit the fullest device of all ranks."""
        rows = min(gather(self.mesh, self.rows_that_fit()))
        if rows == 0:
            raise TrainingError(
                f"not one row of train.tile_width = {self.packing.width} fits into the memory of {self.mesh.device}; is another "
                f"process using it? Otherwise {self.strategy.if_too_large}"
            )
        return rows

    def rows_that_fit(self, fewer_than: float = float("inf")) -> int:
        to_be_tried = cast(Callable[[], SequenceLoss], partial(self.strategy.to_be_tried, self.objective))
        later = memory.moments_to_come(self.state.optimizer)
        with uncompiled():
            return memory.rows_that_fit(
                to_be_tried, self.share, self.packing, self.arithmetic, later=later, fewer_than=fewer_than
            )

    def within_memory(self, wrapped: nn.Module, do: Callable[..., Result], *what: Any) -> Result:
        """Whatever fills a device is told in the same words."""
        try:
            return do(*what)
        except RuntimeError as error:
            of_host = memory.host_ran_out(error)
            if not (of_host or memory.ran_out(error)):
                raise
        # Out here: the error holds on to the step that failed.
        raise self.out_of_memory(wrapped, validating=do in (self.look_back, self.do_what_is_due), of_host=of_host)

    def out_of_memory(self, wrapped: nn.Module, *, validating: bool = False, of_host: bool = False) -> TrainingError:
        """In words, with a value that fits now."""
        self.state.optimizer.zero_grad(set_to_none=True)
        if isinstance(wrapped, Recorded):
            wrapped.recordings.clear()
        torch.cuda.empty_cache()
        rows, width = self.share.rows_per_micro_batch, self.packing.width
        if self.mesh.world > 1 or of_host:
            # Trying what fits would have ranks wait for each other, as a pass of DDP was cut off; and a host may kill who tries.
            fitting, remedy = rows // 2 * width, "try train.tokens_per_gpu={}"
        else:
            fitting, remedy = self.rows_that_fit(fewer_than=rows) * width, "train.tokens_per_gpu={} fits"
        remedy = remedy.format(fitting) if fitting else "not even one row fits: choose a smaller model"
        if validating:
            remedy += "; where it is the search for BLEU that does not fit, lower translate.batch_tokens"
        who = "the host" if of_host else self.mesh.device
        return TrainingError(
            f"step {self.state.step}: {who} ran out of memory with train.tokens_per_gpu = {rows * width}; {remedy}. "
            f"Checkpoints are in {self.folder.checkpoints}"
        )

    def record(self, totals: Totals, rate: float) -> None:
        self.require_owner()
        self.state.train_seconds += totals.seconds
        self.logbook.steps(totals, rate, len(self.train_data))

    def require_owner(self) -> None:
        """A run that is somebody else's by now is not written into; a disk that does not answer is no reason to stop."""
        if self.mesh.is_main and self.saver.claim:
            with suppress(OSError):
                owner.require(self.folder, self.saver.claim)

    # --- what is due ---

    @property
    def done(self) -> bool:
        return self.state.step >= self.config.train.max_steps

    def due(self, *every: int) -> bool:
        return self.done or any(self.state.step % each == 0 for each in every)

    def do_what_is_due(self, stopping: str) -> str | None:
        """Validate and save; returns a reason to stop, the same on every rank. Whoever stops us waits for a checkpoint, not for
        scores: these are owed then, and come first after a resume."""
        validation, keeping = self.config.validation, self.config.checkpoint
        if self.mesh.world > 1 and (stopping or self.due(validation.every, keeping.every)):
            self.check_replicas()
        scores: dict[str, Any] = {}
        if self.due(validation.every) and (self.done or not stopping):
            with self.watchdog.section("validation"):
                scores = self.validate()
            stopping = stopping if scores else self.wanted_by_any()
        self.state.owes_validation = self.due(validation.every) and not scores
        improved = self.is_best(scores)
        if stopping or self.no_better or self.due(keeping.every) or (improved and keeping.keep_best):
            with self.watchdog.section("checkpoint"):
                self.save(scores, must=bool(stopping or self.no_better or self.done))
        if self.no_better:
            return PATIENCE
        return stopping if stopping and not self.done else None

    @property
    def no_better(self) -> bool:
        """For as many validations as somebody had patience for; of another metric they say nothing."""
        patience, metric = self.config.validation.patience, self.config.checkpoint.metric
        same = self.state.best.get("metric", metric) == metric
        return same and patience > 0 and self.state.stale_validations >= patience

    def check_replicas(self) -> None:
        """Ranks that must hold the same weights do; whoever does not is named, before anything of it is validated or saved."""
        drift = replicas.compare(self.strategy, self.state.model)
        if drift:
            hosts = [self.logbook.host_of[rank] for rank in drift.ranks]
            self.logbook.event("drift", ranks=drift.ranks, hosts=hosts, known=drift.known)
            raise DriftError(
                f"step {self.state.step}: {drift.sentence(self.logbook.host_of)}: a fault of memory, device or network. "
                f"The checkpoints in {self.folder.checkpoints} are from before; --resume goes on from there"
            )

    def wanted_by_any(self) -> str:
        """The reason to stop that some rank has heard. Every rank must reach this line."""
        return next(filter(None, gather(self.mesh, self.stopping.wanted)), "")

    def validate(self) -> dict[str, Any]:
        """Validation loss and all tasks; nothing when a stop comes between two of them, unless there is nothing after it."""
        start = time.perf_counter()
        width = self.packing.width
        slots = self.share.rows_per_micro_batch * width
        how = (self.mesh, width, slots, self.arithmetic)
        with self.state.to_be_used(), uncompiled(), self.strategy.looking(self.objective) as objective:
            assert isinstance(objective, SequenceLoss)
            scores: dict[str, Any] = validation_loss(objective, self.valid_data, *how)
            known = validation_loss(objective, self.train_slice, *how)
            scores |= {f"train_slice_{key}": known[key] for key in ("loss", "nll", "pairs")}
            moment = Moment(self.state.step, objective.model.eval(), self.mesh, self.folder)
            for task in self.tasks:
                scores = scores | task.run(moment) if scores and (self.done or not self.wanted_by_any()) else {}
        self.objective.train()
        if not scores:
            return {}
        self.require_owner()  # it may have been minutes
        self.logbook.validation(scores, time.perf_counter() - start)
        return scores

    def is_best(self, scores: dict[str, Any]) -> bool:
        """Whether the chosen metric is better than ever before; without a validation it is not."""
        metric = self.config.checkpoint.metric
        if metric not in scores:
            return False
        if self.state.best.get("metric", metric) != metric:  # what was counted so far, was for that one
            self.state.best, self.state.stale_validations = {}, 0
        if checkpoint.better(scores[metric], self.state.best.get("score"), metric):
            self.state.best = {"metric": metric, "score": scores[metric], "step": self.state.step}
            self.state.stale_validations = 0
            return True
        self.state.stale_validations += 1
        return False

    def save(self, scores: dict[str, Any], *, must: bool) -> None:
        if must:
            self.wait_for_data_checks()
        self.saver.save({key: value for key, value in scores.items() if isinstance(value, float)}, must=must)

    def wait_for_data_checks(self) -> None:
        """Of all hosts; a slow disk is no hang. Every rank must reach this line."""
        while self.data_check.pending:
            self.data_check.result()
            if not any(gather(self.mesh, self.data_check.unsure)):
                self.data_check.confirm()
            time.sleep(CHECK_SECONDS)
            self.watchdog.alive()

    # --- beginnings ---

    def write_facts(self, hosts: list[dict[str, Any]], found: checkpoint.Found) -> None:
        """Configuration, environment and data of the run; after a resume, rows of lost steps are taken out."""
        model, on_cpu = self.state.model, self.mesh.device.type == "cpu"
        environment = facts.environment(self.config, self.mesh, self.share, self.data.vocabulary, model)
        own = {"dragoman": self.version, "precision": self.arithmetic.name, "compile": self.compiled, "hosts": hosts}
        own["exchange"] = facts.exchange(self.config, hosts, self.share, model, gloo=on_cpu)
        runs.write_text(self.folder.config, to_toml(self.config))  # first: it makes the folder a run
        before = owner.read(self.folder)
        self.take_over(found)
        runs.write_json(self.folder.environment, environment | own)
        runs.write_json(self.folder.data, self.data.manifest)
        lost, after = self.logbook.forget_lost_rows(), facts.ended_by(runs.read_rows(self.folder.events))
        story: dict[str, Any] = {"ranks": self.mesh.world, "hosts": [entry["host"] for entry in hosts]}
        more = {"after": after, "changed": self.changed, "damaged": list(found.damaged)}
        story |= {key: value for key, value in more.items() if value}
        if after == facts.SILENT:  # nobody of ours watched: torchrun, a scheduler, one process alone
            self.logbook.event("fault", kind="silent", host=before.get("host"), rank=None, error=after)
        if found.source:
            self.logbook.event("resume", lost_steps=lost, **story)
        else:  # lost steps: it was killed before its first checkpoint
            story |= {"lost_steps": lost} if lost else {}
            self.logbook.event("start", **story)
        for name, problem in found.damaged.items():
            cost = runs.step_of(Path(name)) - self.state.step
            self.logbook.event(
                "damaged", host=self.logbook.host_of[0], checkpoint=name, problem=problem, lost_steps=cost
            )

    def check_copies(self, source: Path) -> None:
        """The main rank has found it sound; another host may read it wrongly, or read something else. Every rank must reach this
        line."""
        first = self.mesh.local_rank == 0 and not self.mesh.is_main
        problem = runs.damage(source) if first else None
        told = gather(self.mesh, f"host {socket.gethostname()}: {problem}" if problem else "")
        if wrong := next(filter(None, told), ""):
            raise RunError(
                f"{source}: sound where rank 0 reads it, but not on {wrong}. Is it the same disk on every host?"
            )

    def take_over(self, found: checkpoint.Found) -> None:
        """The run is ours from here on. Whoever had it before may have committed until then, after we had chosen where to go on."""
        self.saver.claim = owner.claim(self.folder)
        for path in runs.checkpoint_folders(self.folder):
            if runs.step_of(path) > self.state.step and path.name not in found.damaged:
                raise owner.OvertakenError(
                    f"{path}: was written while this start was reading an older one; start it again with --resume"
                )
        checkpoint.tidy(self.folder, self.state.step)
