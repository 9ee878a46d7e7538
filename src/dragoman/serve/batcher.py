"""Dynamic batching: texts of all waiting requests are translated together, and no request can hold up the others.

request --submit--> waiting jobs --a few texts of each--> one batch --> the model's thread --> futures of the texts

While a batch is translated the next one gathers: nobody waits for a timer. A request that would have to wait longer than
`most_wait_seconds`, at the speed measured so far, is refused at once; a short one does not wait for the whole of a long one."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from dragoman.translate.request import Request
from dragoman.translate.translator import Translation, Translator

log = logging.getLogger(__name__)

FIRST_GUESS = 5_000.0  # characters/s, until something was measured
MEMORY = 0.8  # of the measured speed, in a second or a batch
Found = Future[list[Translation]]  # of one text


class Busy(Exception):
    """The queue is full; carries the seconds after which to try again."""

    def __init__(self, seconds: float):
        self.seconds = seconds


@dataclass(frozen=True)
class Wish:
    """How texts are to be translated: only equal wishes share a batch."""

    request: Request
    alignment: bool = False


@dataclass
class Job:
    """The texts of one request."""

    wish: Wish
    texts: deque[tuple[str, Found]]
    size: int  # weight of all its texts, as it came

    def cancel(self) -> None:
        """Whoever asked has left: what is not yet begun is not done."""
        for _, future in list(self.texts):  # the translating thread takes texts out meanwhile
            future.cancel()


class Batcher:
    def __init__(self, translator: Translator, *, most_wait_seconds: float = 1.0, batch_characters: int = 4_000):
        self.translator = translator
        self.most_wait_seconds, self.batch_characters = most_wait_seconds, batch_characters
        self.told: Callable[[int, int], None] = lambda texts, failed: None  # of how many texts a batch had
        self.jobs: deque[Job] = deque()
        self.changed = threading.Condition()
        self.speed = FIRST_GUESS
        self.in_hand, self.begun = 0, 0.0  # weight of the batch that is being translated, and since when
        self.closing = False
        self.thread = threading.Thread(target=self.work, name="translate", daemon=True)
        self.thread.start()

    def submit(self, texts: list[str], wish: Wish) -> tuple[Job, list[Found]]:
        """A future for every text, or Busy. An idle server takes any request; a text without words needs no translating."""
        size = sum(weight(text) for text in texts if text.strip())
        with self.changed:
            wait = self.wait_for(size)
            if self.closing or ((self.jobs or self.in_hand) and wait > self.most_wait_seconds):
                raise Busy(max(1.0, wait - self.most_wait_seconds))
            # Not before: who is refused costs nothing.
            futures: list[Found] = [Future() for _ in texts]
            job = Job(wish, deque(), size)
            for text, future in zip(texts, futures, strict=True):
                if text.strip():
                    job.texts.append((text, future))
                else:
                    future.set_result([Translation("", 0.0, [])])
            if job.texts:
                self.jobs.append(job)
            self.changed.notify()
        return job, futures

    def wait_for(self, size: int) -> float:
        """Seconds that a new job of this weight would wait: what is left of the batch in hand, and of every job before it as
        much as it has itself, because all jobs take turns. What such a job has done already counts as well: new jobs come meanwhile and
        take turns in its place."""
        running = max(0.0, self.in_hand / self.speed - (time.perf_counter() - self.begun))
        return running + sum(min(other.size, size) for other in self.jobs) / self.speed

    @property
    def waiting_characters(self) -> int:
        with self.changed:
            return sum(weight(text) for job in self.jobs for text, _ in job.texts)

    def next_batch(self) -> tuple[Wish, list[tuple[str, Found]]] | None:
        """A few texts of every job that wishes the same as the first one; None when all is done and nothing more comes."""
        with self.changed:
            while not self.jobs:
                if self.closing:
                    return None
                self.changed.wait()
            wish, batch, taken = self.jobs[0].wish, [], 0
            alike = deque(job for job in self.jobs if job.wish == wish)
            while taken < self.batch_characters and alike:
                job = alike.popleft()
                text, future = job.texts.popleft()
                if future.set_running_or_notify_cancel():
                    batch.append((text, future))
                    taken += weight(text)
                if job.texts:
                    alike.append(job)
            self.jobs = deque([*(job for job in self.jobs if job.wish != wish), *alike])  # another wish is next
            self.in_hand, self.begun = taken, time.perf_counter()
            return wish, batch

    def work(self) -> None:
        while (found := self.next_batch()) is not None:
            wish, batch = found
            if not batch:
                continue
            start = time.perf_counter()
            results = self.search([text for text, _ in batch], wish)
            seconds = time.perf_counter() - start
            self.in_hand = 0
            self.learn(sum(weight(text) for text, _ in batch), seconds)
            self.told(len(batch), sum(isinstance(result, Exception) for result in results))
            for (_, future), result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def search(self, texts: list[str], wish: Wish) -> list[list[Translation] | Exception]:
        """One text that cannot be translated does not take the others with it."""
        try:
            return list(self.translator.search(texts, wish.request, split=True, alignment=wish.alignment))
        except Exception as error:  # a border: the request is told, the server lives on
            if len(texts) > 1:
                return [result for text in texts for result in self.search([text], wish)]
            log.exception("a text of %d characters failed", len(texts[0]))
            return [error]

    def learn(self, done: int, seconds: float) -> None:
        """A small batch that is slow says nothing of larger ones, unless somebody had to wait for it; a long time says more than a
        short one."""
        speed = done / max(1e-6, seconds)
        if speed > self.speed or done >= self.batch_characters / 2 or seconds > self.most_wait_seconds / 2:
            kept = MEMORY ** max(1.0, seconds)
            self.speed = kept * self.speed + (1 - kept) * speed

    def close(self, patience_seconds: float) -> None:
        """Finish what waits, take nothing new."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join(patience_seconds)


def weight(text: str) -> int:
    """Characters, and a little for a text as such."""
    return len(text) + 20
