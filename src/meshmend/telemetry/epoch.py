"""The epoch number: which membership an event, a record or a message belongs to.

    attempt   how often the run has been resumed from a checkpoint
    world     which mpirun of the run: the launcher counts them
    shrink    how often the couriers of that world have shrunk their group: every survivor takes part in each
              shrink, so all of them count the same

Epochs are ordered, and the order is that in which things happened, whatever the clocks say:

    (0, 1, 0)  ──a worker dies──►  (0, 1, 1)  ──mpirun dies──►  (0, 2, 0)  ──all die, resume──►  (1, 1, 0)

Two channels carry no number because they cannot outlive an epoch: a mailbox is part of a worker's shared memory, which
each attempt creates again, and couriers exchange `Hello` inside a communicator, which each shrink replaces.
"""

from __future__ import annotations

from typing import NamedTuple

from meshmend.base.schema import Count


class Epoch(NamedTuple):
    """One membership of a run. World 0 is the time before an attempt's first world."""

    attempt: Count
    world: Count = 0
    shrink: Count = 0

    def __str__(self) -> str:
        return f"{self.attempt}.{self.world}.{self.shrink}"


FIRST = Epoch(0)
"""The time before the first world of a run."""
