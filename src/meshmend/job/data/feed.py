"""The samples of one worker's lanes: read ahead along a forecast, or when they are asked for; and the time that takes.

A worker is most likely asked for the same lanes as last, step after step. When another one dies, the lanes that it
leaves are in no forecast: the first of them is read on the spot, and from then on the others are in one. What was read
in vain is dropped. Either way the samples are the same, because what they depend on is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from meshmend.job.data.cache_file import Place
from meshmend.job.data.lanes import Lanes
from meshmend.job.data.pipeline import DRAWN, Data
from meshmend.job.data.source import samples

Where = tuple[int, int]
"""A step, and a lane of it."""


def forecast(step: int, lane: int, mine: Callable[[], Sequence[int]]) -> Iterator[Where]:
    """The lanes that come after this one if nobody dies: the others of its step, and then all of each step."""
    if lane in mine():
        yield from ((step, other) for other in mine()[mine().index(lane) + 1 :])
    while mine():
        step += 1
        yield from ((step, other) for other in mine())


def order_of(data: Any) -> dict[str, Any]:
    """In which order `Lanes` take the samples of this data, where that is not a shuffled one."""
    return {"in_order": data.recipe.source.streams, "lengths": data.lengths} if isinstance(data, Data) else {}


class Feed:
    """A worker's data, lane by lane; `mine` says which lanes it is asked for."""

    def __init__(self, data: Any, lanes: Lanes, mine: Callable[[], Sequence[int]], place: Place) -> None:
        self.data, self._lanes, self._mine = data, lanes, mine
        self._waited = 0.0
        self._ahead: _Ahead | None = None
        if isinstance(data, Data):
            data.open(place)
            if data.recipe.ahead:
                self._ahead = _Ahead(self._read, data.recipe.threads)

    def lane(self, step: int, lane: int) -> Any:
        """The samples of one lane."""
        with self.waiting():
            if self._ahead is None:
                return self._read((step, lane))
            following = islice(forecast(step, lane, self._mine), self.data.recipe.ahead)
            self._ahead.want([(step, lane), *following])
            found = self._ahead.take((step, lane))
            return found() if found is not None else self._read((step, lane))

    def expect(self, step: int) -> None:
        """The next lane will be one of this step: begin to read."""
        if self._ahead is not None:
            self._ahead.want([*islice(forecast(step - 1, -1, self._mine), self.data.recipe.ahead)])

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While this lasts, the worker waits for input."""
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


class _Ahead:
    """Threads that read what is wanted next, in its order."""

    def __init__(self, read: Callable[[Where], Any], threads: int) -> None:
        self._read, self._threads = read, threads
        self._news = threading.Condition()
        self._wanted: deque[Where] = deque()
        self._working: set[Where] = set()
        self._done: dict[Where, Callable[[], Any]] = {}
        self._started = self._closed = False

    def want(self, order: Sequence[Where]) -> None:
        """Read these next, and forget what else was wanted or read."""
        with self._news:
            kept = {*order}
            self._done = {where: found for where, found in self._done.items() if where in kept}
            self._wanted = deque(where for where in order if where not in self._done and where not in self._working)
            self._news.notify_all()
        if order and not self._started:
            self._started = True
            for number in range(self._threads):
                threading.Thread(target=self._work, name=f"meshmend-read-{number}", daemon=True).start()

    def take(self, where: Where) -> Callable[[], Any] | None:
        """What was read of this lane, once it is there; None if nobody has begun with it."""
        with self._news:
            while where in self._working and not self._closed:
                self._news.wait()
            if where in self._wanted:
                self._wanted.remove(where)
            return self._done.pop(where, None)

    def close(self) -> None:
        """End the threads, as soon as they have read what they are at."""
        with self._news:
            self._closed = True
            self._wanted.clear()
            self._done.clear()
            self._news.notify_all()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._wanted and not self._closed:
                    self._news.wait()
                if self._closed:
                    return
                where = self._wanted.popleft()
                self._working.add(where)
            found = self._result(where)
            with self._news:
                self._working.discard(where)
                if not self._closed:
                    self._done[where] = found
                self._news.notify_all()

    def _result(self, where: Where) -> Callable[[], Any]:
        """The samples, or the error that whoever takes them must see."""
        try:
            value = self._read(where)
        except BaseException as error:
            raised = error

            def fail() -> Any:
                raise raised

            return fail
        return lambda: value
