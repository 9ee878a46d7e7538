"""The stages as functions, with everything they are made of put together here. The public functions of dragoman."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman import __version__, runs
from dragoman.config import Config
from dragoman.data.encode import PreparedData
from dragoman.data.prepare import prepare as prepare_data
from dragoman.evaluation.evaluate import evaluate
from dragoman.evaluation.task import BleuTask
from dragoman.parallel.mesh import joined
from dragoman.training.facts import check_folder
from dragoman.training.stopping import STOP_CODES
from dragoman.training.trainer import Trainer
from dragoman.training.watchdog import Watchdog
from dragoman.translate.models import find_model

__all__ = ["STOP_CODES", "check_ready", "evaluate", "prepare", "train"]


def prepare(
    config: Config, *, force: bool = False, workers: int | None = None, progress: runs.Progress = runs.silent
) -> PreparedData:
    """Text of the configuration's [data] -> prepared folder, with one process a core unless `workers` says otherwise."""
    return prepare_data(config, __version__, force=force, workers=workers, progress=progress)


def check_ready(config: Config, *, resume: bool) -> None:
    """What would stop a run before its first step: found before any rank is started."""
    PreparedData(config.data.folder)
    start_of(config, resume=resume)
    check_folder(runs.RunFolder(config.run.folder), resume=resume)


def train(config: Config, *, resume: bool = False, progress: runs.Progress = runs.silent) -> str:
    """Train in this process, together with the other ranks when a launcher started several. Returns the reason for
    stopping: max_steps, patience, max_hours, interrupted (Ctrl-C) or terminated (SIGTERM)."""
    folder = runs.RunFolder(config.run.folder)
    watchdog = Watchdog(folder.stacks(int(os.environ.get("RANK", "0"))), config.train.timeout_seconds)
    watchdog.learn(runs.read_rows(folder.events) if resume else [])
    joining = joined(config.train.device, config.train.timeout_seconds)
    with watchdog.answering(), watchdog.watching(), joining as mesh:
        data = PreparedData(config.data.folder)
        target = config.data.target_lang
        task = BleuTask(data.text("valid"), data.vocabulary, config.validation, config.translate, target)
        shown, start = progress if mesh.is_main else runs.silent, start_of(config, resume=resume)
        trainer = Trainer(config, data, mesh, [task], __version__, shown, start, watchdog)
        trainer.begin(resume=resume)
        with logging_to(folder.log(mesh.rank)):
            return trainer.run()


def start_of(config: Config, *, resume: bool) -> Path | None:
    """The model folder that fine-tuning starts from; a run that goes on has its own weights."""
    folder = runs.RunFolder(config.run.folder)
    if not config.train.start_from or (resume and runs.checkpoint_folders(folder)):
        return None
    return find_model(Path(config.train.start_from))


class Log(logging.FileHandler):
    """A line that a full disk does not take is lost, and nothing else is."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Log lines of this rank go to its own file while the block runs, and stay there when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("dragoman")
    handler = Log(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        logger.exception("this rank stops here")
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()
