"""The handshake of a worker with its courier and its agent: who writes what, in which order, and who may read it torn.

A round. `n` is the number of the question; each line is one write, and the write marked ● makes those above it valid:

      COURIER                                   WORKER
      part_wanted: n − 1  (odd: not whole)
                   round, afresh, lanes
    ● part_wanted: n  ────────── ring ────────► reads n, body, n again; unequal or odd: no question yet
                                                the part, into its buffer
      answered = n? no: keep waiting   ◄─ ring ── ● answered = n
      the mark of the total's place (`marks.py`)
      yes: sums the parts of all members
      the total, into its buffer
      even_where or odd_where: where it is
      even_made or odd_made: the round and the group that made it
      done_world, done_shrink
    ● done = round  ──────────── ring ────────► reads the epoch and the total
      assigned (a mailbox too): the lanes of the next round

The next round's total cannot come before the worker has answered the next question, so what it reads after `done` stays
as it is. A courier that is killed anywhere here is replaced: the new one posts another question, under a number that no
question had before, so an answer to an older question is never taken for an answer to this one. `assigned` is read by
the next courier only; a courier that was killed halfway leaves an odd number there, which assigns no lanes.

If the gradients come from a device, the worker may answer before the part is complete: `copied` says how many of its
numbers have arrived, and the courier waits for the ones it needs. In the same way `gathered` says how much of a total
is ready, for a worker whose device copies it up meanwhile. What it has copied counts only if `attempt` is the same when
the total is done: the number changes with every attempt at a total, and when a total comes in another way.

Large totals of members of one host stay in slices, one in the buffer of each member, and `even_where` or `odd_where`
says so. When a group is formed, every courier has its worker map the buffers of all members (OPEN, asked and answered
as ADD is below); then all totals of the largest sum stay in slices, or none. A worker reads the slices of the others
after `done`, and then their marks. A member that missed the total gets it from one that did not, whose worker first
puts it together (EXPORT). That one's courier may have died while it wrote the next total: so there are two words.

If members sum in device memory, the parts and totals are there, and only workers can add them up. Before a worker
writes to a part or a total, it writes the mark of that place (`shm/marks.py`). In a small group, each adds up all
parts when the round is done, and looks at the others' marks then. In a larger one, a round has one more exchange,
between the barriers of the group, after `answered`:

      device_wanted: ● d, ADD, round ── ring ─► even_total or odd_total = the mark of the round
                                                this member's slice of the total, in its device memory; complete
      device_done answers d? no: wait  ◄─ ring ── ● device_done: request d, outcome
      yes: second barrier; the footer of the total, into its buffer
      even_where or odd_where, and then `done` as above
                                                reads the others' slices of the total from their device memory,
                                                then their marks: a later one means that it came too late

Slices and parts stay for two rounds, like any total. Their memory stays as long as any process has it mapped, even if
its owner is dead, and all members have mapped it before the first sum of their group (MAP, asked and answered in the
same way).

The state, for another worker:

      state_wanted: ● m, round  ─── ring ─────► waits until the state after `round` is final
                                                the state file, under another name; then renamed
      state_given answers m? no: wait  ◄─ ring ── ● state_given: request m, round
      yes: maps the file

If the worker begins another sum instead of a commit, it answers at once that there is no state (`midway`).

The state, from another worker (a newcomer, before its first round):

      the given file, under another name; then renamed
      given = yes
      copied, done
    ● active = yes  ──────────── ring ────────► takes the given file if `given`, and begins after `done`

If both workers have device memory of one kind, the arrays of the state bypass the host. The worker that is
asked (`on_device`) copies them to a block of device memory that it lends, and the state file only says where they are.
The newcomer maps that block while the couriers still agree on the membership, and the lender drops it when all have it:

      COURIER of a newcomer                     NEWCOMER
      the given file, as above
      device_wanted: ● d, TAKE ────── ring ───► maps the lent block
      device_done answers d? no: wait  ◄─ ring ── ● device_done: request d, outcome
      all newcomers DONE? yes: the lender is told to RELEASE. One that CANNOT: all get the state as a file

Until it has taken the state it was given, a worker exports none. A rank that is asked for its state before it is a
member begins with its own, so its courier first withdraws what a lost world had given.

A round of a sharded job (`sharding/`) has a second half, after `answered`:

      totals = none; the totals of its slices and what all need, into its buffer
    ● totals = this attempt; meets the others
    ● met = this attempt
      stage_wanted = 0
    ● update_wanted = round  ───── ring ──────► where updates need norms: sums of squares of its slices
      `updated` up to this stage? no: wait  ◄ ring ─ ● updated: round, wrong, 1 stage
      the sums of squares of all slices
    ● stage_wanted = 1  ────────── ring ──────► … and at last the new weights of its slices, their digests
      `updated` up to this stage? no: wait  ◄ ring ─ ● updated: round, wrong, all stages
      the digests that all agreed on; the weights of the other slices
      gives, and then `done` as above           agrees with the digests, goes on

and copies of slices go to other workers while lanes are computed:

      copies_wanted: ● c, slices  ── ring ────► a file for each, under another name; then renamed
      copies answers c? no: wait  ◄──── ring ── ● copies: request c
      sends them; who receives one puts it in a file, and then says that it holds the slice

The agent, at any time:

      order: ● RELEASE, HALT or HALT_AND_SAVE ─ ring ─► looks at it whenever it wakes or commits; a halt is final

A script may have several jobs, one after another, each with its own worlds:

      WORKER                                    COURIER of a world for job k
      lanes, step                               waits until the worker is ready for job k
    ● ready = k                                 done = never, active = no, over = no, …
                                              ● job = k
                                                everything above
    ● left = k

While `job` and `ready` differ, nothing that the courier's record says is about the job that the worker is in.

Bells only save time: a waiting process also polls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.job.protocol import NEVER
from meshmend.job.shm.marks import BITS, mark, membership, of_total_in_buffer, put_in
from meshmend.job.shm.records import (
    AgentOrder,
    Copies,
    DeviceDone,
    DeviceWanted,
    Order,
    Outcome,
    PartWanted,
    Slices,
    StateGiven,
    StateWanted,
    Task,
    Updated,
    Where,
)
from meshmend.job.shm.segment import AgentSegment, CourierSegment, Segment, WorkerSegment
from meshmend.job.shm.words import Mail

Bytes = npt.NDArray[np.uint8]
ALL = 1 << 62
"""More numbers than any part has."""


class WorkerSide:
    """What the worker does in the handshake."""

    def __init__(self, segment: WorkerSegment) -> None:
        self._segment = segment

    def question(self, round: int) -> Mail[PartWanted] | None:
        """The courier's question for the part of this round, if it has not been answered."""
        mail = self._segment.courier.part_wanted if self._segment.in_job else None
        if mail is None or mail.body.round != round or mail.number == self._segment.worker.answered:
            return None
        return mail

    def answer(self, question: Mail[PartWanted], copied: int = ALL) -> None:
        """Answer that the requested part is in its buffer, or this many numbers of it."""
        if self._segment.worker.copied != copied:
            self._segment.worker.copied = copied
        self._segment.worker.answered = question.number
        self._segment.courier_bell.ring()

    def copied(self, numbers: int) -> None:
        """Publish how many numbers of the last requested part are in its buffer."""
        self._segment.worker.copied = numbers
        self._segment.courier_bell.ring()

    def has_total(self, round: int) -> bool:
        """Whether the total of a round is here."""
        return self._segment.in_job and self._segment.courier.done >= round

    def is_active(self) -> bool:
        """Whether this worker is a member."""
        return self._segment.in_job and self._segment.courier.active

    def is_over(self) -> bool:
        """Whether the job is over, according to the courier, or to the agent if the courier could not say so."""
        return is_over(self._segment)

    def halt(self) -> Order | None:
        """How this worker must end now, if it must."""
        return halt_of(self._segment)

    def state_request(self) -> Mail[StateWanted] | None:
        """The courier's question for the state, if it has not been answered."""
        return _unanswered_state(self._segment)

    def give_state(self, request: Mail[StateWanted], round: int, pieces: Iterable[Any]) -> None:
        """Export the state after a round."""
        self._segment.files.write_state(pieces)
        self._segment.worker.state_given = StateGiven(request.number, round)
        self._segment.courier_bell.ring()

    def refuse_state(self, request: Mail[StateWanted]) -> None:
        """There is no state now: the worker is within a step."""
        self._segment.worker.state_given = StateGiven(request.number, request.body.round, midway=True)
        self._segment.courier_bell.ring()

    def device_request(self) -> Mail[DeviceWanted] | None:
        """The courier's question for something that needs the device, if it has not been answered."""
        return _unanswered_device(self._segment)

    def answer_device(self, request: Mail[DeviceWanted], outcome: Outcome) -> None:
        """Answer that the request is complete, or impossible."""
        self._segment.worker.device_done = DeviceDone(request.number, outcome)
        self._segment.courier_bell.ring()

    def update_wanted(self, round: int) -> int | None:
        """The stage of the update of a round that the courier waits for; None if it does not."""
        found = _unmade_update(self._segment) if self._segment.in_job else None
        return found[1] if found is not None and found[0] == round else None

    def updated(self, round: int, wrong: int, stages: int) -> None:
        """So many stages of the update of a round are made, or a slice is not what its holders agreed on."""
        self._segment.worker.updated = Updated(round, wrong, stages)
        self._segment.courier_bell.ring()

    def copies_request(self) -> Mail[Slices] | None:
        """The courier's question for copies of slices, if it has not been answered."""
        return _unanswered_copies(self._segment)

    def give_copies(self, request: Mail[Slices]) -> None:
        """They are in their files."""
        self._segment.worker.copies = Copies(request.number)
        self._segment.courier_bell.ring()

    def has_given(self) -> bool:
        """Whether this worker has to begin with another one's state."""
        return self._segment.in_job and self._segment.courier.given

    def take_given(self) -> Bytes | None:
        """That state, for a worker that has become a member."""
        return self._segment.files.take_given() if self.has_given() else None

    def flip(self) -> bool:
        """Whether a flip was requested that has not been carried out; it counts as carried out now."""
        mail = self._segment.chaos.flip_wanted
        if mail is None or mail.number == self._segment.worker.flips_done:
            return False
        self._segment.worker.flips_done = mail.number
        return True


class CourierSide:
    """What the courier does in the handshake; the rest is in `memory.py`."""

    def __init__(self, segment: CourierSegment) -> None:
        self._segment = segment
        self._question = self._request = self._device = self._copies = 0

    def ask_part(self, round: int, lanes: tuple[int, ...], *, afresh: bool = False) -> None:
        """Request the part of a round."""
        self._segment.courier.part_wanted = PartWanted(round, afresh, lanes)
        self._question = _number(self._segment.courier.part_wanted)
        self._segment.worker_bell.ring()

    def is_answered(self) -> bool:
        """Whether the part that was last requested is in its buffer."""
        return self._segment.worker.answered == self._question

    def gathered(self, numbers: int) -> None:
        """Publish how much of a total is ready; 0 begins an attempt under a new number."""
        self._segment.courier.gathered = numbers
        if numbers == 0:
            self._segment.courier.attempt += 1
        else:
            self._segment.worker_bell.ring()

    def ask_state(self, round: int, *, on_device: bool = False) -> None:
        """Request the state after a round, in device memory if possible."""
        if not self._segment.courier.active:
            self._segment.courier.given = False  # of a world that was lost before this rank became a member
        self._segment.courier.state_wanted = StateWanted(round, on_device)
        self._request = _number(self._segment.courier.state_wanted)
        self._segment.worker_bell.ring()

    def state(self) -> tuple[int, Bytes | None] | None:
        """(round, state) once the worker has answered; the state is None if the worker is within a step."""
        mail = self._segment.worker.state_given
        if mail is None or mail.body.request != self._request:
            return None
        return mail.body.round, None if mail.body.midway else self._segment.files.read_state()

    def ask_device(self, task: Task, round: int, members: tuple[int, ...] = ()) -> None:
        """Request something that needs the device."""
        self._segment.courier.device_wanted = DeviceWanted(task, round, members)
        self._device = _number(self._segment.courier.device_wanted)
        self._segment.worker_bell.ring()

    def device_outcome(self) -> Outcome | None:
        """What came of it, once the worker has answered."""
        mail = self._segment.worker.device_done
        return None if mail is None or mail.body.request != self._device else mail.body.outcome

    def ask_update(self, round: int, stage: int) -> None:
        """Ask for a stage of the update of a round."""
        courier = self._segment.courier
        if courier.stage_wanted != stage:
            courier.stage_wanted = stage
        courier.update_wanted = round
        self._segment.worker_bell.ring()

    def updated(self, round: int, stage: int) -> bool:
        """Whether the worker has made this stage of the update of a round, or found a slice that is wrong."""
        mail = self._segment.worker.updated
        return mail is not None and (mail.body.wrong >= 0 or (mail.body.round, mail.body.stages) > (round, stage))

    def ask_copies(self, slices: tuple[int, ...]) -> None:
        """Ask for copies of slices."""
        self._segment.courier.copies_wanted = Slices(slices)
        self._copies = _number(self._segment.courier.copies_wanted)
        self._segment.worker_bell.ring()

    def awaits_copies(self) -> bool:
        """Whether the worker has yet to make copies, which this courier or one before it has asked for."""
        return _unanswered_copies(self._segment) is not None

    def has_copies(self) -> bool:
        """Whether the worker has answered."""
        mail = self._segment.worker.copies
        return mail is not None and mail.body.request == self._copies

    def begin_total(self, round: int) -> None:
        """Mark the place of a round's total in the buffer, before it is written to."""
        record = self._segment.courier
        if round % 2:
            record.odd_mark = mark(round, membership(record))
        else:
            record.even_mark = mark(round, membership(record))

    def take_total(self, round: int) -> None:
        """The same for a total that comes from another member.

        If this one had begun to make it, others may be reading its slice, and what comes has the same bits: they are
        not too late.
        """
        if of_total_in_buffer(self._segment.courier, round) >> 2 * BITS < round:
            self.begin_total(round)

    def place_total(self, round: int, where: Where = Where.BUFFER) -> None:
        """Publish where the total of a round is, before `done` says that it is present."""
        put_in(self._segment.courier, round, where)

    def give(self, pieces: Iterable[Any]) -> None:
        """Give the worker a state to begin with."""
        self._segment.files.put_given(pieces)
        self._segment.courier.given = True

    def give_from(self, rank: int) -> None:
        """Do the same with the state that another rank of this host has exported; OSError if its memory is gone."""
        self._segment.files.link_given(rank)
        self._segment.courier.given = True

    def finish(self) -> None:
        """The job is over."""
        self._segment.courier.over = True
        self._segment.worker_bell.ring()


def tell(segment: AgentSegment, order: Order, job: int = 0) -> None:
    """Give a worker an order; once it has to halt, that stands."""
    before = segment.agent.order
    if before is None or before.body.order is Order.RELEASE:
        segment.agent.order = AgentOrder(order, job)
    segment.worker_bell.ring()


def halt_of(segment: Segment) -> Order | None:
    """Return how a worker must stop now, if it must: as it was told, or because no launcher came."""
    mail = segment.agent.order
    if mail is not None and mail.body.order is not Order.RELEASE:
        return mail.body.order
    return Order.HALT if segment.worker.orphaned else None


def is_over(segment: Segment) -> bool:
    """Whether the job that the worker has opened, or is about to open first, is over for this rank."""
    order = segment.agent.order
    if order is not None and order.body.order is Order.RELEASE and order.body.job >= max(segment.worker.ready, 1):
        return True
    return segment.in_job and segment.courier.over


def owes(segment: Segment) -> bool:
    """Whether the courier waits for something from its worker: a part, the state, or its device."""
    if not segment.in_job:
        return False
    part = segment.courier.part_wanted
    late = part is not None and (part.number != segment.worker.answered or segment.worker.copied < ALL)
    late = late and segment.courier.active
    if segment.worker.slices and (_unmade_update(segment) is not None or _unanswered_copies(segment) is not None):
        return True
    return late or _unanswered_state(segment) is not None or _unanswered_device(segment) is not None


def _unanswered_state(segment: Segment) -> Mail[StateWanted] | None:
    wanted, given = segment.courier.state_wanted, segment.worker.state_given
    if not segment.in_job or wanted is None or (given is not None and given.body.request == wanted.number):
        return None
    return wanted


def _unanswered_device(segment: Segment) -> Mail[DeviceWanted] | None:
    wanted, done = segment.courier.device_wanted, segment.worker.device_done
    if wanted is None or (done is not None and done.body.request == wanted.number):
        return None
    return wanted


def _unmade_update(segment: Segment) -> tuple[int, int] | None:
    """The round and the stage that the courier waits for."""
    wanted, made = (segment.courier.update_wanted, segment.courier.stage_wanted), segment.worker.updated
    if wanted[0] == NEVER or (made is not None and (made.body.round, made.body.stages) > wanted):
        return None
    return wanted


def _unanswered_copies(segment: Segment) -> Mail[Slices] | None:
    wanted, given = segment.courier.copies_wanted, segment.worker.copies
    if not segment.in_job or wanted is None or (given is not None and given.body.request == wanted.number):
        return None
    return wanted


def _number(mail: Mail[Any] | None) -> int:
    assert mail is not None, "it was posted by this very process"
    return mail.number
