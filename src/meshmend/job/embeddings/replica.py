"""What a worker of a job with embedding tables has: the state that all have alike, and its part of the tables."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from meshmend.errors import NotFinite
from meshmend.job.config import JobConfig
from meshmend.job.embeddings.holder import TableHolder
from meshmend.job.embeddings.message import Laned, RowAccumulator, RowLayout
from meshmend.job.embeddings.shape import Floats, Ids
from meshmend.job.frameworks.base import Accumulator, Framework
from meshmend.job.ledger import StepLedger
from meshmend.job.reduction.base import NonFinite
from meshmend.job.replica import Replica
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.state.codec import decode, encode
from meshmend.job.state.digest import Later


class TableReplica(Replica):
    """The state, the grid, and some slices of the tables."""

    def __init__(
        self, framework: Framework, config: JobConfig, holder: TableHolder, session: WorkerSession | Solo,
        ledger: StepLedger, *, compared: bool,
    ) -> None:  # fmt: skip
        super().__init__(framework, config, compared=compared)
        framework.paired = True
        self.holder, self._session, self._ledger = holder, session, ledger
        self._single = -1
        """How many slices had one copy alone after the last sum; -1 before the first."""
        self._rows: RowAccumulator | None = None
        self._used: tuple[Ids, Floats] | None = None
        """The rows and gradients of all lanes, from a sum to its commit."""

    @property
    def patient(self) -> bool:
        """No: `finish` writes lines of its own."""
        return False

    def round(self, session: WorkerSession | Solo, turn: int = 0) -> Generator[int, Any, Any]:
        """The lanes of a round: each gives a pair, a tree to be summed and the gradients of rows."""
        assert not turn, "a job with tables has one sum per step"
        self.holder.fill()
        if self._rows is not None:
            self._rows.digests = self.holder.said()
        lanes, tree = session.round(self.accumulator), None
        while True:
            try:
                lane = lanes.send(tree)
            except StopIteration as end:
                return end.value
            own, rows = (yield lane).pop()
            tree = [Laned(lane, own, *rows)]

    def accumulator(self, tree: Any, turn: int = 0) -> Accumulator:
        """What adds up lanes like this one; made with the first."""
        inner = super().accumulator(tree.tree, turn)
        if self._rows is None:
            shape, placement, contacts = self.holder.shape, self.holder.placement, self.holder.contacts
            layout = RowLayout(
                inner.reduction.size, self._config.lanes.lanes, len(tree.rows), shape.width, shape.slices,
                placement.buddies + 1, inner.reduction.dtype == np.int32, 0 if contacts is None else contacts.ranks,
            )  # fmt: skip
            self._rows = RowAccumulator(inner, layout)
            self._rows.digests, self._rows.contacts = self.holder.said(), contacts
        return self._rows

    def finish(self, total: Any, step: int, turn: int = 0) -> Any | None:
        """The tree of sums; the gradients of rows are kept for the commit."""
        assert self._rows is not None and not turn, "a total cannot arrive before the first part"
        layout, members = self._rows.row_layout, self._session.account.digests
        if self.holder.placement.holders is not None:
            self.holder.compare(layout.said(total))
        if self.holder.contacts is not None:
            self.holder.contacts.heard(layout.introduced(total))
        self.holder.after(members, self._session.joined)
        self._count_copies()
        found = self._rows.finish(total, step, check=self._config.nonfinite is not NonFinite.PASS)
        if found is None:
            return None
        rows, gradients = layout.read(total)
        if self._config.nonfinite is not NonFinite.PASS and not np.isfinite(gradients).all():
            raise NotFinite(step, "the gradient of an embedding row holds NaN or Inf", "lower the learning rate")
        self._used = rows, np.array(gradients)
        return found

    def _count_copies(self) -> None:
        """Write down how many slices have one copy alone, where that has changed: the first worker does."""
        placement, before = self.holder.placement, self._single
        self._single = placement.single
        if self._single != before and self._session.first:
            self._ledger.single_copies(self._session.epoch, self.holder.version, self._single, placement.slices)

    def commit(self, state: tuple[Any, ...], step: int) -> None:
        """The step is done: the rows that it has used are updated."""
        super().commit(state, step)
        assert self._used is not None, "a step is committed after its sum"
        self.holder.update(step + 1, sorted(self._session.account.digests), *self._used)
        self._used = None

    def announce(self, session: WorkerSession | Solo, step: int, *, arrived: bool = False) -> None:
        """Say that this is the state now; a step that was skipped has left the tables as they were."""
        if step > self.holder.version:
            self.holder.pass_over(step)
        super().announce(session, step, arrived=arrived)

    def digest(self) -> Later[int]:
        """Of what all have alike: the state, and who holds what."""
        if not self._compared:
            return Later.of(0)
        placement = self.holder.placement
        known = np.array([xxh3_64_intdigest(repr((placement.holders, placement.fills)).encode())], np.uint64)
        self._digest = self.framework.digest_begun(self.grid, known)
        return self._digest

    def export(
        self, session: WorkerSession | Solo, step: int, pending: dict[str, Any] | None, *, on_device: bool
    ) -> list[Any]:
        """All but the tables, of which a newcomer takes slices from several."""
        del on_device
        placement = self.holder.placement.facts()
        contacts = None if self.holder.contacts is None else self.holder.contacts.facts()
        about = {
            "step": step, "grid": self.grid.tolist(), "pending": pending, "placement": placement,
            "files": self.holder.files(), "contacts": contacts,
        }  # fmt: skip
        return encode(self.framework.leaves(), None, messages=session.room.format(), **about)

    def adopt(self, received: Any, session: WorkerSession | Solo) -> tuple[int, dict[str, Any] | None]:
        """Take another worker's state, and what it knows of who holds what; slices come later."""
        leaves, about = decode(received, self.framework.template())
        self.framework.adopt(leaves)
        self.restore(about["grid"])
        self.holder.adopt(self.holder.placement.known(about["placement"]), about["step"], about["files"])
        if self.holder.contacts is not None:
            self.holder.contacts.adopt(about["contacts"])
        session.room.adopt(*about["messages"])
        return about["step"], about["pending"]
