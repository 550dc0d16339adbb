"""A worker's replica of what all workers have alike: the state, and the reduction's grid that goes with it.

Each round shows that the replicas are equal, by their digests. A newcomer gets the replica of a survivor, and this file
has both ends of that: `export` makes the bytes, and `adopt` takes them.

The main thread changes a replica. The thread that hears the doorbell exports it while it is final: from a commit until
the total of the next round is there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from meshmend.job.config import JobConfig
from meshmend.job.frameworks.base import Accumulator, Framework
from meshmend.job.reduction.base import Levels, NonFinite
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.state.codec import decode, encode
from meshmend.job.state.digest import Later


class Replica:
    """A state, how gradients for it add up, and the digest of both."""

    def __init__(self, framework: Framework, config: JobConfig, *, compared: bool) -> None:
        self.framework, self._config = framework, config
        self._compared = compared
        """Whether there may be other workers to compare it with."""
        self._accumulator: Accumulator | None = None
        self._received: Levels = np.zeros(0, np.int16)
        """The grid as it was received: how large it must be shows only with the first gradients."""
        self._digest = Later.of(0)
        """The digest that was announced last."""

    @property
    def grid(self) -> Levels:
        """The reduction's state."""
        return self._received if self._accumulator is None else self._accumulator.reduction.state()

    def restore(self, grid: Sequence[int]) -> None:
        """Begin with the grid of a checkpoint, or of another worker."""
        self._received = np.array(grid, np.int16)

    def accumulator(self, tree: Any) -> Accumulator:
        """What adds up lanes like this one; made with the first."""
        if self._accumulator is None:
            made = self.framework.accumulator(self._config.kind, tree, self._config.lanes.lanes)
            if len(self._received):
                made.reduction.restore(self._received)
            self._accumulator = made
        return self._accumulator

    def round(self, session: WorkerSession | Solo) -> Generator[int, Any, Any]:
        """The lanes of a round: see `WorkerSession.round`."""
        return session.round(self.accumulator)

    def finish(self, total: Any, step: int) -> Any | None:
        """The tree of sums; None where the round must be repeated with another grid, `NotFinite` as the job wants."""
        assert self._accumulator is not None, "a total cannot arrive before the first part"
        return self._accumulator.finish(total, step, check=self._config.nonfinite is not NonFinite.PASS)

    def commit(self, state: tuple[Any, ...], step: int) -> None:
        """The step is done: this is the state after it."""
        del step
        self.framework.commit(state)

    def settle(self) -> None:
        """The job ends: wait for what sums have left to do."""
        if self._accumulator is not None:
            self._accumulator.settle()

    def digest(self) -> Later[int]:
        """Begin to compute the digest of what this worker has now."""
        if self.framework.device and not self._compared:
            return Later.of(0)  # nobody is there to compare with, and the device has other work
        self._digest = self.framework.digest_begun(self.grid)
        return self._digest

    def announce(self, session: WorkerSession | Solo, step: int, *, arrived: bool = False) -> None:
        """Say that this is the state now; one that has arrived from another worker must be what that one had."""
        digest = self.digest()
        if arrived and session.places.states is not None:
            session.places.states.settle(digest.value())
        session.digested(step, digest)

    def header(self) -> dict[str, Any]:
        """What a checkpoint says of it besides the leaves."""
        return {**self._config.identity(), "grid": self.grid.tolist()}

    def export(
        self, session: WorkerSession | Solo, step: int, pending: dict[str, Any] | None, *, on_device: bool
    ) -> list[Any]:
        """The replica before a step as pieces of bytes, for a newcomer; its leaves in device memory, where that can be.

        `pending` is the line of the step before, which the newcomer writes too, in case all that did the step die now.
        """
        about = {"step": step, "grid": self.grid.tolist(), "pending": pending}
        leaves, states = self.framework.leaves(), session.places.states if on_device else None
        lent = states.lend(leaves, self._digest.value()) if states is not None else None
        return encode(leaves, lent, messages=session.room.format(), **about)

    def adopt(self, received: Any, session: WorkerSession | Solo) -> tuple[int, dict[str, Any] | None]:
        """Take another worker's replica, as it exported that: the step it stands before, and the line of the last."""
        states = session.places.states
        leaves, about = decode(received, self.framework.template(), states.borrowed if states is not None else None)
        self.framework.adopt(leaves)
        self.restore(about["grid"])
        session.room.adopt(*about["messages"])
        return about["step"], about["pending"]
