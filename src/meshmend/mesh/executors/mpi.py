"""Runs a schedule over MPI: ranks are chips, and each chunk goes to a neighbour as one message.

Every chip knows, for each of its links, which chunks it sends and which it gets, in which order. It keeps to that order
and sends the next chunk as soon as it has it: all parts from below on the way up, the result on the way down.
Receives are posted `WINDOW` messages ahead on every link, so that a link never waits for its receiver.

What comes in lands in memory of its own first, and is added or copied from there: after a failure something late may
still come for the group that was left, and must not fall into a sum that has begun again. So an object stays for as
long as its group may.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from meshmend.errors import PlanError
from meshmend.mesh.executors.base import Executor
from meshmend.mesh.proof import Proof
from meshmend.mesh.schedule import Schedule

WINDOW = 4
"""Messages on their way on each link, each way."""
TAG = 77
LONGEST_NAP = 0.002
"""Seconds to sleep when nothing has come: a quarter of the usual time between messages, up to this. Others need the
processor, and every look costs some."""
QUICK = 0.0002
"""Where messages come quicker than this, looking again at once is better than sleeping."""
LOOKS = 32
"""Looks without success between two calls of `idle`."""

Numbers = npt.NDArray[np.generic]
Add = Callable[[Sequence[Numbers], Numbers, int], None]
"""Adds up two ranges of numbers into a third, which may be the first of them; they begin at this number of a part."""


def add(parts: Sequence[Numbers], out: Numbers, begin: int) -> None:
    """Number by number."""
    del begin
    np.add(parts[0], parts[1], out=out)


class _Line:
    """One link, one way: the chunks that cross it, in their order."""

    def __init__(self, other: int, chunk: list[int], copy: list[bool]) -> None:
        self.other, self.chunk, self.copy = other, chunk, copy
        self.next = self.done = 0
        """How many messages MPI has been given, and how many of them are done."""
        self.flying: deque[MPI.Request] = deque()

    def begin(self) -> None:
        """A new sum."""
        self.next = self.done = 0
        self.flying = deque()


class _Outgoing(_Line):
    """One link on which this chip sends."""


class _Incoming(_Line):
    """One link on which this chip receives."""

    room = np.empty((0, 0), np.uint8)
    """Where messages land."""

    def make_room(self, widest: int) -> None:
        """For chunks of at most so many bytes."""
        if self.room.shape[1] < widest:
            self.room = np.empty((WINDOW, -(-widest // 64) * 64), np.uint8)  # rows begin at whole numbers


class MeshSum(Executor):
    """All-reduces over the links of a mesh, for one group and one schedule."""

    def __init__(
        self,
        group: MPI.Comm,
        schedule: Schedule,
        chips: Sequence[int] | None = None,
        idle: Callable[[], None] = lambda: None,
        halfway: Callable[[], None] = lambda: None,
        proof: Proof | None = None,
        add: Add = add,
    ) -> None:
        """`chips[rank]` is the chip that a rank of the group is, by default those alive in their order.

        Where no proof is given, every rank proves the schedule itself. `idle` is called when a sum begins, and now and
        then while nothing comes, and may raise; `halfway` when half of all messages have come and left. `add` knows
        what numbers mean: two of them may be packed in the place of one.
        """
        super().__init__(schedule, proof)
        mesh = schedule.mesh
        places = list(mesh.live if chips is None else chips)
        if sorted(places) != mesh.live.tolist() or len(places) != group.Get_size():
            raise PlanError(
                f"a group of {group.Get_size()} ranks was given for the {len(mesh.live)} live chips of {mesh}: "
                "each live chip needs one rank"
            )
        self._group, self._idle, self._halfway, self._add = group, idle, halfway, add
        here = int(places[group.Get_rank()])
        rank_of = {int(chip): rank for rank, chip in enumerate(places)}
        sends, gets = schedule.sender == here, schedule.receiver == here
        self._out: list[_Outgoing] = []
        self._in: list[_Incoming] = []
        for other in mesh.neighbour[here].tolist():
            if other < 0:
                continue
            there, back = sends & (schedule.receiver == other), gets & (schedule.sender == other)
            if there.any():
                self._out.append(_Outgoing(rank_of[other], *_order(schedule, there)))
            if back.any():
                self._in.append(_Incoming(rank_of[other], *_order(schedule, back)))
        # What has left is noted before what has come: a result waits for its own partial sum to be gone.
        self._lines: list[_Line] = [*self._out, *self._in]
        self._parts = np.bincount(schedule.chunk[gets & ~schedule.copy], minlength=schedule.chunks).tolist()
        self._told = np.bincount(schedule.chunk[gets & schedule.copy], minlength=schedule.chunks).tolist()
        self._up: dict[int, tuple[_Outgoing, int]] = {
            chunk: (line, place)
            for line in self._out
            for place, (chunk, copy) in enumerate(zip(line.chunk, line.copy, strict=True))
            if not copy
        }

    def __call__(self, part: Numbers, total: Numbers) -> None:
        """Add up everybody's part into everybody's total."""
        if not len(part):  # no message carries nothing
            self._idle()
            return
        chunks = self.schedule.chunks
        bounds = (len(part) * np.arange(chunks + 1) // chunks).tolist()
        self._begins = bounds
        self._sizes = [(high - low) * part.itemsize for low, high in pairwise(bounds)]
        self._part = [part[low:high] for low, high in pairwise(bounds)]
        self._total = [total[low:high] for low, high in pairwise(bounds)]
        self._missing = list(self._parts)
        self._begun, self._whole = [False] * chunks, [not told for told in self._told]
        self._idle()
        if not self._in:
            total[:] = part
            return
        for line in self._lines:
            line.begin()
        for incoming in self._in:
            incoming.make_room(max(self._sizes))
            self._post(incoming)
        half, waited, pace, last = self._left() // 2, 0, 0.0, time.perf_counter()
        while self._left():
            moved = self._move()
            if moved:
                now = time.perf_counter()
                pace, last, waited = 0.8 * pace + 0.2 * (now - last) / moved, now, 0
                if half and self._left() <= half:
                    half = 0
                    self._halfway()
                continue
            waited += 1
            if waited % LOOKS == 0:
                self._idle()
            usual = max(pace, (time.perf_counter() - last) / 2)
            time.sleep(min(usual / 4, LONGEST_NAP) if usual > QUICK else 0)

    def _left(self) -> int:
        """Messages that have not yet come or left."""
        return sum(len(line.chunk) - line.done for line in self._lines)

    def _move(self) -> int:
        """Take note of what has left and come, at most one message a link, and send what can go; how many they were."""
        for link in self._out:
            self._send(link)
        lines = [line for line in self._lines if line.flying]
        done = sorted(MPI.Request.Testsome([line.flying[0] for line in lines]) or ())
        for index in done:
            line = lines[index]
            line.flying.popleft()
            if isinstance(line, _Incoming):
                self._land(line)
            line.done += 1
        for incoming in self._in:
            self._post(incoming)
        return len(done)

    def _post(self, line: _Incoming) -> None:
        while line.next < min(line.done + WINDOW, len(line.chunk)):
            room = line.room[line.next % WINDOW, : self._sizes[line.chunk[line.next]]]
            line.flying.append(self._group.Irecv([room, MPI.BYTE], line.other, TAG))
            line.next += 1

    def _land(self, line: _Incoming) -> None:
        chunk = line.chunk[line.done]
        into, mine = self._total[chunk], self._part[chunk]
        came = line.room[line.done % WINDOW, : self._sizes[chunk]].view(into.dtype)
        if line.copy[line.done]:
            self._wait_for_departure(chunk)
            into[:] = came
            self._whole[chunk] = True
        else:
            self._add([into if self._begun[chunk] else mine, came], into, self._begins[chunk])
            self._begun[chunk] = True
            self._missing[chunk] -= 1

    def _wait_for_departure(self, chunk: int) -> None:
        """The result of a chunk takes the place of the partial sum, which has left, or there would be no result."""
        if chunk in self._up:
            link, place = self._up[chunk]
            while link.done <= place:
                link.flying.popleft().Wait()
                link.done += 1

    def _send(self, link: _Outgoing) -> None:
        while link.next < len(link.chunk) and link.next - link.done < WINDOW:
            chunk, copy = link.chunk[link.next], link.copy[link.next]
            if self._missing[chunk] or (copy and not self._whole[chunk]):
                break
            # Until something was added, what this chip has of a chunk is its own part.
            what = self._total[chunk] if self._begun[chunk] or copy else self._part[chunk]
            link.flying.append(self._group.Isend([what.view(np.uint8), MPI.BYTE], link.other, TAG))
            link.next += 1


def _order(schedule: Schedule, which: npt.NDArray[np.bool_]) -> tuple[list[int], list[bool]]:
    """The chunks of these transfers in their order, and whether each is a result."""
    return schedule.chunk[which].tolist(), schedule.copy[which].tolist()
