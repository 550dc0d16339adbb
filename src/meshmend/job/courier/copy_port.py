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
        self.side.ask_copies(tuple(sorted(slices)))
        while not self.side.has_copies():
            look()
            self._end_with_worker()
            self.segment.courier_bell.wait(STATE_POLL)
        self._given = True
        return {number: self.segment.files.read_copy(number) for number in slices}

    def drop_copies(self) -> None:
        """All members have what they were given."""
        if self._given:
            drop_copies(self.segment.files)
        self._given = False

    def fill_from(self, number: int, member: Hello) -> None:
        """Have the worker hold a slice that a member of this host gives; `Failure` where that has died."""
        try:
            theirs = open_to_read(self.segment.run, member.rank)
            hand_over(number, theirs.files, self.segment.files)
            if {theirs.birth, open_to_read(self.segment.run, member.rank).birth} != {member.born}:
                raise Failure
        except (JobError, OSError):
            raise Failure from None  # its memory is gone

    def fill(self, number: int, copy: Bytes, look: Callable[[], None]) -> None:
        """Have the worker hold a slice from now on; without room for it, wait until there is some, or others fail."""
        since = time.monotonic()
        while True:
            try:
                return self.segment.files.put_fill(number, copy)
            except OSError as error:
                if time.monotonic() - since > COPIES_ROOM * (1 + self.segment.rank):
                    raise Evicted(f"a slice for worker {self.segment.rank} {too_small(len(copy), error)}") from None
            look()
            self._end_with_worker()
            self.segment.courier_bell.wait(ROOM_POLL)
