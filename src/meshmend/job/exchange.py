"""What workers exchange besides sums: every worker brings some bytes, and every worker gets those of all.

An exchange consists of rounds like a sum, and survives deaths like one: a round is repeated without the dead workers,
whose bytes are then missing on every worker. What does not fit in one note goes in pieces. A worker that joins an
exchange in progress (a newcomer, at the first line of its script) makes all workers start it again, and all see that in
the same total.

Workers that have come through the same rounds must make the same call, or the script is wrong (`check_calls`). Only a
newcomer may be elsewhere in its script, until its first sum: if it makes another call, it waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshmend.errors import JobError
from meshmend.job.reduction.footer import NOTE, Call, Note, Word

MOST = 1 << 20
"""Bytes that a worker may bring: a sum or the state is the place for more."""


Notes = Mapping[int, tuple[Word, Note]]
"""By rank: the word that a worker has called, and its note."""


def exchange(word: Word, data: bytes, round: Callable[[Note], Notes]) -> dict[int, bytes]:
    """Return what every worker brought, by rank; `round` brings this worker's note and returns those of all.

    All of them in their order: the first one's turn is first.
    """
    if len(data) > MOST:
        raise JobError(
            f"the value has {len(data)} bytes, and workers exchange at most {MOST} outside a sum; put large arrays in "
            "what job.sum returns, or in the state"
        )
    place, heard = 0, dict[int, bytes]()
    while True:
        found = round(Note.of(data, place))
        if not found:
            raise JobError("the couriers were replaced just as this worker's exchange ended, and its result is lost")
        turn, _ = next(iter(found.values()))
        notes = {rank: note for rank, (called, note) in found.items() if called == turn}
        if turn != word or any(note.piece != place for note in notes.values()):
            place, heard = 0, {}
            continue
        heard = {rank: heard.get(rank, b"") + note.data for rank, note in notes.items()}
        place += 1
        if all(note.length <= place * NOTE for note in notes.values()):
            return heard


def in_turn(calls: Mapping[int, Call], notes: Mapping[int, Note]) -> Notes:
    """The notes of a round: first those of workers that have summed, as newcomers wait for them."""
    order = sorted(notes, key=lambda rank: (calls[rank].joined is not None, rank))
    return {rank: (calls[rank].word, notes[rank]) for rank in order}


def check_calls(calls: Mapping[int, Call], step: int) -> None:
    """Refuse a round in which workers that have come through the same rounds make different calls.

    The first call in which they differ ends the job, so that two calls of the same word are the same call.
    """
    firsts: dict[int | None, tuple[int, Call]] = {}
    for rank, call in sorted(calls.items()):
        other, first = firsts.setdefault(call.joined, (rank, call))
        if (first.word, first.turn) == (call.word, call.turn) or {first.word, call.word} in ALONE:
            continue
        must = "make the same call" if first.word != call.word else "make the same number of sums in every step"
        raise JobError(
            f"worker {other} {_said(first)} where worker {rank} {_said(call)} (step {step}): all workers must {must}; "
            "do not put it under `if job.first` or `if job.rank`"
        )


ALONE = ({Word.SUM, Word.END}, {Word.UPDATE, Word.END})
"""A worker leaves the loop while others continue: the couriers find that, and say what to do about it."""


def _said(call: Call) -> str:
    if call.word == Word.END:
        return "left its job"
    return f"called job.{call.word}" + (f" again, as sum {call.turn + 1} of its step," if call.turn else "")
