"""The thread of a worker that hears the doorbell, and what it shares with the main thread.

When the courier rings, it wakes the main thread, uses the device if the courier asks for that, and exports the state,
also while the main thread computes. The rules of the lock, `_news`:

* What both threads use is in here: the round, the export, which state is final. The main thread alone changes it, and
  holds the lock then; so it may read it without. The listener reads it with the lock.
* Copies of slices are handed out, and slices are updated, with the lock.
* An export keeps the lock: the main thread cannot begin another round, and change the state, in the middle of one.
* The device is served without it: that may wait for other workers, and `device/` has locks of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from meshmend.base.clocks import COPIES_ROOM, OWNER_POLL, SPIN
from meshmend.base.waiting import spin
from meshmend.job.device.messages import Messages
from meshmend.job.protocol import NEVER
from meshmend.job.shm.home import no_room, too_small
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.records import StateWanted
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.shm.words import Mail

Export = Callable[[bool], list[Any]]
"""Gives the state as pieces of bytes; in device memory, as far as that can be, if it is told so."""


class Listener:
    """Hears the doorbell of one worker, from `start` to `close`; `end` ends the worker."""

    def __init__(self, segment: WorkerSegment, messages: Messages, end: Callable[[str], NoReturn]) -> None:
        self._segment, self._messages, self._end = segment, messages, end
        self._side = WorkerSide(segment)
        self._news = threading.Condition()
        self.round = NEVER + 1
        """The current round, or between two rounds the next one."""
        self._final = NEVER - 1
        """The round whose state is final."""
        self._midway = False
        """Whether the main thread has begun another sum of a step: until its total is there, no state is final."""
        self._joined = False
        """Whether this worker has taken the state that it was given, if it was given one."""
        self._export: Export | None = None
        self.hand_out: Callable[[], None] = lambda: None
        """Gives copies of slices to other workers, in a sharded job."""
        self.stays: Callable[[], bool] = lambda: False
        """Whether this worker must continue although the run is halted, in a sharded job."""
        self._full_since: float | None = None
        """Since when there has been no room for copies of slices."""
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="meshmend", daemon=True)

    def start(self, export: Export) -> None:
        """Listen from now on; this gives the state."""
        with self._news:
            self._export = export
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._closed = True
        self._segment.worker_bell.ring()
        self._thread.join()

    def wait(self, until: Callable[[], bool]) -> None:
        """Have the main thread wait for something that the courier rings for, or until the run is halted."""
        if self._messages.spins and spin(until, SPIN):
            return
        with self._news:
            while not until() and (self._side.halt() is None or self.stays()):
                self._news.wait(2 * OWNER_POLL)

    def join(self, *, given: bool) -> None:
        """Be a member from the next round on; given a state, what this worker has offered is not its own any more."""
        with self._news:
            self.round = self._segment.courier.done + 1
            if given:
                self._final = NEVER - 1
            self._joined = True

    def finalize(self) -> None:
        """The state after the last round is final.

        If nobody has asked for it yet, this thread need not be woken, which would take the processor from the main one:
        whoever asks from now on rings the bell.
        """
        with self._news:
            self._final = self.round - 1
        if self._side.state_request() is not None or self._side.copies_request() is not None:
            self._segment.worker_bell.ring()

    def begin_round(self) -> None:
        """The main thread begins a round. If the state is not final, it is within a step, and others need not wait.

        Whoever joins begins with the first sum of a step, so the state of the last commit would not help it either.
        """
        if self._final < self.round - 1:
            with self._news:
                self._midway = True
            self._segment.worker_bell.ring()

    def has_final(self, round: int) -> bool:
        """Whether the state after a round is final."""
        return self._final >= round

    def advance(self, *, unchanged: bool) -> None:
        """The round is done; if it has left the state unchanged, the state is as final as before."""
        with self._news:
            if unchanged and self._final == self.round - 1:
                self._final = self.round
            self.round += 1
            self._midway = False

    def changing(self) -> AbstractContextManager[object]:
        """While this lasts, nothing of the state is handed out: the main thread changes it."""
        return self._news

    def state_nbytes(self) -> int:
        """How many bytes the state takes in the host's memory."""
        return _nbytes(self._export(False)) if self._export is not None else 0

    def _listen(self) -> None:
        while not self._closed:
            self._segment.worker_bell.wait(OWNER_POLL)
            self._messages.serve()
            with self._news:
                self._messages.buffers.take_pieces(self.round)
                request = self._side.state_request()
                if request is not None and self._may_export(request.body.round):
                    assert self._export is not None
                    self._give(request, self._export(request.body.on_device))
                elif request is not None and self._midway and request.body.round < self.round:
                    self._side.refuse_state(request)
                self._give_copies()
                self._news.notify_all()

    def _give_copies(self) -> None:
        """Hand out copies of slices; without room for them, try again later, and in the end be of no use to others."""
        try:
            self.hand_out()
            self._full_since = None
        except OSError as error:
            now = time.monotonic()
            if self._full_since is None:
                self._full_since = now
            if now - self._full_since > COPIES_ROOM * (1 + self._segment.rank):
                self._end(f"handing out copies of its slices needs {no_room(error)}")

    def _may_export(self, round: int) -> bool:
        """Whether the state after a round is final, and is this worker's own or one that it has taken over."""
        taken = self._joined or not self._side.has_given()
        return self._export is not None and taken and self._final >= round

    def _give(self, request: Mail[StateWanted], state: list[Any]) -> None:
        """Export the state; a worker that cannot is of no use to the others, who would wait for it."""
        try:
            self._side.give_state(request, self._final, state)
        except OSError as error:
            self._end(f"handing out its state {too_small(_nbytes(state), error)}")


def _nbytes(pieces: list[Any]) -> int:
    return sum(piece.nbytes if hasattr(piece, "nbytes") else len(piece) for piece in pieces)
