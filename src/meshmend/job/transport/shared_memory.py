"""Sums of couriers on one host: they read each other's shared memory, and MPI only says when, and who died.

    part 0 │ a │ b │ c │ d │          total 0 │ A │   │   │   │          total 0 │ A │ B │ C │ D │
    part 1 │ a │ b │ c │ d │   all    total 1 │   │ B │   │   │   all    total 1 │ A │ B │ C │ D │
    part 2 │ a │ b │ c │ d │  ─────►  total 2 │   │   │ C │   │  ─────►  total 2 │ A │ B │ C │ D │
    part 3 │ a │ b │ c │ d │   have   total 3 │   │   │   │ D │   have   total 3 │ A │ B │ C │ D │
                              parts                              added

MPI does the same with messages; here there is nothing to send. Everybody writes only to memory of its own,
so nothing changes for who may be killed when: a member that dies leaves its part and its total unharmed, and whoever
has passed the second meeting can take all it needs, since all had added by then. Parts stay as they are until the
next question, which comes after the second meeting, or after a repair, in which every survivor takes part only when
it no longer reads. Totals stay for two rounds as always.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.reduction import bf16
from meshmend.job.shm import HOME, CourierSegment, open_to_read

BLOCK = 1 << 15
"""Numbers added at a time: they stay in the processor's cache while part after part is added to them."""


class Neighbours:
    """The members of a group whose memory is all on this host."""

    def __init__(self, own: CourierSegment, births: dict[int, int], before: Callable[[str], None]) -> None:
        """Of these ranks, and of these workers there: the memory of one that dies is soon another worker's."""
        self._own = own.buffers
        self._before = before
        self._here = list(births).index(own.rank)
        members = [own if rank == own.rank else open_to_read(own.run, rank) for rank in births]
        for member, birth in zip(members, births.values(), strict=True):
            if member.birth != birth:
                raise JobError(f"worker {member.rank} was replaced")
            member.buffers.part()  # mapped now, it stays what it is, whatever takes its name
            if open_to_read(own.run, member.rank).birth != birth:
                raise JobError(f"worker {member.rank} was replaced")
        self._members = [member.buffers for member in members]

    def add(self, number: int) -> None:
        """When all have their parts: add up this member's slice of the total of a round."""
        self._before("add")
        mine = self._slice(self._here)
        packed = min(max(self._own.packed - mine.start, 0), mine.stop - mine.start)
        add([member.part()[mine] for member in self._members], self._own.total(number)[mine], packed)

    def take(self, number: int) -> None:
        """When all have added: take the other slices."""
        self._before("take")
        total = self._own.total(number)
        for place, member in enumerate(self._members):
            if place != self._here:
                theirs = self._slice(place)
                total[theirs] = member.total(number)[theirs]

    def _slice(self, place: int) -> slice:
        size, members = self._own.numbers, len(self._members)
        return slice(size * place // members, size * (place + 1) // members)


def add(parts: list[npt.NDArray[np.generic]], out: npt.NDArray[np.generic], packed: int = 0) -> None:
    """Add up parts, always in the same order; the first `packed` numbers hold bf16."""
    bf16.add([part[:packed].view(np.uint16) for part in parts], out[:packed].view(np.uint16))
    for begin in range(packed, len(out), BLOCK):
        here = slice(begin, begin + BLOCK)
        np.add(parts[0][here], parts[1][here] if len(parts) > 1 else 0, out=out[here])
        for part in parts[2:]:
            np.add(out[here], part[here], out=out[here])


def host() -> int:
    """A number for the memory that segments lie in: another machine's differs, and so does another container's.

    Where two hosts have names of their own but memory in common (those of our tests), they stay two.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return int(boot[:12], 16) << 15 ^ os.stat(HOME).st_dev ^ zlib.crc32(os.uname().nodename.encode())
