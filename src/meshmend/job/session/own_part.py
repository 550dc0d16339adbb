"""A worker's part of a round: computes the lanes that its courier asks for, adds them up, and brings the sum.

The courier asks again when other workers die: for more lanes, or in a new group. Lanes that have been added up stay in
the part, unless the courier says that it must begin afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from meshmend.job.device.messages import Messages
from meshmend.job.faults import Point
from meshmend.job.frameworks.base import Accumulator
from meshmend.job.session.listener import Listener
from meshmend.job.session.message_room import MessageRoom, SumFormat
from meshmend.job.session.own_footer import OwnFooter
from meshmend.job.shm.mailbox import ALL, WorkerSide
from meshmend.job.shm.records import PartWanted
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.shm.words import Mail


class OwnPart:
    """One worker's parts, in one job: one after another."""

    def __init__(
        self,
        segment: WorkerSegment,
        messages: Messages,
        room: MessageRoom,
        footer: OwnFooter,
        listener: Listener,
        strike: Callable[[Point], object],
    ) -> None:
        self._own, self._side = segment.worker, WorkerSide(segment)
        self._messages, self._room, self._footer, self._listener = messages, room, footer, listener
        self._strike = strike
        self._turn = 0
        self._have = set[int]()
        self._sums: Accumulator | None = None
        """What holds the sum of those lanes."""

    @property
    def lanes(self) -> list[int]:
        """The lanes summed so far."""
        return sorted(self._have)

    def begin(self, turn: int) -> None:
        """Start a round for this sum of the step."""
        self._turn, self._have, self._sums = turn, set(), None
        if self._own.turn != turn:
            self._own.turn = turn

    def compute(
        self, wanted: PartWanted, prepare: Callable[[Any], Accumulator]
    ) -> Generator[int, Any, SumFormat | None]:
        """Yield each lane that is missing, and be sent its tree.

        Returns the format of this sum if the other workers must be told of it first, and None when the part is whole.
        """
        own, messages, room, turn = self._own, self._messages, self._room, self._turn
        if not self._have <= set(wanted.lanes) or wanted.afresh:
            self._have = set()
        messages.asked(wanted.round, keep=bool(self._have))
        if not wanted.lanes and room.made:
            messages.bring_nothing(wanted.round)
        own.inside = True
        own.progress += 1
        if room.fits(turn):
            room.use(turn)
        sums = None
        # Even a member without lanes brings a part: it computes one lane to learn how large that is.
        for lane in wanted.lanes or (() if room.fits(turn) else (0,)):
            if lane in self._have:
                continue
            self._strike(Point.COMPUTE)
            tree = (yield lane).pop()
            sums = self._sums = prepare(tree)
            if not room.fits(turn):
                unknown = room.fit_sum(turn, sums.reduction, self._listener.state_nbytes)
                if unknown is not None:
                    own.inside = False
                    return unknown
                messages.choose()
            if lane in wanted.lanes:
                part = messages.part(sums.reduction.size, wanted.round)
                sums.accumulate(tree, part, first=not self._have)
                self._have.add(lane)
            del tree  # its arrays are released when the accumulator needs them no longer
            self._footer.digest.begin()  # while the device computes the lane
            own.progress += 1
        if sums is not None and self._have:
            sums.export(messages.part(sums.reduction.size, wanted.round))
        own.inside = False
        return None

    def bring(self, question: Mail[PartWanted]) -> None:
        """Answer the courier with the part, whose footer is written; the device may still copy it to the host."""
        if self._have:
            self._messages.publish(question.body.round)  # last: the footer is written while the device still works
        copies = self._messages.buffers
        if not copies.copying:
            self._side.answer(question)
            if self._sums is not None:
                self._sums.brought()
            return
        self._side.answer(question, copied=0)
        for numbers in copies.copied():
            self._side.copied(numbers)
        self._side.copied(ALL)
