"""A worker's answers to its courier about slices, beside those of every job (`session.py`).

The main thread makes updates, while it waits for the end of a round. The listener hands out copies of slices while the
main thread computes. Either holds the listener's lock, so that no slice changes while it is copied.
"""

from __future__ import annotations

from meshmend.base.env import Settings
from meshmend.errors import JobError
from meshmend.job.config import JobConfig
from meshmend.job.frameworks.weights import Weights
from meshmend.job.holder import Changed, Copy
from meshmend.job.listener import Listener
from meshmend.job.protocol import NEVER
from meshmend.job.reduction.footer import Footer
from meshmend.job.session import Slices, WorkerSession
from meshmend.job.sharded_replica import Sharded, ShardedReplica
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.records import Updated
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.shm.sharded_memory import held_in
from meshmend.job.shm.slices import SliceMemory
from meshmend.job.solo import Solo
from meshmend.job.state.codec import decode, encode
from meshmend.telemetry import read_description


class SliceSide(Slices):
    """What one worker does about slices, in one job."""

    def __init__(
        self, segment: WorkerSegment, footer: Footer, listener: Listener, replica: ShardedReplica, buddies: int
    ) -> None:
        self._segment, self._replica, self._footer, self._listener = segment, replica, footer, listener
        self._side, self._holder = WorkerSide(segment), replica.holder
        self._buddies = buddies

    def begin(self) -> None:
        """Before this worker is ready: have the weights in shared memory, and say how they are cut."""
        own, bounds = self._segment.worker, self._holder.slicing.bounds
        self._replica.share(SliceMemory.make(self._segment.files, bounds))
        own.updated = Updated(NEVER, -1)
        own.weights, own.buddies = bounds[-1], self._buddies
        own.slices = len(bounds) - 1

    def end(self) -> None:
        """The job is over; the next one may not be sharded."""
        self._segment.worker.slices = 0

    def wanted(self, round: int) -> bool:
        """Whether the courier waits for the update of this round."""
        return self._side.update_wanted(round)

    def update(self, round: int) -> None:
        """Make it, from the total of the round."""
        own = self._segment.worker
        memory, holder = self._replica.memory, self._holder
        assert memory is not None, "a courier asks only one that has begun"
        total = self._segment.buffers.total(round)
        own.inside = True
        with self._listener.changing():
            self._hold()
            try:
                if self._footer.notes(total):
                    holder.pass_over(round)
                else:
                    self._replica.apply(round, total)
            except Changed as error:
                self._side.updated(round, error.number)  # and the courier ends this worker
                return
            for number in holder.copies:
                memory.digests[number] = holder.digests(number)
        own.inside = False
        own.progress += 1
        self._side.updated(round, -1)

    def hand_out(self) -> None:
        """Write the copies that the courier has asked for, if it has; called with the lock."""
        request = self._side.copies_request()
        if request is None:
            return
        self._hold()
        for number in request.body.slices:
            copy = self._holder.copies[number]
            self._segment.files.write_copy(number, encode([*copy.state.items()], version=copy.version))
        self._side.give_copies(request)

    def _hold(self) -> None:
        """Have the slices that this rank holds, no more and no fewer: others' copies have come in files."""
        held, holder = held_in(self._segment.courier), self._holder
        for number in held - holder.copies.keys():
            copy = self._segment.files.take_fill(number)
            if copy is not None:
                state, about = decode(copy, None)
                holder.copies[number] = Copy(dict(state), about["version"], self._agreed(number))
        holder.hold(held)

    def _agreed(self, number: int) -> tuple[int, int] | None:
        found: list[int] = self._replica.table[number].tolist()
        return (found[0], found[1]) if any(found) else None  # before the first step there was nothing to agree on


def shard(
    weights: Weights, sharded: Sharded, config: JobConfig, session: WorkerSession | Solo, settings: Settings | None
) -> ShardedReplica:
    """What a worker of a sharded job has; its session takes part in the updates."""
    alone = settings is None or not isinstance(session, WorkerSession)
    buddies = sharded.among(session.wanted, alone=alone)
    made = ShardedReplica(weights, sharded, config, compared=not alone)
    if settings is not None and isinstance(session, WorkerSession):
        mesh = read_description(settings.folder).get("mesh")
        if mesh:
            raise JobError(
                f"sharded updates cannot go over the links of a mesh yet (--mesh {mesh}): run without --mesh, or share "
                "the state without optimizer="
            )
        session.shard(lambda segment, footer, listener: SliceSide(segment, footer, listener, made, buddies))
    return made
