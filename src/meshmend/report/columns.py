"""Numbers for steps, in columns: a week has millions of steps, and hardly any of them needs its own object.

A piece holds the numbers of steps that follow one another and have something in common (its tag). Pieces do not
overlap, and take room only for the steps that exist, whatever their numbers are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass
class Piece:
    """Steps that follow one another."""

    start: int
    tag: Any
    columns: tuple[array[Any], ...]

    @property
    def end(self) -> int:
        """The step after the last."""
        return self.start + len(self.columns[0])

    def view(self, column: int, begin: int, end: int) -> npt.NDArray[Any]:
        """The numbers of these steps, without a copy: while it is in use, the piece must not grow."""
        numbers = self.columns[column]
        return np.frombuffer(numbers, numbers.typecode)[begin - self.start : end - self.start]


@dataclass
class Pieces:
    """The pieces of an attempt or an epoch; `types` has the typecode of each column, as in `array`."""

    types: str
    pieces: list[Piece] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.pieces)

    def at(self, step: int) -> Piece | None:
        """The piece that holds a step."""
        place = bisect_right(self._starts, step) - 1
        return self.pieces[place] if place >= 0 and step < self.pieces[place].end else None

    def parts(self, begin: int, end: int) -> list[tuple[int, int, Piece | None]]:
        """These steps, cut where pieces begin and end: (begin, end, the piece that holds them, if there is one)."""
        found: list[tuple[int, int, Piece | None]] = []
        place = max(0, bisect_right(self._starts, begin) - 1)
        for piece in self.pieces[place : bisect_left(self._starts, end)]:
            if piece.end <= begin:
                continue
            if begin < piece.start:
                found.append((begin, piece.start, None))
            found.append((max(begin, piece.start), min(end, piece.end), piece))
            begin = found[-1][1]
        return [*found, (begin, end, None)] if begin < end else found

    def add(self, start: int, tag: Any, *columns: Sequence[float] | npt.NDArray[Any]) -> None:
        """Add steps that are not there yet; they become part of the piece before them if that has the same tag."""
        place = bisect_left(self._starts, start)
        before = self.pieces[place - 1] if place else None
        if before is None or before.end != start or before.tag != tag:
            before = Piece(start, tag, tuple(array(code) for code in self.types))
            self.pieces.insert(place, before)
            self._starts.insert(place, start)
        for numbers, more in zip(before.columns, columns, strict=True):
            if isinstance(more, np.ndarray):
                numbers.frombytes(np.ascontiguousarray(more, numbers.typecode).tobytes())
            else:
                numbers.extend(more)

    def last(self, count: int, before: int | None = None) -> Iterator[tuple[int, float]]:
        """The last steps before this one, from the last backwards, each with its number in the first column."""
        place = len(self.pieces) if before is None else bisect_left(self._starts, before)
        for piece in reversed(self.pieces[:place]):
            end = piece.end if before is None else min(before, piece.end)
            for step in range(end - 1, max(piece.start, end - count) - 1, -1):
                yield step, piece.columns[0][step - piece.start]
                count -= 1
            if count <= 0:
                return
