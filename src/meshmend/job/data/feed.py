"""The samples of one worker's lanes: prefetched along a forecast, or read on demand; and the time that takes.

A worker most likely gets the same lanes in every step. When another worker dies, the lanes that it leaves are in no
forecast: the first of them is read on demand, and from then on the others are in the forecast. Lanes that were read in
vain are dropped. Either way the samples are the same, because what they depend on is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any

from meshmend.job.data.cache_file import CacheHome
from meshmend.job.data.lanes import Lanes
from meshmend.job.data.pipeline import DRAWN, Data
from meshmend.job.data.source import samples

Where = tuple[int, int]
"""A step, and a lane of it."""


def forecast(step: int, lane: int, mine: Callable[[], Sequence[int]]) -> Iterator[Where]:
    """Return the lanes that follow this one if no worker dies: the others of its step, and then all of each step."""
    if lane in mine():
        yield from ((step, other) for other in mine()[mine().index(lane) + 1 :])
    while mine():
        step += 1
        yield from ((step, other) for other in mine())


def order_of(data: Any) -> dict[str, Any]:
    """Return the order in which `Lanes` take the samples of this data, if it is not shuffled."""
    return {"in_order": data.recipe.source.streams, "lengths": data.lengths} if isinstance(data, Data) else {}


class Feed:
    """A worker's data, lane by lane; `mine` says which lanes it computes."""

    def __init__(self, data: Any, lanes: Lanes, mine: Callable[[], Sequence[int]], home: CacheHome) -> None:
        self.data, self._lanes, self._mine, self._home = data, lanes, mine, home
        self._waited = 0.0
        self._ahead: _Ahead | None = None
        self.opened(data)
        if isinstance(data, Data) and data.recipe.ahead:
            self._ahead = _Ahead(self._read, data.recipe.threads)

    def opened(self, data: Any) -> Any:
        """Data ready to be read on this worker: the job's, or other."""
        if isinstance(data, Data):
            data.open(self._home)
        return data

    def lane(self, step: int, lane: int) -> Any:
        """The samples of one lane."""
        began = time.perf_counter()
        try:
            return self._read((step, lane)) if self._ahead is None else self._taken(self._ahead, step, lane)
        finally:
            self._waited += time.perf_counter() - began

    def _taken(self, ahead: _Ahead, step: int, lane: int) -> Any:
        following = islice(forecast(step, lane, self._mine), self.data.recipe.ahead)
        ahead.want([(step, lane), *following])
        found = ahead.take((step, lane))
        return found.result() if found is not None else self._read((step, lane))

    def expect(self, step: int) -> None:
        """The next lane will be one of this step: begin to read."""
        if self._ahead is not None:
            self._ahead.want([*islice(forecast(step - 1, -1, self._mine), self.data.recipe.ahead)])

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While this lasts, the worker waits for input that it gets elsewhere."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - began

    def stall(self) -> float:
        """Seconds that this worker has waited for input since this was last asked."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Read no more."""
        if self._ahead is not None:
            self._ahead.close()
        if isinstance(self.data, Data):
            self.data.close()

    def _read(self, where: Where) -> Any:
        ids = self._lanes.ids(*where)
        if isinstance(self.data, Data):
            return self.data.lane(ids, (self._lanes.seed, *where, DRAWN))
        return samples(self.data, ids)


class _Reading:
    """One lane that a thread is to read, unless the worker needs it first and reads it."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._found: Callable[[], Any] = lambda: None

    def claim(self) -> bool:
        """Whether it is the caller's to read; only the first one's."""
        return self._claim.acquire(blocking=False)

    @property
    def begun(self) -> bool:
        """Whether a thread has claimed it."""
        return self._claim.locked()

    def read(self, read: Callable[[Where], Any]) -> None:
        """Read it for the thread that waits for it, which also gets the error."""
        try:
            value = read(self.where)
        except BaseException as error:
            self._found = partial(_raise, error)
        else:
            self._found = lambda: value
        self._done.set()

    def result(self) -> Any:
        """What was read, once it was."""
        self._done.wait()
        return self._found()


class _Ahead:
    """Threads that read the lanes that are wanted next, in order.

    The worker and its readers share no lock: on a busy machine, one that is not running would keep the other waiting.
    """

    def __init__(self, read: Callable[[Where], Any], threads: int) -> None:
        self._read, self._threads = read, threads
        self._queue: SimpleQueue[_Reading | None] = SimpleQueue()
        self._known: dict[Where, _Reading] = {}
        """What is wanted, in its order; only the worker looks here."""
        self._started = False

    def want(self, order: Sequence[Where]) -> None:
        """Read these next, and forget what else was wanted or read."""
        before, self._known = self._known, {}
        waiting = [where for where, reading in before.items() if not reading.begun]
        if waiting != [where for where in order if where in waiting] or (
            waiting and any(where not in before for where in order[: order.index(waiting[-1])])
        ):  # new lanes come first, or some are no longer wanted: queue all of them again
            for where in waiting:
                if before[where].claim():
                    del before[where]
        for where in order:
            reading = self._known[where] = before.get(where) or _Reading(where)
            if where not in before:
                self._queue.put(reading)
        if order and not self._started:
            self._started = True
            for number in range(self._threads):
                threading.Thread(target=self._work, name=f"meshmend-read-{number}", daemon=True).start()

    def take(self, where: Where) -> _Reading | None:
        """Return what was or is being read of this lane; None if no thread has begun it, and none will."""
        reading = self._known.pop(where, None)
        return None if reading is None or reading.claim() else reading

    def close(self) -> None:
        """End the threads, as soon as they have read what they are at."""
        self.want([])
        for _ in range(self._threads):
            self._queue.put(None)

    def _work(self) -> None:
        while (reading := self._queue.get()) is not None:
            if reading.claim():
                reading.read(self._read)


def _raise(error: BaseException) -> Any:
    raise error
