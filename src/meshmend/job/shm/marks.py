"""What is said of a place before anything is written there, so that whoever reads it too late finds out.

A worker says it of the parts and totals in its block of device memory, a courier of the totals in its worker's buffer,
whose slices all workers of the group read.

A reader waits for nobody. It reads first, and then looks at the mark of that place: a later one means that what it has
read may be anything. A mark is the round, and the membership in which it was written: a round that some members could
not finish is repeated by those that are left, who add the lanes of the missing ones to their parts, in place. A member
that had finished it, and whose courier died then, may still read the old parts, or be asked to give out their sum.
"""

from __future__ import annotations

from meshmend.job.shm.records import CourierRecord, Where, WorkerRecord, WritableCourierRecord

BITS = 16
MOST = (1 << BITS) - 1


def membership(courier: CourierRecord) -> int:
    """A number for the present members of a group; it only goes up."""
    return _number(courier.world, courier.shrink)


def summed_in(courier: CourierRecord) -> int:
    """The number of the membership that made its last total."""
    return _number(courier.done_world, courier.done_shrink)


def mark(round: int, membership: int) -> int:
    """What was written in this round, by a member of this group; the later one is larger."""
    return round << 2 * BITS | membership


def of_part(worker: WorkerRecord, place: int) -> int:
    """The mark of one of its two parts."""
    return worker.odd_part if place else worker.even_part


def of_total_in_buffer(courier: CourierRecord, round: int) -> int:
    """The mark of the total of even or of odd rounds in the buffer of a worker."""
    return courier.odd_mark if round % 2 else courier.even_mark


def of_total(worker: WorkerRecord, place: int) -> int:
    """The mark of one of its totals."""
    return worker.odd_total if place else worker.even_total


def where_is(courier: CourierRecord, round: int) -> Where:
    """Where the total of one of the last two rounds is."""
    found = courier.odd_where if round % 2 else courier.even_where
    return next((where for where in Where if found == _word(round, where)), Where.BUFFER)


def put_in(courier: WritableCourierRecord, round: int, where: Where) -> None:
    """Say where the total of a round is, and nothing else of the round before."""
    if round % 2:
        courier.odd_where = _word(round, where)
    else:
        courier.even_where = _word(round, where)


def _number(world: int, shrink: int) -> int:
    return min(world, MOST) << BITS | min(shrink, MOST)


def _word(round: int, where: Where) -> int:
    return round << 2 | where
