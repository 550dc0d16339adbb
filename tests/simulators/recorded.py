"""What the workers of a simulated sharded run have recorded when everybody dies: lines of the ledger, and checkpoints.

A step is recorded when the next one shows that all have the same state after it. A checkpoint of slices may be complete
before that, and a run that is resumed from it goes on after its last step: so that step must have been recorded.

Here every step is saved by everybody. Since all of it outlives the processes, each file is looked at as if nothing came
after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class Unrecorded(AssertionError):
    """A run would be resumed after a step that no line records, or one step was recorded in two ways."""


@dataclass
class Disk:
    """The ledgers of all workers, and the files of slices."""

    slices: int
    early: bool = True
    """Whether a step is recorded before its slices are written."""
    lines: dict[int, int] = field(default_factory=dict)
    """The digest of the weights after each round, as somebody has recorded it."""
    files: set[tuple[int, int, object]] = field(default_factory=set)
    """Slices that were written: the round, the number, and the digests, after which a file is named."""
    complete: set[int] = field(default_factory=set)
    """Rounds of which there is an index."""
    pending: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The last round of each rank, with its digest, until it is recorded; a newcomer gets it with the weights."""

    def committed(self, rank: int, round: int, gives: Iterable[int], agreed: Mapping[int, object]) -> None:
        """A worker goes on after a round: its step is done, and it writes the slices that it gives out."""
        self.confirm(rank)
        self.pending[rank] = round, hash(tuple(sorted(agreed.items())))
        if self.early:
            self.confirm(rank)
        self.files |= {(round, number, agreed[number]) for number in gives}
        if all((round, number, agreed.get(number)) in self.files for number in range(self.slices)):
            self.complete.add(round)
            self.check(round)

    def confirm(self, rank: int) -> None:
        """Record the last round of a worker."""
        if rank in self.pending:
            round, digest = self.pending.pop(rank)
            if self.lines.setdefault(round, digest) != digest:
                raise Unrecorded(f"round {round} was recorded with two states, the second one by worker {rank}")

    def check(self, last: int) -> None:
        """All rounds up to this one are recorded."""
        missing = [round for round in range(last + 1) if round not in self.lines]
        if missing:
            raise Unrecorded(f"round {missing[0]} is in a checkpoint, or was the last one, and no line records it")
