"""Sums of float32 gradients that are bit for bit the same in any order and with any number of workers.

Integer addition does not care about order, floating-point addition does. So each lane's gradient is rounded to
integers before anything is added, all lanes on the same grid: in block b, `x` becomes `q = rint(x / 2**e[b])`. A block
is at most 1024 neighbours of one leaf, q is an int32, and the wire is as long as the float32 gradient plus about 1 %:

    wire   q q q … q | q q … q | … | size size … bad | size size … bad | …       int32, added up by one MPI_SUM
           block 0     block 1       notes of block 0  notes of block 1

    bit    31 | 30  29  28 | 27 ………………………… 0 |
           ±  |  headroom  | the sum, in units of 2**e                           where a block stands in quiet times

All workers must know the same grid before the step, without a separate message. So `e` comes from
the notes of earlier sums, and the notes also prove afterwards that it was right. They hold, for each block,

* S, the sum over lanes of the lane's largest |x|. No element of the sum, and no part of it, can pass S, so S < 2**31
  units means that no addition wrapped. S is kept without reference to `e`, over the whole range of float32, as a row
  of coarse digits (rounded up, by at most 1/8). So if a block was too large for its grid, one more round always
  suffices, however far it jumped;
* the number of lanes with a NaN or Inf there.

How grids move (all of it computed from the sum, which all workers hold):

* up immediately: S outgrew the grid, the round is void and is repeated. A leaf's first gradients do the same: nothing
  is known about them yet. All blocks of that leaf then start on the grid of its largest block, because where one block
  jumped (a rare word's row in an embedding) its neighbours will;
* down with the leaf, an octave a step: so that a falling gradient keeps its digits;
* down below the leaf's largest block, an octave in 32 steps: blocks of small values win digits, and jumps of blocks to
  the height of their leaf cost at most one round in about a hundred steps.

Error of a sum of L lanes, besides the one rounding of the result to float32: at most L/2 units, and typically
0.29 sqrt(L). A unit is between 2**-28 S and 2**-27 S for the S of the leaf's largest block in the step before (more
after a fall by more than an octave). What is smaller than half a unit, or subnormal, counts as 0.

Bitwise the same on every machine, even where subnormal numbers are flushed to zero: all arithmetic on values is exact
(powers of two), but for the roundings named above, which IEEE 754 fixes, and no subnormal number is ever needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.errors import JobError
from meshmend.job.protocol.rounds import MOST_LANES
from meshmend.job.reduction.base import Flat, Levels, NonFinite, Reduction
from meshmend.job.reduction.layout import Layout, Rooms

Floats = npt.NDArray[np.float32]
Wire = npt.NDArray[np.int32]

BLOCK = 1024
"""Neighbours of one leaf that have a common unit."""
HEADROOM = 3
"""Bits left free when a grid is chosen: S may grow 8 to 16 times from one step to the next without a second round."""
LOW, HIGH = -125, 96
"""Exponents of the finest grid (subnormal numbers are less than half a unit) and of the coarsest (2**31 units are a
float32)."""
OCTAVE = 5
FALL = 1 << OCTAVE
"""Steps in which a block falls one octave below its leaf; levels are kept in such fractions of an octave."""
FRESH = -(2**15)
"""The level of blocks of which nothing but zeros was seen: their first values are only measured."""
ROOM = 2.0**31 - 2 * MOST_LANES
"""S must stay below this many units: 2**31, less what rounding can add."""
MOST = float(np.ldexp(ROOM, HIGH))
"""What S must not reach on the coarsest grid."""
ROOM_BITS = int(np.float64(ROOM).view(np.int64))
"""The bits of `ROOM` as a float64."""
COARSE = 3
"""Bits of a digit of S that hold its rounding: 2**-3 too much at worst."""
FLOOR = -126
"""The lowest digit of S begins at 2**-126, the least normal float32."""
GOOD, REDO, BAD = 0, 1, 2
"""The verdict of a device on a round."""
WIDE = 64
"""Rows of notes examined together."""
SMALL = 1 << 15
"""Gradients of up to this many numbers are rounded with numpy: loading compiled loops would take many steps' time."""


@dataclass(frozen=True, eq=False)
class ExactResult:
    """What a round gave: the sums, or which leaves stood against it (`redo` and `bad` name leaves by their index)."""

    sums: Floats | None = field(repr=False)
    """None unless the round is good: a sum is right or it is not used."""
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
            raise ValueError(f"{lanes} lanes were requested, but exact sums hold 1 to {MOST_LANES}: use fewer lanes")
        if block < 1 or min(leaves, default=0) < 0:
            raise ValueError(f"block {block} and leaves {list(leaves)} were given: sizes must not be negative")
        counts = np.array([-(-size // block) for size in leaves], np.int64)
        ends = np.cumsum([0, *leaves])
        begins = [np.arange(start, start + size, block) for start, size in zip(ends, leaves, strict=False)]
        self.size = int(ends[-1])
        self.small = self.size <= SMALL
        """Whether numpy does it all."""
        self.leaves = tuple(leaves)
        self._first = np.cumsum([0, *counts])  # each leaf's first block
        self._bounds = np.concatenate([*begins, ends[-1:]]).astype(np.int64)
        self.leaf_of = np.repeat(np.arange(len(leaves)), counts)  # each block's leaf
        full = np.flatnonzero(counts)
        self._begins = self._first[full]  # of leaves that have blocks, the first, and how many
        self._blocks = counts[full]
        self._octaves = 31 - COARSE - lanes.bit_length()  # of a digit of S: `lanes` times its most fits an int32
        digits = -(-(128 - FLOOR) // self._octaves)
        self.worth = np.ldexp(1.0, FLOOR - COARSE + self._octaves * np.arange(digits))  # what its 1 is worth
        self.level = np.full(len(self.leaf_of), FRESH, np.int32)
        """Each block's, in fractions of an octave: an array that never changes, another one for every move."""
        self._factors: tuple[Floats, Floats] | None = None

    @property
    def digits(self) -> tuple[int, int]:
        """How many digits S has in the notes of a block, and the octaves that one of them holds."""
        return len(self.worth), self._octaves

    @property
    def factors(self) -> tuple[Floats, Floats]:
        """Return the grid as factors per block: to bring values onto it, and off it."""
        if self._factors is None:
            bits, one = self.exponents << 23, np.int32(127 << 23)  # of float32: the exponent, and 1.0
            off, on = bits + one, one - bits
            fresh = self.level == FRESH
            off[fresh] = on[fresh] = 0  # their values are measured, not added
            self._factors = on.view(np.float32), off.view(np.float32)
        return self._factors

    @property
    def wire_size(self) -> int:
        """Number of int32 on the wire: the gradient's, then the notes."""
        return self.size + len(self.leaf_of) * (len(self.worth) + 1)

    @property
    def exponents(self) -> npt.NDArray[np.int32]:
        """Each block's e: its unit is 2**e (and -1024 where nothing is known yet)."""
        return (self.level + (FALL - 1)) >> OCTAVE

    def state(self) -> Levels:
        """All there is to know about the grid, two bytes a block."""
        return self.level.astype(np.int16)

    def restore(self, state: Levels) -> None:
        """Take over the grid of another `Exact` of the same leaves and block."""
        level = np.array(state, np.int32)
        known = level[level != FRESH]
        if level.shape != self.level.shape or ((known < LOW * FALL) | (known > HIGH * FALL)).any():
            raise JobError(
                f"a grid of shape {level.shape} with levels {known.min(initial=0)} to {known.max(initial=0)} was given "
                f"for {len(self.level)} blocks: give the `state()` of an `Exact` of the same leaves and block"
            )
        self.move(level)

    def move(self, level: npt.NDArray[np.int32]) -> None:
        """Take these levels, which were found by the rules of `judge`."""
        self.level, self._factors = level, None

    def wire(self) -> Wire:
        """Return an empty wire, for callers without shared memory."""
        return np.zeros(self.wire_size, np.int32)

    def add(self, wire: Wire, gradient: Floats, leaf: int | None = None) -> None:
        """Round one lane's gradient to the grid and add it to the wire: the flat buffer, or leaf by leaf.

        In a round all workers together add at most `lanes` gradients, or the notes could overflow.
        """
        first, last = (0, len(self.leaf_of)) if leaf is None else (int(self._first[leaf]), int(self._first[leaf + 1]))
        begin, end = self._bounds[first], self._bounds[last]
        if gradient.dtype != np.float32 or gradient.size != end - begin:
            raise ValueError(f"{gradient.size} {gradient.dtype} values were given: {end - begin} float32 are expected")
        flat = np.ascontiguousarray(gradient).reshape(-1)
        values, notes = self._split(wire)
        quantise = _quantise_small if self.small else _quantise
        quantise(
            values[begin:end], notes[first:last], flat, flat.view(np.int32),
            self._bounds[first : last + 1] - begin, self.factors[0][first:last], 1 / self.worth, self._octaves,
        )  # fmt: skip

    def finish(self, wire: Wire, out: Floats | None = None) -> ExactResult:
        """The sums of all lanes, from the wire summed over all workers; then the grid for the next step.

        A pure function of the wire and the grid, so all workers decide the same, even one that gets the wire late.
        """
        values, notes = self._split(wire)
        sums = np.empty(self.size, np.float32) if out is None else out
        if sums.dtype != np.float32 or sums.shape != (self.size,):
            raise ValueError(f"`out` is {sums.shape} {sums.dtype}: ({self.size},) float32 is expected")
        unit = self.factors[1]
        against = self.judge(notes)
        if against is not None:
            return against
        if self.small:
            np.multiply(values.astype(np.float32), np.repeat(unit, np.diff(self._bounds)), out=sums)
        else:
            _float32(values, self._bounds, unit, sums)
        return ExactResult(sums)

    def judge(self, notes: Wire) -> ExactResult | None:
        """Return what is wrong with a round, by its notes; None, and set the grid of the next step, if it is good.

        A pass over all blocks takes 0.05 ms for a model of 10**8 numbers, so there are few, and no needless ones.
        """
        seen = _seen(notes)
        spread = np.zeros(len(notes))
        for column in np.flatnonzero(seen[:-1]):  # in this order on every machine
            spread += notes[:, column] * self.worth[column]
        if seen[-1] or spread.max(initial=0) >= MOST:
            return ExactResult(None, bad=self._named(np.flatnonzero((notes[:, -1] != 0) | (spread >= MOST))))
        exponent = (spread.view(np.int64) >> 52).astype(np.int32) - 1022  # as `np.frexp` finds it; of 0, the least
        used = exponent > -1022
        need = np.clip(exponent - (31 - HEADROOM), LOW, HIGH) * FALL
        if not (all_used := used.all()):
            need[~used] = FRESH
        top = np.repeat(np.maximum.reduceat(need, self._begins), self._blocks)
        # Few come near the limit: only those are examined closely. A fresh block's is far below all that is not 0.
        limit = self.exponents
        near = np.flatnonzero(exponent - limit >= 31)
        small = near[spread[near] >= np.ldexp(ROOM, limit[near])]
        if len(small):
            jumped = np.zeros(len(self.leaves), bool)
            jumped[self.leaf_of[small]] = True
            self.move(np.where(jumped[self.leaf_of], np.maximum(self.level, top), self.level))
            return ExactResult(None, redo=self._named(small))
        # With the leaf, an octave at most; a block in use that its leaf allows to stay, a fraction of one.
        fall = np.clip(self.level - top, used.astype(np.int32), FALL)
        if not all_used:
            fall[top == FRESH] = 0
        self.move(np.maximum(self.level - fall, need))
        return None

    def _split(self, wire: Wire) -> tuple[Wire, Wire]:
        """The values, and the notes with a row for each block."""
        if wire.dtype != np.int32 or wire.shape != (self.wire_size,):
            raise ValueError(f"a wire of {wire.shape} {wire.dtype} was given: ({self.wire_size},) int32 is expected")
        return wire[: self.size], wire[self.size :].reshape(len(self.leaf_of), len(self.worth) + 1)

    def _named(self, blocks: npt.NDArray[np.int64]) -> tuple[int, ...]:
        return tuple(np.unique(self.leaf_of[blocks]).tolist())


class ExactSum(Reduction):
    """Lanes are rounded to the common grid and added as integers."""

    number = 3
    reduction = "exact"
    dtype = np.dtype(np.int32)
    nonfinite = (NonFinite.ERROR, NonFinite.SKIP)
    checks_itself = sliceable = True

    def __init__(self, layout: Layout, lanes: int) -> None:
        super().__init__(layout, lanes)
        self._exact = Exact([leaf.size for leaf in layout.leaves], lanes)
        self.size = self._exact.wire_size

    def add(self, buffer: Flat, arrays: Iterable[Flat], *, first: bool) -> None:
        """Add one lane's gradients."""
        if first:
            buffer[:] = 0
        if self._exact.small:  # one call for all leaves: what numpy costs is calls
            self._exact.add(buffer, np.concatenate([array.astype(np.float32, copy=False) for array in arrays]))
            return
        for leaf, array in enumerate(arrays):
            self._exact.add(buffer, array.astype(np.float32, copy=False), leaf)

    def finish(self, total: Flat, step: int, rooms: Rooms = ()) -> list[Flat] | None:
        """The summed leaves; None where the grid was too fine and has been widened."""
        outcome = self._exact.finish(np.ascontiguousarray(total))
        self.layout.check_finite(outcome.bad, step)
        if outcome.sums is None:
            return None
        self.layout.check_integers(self.layout.parts(outcome.sums), step)
        self.layout.check_range(self.layout.parts(outcome.sums), step)
        return self.layout.shaped(self.layout.parts(outcome.sums), copy=True, rooms=rooms)

    @property
    def grid(self) -> Exact:
        """All workers round to it."""
        return self._exact

    def state(self) -> Levels:
        """The grid: all workers must round alike. Before a total has moved it, there is nothing to know of it.

        So it is the same before the first lane and after it, when a newcomer is told of it.
        """
        found = self._exact.state()
        return found if (found != FRESH).any() else found[:0]

    def restore(self, state: Levels) -> None:
        """Take over a grid."""
        self._exact.restore(state if len(state) else np.full(len(self._exact.level), FRESH, np.int16))


def _seen(notes: Wire) -> Wire:
    """A row that is 0 where the whole column is: of the digits, two or three are in use."""
    rows = len(notes) - len(notes) % WIDE
    wide = notes[:rows].reshape(-1, WIDE * notes.shape[1])  # numpy goes through long rows many times as fast
    found = np.concatenate([np.bitwise_or.reduce(wide, axis=0).reshape(WIDE, -1), notes[rows:]])
    seen: Wire = np.bitwise_or.reduce(found, axis=0)
    return seen


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


def _quantise_small(
    wire: Wire, notes: Wire, gradient: Floats, bits: Wire, bounds: npt.NDArray[np.int64],
    per_unit: Floats, per_digit: npt.NDArray[np.float64], octaves: int,
) -> None:  # fmt: skip
    """The same as `_quantise`, bit for bit, with numpy."""
    if not len(gradient):
        return
    magnitude = np.maximum.reduceat(bits & np.int32(0x7FFFFFFF), bounds[:-1])
    finite = magnitude < 0x7F800000
    notes[:, -1] += ~finite
    used = finite & (magnitude >= 0x00800000)
    blocks = np.flatnonzero(used)
    digit = ((magnitude[blocks] >> 23) - 127 - FLOOR) // octaves
    largest = magnitude[blocks].view(np.float32).astype(np.float64)
    notes[blocks, digit] += np.ceil(largest * per_digit[digit]).astype(np.int32)
    scale = np.zeros(len(magnitude), np.float32)
    scale[blocks] = np.where(
        largest * per_unit[blocks] < 2.0**31, per_unit[blocks], 0
    )  # S will tell, the round is void
    each = np.repeat(scale, np.diff(bounds))
    if finite.all():
        wire += np.rint(gradient * each).astype(np.int32)
    else:
        wire += np.rint(np.where(each != 0, gradient, 0) * each).astype(np.int32)


@kernel
def _float32(wire: Wire, bounds: npt.NDArray[np.int64], unit: Floats, sums: Floats) -> None:
    """From integers back to float32: rounded once, to nearest even."""
    for block in range(len(bounds) - 1):
        here = slice(bounds[block], bounds[block + 1])
        whole, values, scale = wire[here], sums[here], unit[block]
        for i in range(len(whole)):
            values[i] = np.float32(whole[i]) * scale
