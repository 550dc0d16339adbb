"""How copies of slices leave a worker and reach another, as their couriers see it, through files in shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from meshmend.base.clocks import COPIES_ROOM, ROOM_POLL, STATE_POLL
from meshmend.errors import JobError
from meshmend.job.courier.worker_port import WorkerPort
from meshmend.job.protocol import Evicted, Failure
from meshmend.job.shm import open_to_read
from meshmend.job.shm.copies import drop_copies, hand_over
from meshmend.job.shm.home import too_small
from meshmend.job.transport.base import Hello

Bytes = npt.NDArray[np.uint8]


class CopyPort(WorkerPort):
    """A worker that gives copies of its slices, and takes those of others."""

    _given = True
    """Whether copies may be there that were made for others, now or for the courier before this one."""

    def copies_of(self, slices: Collection[int], look: Callable[[], None]) -> dict[int, Bytes]:
        """Copies of slices, for other holders: the worker may be computing."""
        self._given = True
        self.side.ask_copies(tuple(sorted(slices)))
        while not self.side.has_copies():
            look()
            self._end_with_worker()
            self.segment.courier_bell.wait(STATE_POLL)
        return {number: self.segment.files.read_copy(number) for number in slices}

    def drop_copies(self) -> None:
        """All members have what they were given."""
        if self._given:
            late = self.side.awaits_copies()  # of a round that failed: they may come after this
            drop_copies(self.segment.files)
            self._given = late

    def fill_from(self, number: int, member: Hello, look: Callable[[], None]) -> None:
        """Have the worker hold a slice that a member of this host gives; `Failure` where that has died."""
        try:
            theirs = open_to_read(self.segment.run, member.rank)
            self._with_room(lambda: hand_over(number, theirs.files, self.segment.files), 0, look)
            if {theirs.birth, open_to_read(self.segment.run, member.rank).birth} != {member.born}:
                raise Failure
        except (JobError, OSError):
            raise Failure from None  # its memory is gone

    def fill(self, number: int, copy: Bytes, look: Callable[[], None]) -> None:
        """Have the worker hold a slice from now on; without room for it, wait until there is some, or others fail."""
        self._with_room(lambda: self.segment.files.put_fill(number, copy), len(copy), look)

    def _with_room(self, put: Callable[[], None], size: int, look: Callable[[], None]) -> None:
        since = time.monotonic()
        while True:
            try:
                return put()
            except FileNotFoundError:
                raise  # no want of room: the giver has died
            except OSError as error:
                if time.monotonic() - since > COPIES_ROOM * (1 + self.segment.rank):
                    raise Evicted(f"a slice for worker {self.segment.rank} {too_small(size, error)}") from None
            look()
            self._end_with_worker()
            self.segment.courier_bell.wait(ROOM_POLL)
