"""A worker's part of the tables: its copies of slices, and the rows of others as it needs them.

Rows are read from whoever has them as they are before this step, its holders in turn: the owner first, and where that
one is dead or late, a buddy. Where none has them yet, one of them is still making its last update.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

import numpy as np
from xxhash import xxh3_64_intdigest

from meshmend.base.clocks import ROWS_SILENCE, TOGETHER
from meshmend.base.units import workers
from meshmend.errors import JobError
from meshmend.job.embeddings.contacts import Contacts
from meshmend.job.embeddings.files import SliceFiles
from meshmend.job.embeddings.optimizers import RowOptimizer
from meshmend.job.embeddings.others import ALIVE, Others, Standing
from meshmend.job.embeddings.placement import ALL_HERE, Hosts, Placement
from meshmend.job.embeddings.requests import EVERY, Wanted
from meshmend.job.embeddings.shape import Floats, Ids, Shape, stretches
from meshmend.job.embeddings.shelf import BUSY, Shelf
from meshmend.job.protocol import Lost

ADVICE = ": resume the run from its last checkpoint"
First = Callable[[Ids], Floats]
"""What gives rows of one slice as they are before the first update: made from a seed, or read from a checkpoint."""


def raised(why: str) -> NoReturn:
    """Give up where nobody else is there."""
    raise JobError(why)


class TableHolder:
    """What one worker holds of the tables, and how it gets the rest."""

    def __init__(
        self, shape: Shape, optimizer: RowOptimizer, placement: Placement, shelf: Shelf, rank: int = 0,
        others: Others | None = None, rest: Callable[[], None] = lambda: None,
        give_up: Callable[[str], NoReturn] = raised,
    ) -> None:  # fmt: skip
        self.shape, self.placement, self.shelf = shape, placement, shelf
        self.version = 0
        """The step before which the tables are."""
        self.first: First = shape.first
        self.digests: dict[int, int] = {}
        """Of the copies here: each follows from the one before and from the rows that have changed since."""
        self.contacts: Contacts | None = None
        """Where workers of several hosts ask each other; None on one host."""
        self._optimizer, self._rank, self._others, self._rest = optimizer, rank, others, rest
        self._give_up = give_up

    def reach(self, others: Others, contacts: Contacts) -> None:
        """Read from workers of several hosts."""
        self._others, self.contacts = others, contacts

    def rows(self, wanted: Ids) -> Floats:
        """The weights of these rows, as they are before this step."""
        bounds, width = self.shape.bounds, self.shape.width
        used, which = np.unique(wanted, return_inverse=True)  # frequent rows come once, over a network too
        ends = np.searchsorted(used, bounds)
        places = {number: slice(ends[number], ends[number + 1]) for number in np.flatnonzero(np.diff(ends)).tolist()}
        found = np.empty((len(used), width), np.float32)
        if self.placement.holders is None:
            taken = {number: self.first(used[here]) for number, here in places.items()}
        else:
            taken = self._taken({number: used[here] - bounds[number] for number, here in places.items()})
        for number, here in places.items():
            found[here] = taken[number][:, :width]
        rows: Floats = found[which]
        return rows

    def _taken(self, wanted: Wanted) -> dict[int, Floats]:
        """Rows of slices, with what the optimizer remembers of them, from whoever has a copy."""
        copies = self.shelf.copies
        found = {number: np.array(copies[number].rows[places]) for number, places in wanted.items() if number in copies}
        since = 0.0
        while missing := {number: places for number, places in wanted.items() if number not in found}:
            standing = self._ask(missing, found) if self._others is not None else set()
            if len(found) == len(wanted):
                break
            # One that is done with its last update and has no copy is not the one that had it.
            if not standing & ALIVE:
                since = since or time.monotonic()
                # Before that, they may have heard before us that the run is halted, or a network may heal.
                if time.monotonic() - since > (ROWS_SILENCE if Standing.SILENT in standing else TOGETHER):
                    number = min(missing.keys() - found.keys())
                    self._give_up(f"all workers that held slice {number} of the embedding tables are dead{ADVICE}")
            self._rest()
        return found

    def _ask(self, missing: Wanted, found: dict[int, Floats]) -> set[Standing]:
        """Ask the holders of these slices, each in its turn, but a rank once in each; add what they have to `found`.

        Returns how those stand that have been asked for slices of which nothing was found.
        """
        assert self.placement.holders is not None and self._others is not None, "there are copies somewhere"
        lines = {number: [*self.placement.holders[number]] for number in missing}
        standing: dict[int, set[Standing]] = {number: set() for number in missing}
        while any(lines.values()):
            asked: dict[int, dict[int, Ids | slice]] = {}
            for number, line in lines.items():
                if line and (rank := line.pop(0)) != self._rank:
                    asked.setdefault(rank, {})[number] = missing[number]
            for rank, some in asked.items():
                rows, stands = self._others.read(rank, self.version, some)
                found |= rows
                for number in some.keys() - rows.keys():
                    standing[number].add(stands)
            for number in lines.keys() & found.keys():
                lines[number] = []
        return {one for number, every in standing.items() if number not in found for one in every}

    def fill(self) -> None:
        """Make the copies that this worker is to have with its next part."""
        for fill in self.placement.fills_to(self._rank):
            if fill.slice not in self.shelf.copies:  # one after another: each is large
                self.shelf.put(fill.slice, self._taken({fill.slice: EVERY})[fill.slice], self.version)
                self.digests[fill.slice] = 0  # known when all holders have said it

    @property
    def _hosts(self) -> Hosts:
        return ALL_HERE if self.contacts is None else self.contacts.hosts()

    def after(self, members: Collection[int], joined: Collection[int]) -> None:
        """A sum has arrived, and these took part in it."""
        try:
            self.placement = self.placement.after(members, joined, self._hosts)
        except Lost as error:
            self._give_up(f"{error}{ADVICE}")

    def update(self, step: int, members: Collection[int], rows: Ids, gradients: Floats) -> None:
        """Update the slices held here with the gradients of all lanes; the tables are those before `step` then."""
        self.placement = self.placement.updated(members, self._hosts)
        held = self.placement.held_by(self._rank)
        self.shelf.keep(held)
        bounds = self.shape.bounds
        for number in held - self.shelf.copies.keys():  # with the first update
            self.shelf.put(number, self.first(np.arange(bounds[number], bounds[number + 1])), self.version)
        self.first = self.shape.first  # files of a checkpoint are not needed any more
        order, places = stretches(rows, bounds)
        in_order, width = rows[order], self.shape.width
        changed = dict(places)
        for number in sorted(held):
            copy = self.shelf.copies[number]
            copy.version = BUSY
            if number in changed:
                here = changed[number]
                used, sums = summed(in_order[here], gradients[order[here]])
                local = used - bounds[number]
                old = copy.rows[local]
                new, memory = self._optimizer.update(old[:, :width], sums, old[:, width:])
                made = np.concatenate([new, memory], axis=1)
                if made.shape != old.shape or made.dtype != np.float32:
                    raise JobError(
                        f"the optimizer of the tables turned float32 of shape {old.shape} into {made.dtype} of shape "
                        f"{made.shape}; it must return rows and memory with the shapes and types that it was given"
                    )
                copy.rows[local] = made
                self.digests[number] = xxh3_64_intdigest(made.tobytes(), seed=xxh3_64_intdigest(local.tobytes()))
            copy.version = step
        self.digests = {number: self.digests.get(number, 0) for number in held}
        self.version = step

    def close(self) -> None:
        """The job is over."""
        if self._others is not None:
            self._others.close()

    def slice(self, number: int) -> Floats:
        """A slice that is held here, or that nobody has updated yet."""
        copy = self.shelf.copies.get(number)
        bounds = self.shape.bounds
        return self.first(np.arange(bounds[number], bounds[number + 1])) if copy is None else np.array(copy.rows)

    def share(self, slices: Collection[int], held: Mapping[int, Collection[int]]) -> frozenset[int]:
        """Those of these slices that this worker writes to a checkpoint; `held` is what all that are here hold."""
        ranks = sorted(held)
        if self.placement.holders is None:
            return frozenset(number for number in slices if ranks[number % len(ranks)] == self._rank)
        having = {number: [rank for rank in ranks if number in held[rank]] for number in slices}
        if lost := [number for number, line in having.items() if not line]:
            self._give_up(f"all workers that held slice {lost[0]} of the embedding tables are dead{ADVICE}")
        return frozenset(number for number, line in having.items() if line[number % len(line)] == self._rank)

    def resume(self, version: int, first: First) -> None:
        """Begin with a checkpoint."""
        self.version, self.first = version, first

    def pass_over(self, step: int) -> None:
        """A step that has no update leaves the rows as they are."""
        for copy in self.shelf.copies.values():
            copy.version = step
        self.version = step

    def files(self) -> dict[str, Any] | None:
        """The checkpoint that rows are read from, for a newcomer; None where they follow from the seed, or from copies.

        A newcomer is told no checkpoint when it is started.
        """
        before = self.placement.holders is None
        return self.first.facts() if before and isinstance(self.first, SliceFiles) else None

    def adopt(self, placement: Placement, version: int, files: dict[str, Any] | None) -> None:
        """Become a member that holds nothing yet."""
        self.shelf.keep(frozenset())
        self.placement, self.version, self.digests = placement, version, {}
        self.first = self.shape.first if files is None else SliceFiles.known(files, self.shape)

    def said(self) -> list[tuple[int, int, int]]:
        """What this worker says of its slices: (slice, column, digest of the last change), for `RowLayout.say`."""
        if self.placement.holders is None:
            return []
        return [
            (number, self.placement.takers(number).index(self._rank), digest & 0xFFFFFFFF)
            for number, digest in self.digests.items()
            if digest and self._rank in self.placement.takers(number)
        ]

    def compare(self, said: Ids) -> None:
        """Halt where the holders of a slice have changed it in different ways; called before `after`."""
        least = np.where(said > 0, said, np.iinfo(np.int64).max).min(axis=1)
        differ = np.flatnonzero((said.max(axis=1) > 0) & (said.max(axis=1) != least))
        if len(differ):
            number = int(differ[0])
            self._give_up(
                f"the copies of slice {number} of the embedding tables that "
                f"{workers(self.placement.takers(number))} hold differ: a bit flipped in the memory of "
                f"one of them, or the optimizer gave two results on the same bits{ADVICE}"
            )


def summed(rows: Ids, gradients: Floats) -> tuple[Ids, Floats]:
    """Each row once, and the sum of its gradients: added one after another, in the order given."""
    used, which = np.unique(rows, return_inverse=True)
    width = gradients.shape[1]
    sums = np.zeros(len(used) * width, np.float32)
    # `np.add.at` alone keeps the order: `np.add.reduceat` may add in another one, for other shapes.
    np.add.at(sums, (which[:, None] * width + np.arange(width)).reshape(-1), gradients.reshape(-1))
    return used, sums.reshape(-1, width)
