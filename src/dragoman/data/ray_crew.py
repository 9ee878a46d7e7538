"""The same work on shards, done by Ray Data on a cluster: one task reads the corpus as a stream of shards, the others clean or
encode them as they come. What is made is written to the folder that is being filled, so that folder must be visible on every
node, under the same path, and so must the corpus.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dragoman import ray_cluster
from dragoman.data.workers import Crew, Tasks
from dragoman.errors import Unfinished, require_extra


class RayCrew(Crew):
    """As many workers as the cluster at RAY_ADDRESS has cores, or one made on this host with `size`."""

    def __init__(self, size: int | None):
        self.data = require_extra("ray.data", "ray", "--engine ray")
        self.ray = ray_cluster.connect(size, quiet=True)
        super().__init__(max(1, int(self.ray.cluster_resources().get("CPU", 1))))
        context = self.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.target_max_block_size = 1  # a shard is a block
        logging.getLogger("ray.data").setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def results(self, tasks: Tasks, *arguments: Any) -> Iterator[Any]:
        here = str(Path.cwd())
        read = self.data.range(1).map_batches(lambda _: as_rows(here, tasks, arguments), batch_size=None, num_cpus=0)
        try:
            for row in read.map(done, num_cpus=1).iter_rows():
                well, value = pickle.loads(row["answer"])  # noqa: S301  # from our own workers
                if not well:
                    raise value
                yield value
        except self.ray.exceptions.RayError as error:
            raise Unfinished(f"a process of the Ray cluster was lost ({str(error).splitlines()[0]})") from None

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return next(self.results(lambda: [(function, arguments)]))


def as_rows(here: str, tasks: Tasks, arguments: tuple[Any, ...]) -> Iterator[dict[str, list[bytes]]]:
    """One row a task, whose paths are seen from `here`. What goes wrong while reading becomes the last task."""
    try:
        os.chdir(here)
        for task in tasks(*arguments):
            yield {"task": [pickle.dumps((here, *task))]}
    except Exception as error:  # a border: it is raised again on the other side
        yield {"task": [pickle.dumps(("/", raised, (error,)))]}


def raised(error: Exception) -> None:
    raise error


def done(row: dict[str, Any]) -> dict[str, bytes]:
    """Whether a task went well, and its result or what went wrong."""
    here, function, arguments = pickle.loads(row["task"])  # noqa: S301  # from our own main process
    try:
        os.chdir(here)
        answer = True, function(*arguments)
    except Exception as error:  # a border, too
        answer = False, error
    return {"answer": pickle.dumps(answer)}
