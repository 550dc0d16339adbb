"""What a worker says of itself in the footer of every message that it brings: its state, its call, its notes.

A part over lanes, a note and a farewell differ in these words alone; the couriers carry all three alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.job.reduction.footer import Call, Footer, Note, Word
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.state.digest import Later


class OwnFooter:
    """One worker's footer, in one job."""

    def __init__(self, segment: WorkerSegment, lanes: int) -> None:
        self._segment = segment
        self.format = Footer(lanes, segment.agent.ranks)
        self.digest = Later.of(0)
        """Of the state that this worker has."""
        self.joined: int | None = None
        """The round in which this worker joined, until it has taken part in a sum."""

    def write(
        self,
        word: Word,
        lanes: Sequence[int],
        *,
        turn: int = 0,
        note: Note | None = None,
        save: bool = False,
        leaving: bool = False,
    ) -> None:
        """Say what the script has called (`word`), and over which lanes the part is."""
        call = Call(word, self.joined, turn)
        part, rank, digest = self._segment.buffers.part, self._segment.rank, self.digest.value()
        self.format.write(part, lanes, rank, digest, leaving, note, save, call)
