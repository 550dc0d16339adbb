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
from pathlib import Path

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.errors import JobError
from meshmend.train.mpi import patient
from meshmend.train.segment import HOME, Segment

BLOCK = 1 << 15
"""Numbers added at a time: they stay in the processor's cache while part after part is added to them."""


class Neighbours:
    """The other members of a group, as far as their memory is here."""

    def __init__(self, own: Segment) -> None:
        self._own = own
        self._group: MPI.Comm | None = None
        self._members: list[Segment] = []

    def __call__(self, group: MPI.Comm, number: int) -> bool:
        """Make this round's total in the own memory; False if some member is on another host."""
        if group is not self._group:
            self._meet(group)
        if not self._members:
            return False
        patient(group.Ibarrier())
        total, here = self._own.total(number), group.Get_rank()
        parts = [member.buffer(0) for member in self._members]
        if any(part.shape != total.shape or part.dtype != total.dtype for part in parts):
            sizes = ", ".join(f"{part.size} of {part.dtype}" for part in parts)
            raise JobError(f"the workers bring different numbers ({sizes}): all must run the same script")
        bounds = [len(total) * place // len(parts) for place in range(len(parts) + 1)]
        add([part[bounds[here] : bounds[here + 1]] for part in parts], total[bounds[here] : bounds[here + 1]])
        patient(group.Ibarrier())
        for place, member in enumerate(self._members):
            if place != here:
                theirs = slice(bounds[place], bounds[place + 1])
                total[theirs] = member.total(number)[theirs]
        return True

    def _meet(self, group: MPI.Comm) -> None:
        """Learn, once for each group, who is in it and whether all of them are here."""
        every = np.empty((group.Get_size(), 2), np.int64)
        patient(group.Iallgather(np.array([self._own.seat, host()], np.int64), every))
        near = (every[:, 1] == every[0, 1]).all()
        self._members = [Segment(self._own.run, int(seat)) for seat in every[:, 0]] if near else []
        self._group = group


def add(parts: list[npt.NDArray[np.generic]], out: npt.NDArray[np.generic]) -> None:
    """Add up parts, always in the same order."""
    for begin in range(0, len(out), BLOCK):
        here = slice(begin, begin + BLOCK)
        np.add(parts[0][here], parts[1][here] if len(parts) > 1 else 0, out=out[here])
        for part in parts[2:]:
            np.add(out[here], part[here], out=out[here])


def host() -> int:
    """A number for the memory that segments lie in: another machine's differs, and so does another container's."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return int(boot[:12], 16) << 15 ^ os.stat(HOME).st_dev
