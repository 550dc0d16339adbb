"""The user's side of embedding tables that no worker holds in full. A script gives each lane the rows that it needs:

    tables = mm.EmbeddingTables(rows=[…], width=16, optimizer=mm.row_adagrad(0.05))
    with mm.Job((ids, dense, clicks), batch=2048, lanes=32, reduction="exact") as job:
        state = job.share(init(), tables=tables)

        def lane(samples):
            ids, dense, clicks = samples
            grads, of_rows, loss = gradients(state, tables.rows(ids), dense, clicks)
            return (grads, loss), tables.gradient(ids, of_rows / job.batch)

        for step in job.steps(1000):
            grads, loss = job.sum(lane)                  # what comes first in the pair
            state = update(state, grads)
            job.commit(state, loss=loss / job.batch)     # and the rows that this step used are updated

The gradients of a row are added up over all lanes, and divided by nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshmend.errors import JobError
from meshmend.job.embeddings.holder import TableHolder
from meshmend.job.embeddings.optimizers import RowOptimizer
from meshmend.job.embeddings.shape import Floats, Ids, Shape
from meshmend.job.frameworks.choose import array_of, as_given


class EmbeddingTables:
    """Tables of rows of one width, spread over all workers: give them to `job.share(state, tables=…)`.

    `rows` has the number of rows of each table. So many `buddies` hold the same rows besides their owner, one unless it
    is said; as long as one holder of each row lives, nothing is lost. Rows begin between -scale and scale, by `seed`;
    without a `scale`, between -1/sqrt(n) and 1/sqrt(n) in a table of n rows.

    An `optimizer` works row by row (`mm.row_sgd`, `mm.row_adagrad`) and updates the rows that a step has used with the
    sums of their gradients over all lanes, when the step is committed.
    """

    def __init__(
        self, rows: Sequence[int], width: int, optimizer: RowOptimizer, *, buddies: int | None = None, seed: int = 0,
        scale: float | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(optimizer, RowOptimizer):
            raise JobError(
                f"mm.EmbeddingTables got a {type(optimizer).__name__} as optimizer: give it mm.row_adagrad(rate) or "
                "mm.row_sgd(rate)"
            )
        self.shape = Shape(tuple(int(count) for count in rows), width, optimizer.memory, seed, scale)
        self.optimizer, self.buddies = optimizer, buddies
        self.holder: TableHolder | None = None
        """What this worker has of them; None before `job.share`."""
        self.may_read: Callable[[], None] = lambda: None
        """Refuses to read between a sum and its commit."""

    def rows(self, ids: Any) -> Any:
        """The rows of these ids, which have one column for each table: an array of one more axis, the width.

        To be called in the function of `job.sum` or `job.evaluate`. For ids that are a tensor of PyTorch, the rows are
        one too, on their device; after `backward`, its `.grad` is what `gradient` wants.
        """
        if self.holder is None:
            raise JobError("tables.rows was called before job.share(…, tables=tables)")
        self.may_read()
        wanted = self.shape.numbers(array_of(ids))
        return as_given(self.holder.rows(wanted.reshape(-1)).reshape(*wanted.shape, self.shape.width), ids)

    def gradient(self, ids: Any, values: Any) -> tuple[Ids, Floats]:
        """The gradients of the rows of these ids, for a lane to return; an id may occur more than once."""
        rows, found = self.shape.numbers(array_of(ids)), array_of(values)
        if found.shape != (*rows.shape, self.shape.width) or found.dtype != np.float32:
            raise JobError(
                f"got gradients of shape {found.shape} and type {found.dtype} for ids of shape {rows.shape}: give "
                f"float32 of shape {(*rows.shape, self.shape.width)}"
            )
        return rows.reshape(-1), found.reshape(-1, self.shape.width)

    @property
    def nbytes(self) -> int:
        """Bytes of one copy of all tables, with what the optimizer remembers."""
        return self.shape.nbytes

    @property
    def held(self) -> int:
        """Bytes of them that this worker holds now."""
        return 0 if self.holder is None else self.holder.shelf.nbytes
