"""A worker's answers to its courier about slices, in addition to those of every job (`session/session.py`).

The main thread makes updates, while it waits for the end of a round. The listener hands out copies of slices while the
main thread computes. Either holds the listener's lock, so that no slice changes while it is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from meshmend.base.clocks import HALT_SLICES
from meshmend.base.env import Settings
from meshmend.errors import JobError
from meshmend.job.config import JobConfig
from meshmend.job.frameworks.weights import Weights
from meshmend.job.protocol import NEVER
from meshmend.job.reduction.footer import Footer, Word
from meshmend.job.session.hooks import Hooks
from meshmend.job.session.listener import Listener
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.records import Updated
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.shm.sharded_memory import held_in
from meshmend.job.shm.slices import SliceMemory
from meshmend.job.slices.holder import Changed, Copy
from meshmend.job.slices.replica import Sharded, ShardedReplica
from meshmend.job.slices.saving import SliceSaver
from meshmend.job.state.codec import decode, encode
from meshmend.telemetry import read_description


class SliceSide(Hooks):
    """What one worker does about slices, in one job."""

    word = Word.UPDATE

    def __init__(
        self, segment: WorkerSegment, footer: Footer, listener: Listener, replica: ShardedReplica, buddies: int
    ) -> None:
        self._segment, self._replica, self._footer, self._listener = segment, replica, footer, listener
        self._side, self._holder = WorkerSide(segment), replica.holder
        self._buddies = buddies
        self.saver: SliceSaver | None = None
        self._halted = 0.0
        """When this worker heard that it has to stop."""

    def begin(self) -> None:
        """Before this worker is ready: have the weights in shared memory, and say how they are cut."""
        own, bounds = self._segment.worker, self._holder.slicing.bounds
        measures, *rows = self._holder.stages.table.shape
        squares = rows[0] * rows[1] if measures else 0
        self._replica.share(SliceMemory.make(self._segment.files, bounds, measures, squares))
        own.updated = Updated(NEVER, -1, 0)
        own.weights, own.buddies = bounds[-1], self._buddies
        own.measures, own.squares = measures, squares
        own.slices = len(bounds) - 1

    def wanted(self, round: int) -> bool:
        """Whether the courier waits for the update of this round, or for a stage of it."""
        return self._side.update_wanted(round) is not None

    def update(self, round: int) -> None:
        """Make the stage that the courier waits for, from the total of the round."""
        stage, own = self._side.update_wanted(round), self._segment.worker
        assert stage is not None, "a courier waits for it"
        memory = self._replica.memory
        assert memory is not None, "a courier asks only one that has begun"
        total = self._segment.buffers.total(round)
        own.inside = True
        with self._listener.changing():
            self._hold()
            try:
                self._make(stage, round, total, memory)
            except Changed as error:
                self._side.updated(round, error.number, stage)  # and the courier ends this worker
                return
        own.inside = False
        own.progress += 1
        self._side.updated(round, -1, stage + 1)

    def _make(self, stage: int, round: int, total: Any, memory: SliceMemory) -> None:
        """Measure, or update as the last stage; a round that is nobody's sum leaves everything as it is."""
        holder, replica, last = self._holder, self._replica, stage == len(memory.measured)
        if self._footer.notes(total):
            if last:
                holder.pass_over(round)
            else:
                memory.measured[stage] = 0
        else:
            replica.begin(round, total)
            if stage:
                replica.measured(stage - 1, memory.squares[stage - 1])
            if last:
                replica.apply(round, total)
            else:
                memory.measured[stage] = holder.measure(round, stage).reshape(-1)
        if last:
            for number in holder.copies:
                memory.digests[number] = holder.digests(number)

    def check(self) -> None:
        """Say that a slice is wrong, if one is, and go no further: the courier ends this worker."""
        if self._replica.wrong >= 0:
            self._side.updated(self._holder.version, self._replica.wrong, 0)
            self._listener.wait(lambda: False)

    def hand_out(self) -> None:
        """Write the copies that the courier has asked for, if it has; called with the lock."""
        request = self._side.copies_request()
        if request is None:
            return
        self._fill()
        job = self._segment.worker.ready
        for number in request.body.slices:
            copy = self._holder.copies.get(number)
            if copy is None:
                continue  # dropped since, and the requester is dead: a courier asks for what is held
            self._segment.files.write_copy(number, encode([*copy.state.items()], version=copy.version, job=job))
        self._side.give_copies(request)

    def mine(self) -> frozenset[int]:
        """The slices that this worker gave out in the last round, and so writes to checkpoints."""
        mail = self._segment.courier.gives
        return frozenset(mail.body.slices) & self._holder.copies.keys() if mail is not None else frozenset()

    def settled(self) -> bool:
        """Whether the slices here are those of the last commit."""
        return self._listener.has_final(self._holder.version)

    def saves(self, *, first: bool) -> bool:
        """When a checkpoint is due, or this worker has to stop."""
        due = first and self.saver is not None and self.saver.slices.due(self._segment.worker.step + 1)
        return due or self._side.halt() is not None

    def stays(self) -> bool:
        """Until this worker's slices of its last step are written, as those of all others are, but not forever."""
        if self.saver is None or not self._side.is_active():
            return False
        own, now, slices = self._segment.worker, time.monotonic(), self.saver.slices
        self._halted = self._halted or now
        if own.saving is not slices.busy:
            own.saving = slices.busy  # however long that takes
        return slices.busy or (slices.written != own.step and now - self._halted < HALT_SLICES)

    def halt(self) -> None:
        """Write its slices, of whatever step it has: the others may have the same."""
        assert self.saver is not None, "it is made with this"
        own, slices = self._segment.worker, self.saver.slices
        if slices.written != own.step and self.settled():
            own.saving = True
            slices.write(own.step, self.mine())
            own.saving = False

    def _hold(self) -> None:
        """Have the slices that this rank holds, no more and no fewer."""
        self._fill()
        self._holder.hold(held_in(self._segment.courier))

    def _fill(self) -> None:
        """Take the copies of others that have come in files; drop those that came too late for an earlier job."""
        held, holder, job = held_in(self._segment.courier), self._holder, self._segment.worker.ready
        for number in held - holder.copies.keys():
            copy = self._segment.files.take_fill(number)
            if copy is not None:
                state, about = decode(copy, None)
                if about["job"] == job:
                    holder.copies[number] = Copy(dict(state), about["version"], self._agreed(number))

    def _agreed(self, number: int) -> tuple[int, int] | None:
        found: list[int] = self._replica.table[number].tolist()
        return (found[0], found[1]) if any(found) else None  # before the first step there was nothing to agree on


def shard(
    weights: Weights,
    sharded: Sharded,
    config: JobConfig,
    session: WorkerSession | Solo,
    settings: Settings | None,
    save: Callable[..., SliceSaver],
) -> tuple[ShardedReplica, SliceSaver]:
    """What a worker of a sharded job has, and what saves it; its session takes part in the updates."""
    # Not of those that are wanted now: where hosts were added, newcomers must count as all others did.
    buddies = sharded.among(session.founders, alone=session.alone)
    made = ShardedReplica(weights, sharded, config, compared=not session.alone)
    if settings is None or session.alone:
        return made, save(made, made.held)
    mesh = read_description(settings.folder).get("mesh")
    if mesh:
        raise JobError(
            f"sharded updates do not work with --mesh yet ({mesh}): run without --mesh, or share the state without "
            "optimizer="
        )
    sides: list[SliceSide] = []

    def side(segment: WorkerSegment, footer: Footer, listener: Listener) -> SliceSide:
        sides.append(SliceSide(segment, footer, listener, made, buddies))
        return sides[0]

    session.hook(side)
    sides[0].saver = save(made, sides[0].mine, sides[0].settled)
    session.save = sides[0].saver.halted
    return made, sides[0].saver
