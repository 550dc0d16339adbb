"""Optimizers of rows: functions of the rows that a step has used, of their summed gradients and of what they remember.

All holders of a row make the same update of the same bits. So an optimizer works row by row, and adds up the numbers of
a row in a fixed order, however many rows it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshmend.errors import JobError
from meshmend.job.embeddings.shape import Floats

Update = Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True)
class RowOptimizer:
    """An optimizer of rows: `update(rows, gradients, memory)` gives the new rows and memory, of the same shapes."""

    update: Update
    memory: int = 0
    """Numbers that it remembers of each row; they begin as 0."""


def row_sgd(rate: float) -> RowOptimizer:
    """Plain gradient descent for `mm.EmbeddingTables`: a row goes down its summed gradient, `rate` times."""
    step = np.float32(_positive("row_sgd", rate))
    return RowOptimizer(lambda rows, gradients, memory: (rows - step * gradients, memory))


def row_adagrad(rate: float, eps: float = 1e-8) -> RowOptimizer:
    """Adagrad with one number per row for `mm.EmbeddingTables`: the sum of the mean squares of its gradients so far.

    As in DLRM: a row that is seen often takes small steps, a rare one large steps, for 1/width of Adagrad's memory.
    """
    step, least = np.float32(_positive("row_adagrad", rate)), np.float32(eps)

    def update(rows: Floats, gradients: Floats, memory: Floats) -> tuple[Floats, Floats]:
        squares = np.zeros(len(rows), np.float32)
        for column in gradients.T:  # one after another: the same bits for any number of rows
            squares += column * column
        after: Floats = memory + (squares / np.float32(rows.shape[1]))[:, None]
        root: Floats = np.sqrt(after)
        return rows - step * gradients / (root + least), after

    return RowOptimizer(update, memory=1)


def _positive(name: str, rate: float) -> float:
    if not rate > 0:
        raise JobError(f"{name} got the rate {rate!r}: give a number above 0")
    return rate
