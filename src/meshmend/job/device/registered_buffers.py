"""A worker's buffers in shared memory, registered with its device for as long as its messages go through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from meshmend.errors import DeviceError, MissingLibrary
from meshmend.job.device.choose import host_memory_of
from meshmend.job.device.registered import Registration
from meshmend.job.shm.buffers import TOTALS
from meshmend.job.shm.segment import WorkerSegment


class Where(Protocol):
    """Where the state is."""

    device: Callable[[], int | None]
    """The CUDA device that lanes are accumulated on; None for the host."""
    on_device: bool
    """Whether the state is on a device, and lanes are accumulated there."""


class RegisteredBuffers:
    """Registered when they are used, since pinning takes time and memory; nothing where no device is."""

    def __init__(self, segment: WorkerSegment, footer: int, where: Where) -> None:
        self._segment, self._footer, self._where = segment, footer, where
        self._registration: Registration | None = None
        self._pageable = ""
        """Why they are not registered, where they should be."""

    def held(self) -> Registration | None:
        """The buffers as the device reaches them."""
        if not self._where.on_device or self._pageable:
            return None
        try:
            if self._registration is None and (memory := host_memory_of(self._where.device())) is not None:
                self._registration = Registration(memory)
            if self._registration is not None:
                self._registration.hold(self._segment.buffers.whole, self._segment.worker.generation)
        except (DeviceError, MissingLibrary) as error:
            self._registration, self._pageable = None, f"through pageable memory, {error}"
        return self._registration

    def note(self) -> str:
        """How the device copies to and from them, in words."""
        return "copied by DMA" if self._registration is not None else self._pageable

    @property
    def copying(self) -> bool:
        """Whether the device still copies the part down."""
        return self._registration is not None and self._registration.copying

    def copied(self) -> Iterator[int]:
        """Wait until the part is there; yield how many numbers of it have arrived."""
        if self._registration is not None:
            yield from self._registration.copied()

    def take_pieces(self, round: int) -> None:
        """Begin to copy to the device what is ready of the total of a round."""
        courier, held = self._segment.courier, self._registration
        attempt = courier.attempt  # before what it is about: see `mailbox.py`
        if held is not None and (gathered := courier.gathered):
            held.take(
                attempt,
                1 + round % TOTALS,
                self._segment.buffers.wire.size - self._footer,
                gathered,
                self._segment.worker.generation,
            )

    def total(self, total: npt.NDArray[np.generic]) -> Any | None:
        """Return a total that is here on the device; None if it stays."""
        held = self.held()
        return None if held is None else held.total(self._segment.courier.attempt, total[: len(total) - self._footer])

    def figures(self) -> tuple[float, float, float] | None:
        """Of the last sum: seconds to copy down, to add, and from a part to its total, in all."""
        held = self._registration
        return None if held is None else (held.down, self._segment.courier.busy / 1e6, held.whole)

    def close(self) -> None:
        """Unregister them."""
        if self._registration is not None:
            self._registration.close()
            self._registration = None
