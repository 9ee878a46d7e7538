"""The same work on shards, done by the processes of a Ray cluster. The text of a shard travels with its task, what is made of it
is written to the folder that is being filled, so that folder must be visible on every node, under the same path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dragoman.data.workers import Crew, Task
from dragoman.errors import Unfinished, require_extra

AHEAD = 2  # tasks for every core: one at work, one on its way


class RayCrew(Crew):
    """As many workers as the cluster at RAY_ADDRESS has cores, or one made on this host with `size`."""

    def __init__(self, size: int | None):
        self.ray = require_extra("ray", "ray", "--engine ray")
        address = os.environ.get("RAY_ADDRESS")
        own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "num_cpus": size}
        self.ray.init(**({"address": address} if address else own), logging_level="ERROR", log_to_driver=False)
        super().__init__(max(1, int(self.ray.cluster_resources().get("CPU", 1))))

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def results(self, tasks: Iterable[Task]) -> Iterator[Any]:
        stream = iter(tasks)
        running: list[Any] = []
        while True:
            while len(running) < AHEAD * self.size and (task := next(stream, None)):
                running.append(self.begin(*task))
            if not running:
                return
            ready, running = self.ray.wait(running, num_returns=1)
            yield self.result(ready[0])

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.result(self.begin(function, arguments))

    def begin(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return self.ray.remote(num_cpus=1, max_retries=0)(function).remote(*arguments)

    def result(self, running: Any) -> Any:
        try:
            return self.ray.get(running)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None  # what went wrong there, in its own words
        except self.ray.exceptions.RayError as error:
            raise Unfinished(f"a process of the Ray cluster was lost ({str(error).splitlines()[0]})") from None
