"""The last numbers of every message: who counted which lane, whose state has which digest, and notes.

    │ gradients, leaf after leaf │ a count per lane │ a digest per rank, in pieces │ a call and a note per rank │
    │ leaving, save │

The footer rides in the same message and in the same type of number as the gradients, so its values are small whole
numbers that every reduction adds exactly: a digest of 48 bits is three pieces of 16, and only its own rank writes it.

A note is what a rank sends besides sums (`job.gather`), or a piece of it. If any rank has a note, the round is not a
sum: a rank that came to it with gradients brings them again in the next round. Every rank says with which call of its
script it came, so that all see in the same total whether they make the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.job.protocol import Total

PIECES = 3
WORDS = 128
"""Numbers of 16 bits that a note holds."""
NOTE = 2 * WORDS
"""Bytes that a note holds."""
HEAD = 4
"""Numbers before them: which piece it is, counted from 1 (0: there is no note), the total length, and the call."""
MOST_ROUNDS = 1 << 16
MOST_SUMS = 64
"""Sums that a step may have: a script that makes more has most likely forgotten `job.commit`."""
SAVE = 4096
"""What a member that wants all to write a checkpoint adds to the last number, besides 1 if it leaves."""
ONCE = 8192
"""A lane counted once by rank r is ONCE + r, so that the sum shows both how often and, if once, by whom."""


@dataclass(frozen=True)
class Note:
    """One piece of a rank's note."""

    piece: int
    length: int
    """Bytes of the whole."""
    data: bytes

    @classmethod
    def of(cls, whole: bytes, piece: int) -> Note:
        """A piece of something; pieces after the last are empty."""
        return cls(piece, len(whole), whole[piece * NOTE : (piece + 1) * NOTE])


class Word(StrEnum):
    """What a script may call in a round. In messages a word is its place here."""

    SUM = "sum"
    UPDATE = "update"
    GATHER = "gather"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    EVALUATE = "evaluate"
    SAVE = "save"
    END = "end"
    """It has left its `with mm.Job` block."""


CALLS = tuple(Word)


@dataclass(frozen=True)
class Call:
    """What a rank's script called when it came to a round."""

    word: Word
    joined: int | None = None
    """The round in which this rank joined, modulo `MOST_ROUNDS`, until it has taken part in a sum; then None.

    Ranks of which this is the same have come through the same rounds from the same line of the script.
    """
    turn: int = 0
    """For a sum: how many its step had before it. A rank that has just joined has made none."""

    @property
    def number(self) -> int:
        """As a number that a footer can hold."""
        joined = 0 if self.joined is None else 1 + self.joined
        return CALLS.index(self.word) + len(CALLS) * (MOST_ROUNDS + self.turn if self.turn else joined)

    @classmethod
    def of(cls, number: int) -> Call:
        """The call that a number stands for."""
        rest, word = divmod(number, len(CALLS))
        if rest > MOST_ROUNDS:
            return cls(CALLS[word], turn=rest - MOST_ROUNDS)
        return cls(CALLS[word], rest - 1 if rest else None)


SUM = Call(Word.SUM)


@dataclass(frozen=True)
class Footer:
    """The last numbers of every message."""

    lanes: int
    ranks: int

    @property
    def size(self) -> int:
        """Numbers in the footer."""
        return self.lanes + (PIECES + HEAD + WORDS) * self.ranks + 1

    @property
    def _notes(self) -> int:
        """Where the notes begin."""
        return self.lanes + PIECES * self.ranks

    def write(
        self,
        buffer: npt.NDArray[Any],
        lanes: Sequence[int],
        rank: int,
        digest: int,
        leaving: bool = False,
        note: Note | None = None,
        save: bool = False,
        call: Call = SUM,
    ) -> None:
        """Fill in one member's footer."""
        tail = buffer[len(buffer) - self.size :]
        tail[:] = 0
        tail[list(lanes)] = ONCE + rank
        for piece in range(PIECES):
            tail[self.lanes + PIECES * rank + piece] = digest >> (16 * piece) & 0xFFFF
        # A digest of 0 would look like an empty rank.
        tail[self.lanes + PIECES * rank] += 65536
        at = self._notes + rank * (HEAD + WORDS)
        tail[at + HEAD - 1] = call.number
        if note is not None:
            tail[at : at + HEAD - 1] = note.piece + 1, note.length & 0xFFFF, note.length >> 16
            words = np.frombuffer(note.data.ljust(-(-len(note.data) // 2) * 2, b"\0"), "<u2")
            tail[at + HEAD : at + HEAD + len(words)] = words
        tail[-1] = leaving + SAVE * save

    def leaves(self, buffer: npt.NDArray[Any]) -> bool:
        """Whether the member whose part this is has no more steps to do."""
        return int(buffer[-1]) % SAVE > 0

    def notes(self, buffer: npt.NDArray[Any]) -> dict[int, Note]:
        """The notes of all members that had one, by rank."""
        tail = buffer[len(buffer) - self.size :]
        rows = tail[self._notes : -1].reshape(self.ranks, HEAD + WORDS)
        found = {}
        for rank in np.flatnonzero(rows[:, 0]).tolist():
            piece, low, high, _ = rows[rank, :HEAD].astype(np.int64).tolist()
            length = low + (high << 16)
            left = min(max(length - (piece - 1) * NOTE, 0), NOTE)
            found[rank] = Note(piece - 1, length, rows[rank, HEAD:].astype("<u2").tobytes()[:left])
        return found

    def calls(self, buffer: npt.NDArray[Any]) -> dict[int, Call]:
        """What all members called, by rank."""
        tail = buffer[len(buffer) - self.size :]
        members = np.flatnonzero(tail[self.lanes : self._notes : PIECES]).tolist()
        return {rank: Call.of(int(tail[self._notes + rank * (HEAD + WORDS) + HEAD - 1])) for rank in members}

    def read(self, buffer: npt.NDArray[Any]) -> Total:
        """What all members' footers add up to."""
        tail = buffer[len(buffer) - self.size :]
        pieces = tail[self.lanes : self._notes].reshape(self.ranks, PIECES).astype(np.int64)
        digests = {
            rank: int(sum(int(value) << (16 * piece) for piece, value in enumerate(row)))
            for rank, row in enumerate(pieces)
            if row[0]
        }
        counts, by = np.divmod(tail[: self.lanes].astype(np.int64), ONCE)
        noted = int(np.count_nonzero(tail[self._notes : -1 : HEAD + WORDS]))
        save, leaving = divmod(int(tail[-1]), SAVE)
        called = tail[self._notes + HEAD - 1 : -1 : HEAD + WORDS].astype(np.int64)[list(digests)] // len(CALLS)
        turns = np.maximum(called - MOST_ROUNDS, 0)
        astray = bool(len(turns)) and bool((turns != turns[0]).any())
        return Total(counts.tolist(), digests, leaving, by.tolist(), noted, astray, save)
