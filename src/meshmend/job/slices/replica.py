"""What a worker of a sharded job has: all weights, the reduction's grid, and its slices of the optimizer's state.

The counterpart of `replica.py`. The weights and the grid are the same on all workers, and so is the table of digests
of all slices, on which their holders agreed in the last round: together they are the state that a step's digest is of.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
from xxhash import xxh3_64_intdigest

from meshmend.errors import JobError
from meshmend.job.config import JobConfig
from meshmend.job.frameworks.base import Accumulator
from meshmend.job.frameworks.weights import Weights
from meshmend.job.reduction.base import NonFinite
from meshmend.job.reduction.layout import Layout
from meshmend.job.reduction.norms import Blocks, Sums
from meshmend.job.replica import Replica
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.sharding import cut
from meshmend.job.sharding.slices import how_many
from meshmend.job.shm.slices import SliceMemory, Table
from meshmend.job.slices.holder import Holder, digest_of
from meshmend.job.slices.optimizers import Sliced
from meshmend.job.state.codec import decode, encode
from meshmend.job.state.digest import Later
from meshmend.job.state.tree import Leaves, folded
from meshmend.job.state.tree import digest_of as hash_of

TABLE = "digests of slices"
"""What the table is called beside the weights, for a newcomer."""


@dataclass(frozen=True)
class Sharded:
    """What `job.share` was asked for."""

    optimizer: Sliced
    buddies: int | None
    """None: one, where there are two workers or more."""
    tensors: bool = False
    """Whether no tensor is cut."""

    def among(self, workers: int, *, alone: bool) -> int:
        """How many buddies a slice has."""
        if self.buddies is None:
            return min(1, workers - 1)
        if not isinstance(self.buddies, int) or self.buddies < 0:
            raise JobError(f"buddies={self.buddies!r}: give a whole number of at least 0")
        if self.buddies >= workers and not alone:
            raise JobError(
                f"buddies={self.buddies} needs at least {self.buddies + 1} workers (the owner and each buddy run on "
                f"different workers), but there are {workers}; use buddies=0 to {workers - 1}, or start more workers"
            )
        return self.buddies


class ShardedReplica(Replica):
    """The weights, the grid and the slices of one worker."""

    def __init__(self, weights: Weights, sharded: Sharded, config: JobConfig, *, compared: bool) -> None:
        super().__init__(weights, config, compared=compared)
        if not config.kind.sliceable:
            raise JobError(
                f"sharded updates do not support wire={config.kind.wire!r} yet: use mm.Job(wire='float32'), or share "
                "the state without optimizer="
            )
        if not config.kind.checks_itself and config.nonfinite is not NonFinite.PASS:
            raise JobError(
                f"sharded updates with reduction='float' cannot have nonfinite={config.nonfinite.value!r}, because no "
                "worker has all sums: use mm.Job(reduction='exact'), or leave nonfinite= out"
            )
        self.weights = weights
        slices = how_many(len(weights.flat))
        longest = max(end - begin for begin, end in pairwise(cut(weights.sizes, slices).bounds))
        optimizer = sharded.optimizer.of_slices(longest, tensors=sharded.tensors)
        tensors = [(name, value.shape) for name, value in weights.leaves()]
        self.holder = Holder(weights.sizes, weights.flat, optimizer, config.lanes.lanes, slices, tensors)
        self.holder.plain = config.kind.dtype.kind == "f"
        weights.use(self.holder.weights)
        self.memory: SliceMemory | None = None
        """Where the weights and digests are that the courier reads too; None alone."""
        self.table: Table = np.zeros((self.holder.slicing.count, 2), np.uint64)
        """The digests of all slices that their holders agreed on last."""
        self.wrong = -1
        """A slice whose weights here are not those that its holders agreed on; -1 where all are."""
        self._rest, self._besides = Layout([]), cast(Any, None)
        """What lanes give besides gradients: where it lies behind them, and what it is like."""

    @property
    def patient(self) -> bool:
        """No: updates are made in the meantime."""
        return False

    def share(self, memory: SliceMemory) -> None:
        """Have the weights where the courier reads them too."""
        self.weights.move(memory.weights)
        self.holder.weights, self.memory = memory.weights, memory

    def agreed(self) -> Table:
        """The digests of all slices as their holders agreed on them in the last round."""
        if self.memory is not None:
            return self.memory.agreed
        self.held()
        count = self.holder.slicing.count
        return np.array([self.holder.digests(number) for number in range(count)], np.uint64).reshape(count, 2)

    def held(self) -> Collection[int]:
        """The slices of which a copy is here: alone, all of them."""
        if self.memory is None:
            self.holder.hold(range(self.holder.slicing.count))
        return self.holder.copies.keys()

    def accumulator(self, tree: Any, turn: int = 0) -> Accumulator:
        """What adds up lanes like this one; what they give besides gradients comes behind them."""
        known, found = turn in self._accumulators, super().accumulator(tree, turn)
        if not known:
            if found.reduction.grid is not None:
                self.holder.exact = found.reduction.grid
            leaves = self.framework.leaves_of(tree)[len(self.weights.sizes) :]
            self._rest, self._besides = Layout([(name, np.asarray(value)) for name, value in leaves]), tree[1]
        return found

    def begin(self, round: int, total: Any) -> None:
        """The total of a round is here."""
        if self.holder.totals.round != round:
            self.holder.take(round, total)

    def measured(self, stage: int, squares: Sums) -> None:
        """The sums of squares of all blocks, at a stage of the update."""
        stages = self.holder.stages
        stages.measured(stage, squares.reshape(stages.table.shape[1:]))

    def apply(self, round: int, total: Any) -> None:
        """Update the slices held here from the total of a round; `Changed` where one is not what it was."""
        self.begin(round, total)
        self.holder.update(round, self.holder.copies)

    def finish(self, total: Any, step: int, turn: int = 0) -> Any | None:
        """The sums of what lanes gave besides gradients; see `Replica.finish`."""
        holder, rest = self.holder, self._rest
        if self.memory is None:  # a world of one
            self.held()
            round = holder.version + 1
            self.begin(round, total)
            for stage in range(len(holder.stages.table)):
                self.measured(stage, holder.measure(round, stage))
            self.apply(round, total)
        else:
            self._agree(self.memory.agreed)
        against = holder.totals.against
        if against is not None:
            self._accumulators[turn].reduction.layout.check_finite(against.bad, step)
            return None
        begin = len(self.weights.flat)
        values = total[begin : begin + rest.size].astype(np.float32)
        if not holder.plain:
            each = np.diff(Blocks([leaf.size for leaf in rest.leaves]).bounds)
            values *= np.repeat(holder.totals.unit[holder.slicing.blocks[-1] :], each)
        rest.check_integers(rest.parts(values), step)
        rest.check_range(rest.parts(values), step)
        return (self.framework.rebuilt(self._besides, rest.shaped(rest.parts(values), copy=True)),)

    def _agree(self, agreed: Table) -> None:
        self.table = agreed.copy()
        found: list[list[int]] = self.table.tolist()
        for number, copy in self.holder.copies.items():
            copy.agreed = found[number][0], found[number][1]

    def digest(self) -> Later[int]:
        """The digest of all weights, of the grid, and of the table.

        Weights that are not what their holders agreed on are wrong, and no vote is needed to know it.
        """
        if not self._compared:
            return Later.of(0)
        found = self.table.copy()
        for number in range(len(found)):
            found[number, 0] = digest_of(self.holder.of(number))
        changed = np.flatnonzero((found[:, 0] != self.table[:, 0]) & self.table.any(axis=1))
        self.wrong = int(changed[0]) if len(changed) else -1
        rest = hash_of(self.weights.extras()) if self.weights.extras() else 0
        whole = xxh3_64_intdigest(found.tobytes(), seed=xxh3_64_intdigest(self.grid.tobytes(), seed=rest))
        self._digest = Later.of(folded(whole))
        return self._digest

    def export(
        self, session: WorkerSession | Solo, step: int, pending: dict[str, Any] | None, *, on_device: bool
    ) -> list[Any]:
        """All but the slices, which a newcomer takes from several."""
        del on_device
        leaves = [*self.weights.leaves(), (TABLE, self.table), *self.weights.extras()]
        about = {"step": step, "grid": self.grid.tolist(), "pending": pending, "version": self.holder.version}
        return encode(leaves, messages=session.room.format(), **about)

    def adopt(self, received: Any, session: WorkerSession | Solo) -> tuple[int, dict[str, Any] | None]:
        """Take another worker's weights and grid; slices come later."""
        mine: Leaves = [*self.weights.leaves(), (TABLE, self.table)]
        found, about = decode(received, None if self.weights.extras() else mine)
        leaves, extras = found[: len(mine)], found[len(mine) :]
        self.table = leaves.pop()[1]
        self.weights.adopt(leaves, extras)
        self.holder.version, self.holder.copies = about["version"], {}
        self.restore(about["grid"])
        session.room.adopt(*about["messages"])
        return about["step"], about["pending"]
