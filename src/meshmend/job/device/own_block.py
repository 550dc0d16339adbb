"""The block of device memory of one worker: where its part goes. `block_layout.py` says what lies where."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from meshmend.job.device.base import Block, Memory, Place
from meshmend.job.device.block_layout import layout_for
from meshmend.job.device.passing import About, Offer
from meshmend.job.protocol import NEVER
from meshmend.job.reduction.base import Reduction, WireFormat
from meshmend.job.reduction.packing import Packing
from meshmend.job.shm.marks import mark, membership
from meshmend.job.shm.segment import WorkerSegment


class OwnBlock:
    """A worker's own block, from `make` to `close`; other workers get it from its `Offer`."""

    def __init__(self, segment: WorkerSegment, memory: Memory, *, staged: bool) -> None:
        self._segment, self.memory = segment, memory
        self._making = threading.Lock()
        """For the block, which another thread gives out; never held for long."""
        self._staged = staged
        """Whether parts and totals go through the host, because the framework's sums are there."""
        self._block: Block | None = None
        self._offer: Offer | None = None
        self._brought = NEVER
        """The round whose part was brought here last."""
        self._membership = 0
        """Of the group that the present part was asked for in."""
        self._packings: dict[Reduction, Packing | None] = {}
        """One for each sum of a step."""

    @property
    def block(self) -> Block:
        """The block."""
        assert self._block is not None, "there are no messages yet"
        return self._block

    def make(self, wire: WireFormat, size: int) -> None:
        """Have room for messages of this format, of which the first `size` numbers are summed here."""
        with self._making:
            if self._block is not None:
                self._block.close()
                self._block = None
            self.layout = layout_for(wire, size, self._segment.agent.ranks)
            # A process that has the old block mapped keeps what it holds.
            own, self._brought = self._segment.worker, NEVER
            own.even_part = own.odd_part = own.even_total = own.odd_total = NEVER
            self._block = self.memory.allocate(self.layout.nbytes)
            # Whoever has no lanes in the round that it makes it in brings nothing, and must not bring what was there.
            self.memory.zero((self._block, 0), self.layout.nbytes)
            self.memory.finish()
            self.host = np.zeros(size, wire.kind.dtype) if self._staged else None
            """Where the framework puts parts and gets totals from, if that is the host's memory."""
        if self._offer is None:
            self._offer = Offer(self._segment.files.folder, self._segment.rank, self._describe)

    def use(self, wire: WireFormat) -> None:
        """The next message has this head; there is room for it."""
        self.layout = replace(self.layout, wire=wire)

    def close(self) -> None:
        """Give it back; a process that has it mapped keeps it."""
        if self._offer is not None:
            self._offer.close()
            self._offer = None
        with self._making:
            for packing in self._packings.values():
                if packing is not None:
                    packing.close()
            self._packings = {}
            if self._block is not None:
                self._block.close()
                self._block = None

    def _describe(self) -> tuple[About, int] | None:
        with self._making:
            if self._block is None:
                return None
            about = About(self._segment.birth, self._segment.worker.generation, self.memory.number, self._block.nbytes)
            return about, self._block.export()

    def packing(self, reduction: Reduction) -> Packing | None:
        """What packs messages of this reduction; None if the framework has to make them."""
        if reduction not in self._packings:
            self._packings[reduction] = self.memory.packing(reduction)
        return self._packings[reduction]

    def asked(self, round: int, *, keep: bool) -> None:
        """The part of a round is wanted; `keep`: the lanes in the last part belong to it.

        They are those of another round where notes took the place of its sum.
        """
        self._membership = membership(self._segment.courier)
        before = self._brought
        if not keep or before in (NEVER, round):
            return
        source, into = self.layout.part(self.block, before), self.bring(round)
        if source != into:
            self.memory.copy(into, source, self.layout.bytes_of(self.layout.size))

    def bring(self, round: int) -> Place:
        """Return where this worker puts its part of a round from now on: others may still read an older one there."""
        own, now = self._segment.worker, mark(round, self._membership)
        if round % 2 and own.odd_part != now:
            own.odd_part = now
        elif not round % 2 and own.even_part != now:
            own.even_part = now
        self._brought = round
        return self.layout.part(self.block, round)

    def add_to(self, round: int, membership: int, begin: int) -> Place:
        """The same for its total, from a number on."""
        if round % self.layout.totals:
            self._segment.worker.odd_total = mark(round, membership)
        else:
            self._segment.worker.even_total = mark(round, membership)
        return self.layout.total(self.block, round, begin)

    def part(self, round: int) -> Any:
        """The same as an array, for frameworks that write to it themselves."""
        place = self.bring(round)
        return self.host if self.host is not None else self.view(place)

    def publish(self, round: int) -> None:
        """Finish the part on the device before the courier is told that it is complete."""
        if self.host is not None:
            self.memory.upload(self.host, self.bring(round))
        self.memory.finish()

    def zero(self, round: int) -> None:
        """Bring nothing."""
        self.memory.zero(self.bring(round), self.layout.bytes_of(self.layout.size))
        self.memory.finish()

    def lower(self, round: int) -> None:
        """Copy the part to the host's buffer."""
        self.memory.download(self.layout.part(self.block, round), self._segment.buffers.part[: self.layout.size])
        self.memory.finish()

    def lift(self, round: int) -> None:
        """Copy the part from there."""
        self.memory.upload(self._segment.buffers.part[: self.layout.size], self.bring(round))
        self.memory.finish()

    def view(self, place: Place) -> Any:
        """A whole message as an array."""
        return self.memory.view(place, self.layout.size, self.layout.wire)
