"""A worker's session with its courier: it answers the courier's questions, and waits for totals.

It belongs to the main thread, which brings parts of rounds (`own_part.py`, `own_footer.py`). A second thread wakes it
when the doorbell rings, and exports the state: see `listener.py`, which has all that both threads use. The handshake is
drawn in `shm/mailbox.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from meshmend.base.env import Settings
from meshmend.base.status import HALTED
from meshmend.errors import JobError
from meshmend.job.device.messages import Messages
from meshmend.job.exchange import Notes, check_calls, exchange, in_turn
from meshmend.job.faults import Fault, Faults, Point
from meshmend.job.faults.kinds import COURIER, FLIP
from meshmend.job.frameworks.base import Accumulator
from meshmend.job.protocol import NEVER, Total, divide
from meshmend.job.reduction.footer import MOST_ROUNDS, Footer, Note, Word
from meshmend.job.session.hooks import Hooks
from meshmend.job.session.listener import Export, Listener
from meshmend.job.session.message_room import MessageRoom, SumFormat
from meshmend.job.session.own_footer import OwnFooter
from meshmend.job.session.own_part import OwnPart
from meshmend.job.session.patience import NestedFlag, WriterPatience
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.records import Order, PartWanted
from meshmend.job.shm.segment import WorkerSegment, open_as_worker
from meshmend.job.shm.words import Mail
from meshmend.job.state.digest import Later
from meshmend.telemetry import Epoch, Patience


class Unneeded(Exception):
    """The job was over before this worker became a member."""


class WorkerSession:
    """One worker's part in one job of a run, from `share` to `leave`. `Solo` has the same interface."""

    alone = False
    """Whether no other worker takes part."""

    def __init__(self, settings: Settings, lanes: int) -> None:
        self._segment = open_as_worker(settings.run, settings.rank)
        self._side = WorkerSide(self._segment)
        self._own = self._segment.worker
        self.founders = self._segment.agent.founders
        """How many workers the run began with: where hosts were added, newcomers must count as all others did."""
        if lanes < self.founders:
            raise JobError(f"{lanes} lanes are too few for {self.founders} workers: each needs at least one")
        self.wanted = wanted = min(self._segment.agent.wanted, lanes)  # those of new hosts wait if there are too few
        self._footer = OwnFooter(self._segment, lanes)
        size = self._footer.format.size
        self.messages = Messages(self._segment, size, self.end)
        """Where parts go and totals come from."""
        self._listener = Listener(self._segment, self.messages, self.end)
        self.room = MessageRoom(self._segment, self.messages, size, lambda: self._listener.round)
        self._part = OwnPart(self._segment, self.messages, self.room, self._footer, self._listener, self.strike)
        self._step = 0
        self.pause, self._saving = NestedFlag(self._own, "paused"), NestedFlag(self._own, "saving")
        """Tells the agent that this worker may make no progress for long; one pause may lie within another."""
        self.save: Callable[[], bool] = lambda: True
        """Writes a checkpoint of the last committed state when the run is halted; returns whether it could."""
        self.holds: Callable[[], bool] = lambda: True
        """Whether there is such a state; within a step, PyTorch's objects may have changed since."""
        self.faults: Faults | None = None
        self.account = Total((), {}, 0)
        """Who did what in the last sum."""
        self._members: tuple[int, ...] = ()
        """Who took part in the last round."""
        self.joined: frozenset[int] = frozenset()
        """Those of them that had not taken part in a sum before."""
        self.last_round = 0
        """The round that was done last, counted alike by all members."""
        self.epoch = Epoch(attempt=self._segment.agent.attempt)
        """The membership that made the last round's total."""
        self._lanes = lanes
        self.mine = divide(lanes, wanted, settings.rank) if settings.rank < wanted else ()
        """The lanes that this worker was asked for last; before that, those it may expect."""
        self._patience = WriterPatience(self._own, lambda: self._side.halt() is not None)
        self._job = 0
        """Its number in the script, once it is shared."""
        self._hooks = Hooks()
        """What a job with sharded updates or embedding tables does besides."""
        self._stays = self._listener.stays = lambda: self._hooks.stays() or not self.holds()
        """Whether this worker must continue although the run is halted, up to a state that it can save."""

    @property
    def first(self) -> bool:
        """Whether this worker speaks for all: it has the lowest rank of those that took part in the last round."""
        return min(self._members, default=-1) == self._segment.rank

    def end(self, why: str) -> NoReturn:
        """End this worker, in whichever thread it is; the others continue."""
        self._segment.files.write_error(self._own.step, why, f"{why}\n", mistake=False)
        os._exit(1)

    def _wait(self, until: Callable[[], bool]) -> None:
        self._listener.wait(until)
        self.obey()

    def obey(self) -> None:
        """End here if the run is halted; one of the workers writes the checkpoint."""
        halt = self._side.halt()
        if halt is None or self._stays():
            return
        if self._side.is_active():
            self._hooks.halt()
        if halt is Order.HALT_AND_SAVE or self.first:
            self._own.saving = True
            saved = self.save() if self._side.is_active() else True  # before that it has nothing that others have not
            self._own.saving = False
            if not saved:
                os._exit(1)
        self._own.halted = True  # an agent that takes over cannot ask for the exit status of a process not its child
        os._exit(HALTED)

    def share(self, job: int, export: Export) -> Any | None:
        """Offer this state and wait to become a member; the state of another worker, if this one must take that.

        `Unneeded` where the job is over before.
        """
        own = self._own
        self._job = job
        self._listener.start(export)
        own.lanes, own.step = self._lanes, self._step
        own.summed = own.taken = NEVER, 0, 0
        self.messages.begin()
        own.slices = 0  # of the job before, whose couriers may have needed it to the end
        self._hooks.begin()
        own.ready = job
        self._wait(lambda: self._side.is_active() or self._side.is_over())
        if not self._side.is_active():
            self._close()
            raise Unneeded
        agent, courier = self._segment.agent, self._segment.courier
        self.epoch = Epoch(agent.attempt, courier.world, courier.shrink)
        own.taken = self._segment.state_made  # the group that it joins may never make one
        given = self._side.take_given()
        self._listener.join(given=given is not None)
        self._footer.joined = self._listener.round % MOST_ROUNDS
        return given

    def hook(self, made: Callable[[WorkerSegment, Footer, Listener], Hooks]) -> None:
        """Before `share`: this job keeps more than a replica."""
        self._hooks = made(self._segment, self._footer.format, self._listener)
        self._listener.hand_out = self._hooks.hand_out

    def digested(self, step: int, digest: Later[int], *, final: bool = True) -> None:
        """The state after the last round is final, it is the one before this step, and this is its digest.

        If it is not final, within a step, this is the digest of what all have alike now.
        """
        self._footer.digest, self._step = digest, step
        if not final:
            self._own.progress += 1
            return
        self._hooks.check()
        self._listener.finalize()
        if self._job:
            self._own.summed = self.last_round, self.epoch.world, self.epoch.shrink
            self._own.step = step
        self._own.progress += 1
        self.obey()

    def round(self, prepare: Callable[[Any], Accumulator], turn: int = 0) -> Generator[int, Any, Any]:
        """Bring this worker's part of a round, and more lanes if other workers die, until the total is there.

        Yields the number of each lane that is to be computed, is sent a list with its tree, which it empties, and
        returns the total: so nobody who waits for that still holds the tree. `turn` says how
        many sums the step had before this one.
        """
        self._part.begin(turn)
        proposed: SumFormat | None = None
        while True:
            self._listener.begin_round()
            question = self._asked()
            if question is None:
                total, found, notes = self._take_total()
                if notes:
                    if proposed is not None:
                        self.room.agree(proposed, notes)
                        proposed = None
                    continue  # others had notes, so this was no sum: bring the same part to the next round
                if proposed is not None or not found.digests:
                    self.end("the couriers were replaced just as workers agreed on a sum, which is lost here")
                self.account, self._footer.joined = found, None
                return total
            self.mine = question.body.lanes
            proposed = yield from self._part.compute(question.body, prepare)
            if proposed is not None:
                self._footer.write(self._hooks.word, self.mine, turn=turn, note=proposed.note())
                self._side.answer(question)
            else:
                save = self._hooks.saves(first=self.first)
                self._footer.write(self._hooks.word, self._part.lanes, turn=turn, save=save)
                self._part.bring(question)

    def exchange(self, word: Word, data: bytes) -> dict[int, bytes]:
        """What every worker brings to this exchange, by rank."""
        return exchange(word, data, partial(self._note_round, word))

    def _note_round(self, word: Word, note: Note) -> Notes:
        """A round in which this worker brings a note instead of gradients."""
        self._listener.begin_round()  # after a sum that ended the job within a step, no state is final any more
        while True:
            question = self._asked()
            if question is None:
                return self._take_total()[2]
            self.room.fit_notes()
            self._footer.write(word, question.body.lanes, note=note)
            self._own.progress += 1
            self._side.answer(question)

    def _asked(self, over: Callable[[], bool] = lambda: False) -> Mail[PartWanted] | None:
        """The courier's question for this worker's part; None when the total is there, or all is `over`.

        Until then the main thread makes the updates that the courier asks for.
        """
        side, hooks, number = self._side, self._hooks, self._listener.round

        def news() -> bool:
            return side.has_total(number) or side.question(number) is not None or hooks.wanted(number) or over()

        while True:
            self._wait(news)
            if hooks.wanted(number):
                hooks.update(number)
            if side.has_total(number):
                return None
            if (question := side.question(number)) is not None:
                return question
            if over():
                return None

    def _take_total(self) -> tuple[Any, Total, Notes]:
        """The total of the round that is done, what its footer says, and the notes in it."""
        number = self.last_round = self._listener.round
        total = self._segment.buffers.total(number)
        footer = self._footer.format
        found, notes, calls = footer.read(total), footer.notes(total), footer.calls(total)
        self._members = tuple(found.digests)
        self.joined = frozenset(rank for rank, call in calls.items() if call.joined is not None)
        if not notes:
            total = self.messages.total(number)
        self.epoch = self._segment.epoch
        self._own.taken = number, self.epoch.world, self.epoch.shrink
        self._listener.advance(unchanged=bool(notes))
        if not notes and not found.astray:
            return total, found, {}
        check_calls(calls, self._step)
        return total, found, in_turn(calls, notes)

    def record(self, write: Callable[[Epoch, int], None]) -> None:
        """Have a line written about what all workers did in the last round: its epoch and its number are given."""
        write(self.epoch, self.last_round)

    def tick(self) -> None:
        """Make progress known."""
        self._own.progress += 1

    def strike(self, point: Point) -> Fault | None:
        """Bring about the failure that a test asked for here."""
        if point is Point.COMMIT and self._side.flip():
            return Fault(rank=self._segment.rank, step=self._step, point=point.value, kind=FLIP.name)
        turn = self._own.turn if point is Point.COMPUTE else 0
        fault = self.faults.strike(point, self._step, turn) if self.faults is not None else None
        if fault is not None and fault.kind == COURIER.name:
            self._segment.courier.process.kill()
        return fault

    @contextmanager
    def waits_for_room(self) -> Iterator[Patience]:
        """Have nobody take this worker for one that hangs, or kill it when the run is halted: it has to write."""
        with self.pause(), self._saving():
            yield self._patience
            if not self._patience.gave_up:
                self._own.unwritten = 0

    def leave(self) -> None:
        """No more steps: stay until all the others have the last total too."""
        side, here = self._side, self._listener
        here.begin_round()
        while self.room.made and not side.is_over():  # without buffers, it came too late for any step
            question = self._asked(side.is_over)
            if question is not None:
                self._segment.buffers.part[:] = 0
                self._footer.write(Word.END, [], leaving=True)
                side.answer(question)
            elif side.has_total(here.round):
                self._take_total()  # a newcomer had something to say before it leaves
        self._close()

    def _close(self) -> None:
        """For this worker, this job is over: the next one has a session of its own."""
        self._listener.close()
        self.messages.close()
        self._own.left = self._job

    def exit_unneeded(self) -> NoReturn:
        """End this worker as if its script had ended well."""
        self._own.finished = True
        os._exit(0)
