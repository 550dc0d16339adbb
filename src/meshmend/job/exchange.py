"""What workers exchange besides sums: every worker brings some bytes, and every worker gets those of all.

An exchange consists of rounds like a sum, and survives deaths like one: a round is repeated without the dead workers,
whose bytes are then missing on every worker. What does not fit in one note goes in pieces. A worker that joins an
exchange in progress (a newcomer, at the first line of its script) makes all workers start it again, and all see that in
the same total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshmend.errors import JobError
from meshmend.job.reduction.footer import NOTE, Note

MOST = 1 << 20
"""Bytes that a worker may bring: a sum or the state is the place for more."""


def exchange(data: bytes, round: Callable[[Note], Mapping[int, Note]]) -> dict[int, bytes]:
    """Return what every worker brought, by rank; `round` brings this worker's note and returns those of all."""
    if len(data) > MOST:
        raise JobError(
            f"the value has {len(data)} bytes, and workers exchange at most {MOST} outside a sum; put large arrays in "
            "what job.sum returns, or in the state"
        )
    place, heard = 0, dict[int, bytes]()
    while True:
        notes = round(Note.of(data, place))
        if not notes:
            raise JobError("the couriers were replaced just as this worker's exchange ended, and its result is lost")
        if any(note.piece != place for note in notes.values()):
            place, heard = 0, {}
            continue
        heard = {rank: heard.get(rank, b"") + note.data for rank, note in notes.items()}
        place += 1
        if all(note.length <= place * NOTE for note in notes.values()):
            return heard
