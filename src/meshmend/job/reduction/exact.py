"""Sums of float32 gradients that are bit for bit the same in any order and with any number of workers.

Integer addition does not care about order, floating-point addition does. So each lane's gradient is rounded to
integers before anything is added, all lanes on the same grid: in block b, `x` becomes `q = rint(x / 2**e[b])`. A block
is at most 1024 neighbours of one leaf, q is an int32, and the wire is as long as the float32 gradient plus about 1 %:

    wire   q q q … q | q q … q | … | size size … bad | size size … bad | …       int32, added up by one MPI_SUM
           block 0     block 1       notes of block 0  notes of block 1

    bit    31 | 30  29  28 | 27 ………………………… 0 |
           ±  |  headroom  | the sum, in units of 2**e                           where a block stands in quiet times

The grid must be known before the step, bit-identically by all, and without a message of its own. So `e` comes from
the notes of earlier sums, and the notes also prove afterwards that it was right. They hold, for each block,

* S, the sum over lanes of the lane's largest |x|. No element of the sum, and no part of it, can pass S, so S < 2**31
  units means that no addition wrapped. S is kept without reference to `e`, over the whole range of float32, as a row
  of coarse digits (rounded up, by at most 1/8). So if a block was too large for its grid, one more round always
  suffices, however far it jumped;
* the number of lanes with a NaN or Inf there.

How grids move (all of it computed from the sum, which all workers hold):

* up at once: S outgrew the grid, the round is void and is done again. A leaf's first gradients do the same: nothing is
  known about them yet. All blocks of that leaf then start on the grid of its largest block, because where one block
  jumped (a rare word's row in an embedding) its neighbours will;
* down with the leaf, an octave a step: so that a falling gradient keeps its digits;
* down below the leaf's largest block, an octave in 32 steps: blocks of small values win digits, and jumps of blocks to
  the height of their leaf cost at most one round in about a hundred steps.

Error of a sum of L lanes, besides the one rounding of the result to float32: at most L/2 units, and typically
0.29 sqrt(L). A unit is between 2**-28 S and 2**-27 S for the S of the leaf's largest block in the step before (more
after a fall by more than an octave). What is smaller than half a unit, or subnormal, counts as 0.

Bitwise the same on every machine, also where subnormal numbers are flushed to zero: all arithmetic on values is exact
(powers of two), but for the roundings named above, which IEEE 754 fixes, and no subnormal number is ever needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.errors import JobError
from meshmend.job.data.lanes import MOST_LANES
from meshmend.job.reduction.base import Flat, NonFinite, Reduction
from meshmend.job.reduction.layout import Layout

Floats = npt.NDArray[np.float32]
Wire = npt.NDArray[np.int32]

BLOCK = 1024
"""Neighbours of one leaf that have a common unit."""
HEADROOM = 3
"""Bits left free when a grid is chosen: S may grow 8 to 16 times from one step to the next without a second round."""
LOW, HIGH = -125, 96
"""Exponents of the finest grid (subnormal numbers are less than half a unit) and of the coarsest (2**31 units are a
float32)."""
FALL = 32
"""Steps in which a block falls one octave below its leaf; levels are kept in such fractions of an octave."""
FRESH = -(2**15)
"""The level of blocks of which nothing but zeros was seen: their first values are only measured."""
ROOM = 2.0**31 - 2 * MOST_LANES
"""S must stay below this many units: 2**31, less what rounding can add."""
COARSE = 3
"""Bits of a digit of S that hold its rounding: 2**-3 too much at worst."""
FLOOR = -126
"""The lowest digit of S begins at 2**-126, the least normal float32."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round gave: the sums, or which leaves stood against it (`redo` and `bad` name leaves by their index)."""

    sums: Floats | None = field(repr=False)
    """None unless the round is good: there is no such thing as a sum that is nearly right."""
    redo: tuple[int, ...] = ()
    """Leaves whose grid was too fine or not yet known. It has been changed: add all lanes again, to a zeroed wire."""
    bad: tuple[int, ...] = ()
    """Leaves with NaN or Inf in some lane, or where S passes 1.5e38. The grid has not been changed."""


class Exact:
    """The grid of one gradient, and how lanes get on it (`add`) and off it (`finish`).

    All workers hold the same grid at all times, so it belongs to the training state: give `state()` to newcomers and
    checkpoints, and hash it with the weights.
    """

    def __init__(self, leaves: Sequence[int], lanes: int, block: int = BLOCK) -> None:
        if not 1 <= lanes <= MOST_LANES:
            raise ValueError(f"{lanes} lanes were asked for, but exact sums hold 1 to {MOST_LANES}: use fewer lanes")
        if block < 1 or min(leaves, default=0) < 0:
            raise ValueError(f"block {block} and leaves {list(leaves)} were given: sizes must not be negative")
        counts = np.array([-(-size // block) for size in leaves], np.int64)
        ends = np.cumsum([0, *leaves])
        begins = [np.arange(start, start + size, block) for start, size in zip(ends, leaves, strict=False)]
        self.size = int(ends[-1])
        self.leaves = tuple(leaves)
        self._first = np.cumsum([0, *counts])  # each leaf's first block
        self._bounds = np.concatenate([*begins, ends[-1:]]).astype(np.int64)
        self._leaf = np.repeat(np.arange(len(leaves)), counts)  # each block's leaf
        self._octaves = 31 - COARSE - lanes.bit_length()  # of a digit of S: `lanes` times its most fits an int32
        digits = -(-(128 - FLOOR) // self._octaves)
        self._digit = np.ldexp(1.0, FLOOR - COARSE + self._octaves * np.arange(digits))  # what its 1 is worth
        self._level = np.full(len(self._leaf), FRESH, np.int32)
        self._scale()

    @property
    def digits(self) -> tuple[int, int]:
        """How many digits S has in the notes of a block, and the octaves that one of them holds."""
        return len(self._digit), self._octaves

    @property
    def factors(self) -> tuple[Floats, Floats]:
        """The grid as factors, for each block: those that bring values on it, and off it."""
        return self._per_unit, self._unit

    @property
    def wire_size(self) -> int:
        """Number of int32 on the wire: the gradient's, then the notes."""
        return self.size + len(self._leaf) * (len(self._digit) + 1)

    @property
    def exponents(self) -> npt.NDArray[np.int32]:
        """Each block's e: its unit is 2**e (and -1024 where nothing is known yet)."""
        return -(-self._level // FALL)

    def state(self) -> npt.NDArray[np.int16]:
        """All there is to know about the grid, two bytes a block."""
        return self._level.astype(np.int16)

    def restore(self, state: npt.NDArray[np.int16]) -> None:
        """Take over the grid of another `Exact` of the same leaves and block."""
        level = np.array(state, np.int32)
        known = level[level != FRESH]
        if level.shape != self._level.shape or ((known < LOW * FALL) | (known > HIGH * FALL)).any():
            raise JobError(
                f"a grid of shape {level.shape} with levels {known.min(initial=0)} to {known.max(initial=0)} was given "
                f"for {len(self._level)} blocks: give the `state()` of an `Exact` of the same leaves and block"
            )
        self._level = level
        self._scale()

    def wire(self) -> Wire:
        """An empty wire, for those who have no shared memory to put it in."""
        return np.zeros(self.wire_size, np.int32)

    def add(self, wire: Wire, gradient: Floats, leaf: int | None = None) -> None:
        """Round one lane's gradient to the grid and add it to the wire: the flat buffer, or leaf by leaf.

        In a round all workers together add at most `lanes` gradients, or the notes could overflow.
        """
        first, last = (0, len(self._leaf)) if leaf is None else (int(self._first[leaf]), int(self._first[leaf + 1]))
        begin, end = self._bounds[first], self._bounds[last]
        if gradient.dtype != np.float32 or gradient.size != end - begin:
            raise ValueError(f"{gradient.size} {gradient.dtype} values were given: {end - begin} float32 are expected")
        flat = np.ascontiguousarray(gradient).reshape(-1)
        values, notes = self._split(wire)
        _quantise(
            values[begin:end], notes[first:last], flat, flat.view(np.int32),
            self._bounds[first : last + 1] - begin, self._per_unit[first:last], 1 / self._digit, self._octaves,
        )  # fmt: skip

    def finish(self, wire: Wire, out: Floats | None = None) -> Outcome:
        """The sums of all lanes, from the wire summed over all workers; then the grid for the next step.

        A pure function of the wire and the grid, so all workers decide the same, also one that gets the wire late.
        """
        values, notes = self._split(wire)
        sums = np.empty(self.size, np.float32) if out is None else out
        if sums.dtype != np.float32 or sums.shape != (self.size,):
            raise ValueError(f"`out` is {sums.shape} {sums.dtype}: ({self.size},) float32 is expected")
        unit = self._unit
        against = self.judge(notes)
        if against is not None:
            return against
        _float32(values, self._bounds, unit, sums)
        return Outcome(sums)

    def judge(self, notes: Wire) -> Outcome | None:
        """What stands against a round, by its notes; None, and the grid of the next step, where it is good."""
        spread = np.zeros(len(notes))
        for digit, worth in zip(notes.T, self._digit, strict=False):  # in this order on every machine
            spread += digit * worth
        bad = (notes[:, -1] != 0) | (spread >= np.ldexp(ROOM, HIGH))
        if bad.any():
            return Outcome(None, bad=self._named(bad))
        used = spread > 0
        need = np.clip(np.frexp(spread)[1] - (31 - HEADROOM), LOW, HIGH) * FALL
        need = np.where(used, need, FRESH).astype(np.int32)
        peak = np.full(len(self.leaves), FRESH, np.int32)
        np.maximum.at(peak, self._leaf, need)
        top = peak[self._leaf]
        small = used & ((self._level == FRESH) | (spread >= np.ldexp(ROOM, self.exponents)))
        if small.any():
            jumped = np.isin(self._leaf, self._leaf[small])
            self._level = np.where(jumped, np.maximum(self._level, top), self._level)
            self._scale()
            return Outcome(None, redo=self._named(small))
        lower = np.where(self._level > top, np.maximum(self._level - FALL, top), self._level - used)
        self._level = np.where(top == FRESH, self._level, np.maximum(lower, need))
        self._scale()
        return None

    def _split(self, wire: Wire) -> tuple[Wire, Wire]:
        """The values, and the notes with a row for each block."""
        if wire.dtype != np.int32 or wire.shape != (self.wire_size,):
            raise ValueError(f"a wire of {wire.shape} {wire.dtype} was given: ({self.wire_size},) int32 is expected")
        return wire[: self.size], wire[self.size :].reshape(len(self._leaf), len(self._digit) + 1)

    def _named(self, blocks: npt.NDArray[np.bool_]) -> tuple[int, ...]:
        return tuple(np.unique(self._leaf[blocks]).tolist())

    def _scale(self) -> None:
        """The grid as factors. A fresh block's is 0: its values are measured, not added."""
        exponents = np.where(self._level == FRESH, 0, self.exponents)
        known = self._level != FRESH
        self._unit = np.where(known, np.ldexp(np.float32(1), exponents), np.float32(0))
        self._per_unit = np.where(known, np.ldexp(np.float32(1), -exponents), np.float32(0))


class ExactSum(Reduction):
    """Lanes are rounded to the common grid and added as integers."""

    number = 3
    reduction = "exact"
    dtype = np.dtype(np.int32)
    nonfinite = (NonFinite.ERROR, NonFinite.SKIP)

    def __init__(self, layout: Layout, lanes: int) -> None:
        super().__init__(layout, lanes)
        self._exact = Exact([leaf.size for leaf in layout.leaves], lanes)
        self.size = self._exact.wire_size

    def add(self, buffer: Flat, arrays: Iterable[Flat], *, first: bool) -> None:
        """Add one lane's gradients."""
        if first:
            buffer[:] = 0
        for leaf, array in enumerate(arrays):
            self._exact.add(buffer, array.astype(np.float32, copy=False), leaf)

    def finish(self, total: Flat, step: int) -> list[Flat] | None:
        """The summed leaves; None where the grid was too fine and has been widened."""
        outcome = self._exact.finish(np.ascontiguousarray(total))
        self.layout.check_finite(outcome.bad, step)
        if outcome.sums is None:
            return None
        self.layout.check_integers(self.layout.parts(outcome.sums), step)
        self.layout.check_range(self.layout.parts(outcome.sums), step)
        return self.layout.shaped(self.layout.parts(outcome.sums), copy=True)

    @property
    def exact(self) -> Exact:
        """The grid."""
        return self._exact

    def state(self) -> list[int]:
        """The grid: all workers must round alike."""
        return list(self._exact.state().tolist())

    def levels(self) -> npt.NDArray[np.int16]:
        """The same as an array."""
        return self._exact.state()

    def restore(self, state: list[int]) -> None:
        """Take over a grid."""
        self._exact.restore(np.array(state, np.int16))


@kernel
def _quantise(
    wire: Wire, notes: Wire, gradient: Floats, bits: Wire, bounds: npt.NDArray[np.int64],
    per_unit: Floats, per_digit: npt.NDArray[np.float64], octaves: int,
) -> None:  # fmt: skip
    """Add a lane to the wire, and to the notes; `bits` is the gradient's memory read as integers.

    Magnitudes are compared as integers, because then NaN is just a large one and the loop becomes vector code.
    """
    top = np.zeros(1, np.int32)
    largest = top.view(np.float32)
    for block in range(len(bounds) - 1):
        here = slice(bounds[block], bounds[block + 1])
        whole, values, numbers = wire[here], gradient[here], bits[here]
        magnitude = np.int32(0)
        for i in range(len(numbers)):
            magnitude = max(magnitude, numbers[i] & np.int32(0x7FFFFFFF))
        if magnitude < 0x00800000:  # nothing but zeros and subnormals
            continue
        if magnitude >= 0x7F800000:
            notes[block, -1] += 1
            continue
        top[0] = magnitude
        digit = ((magnitude >> 23) - 127 - FLOOR) // octaves
        notes[block, digit] += np.int32(np.ceil(np.float64(largest[0]) * per_digit[digit]))
        scale = per_unit[block]
        if scale == 0 or np.float64(largest[0]) * np.float64(scale) >= 2.0**31:  # S will tell, the round is void
            continue
        for i in range(len(whole)):
            whole[i] += np.int32(np.rint(values[i] * scale))


@kernel
def _float32(wire: Wire, bounds: npt.NDArray[np.int64], unit: Floats, sums: Floats) -> None:
    """From integers back to float32: rounded once, to nearest even."""
    for block in range(len(bounds) - 1):
        here = slice(bounds[block], bounds[block + 1])
        whole, values, scale = wire[here], sums[here], unit[block]
        for i in range(len(whole)):
            values[i] = np.float32(whole[i]) * scale
