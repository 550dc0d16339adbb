"""What a worker says of the places in its block before it writes there, so that whoever reads them too late finds out.

A reader waits for nobody. It reads first, and then looks at the mark of that place: a later one means that what it has
read may be anything. A mark is the round, and the membership in which it was written: a round that some members could
not finish is repeated by those that are left, who add the lanes of the missing ones to their parts, in place. A member
that had finished it, and whose courier died then, may still read the old parts, or be asked to give out their sum.
"""

from __future__ import annotations

from meshmend.job.shm.records import CourierRecord, WorkerRecord

BITS = 16
MOST = (1 << BITS) - 1


def membership(courier: CourierRecord) -> int:
    """A number for the present members of a group; it only goes up."""
    return min(courier.world, MOST) << BITS | min(courier.shrink, MOST)


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
