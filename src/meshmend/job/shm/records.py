"""The three records of a rank, one for each of its processes, and a fourth for requested failures.

| record | owner | writes |
|---|---|---|
| `AgentRecord` | the agent of the host | whose worker this is, which world may work, what the worker is told to do |
| `WorkerRecord` | the worker | how far it is, its buffers, its answers |
| `CourierRecord` | the courier of the present world | its questions, what has been agreed, how far the rounds are |
| `ChaosRecord` | `meshmend chaos` | failures that only the worker itself can cause |

Every field has exactly one writer. A courier is replaced with its world and an agent may be replaced, so at any time at
most one process is the owner; a new owner finds the record as the previous one left it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from meshmend.job.protocol import NEVER
from meshmend.job.shm.words import Choice, Flag, Int, Mailbox, Message, Process, Record, Stamp, Time, Writable


class Order(IntEnum):
    """What an agent tells a worker to do."""

    RELEASE = 1
    """The job is over: leave it, also a spare that was never needed."""
    HALT = 2
    """End now."""
    HALT_AND_SAVE = 3
    """Write a checkpoint, then end."""


class CourierPhase(IntEnum):
    """What a courier is doing."""

    CARRYING = 0
    """Rounds, as always."""
    REPAIRING = 1
    """A repair is under way, since `phase_since`."""
    NEEDS_WORLD = 2
    """It must not continue by itself: the launcher has to form another world."""


class Way(IntEnum):
    """Where the sums of a courier's group take place."""

    UNKNOWN = 0
    """Its members have not met yet."""
    DEVICE = 1
    """In the memory of the members' devices."""
    SHARED = 2
    """In the memory that couriers of one host share."""
    MPI = 3
    """Between hosts."""
    MESH = 4
    """Over the links of a mesh."""


class Where(IntEnum):
    """Where a total is."""

    BUFFER = 0
    """In the buffer of this rank, in one piece."""
    DEVICE = 1
    """In the device memory of its group."""
    SLICES = 2
    """In slices, one in the buffer of each member (`sliced.py`)."""


class Task(IntEnum):
    """What a courier, which has no device, asks its worker to do with the memory of the members."""

    MAP = 1
    """Map the device memory of all members of a new group."""
    ADD = 2
    """Add up this member's slice of all parts."""
    LOWER = 3
    """Copy the part to the host."""
    RAISE = 4
    """Copy the part from the host."""
    EXPORT = 5
    """Have a total in the buffer, in one piece, for a member that lacks it."""
    TAKE = 6
    """Map the state that another worker lends, and that this one has been given."""
    RELEASE = 7
    """Stop lending the state: a process that has mapped it keeps it."""
    OPEN = 8
    """Map the buffers of all members of a new group (`sliced.py`)."""


class Outcome(IntEnum):
    """What came of it; of all members' outcomes, the least counts."""

    GONE = 1
    """A member has died, or the task belongs to a round that is over."""
    CANNOT = 2
    """The memory of another member cannot be mapped here."""
    DONE = 3


@dataclass(frozen=True)
class AgentOrder(Message):
    """The agent's order to its worker."""

    order: Order
    job: int
    """For RELEASE: the job that it leaves, together with all earlier ones."""


@dataclass(frozen=True)
class PartWanted(Message):
    """The courier asks its worker for the part of a round over these lanes."""

    round: int
    afresh: bool
    """Whether the worker must drop what it has already computed for this round."""
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class StateWanted(Message):
    """The courier asks its worker to export the state after a round, for another worker."""

    round: int
    on_device: bool = False
    """Whether that worker can take it from device memory."""


@dataclass(frozen=True)
class StateGiven(Message):
    """The worker's answer: the state file holds the state after this round."""

    request: int
    """The number of the `StateWanted` that this answers."""
    round: int
    midway: bool = False
    """Whether there is none now, because the worker is within a step, between two sums."""


@dataclass(frozen=True)
class DeviceWanted(Message):
    """The courier asks its worker for something that needs the device, or the buffers of all members."""

    room: ClassVar[int] = 2 * 128
    task: Task
    round: int
    members: tuple[int, ...]
    """For `MAP` and `OPEN`: the rank and the birth of each member, in order of positions."""


@dataclass(frozen=True)
class DeviceDone(Message):
    """The worker's answer."""

    request: int
    """The number of the `DeviceWanted` that this answers."""
    outcome: Outcome


MOST_MEMBERS = DeviceWanted.room // 2
"""The most members of a group that sums in device memory, or leaves totals in slices."""


@dataclass(frozen=True)
class Assigned(Message):
    """The lanes this rank is responsible for, and the round they are for."""

    round: int
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class Copied(Message):
    """Whose state after which round this rank got."""

    round: int
    rank: int


@dataclass(frozen=True)
class Slices(Message):
    """Some slices of a sharded job's state."""

    slices: tuple[int, ...]


@dataclass(frozen=True)
class Held(Message):
    """The slices that a rank holds; of two such messages, the one with the later turn counts."""

    turn: int
    slices: tuple[int, ...]


@dataclass(frozen=True)
class Updated(Message):
    """The worker has updated its slices in a round, or done some of the stages before that."""

    round: int
    wrong: int
    """A slice that is not what its holders agreed on; -1 where all are."""
    stages: int
    """How many stages of the round are done; the last one is the update."""


@dataclass(frozen=True)
class Copies(Message):
    """The worker has written copies of slices to files, for another worker."""

    request: int
    """The number of the question that this answers."""


@dataclass(frozen=True)
class FlipWanted(Message):
    """Flip a bit of the worker's state at its next commit."""


class AgentRecord(Record):
    """What the agent publishes about a rank."""

    __slots__ = ()
    owner = Process()
    """The agent; a worker whose owner stays away for long ends."""
    attempt = Int()
    """How often the run has been resumed from a checkpoint."""
    founders = Int()
    """Members that the run was started with: hosts that were added later bring more."""
    wanted = Int()
    """Members that the job should have, in this world and later ones."""
    ranks = Int()
    """Ranks that messages have room for: those of the run, spares included, and of hosts that may be added."""
    worker = Process()
    """The worker."""
    shown = Int()
    """Bytes of the worker's output that have been passed on."""
    opened = Int()
    """The last world whose couriers were started, although it may never be entered."""
    formed = Time()
    """When the world before this one was lost; none in the first world of a run."""
    fresh = Flag()
    """Whether the job may begin in this world: no worker has had its state yet."""
    mpirun = Int()
    """The process of this world's mpirun."""
    job = Int()
    """Which job of the script this world is for."""
    world = Int()
    """The world whose couriers may work; written after the fields above, from `formed` on, and `wanted`."""
    cleared = Int()
    """Worlds up to this one are over: their couriers are dead or have to die."""
    order = Mailbox(AgentOrder)
    """What the worker is told to do."""


class WorkerRecord(Record):
    """What the worker publishes about itself."""

    __slots__ = ()
    lanes = Int()
    """Lanes of the job."""
    ready = Int()
    """The job that it has opened last, from 1, in which it may become a member; written after `lanes` and `step`."""
    left = Int()
    """The job that it has left last."""
    layout = Int()
    """A number for the layout of its gradients, which all members must have in common."""
    kind = Int()
    """The number of its kind of reduction (`reduction/registry.py`), from which the format of messages follows."""
    numbers = Int()
    """Numbers in each buffer, footer included."""
    head = Int()
    """How many of the first ones the reduction packs in its own way, in the present sum."""
    used = Int()
    """How many of the numbers before the footer belong to the present sum: buffers have room for the largest one."""
    sums = Int()
    """How many sums a step has had at most, as all members know."""
    turn = Int()
    """Which sum of its step the worker is in, from 0. This and the three above are written before `answered`."""
    since = Int()
    """The first round whose part and total are in these buffers; the round before it was not a sum."""
    device = Int()
    """The number of its kind of device memory (`device/base.py`) that these buffers also have; 0 for none."""
    state_device = Int()
    """The number of the kind of device memory in which it can lend its state, or take another's; 0 for none."""
    generation = Int()
    """How many files of buffers this worker has made; written after all fields above that are about them."""
    part_on_device = Flag()
    """Whether the part is in device memory and not in the buffer; the footer is always in the buffer."""
    copied = Int()
    """How many numbers of the part are in the buffer: after `answered`, a device may still copy the rest of it."""
    answered = Int()
    """The number of the `PartWanted` whose part is in the buffer; written after `copied`."""
    state_given = Mailbox(StateGiven)
    """Written after the state file."""
    even_part = Int(NEVER)
    """The mark (`shm/marks.py`) of the part in its device memory of an even round; written before any of that."""
    odd_part = Int(NEVER)
    """The same of an odd round."""
    even_total = Int(NEVER)
    """The mark of the total there, or of its slice, that is of an even round, or of any if there is room for one."""
    odd_total = Int(NEVER)
    """The same of an odd round."""
    device_done = Mailbox(DeviceDone)
    """Written after the request is complete on the device."""
    summed = Stamp()
    """The round, world and shrink in which the total of its last step was made."""
    taken = Stamp()
    """The round, world and shrink of the last total that it has taken.

    Written before the line of the step before it in the ledger: no worker that lacks that total may do the step again.
    """
    step = Int()
    """The step it is in; written after `summed`."""
    progress = Int()
    """Signs of progress so far."""
    inside = Flag()
    """It is computing lanes."""
    paused = Flag()
    """It has announced that it will make no progress for a while."""
    saving = Flag()
    """It writes its last checkpoint, or waits until it can write something."""
    unwritten = Int()
    """The error number of what it waits to write; 0 if it does not."""
    orphaned = Flag()
    """Its owner has been gone for too long: it halts by itself."""
    finished = Flag()
    """Its script ended well."""
    halted = Flag()
    """It stops because the run is halted, with the checkpoint written if that was its part."""
    flips_done = Int()
    """The number of the last `FlipWanted` that was carried out."""
    slices = Int()
    """Into how many slices the state of its job is cut; 0 where updates are not sharded. Written before `ready`."""
    weights = Int()
    """How many numbers are cut into them."""
    buddies = Int()
    """How many members hold a slice besides its owner."""
    measures = Int()
    """How often in a round its updates need norms of whole tensors; 0 where each number is updated by itself."""
    squares = Int()
    """How many sums of squares it takes for that, each time."""
    updated = Mailbox(Updated)
    """Written after the new weights of its slices, and their digests; and after the sums of squares of a stage."""
    copies = Mailbox(Copies)
    """Written after the files of the slices that were asked for."""


class CourierRecord(Record):
    """What the courier publishes: its questions, and the protocol's memory, which the next courier takes over."""

    __slots__ = ()
    standby = Int()
    """The world whose courier has started and waits to be let in, or already works."""
    process = Process()
    """The courier that works."""
    daemon = Process()
    """Its parent: mpirun, or the daemon that mpirun has on this host."""
    world = Int()
    """The world it belongs to; written after the two fields above."""
    shrink = Int()
    """How often the group has shrunk in this world."""
    agreed = Int()
    """The last world whose members have agreed on who they are."""
    phase_since = Time()
    """When the phase began (monotonic clock)."""
    phase = Choice(CourierPhase)
    """What it is doing; written after `phase_since`."""
    job = Int()
    """The job that all fields below are about; if it is not the worker's job, they mean nothing."""
    done_world = Int()
    """The world that the last total was made in."""
    done_shrink = Int()
    """How often its group had shrunk by then."""
    even_made = Stamp()
    """The last even round whose total is here, and the group that made it; written before `done`."""
    odd_made = Stamp()
    """The same of odd rounds."""
    group = Stamp()
    """The last group that the rank was a member of; the round says nothing."""
    gathered = Int()
    """How many numbers of the total that is being made are in the buffer."""
    busy = Int()
    """Microseconds that the courier has spent on adding and copying for the last total that came in pieces."""
    attempt = Int()
    """The number of the attempt at a total that `gathered` is about; written after it became 0."""
    even_mark = Int(NEVER)
    """The mark (`marks.py`) of the total in the buffer that is of an even round; written before any of that."""
    odd_mark = Int(NEVER)
    """The same of an odd round."""
    even_where = Int(NEVER)
    """Of an even round, which one it is and where its total is, as `marks.py` writes it."""
    odd_where = Int(NEVER)
    """The same of an odd round; apart, since the total before may still be wanted when a courier dies here."""
    done = Int(NEVER)
    """The last round whose total is here; written after the total and the fields above that are about it."""
    given = Flag()
    """The worker must begin with the state in the file of that name."""
    active = Flag()
    """The rank takes part in rounds; for a newcomer, written after `done` and `given`."""
    over = Flag()
    """The job is over."""
    assigned = Mailbox(Assigned)
    """The lanes it is responsible for in the round after `done`."""
    copied = Mailbox(Copied)
    """Whose state it has."""
    part_wanted = Mailbox(PartWanted)
    """The question to the worker for its part."""
    state_wanted = Mailbox(StateWanted)
    """The question to the worker for its state."""
    way = Choice(Way)
    """Where its group sums, so that a worker puts its next part there directly."""
    device_wanted = Mailbox(DeviceWanted)
    """The question to the worker for something that needs the device."""
    totals = Stamp()
    """Whose totals of slices are in the buffer; this and all below are of sharded jobs (`sharding/records.py`)."""
    met = Stamp()
    """The last attempt at a round that is known to be decided."""
    came = Stamp()
    """The last group that this rank was about to join."""
    joined = Stamp()
    """The last one that it has joined."""
    leaving = Flag()
    """Its worker has brought its last part."""
    held_even = Mailbox(Held)
    """As `held_odd`."""
    held_odd = Mailbox(Held)
    """The slices that this rank holds: written in turns, so that one of the two is always whole."""
    gives = Mailbox(Slices)
    """The slices whose weights it gave out in the last round: written before `done`."""
    stage_wanted = Int()
    """Up to which stage: see `update_wanted`, which is written later."""
    update_wanted = Int(NEVER)
    """The round whose update the worker is to make, stage by stage."""
    copies_wanted = Mailbox(Slices)
    """The question to the worker for copies of slices."""


class ChaosRecord(Record):
    """Failures that a worker is asked to bring about."""

    __slots__ = ()
    flip_wanted = Mailbox(FlipWanted)


class WritableAgentRecord(AgentRecord, Writable):
    """The agent's own."""

    __slots__ = ()


class WritableWorkerRecord(WorkerRecord, Writable):
    """The worker's own."""

    __slots__ = ()


class WritableCourierRecord(CourierRecord, Writable):
    """The courier's own."""

    __slots__ = ()


class WritableChaosRecord(ChaosRecord, Writable):
    """The own one of `meshmend chaos`."""

    __slots__ = ()
