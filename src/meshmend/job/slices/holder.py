"""A worker's side of sharded updates, on the host: all weights, and its copies of slices of the optimizer's state.

The other side is `sharding/member.py`: each operation of a round is a method here. What travels between workers are
arrays of numbers, and how they travel is a transport's business.

A holder takes the total of its own slices. Where sums are exact, it also takes the notes of all blocks, which are 1 %
of a message: the grid of the next round follows from them, and all members must have the same one. Sums in float32 have
no notes; all holders of a slice add up its parts in the same order, so they have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from meshmend.errors import JobError
from meshmend.job.protocol import NEVER, Evicted, Failure
from meshmend.job.reduction.base import Levels
from meshmend.job.reduction.exact import Exact, ExactResult, Floats, Wire
from meshmend.job.reduction.norms import Blocks, Sums
from meshmend.job.reduction.pieces import Pieces, Tensor, pieces_of
from meshmend.job.sharding import cut
from meshmend.job.sharding.slices import SLICES, cut_between
from meshmend.job.slices.measures import Stages, Work

State = dict[str, npt.NDArray[Any]]
Digests = tuple[int, int]
"""Of a slice's weights, and of what the optimizer remembers of them."""


@dataclass(frozen=True)
class SliceOptimizer:
    """An optimizer as two functions of a slice (see `elementwise.py`)."""

    init: Callable[[Floats, Pieces], State]
    """What it remembers at the beginning."""
    update: Callable[[Floats, Floats, State, Pieces], Any]
    """(weights, gradients, state, …) → the new weights and state, of the same shapes and types.

    Where it needs norms, it is a generator that returns them: see `measures.py`."""
    wants: tuple[int, ...] = ()
    """Of how many arrays it needs norms, at each stage."""
    tensors: bool = False
    """Whether it needs whole tensors: then no slice ends within one."""


@dataclass
class Copy:
    """A copy of what the optimizer remembers of a slice."""

    state: State
    version: int = NEVER
    """The round after which it is."""
    agreed: Digests | None = None
    """The digests that all holders agreed on, unless it has been updated since."""


@dataclass
class Totals:
    """What a member has of a round's sums."""

    round: int = NEVER
    slices: dict[int, Wire] = field(default_factory=dict)
    notes: Wire = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    unit: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    """Of each block, in this round."""
    judged: bool = False
    against: ExactResult | None = None
    """What stands against the round: then nothing is updated, and all compute it again on the grid that has moved."""


class Changed(Evicted):
    """A slice is not what its holders agreed on."""

    def __init__(self, number: int) -> None:
        super().__init__(f"slice {number} changed between two updates: a bit flipped in memory")
        self.number = number


class Holder:
    """What one worker of a sharded job holds."""

    def __init__(
        self, leaves: Sequence[int], weights: Floats, optimizer: SliceOptimizer, lanes: int, slices: int = SLICES,
        tensors: Sequence[Tensor] | None = None,
    ) -> None:  # fmt: skip
        if weights.dtype != np.float32 or weights.shape != (sum(leaves),):
            raise JobError(
                f"weights of shape {weights.shape} and type {weights.dtype} were given for leaves of {sum(leaves)} "
                "numbers: give one flat float32 array"
            )
        self.sizes = tuple(leaves)
        """How many numbers each leaf of the weights has."""
        self.slicing = (cut_between if optimizer.tensors else cut)(leaves, slices)
        self.exact = Exact(leaves, lanes)
        blocks = Blocks(leaves)
        self._bounds = blocks.bounds
        every = tensors or [(str(leaf), (size,)) for leaf, size in enumerate(leaves)]
        bounds = self.slicing.bounds
        self.pieces = cache(lambda number: pieces_of(every, bounds[number], bounds[number + 1]))
        """The tensors that a slice has numbers of."""
        self.stages = Stages(blocks, optimizer.wants)
        """What updates wait for, if they need norms of whole tensors."""
        self.weights = weights.copy()
        """All of them; a job has them in the memory that its courier maps too."""
        self.version = NEVER
        """The last round that was updated here."""
        self.copies: dict[int, Copy] = {}
        self.expected: dict[int, int] = {}
        """The digest of each slice's new weights, as its holders agreed on it."""
        self.totals = Totals()
        self.plain = False
        """Whether sums are float32 numbers as they are."""
        self._optimizer = optimizer
        self._first: Callable[[int], State] = self.initial

    def initial(self, number: int) -> State:
        """What the optimizer remembers of a slice at the beginning."""
        return self._optimizer.init(self.of(number), self.pieces(number))

    def hold(self, slices: Collection[int]) -> None:
        """Hold exactly these from now on; before the first update, what is missing follows from weights or a file."""
        missing = set(slices) - self.copies.keys()
        if missing and self.version != NEVER:
            raise JobError(
                f"slice {min(missing)} is not here after round {self.version}: it must be copied from a holder"
            )
        self.copies = {number: copy for number, copy in self.copies.items() if number in slices}
        self.copies |= {number: Copy(self._first(number)) for number in missing}

    def of(self, number: int) -> Floats:
        """The weights of a slice."""
        return self.weights[self.slicing.numbers(number)]

    def scatter(self, round: int, parts: Sequence[Wire], slices: Collection[int]) -> None:
        """Add up these slices of all members' parts, and the notes of all blocks."""
        size, rows = self.exact.size, len(self.exact.leaf_of)
        totals = Totals(round, unit=self.exact.factors[1])
        for number in slices:
            here = self.slicing.numbers(number)
            totals.slices[number] = np.add.reduce([part[here] for part in parts], axis=0, dtype=np.int32)
        notes = np.add.reduce([part[size:] for part in parts], axis=0, dtype=np.int32)
        totals.notes = notes.reshape(rows, -1)
        self.totals = totals

    def take(self, round: int, total: Wire) -> None:
        """Take the sums of a round from a message, in which those of the slices held here are complete."""
        size, rows = self.exact.size, len(self.exact.leaf_of)
        held = {number: total[self.slicing.numbers(number)] for number in self.copies}
        if self.plain:
            self.totals = Totals(round, held, judged=True)
            return
        notes = total[size : self.exact.wire_size].reshape(rows, -1)
        self.totals = Totals(round, held, notes, self.exact.factors[1])

    def pass_over(self, round: int) -> None:
        """A round that was nobody's sum leaves everything as it is."""
        for copy in self.copies.values():
            copy.version = round
        self.version = max(self.version, round)

    def measure(self, round: int, stage: int) -> Sums:
        """What norms depend on at this stage, of the slices held here; nothing where nothing is to be updated."""
        self.stages.begin(round)
        if self.totals.round == round and self.judge() is None:
            for number in sorted(self.copies):
                self.stages.measure(number, stage, self.slicing.blocks[number], partial(self._begun, number))
        found: Sums = self.stages.table[stage]
        return found

    def _begun(self, number: int) -> tuple[Work, Pieces]:
        """The update of a slice, about to begin."""
        copy, pieces = self.copies[number], self.pieces(number)
        if copy.agreed is not None and copy.agreed != self.digests(number):
            raise Changed(number)
        return self._optimizer.update(self.of(number), self._sums(number), copy.state, pieces), pieces

    def update(self, round: int, slices: Collection[int]) -> None:
        """Update these slices, those that have not been; `Evicted` where a copy is not what its holders agreed on."""
        if self.totals.round == round:
            self.judge()  # also where nothing is held
        for number in sorted(slices):
            copy = self.copies[number]
            if copy.agreed is not None and copy.agreed != self.digests(number):
                raise Changed(number)
            if copy.version == round:
                continue
            if copy.version != round - 1 or self.totals.round != round:
                raise JobError(
                    f"slice {number} is of round {copy.version} and totals of {self.totals.round}: none can be updated "
                    f"in round {round}"
                )
            if self.judge() is None:
                self._apply(number, copy)
                copy.agreed = None
            copy.version = round
        self.version = max(self.version, round)

    def judge(self) -> ExactResult | None:
        """What stands against the round whose totals are here; the grid moves, once per round."""
        totals = self.totals
        if not totals.judged:
            totals.against, totals.judged = self.exact.judge(totals.notes), True
        return totals.against

    def _sums(self, number: int) -> Floats:
        """The gradients of a slice, summed over all lanes."""
        if self.plain:
            return np.array(self.totals.slices[number], np.float32)
        blocks = self.slicing.in_blocks(number)
        lengths = np.diff(self._bounds[blocks.start : blocks.stop + 1])
        return self.totals.slices[number].astype(np.float32) * np.repeat(self.totals.unit[blocks], lengths)

    def _apply(self, number: int, copy: Copy) -> None:
        here = self.of(number)
        if self._optimizer.wants:
            weights, state = self.stages.finish(number)
        else:
            weights, state = self._optimizer.update(here, self._sums(number), copy.state, self.pieces(number))
        if weights.shape != here.shape or weights.dtype != np.float32:
            raise JobError(
                f"the optimizer returned weights of shape {weights.shape} and type {weights.dtype} for a slice of "
                f"{len(here)} float32 numbers: it must return as many, of the same type"
            )
        here[:], copy.state = weights, state

    def digests(self, number: int) -> Digests:
        """Of a slice that is held here."""
        state = 0
        for name, array in sorted(self.copies[number].state.items()):
            state = xxh3_64_intdigest(f"{name} {array.dtype} {array.shape}".encode(), seed=state)
            state = digest_of(array, state)
        return digest_of(self.of(number)), state

    def agree(self, digests: Mapping[int, Digests]) -> None:
        """All holders of each slice have these."""
        self.expected = {number: weights for number, (weights, _) in digests.items()}
        for number, copy in self.copies.items():
            copy.agreed = digests[number]

    def receive(self, number: int, weights: Floats) -> None:
        """Take the new weights of a slice from one of its holders; `Failure` where they are not what was agreed on."""
        if digest_of(weights) != self.expected[number]:
            raise Failure
        self.of(number)[:] = weights

    def fill(self, number: int, copy: Copy) -> None:
        """Hold a slice from now on, as another holder has it; weights of that round are here already."""
        state = {name: array.copy() for name, array in copy.state.items()}
        self.copies[number] = Copy(state, copy.version, copy.agreed)

    def given(self) -> tuple[int, Floats, Levels]:
        """What a newcomer takes from one member; slices it takes from several."""
        return self.version, self.weights.copy(), self.exact.state()

    def adopt(self, version: int, weights: Floats, grid: Levels) -> None:
        """Become a member with these weights, which holds nothing yet."""
        self.version, self.copies = version, {}
        self.weights[:] = weights
        self.exact.restore(grid)

    def resume(self, weights: Floats, first: Callable[[int], State]) -> None:
        """Begin with these weights, and with what `first` has of each slice."""
        self.version, self.copies, self._first = NEVER, {}, first
        self.weights[:] = weights


def digest_of(array: npt.NDArray[Any], seed: int = 0) -> int:
    """Of an array's bits."""
    return int(xxh3_64_intdigest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, seed=seed))
