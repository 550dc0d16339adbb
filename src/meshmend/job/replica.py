"""A worker's replica of what all workers have alike: the state, and the reduction's grid that goes with it.

Each round shows that the replicas are equal, by their digests. A newcomer gets the replica of a survivor, and this file
has both ends of that: `export` makes the bytes, and `adopt` takes them.

The main thread changes a replica. The thread that hears the doorbell exports it while it is final: from a commit until
the total of the next round is there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from meshmend.errors import JobError
from meshmend.job.config import JobConfig
from meshmend.job.frameworks.base import Accumulator, Framework
from meshmend.job.reduction.base import Levels, NonFinite
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.state.codec import decode, encode
from meshmend.job.state.digest import Later

MORE_GRIDS = "more_grids"
"""In checkpoints: the grids of the sums after the first one of a step, where steps have several."""


class Replica:
    """A state, how gradients for it add up, and the digest of both."""

    def __init__(self, framework: Framework, config: JobConfig, *, compared: bool) -> None:
        self.framework, self._config = framework, config
        self._compared = compared
        """Whether there may be other workers to compare it with."""
        self._accumulators: dict[int, Accumulator] = {}
        """For each sum of a step."""
        self._received: list[Levels] = [np.zeros(0, np.int16)]
        """Their grids as they were received: how large these must be shows only with the first gradients."""
        self._digest = Later.of(0)
        """The digest that was announced last."""

    @property
    def patient(self) -> bool:
        """Whether the last step may be written down after `finish`, which gives a device work to do meanwhile."""
        return bool(self.framework.device)

    @property
    def grid(self) -> Levels:
        """The state of the reduction, in the first sum of a step."""
        return self._grids()[0]

    def _grids(self) -> list[Levels]:
        """The states of the reductions, for all sums of a step."""
        found = list(self._received)
        for turn, one in sorted(self._accumulators.items()):
            found[turn : turn + 1] = [one.reduction.state()]
        return found

    def _more(self) -> dict[str, Any]:
        """What a checkpoint or another worker is told of sums after the first one of a step."""
        grids = self._grids()[1:]
        return {MORE_GRIDS: [grid.tolist() for grid in grids]} if grids else {}

    def restore(self, grid: Sequence[int], more: Sequence[Sequence[int]] = ()) -> None:
        """Begin with the grids of a checkpoint, or of another worker."""
        self._received = [np.array(one, np.int16) for one in (grid, *more)]

    def accumulator(self, tree: Any, turn: int = 0) -> Accumulator:
        """What adds up lanes like this one, in this sum of a step; made with the first."""
        found = self._accumulators.get(turn)
        if found is None:
            found = self.framework.accumulator(self._config.kind, tree, self._config.lanes.lanes)
            if turn < len(self._received) and len(self._received[turn]):
                found.reduction.restore(self._received[turn])
            self._accumulators[turn] = found
        return found

    def warm(self, tree: Any, *, packed: bool) -> None:
        """Compile what sums need, given what the user's `warm` has returned: most likely what lanes will return."""
        if not self.framework.device:
            return
        with suppress(JobError):  # it need not be
            lanes = self._config.lanes.lanes
            self.framework.accumulator(self._config.kind, tree, lanes).warm(tree, packed=packed)

    def round(self, session: WorkerSession | Solo, turn: int = 0) -> Generator[int, Any, Any]:
        """The lanes of a round, the sum of this number in its step: see `WorkerSession.round`."""
        return session.round(partial(self.accumulator, turn=turn), turn)

    def finish(self, total: Any, step: int, turn: int = 0) -> Any | None:
        """The tree of sums; None where the round must be repeated with another grid, `NotFinite` as the job wants."""
        check = self._config.nonfinite is not NonFinite.PASS
        return self._accumulators[turn].finish(total, step, check=check)

    def commit(self, state: tuple[Any, ...], step: int) -> None:
        """The step is done: this is the state after it."""
        del step
        self.framework.commit(state)

    def settle(self) -> None:
        """The job ends: wait for what sums have left to do."""
        for one in self._accumulators.values():
            one.settle()

    def digest(self) -> Later[int]:
        """Begin to compute the digest of what this worker has now."""
        if self.framework.device and not self._compared:
            return Later.of(0)  # nobody is there to compare with, and the device has other work
        self._digest = self.framework.digest_begun(*self._grids())
        return self._digest

    def regrid(self, session: WorkerSession | Solo, step: int) -> None:
        """Within a step, a grid has moved: say so, without a look at the state, which the user's script has changed."""
        grids = b"".join(grid.tobytes() for grid in self._grids())
        self._digest = Later.of(xxh3_64_intdigest(grids, seed=self._digest.value()) >> 16)
        session.digested(step, self._digest, final=False)

    def announce(self, session: WorkerSession | Solo, step: int, *, arrived: bool = False) -> None:
        """Say that this is the state now; one that has arrived from another worker must be what that one had."""
        digest = self.digest()
        if arrived and session.messages.states is not None:
            session.messages.states.settle(digest.value())
        session.digested(step, digest)

    def header(self) -> dict[str, Any]:
        """What a checkpoint says of it besides the leaves."""
        return {**self._config.identity(), "grid": self.grid.tolist(), **self._more()}

    def export(
        self, session: WorkerSession | Solo, step: int, pending: dict[str, Any] | None, *, on_device: bool
    ) -> list[Any]:
        """The replica before a step as pieces of bytes, for a newcomer; its leaves in device memory, where that can be.

        `pending` is the line of the step before, which the newcomer writes too, in case all that did the step die now.
        """
        about = {"step": step, "grid": self.grid.tolist(), "pending": pending, **self._more()}
        leaves, states = self.framework.leaves(), session.messages.states if on_device else None
        lent = states.lend(leaves, self._digest.value()) if states is not None else None
        return encode(leaves, lent, messages=session.room.format(), **about)

    def adopt(self, received: Any, session: WorkerSession | Solo) -> tuple[int, dict[str, Any] | None]:
        """Take another worker's replica, as it exported that: the step it stands before, and the line of the last."""
        states = session.messages.states
        leaves, about = decode(received, self.framework.template(), states.borrowed if states is not None else None)
        self.framework.adopt(leaves)
        self.restore(about["grid"], about.get(MORE_GRIDS, ()))
        session.room.adopt(*about["messages"])
        return about["step"], about["pending"]
