"""Where a worker's part goes and its total comes from: its buffer in the host's memory, or device memory.

The members of a group decide that alike (`transport/`), and the courier tells its worker; before they have met, a
worker that has device memory brings its part there. The footer of a message is always in the buffer, where couriers
read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from meshmend.errors import DeviceError, MissingLibrary
from meshmend.job.device.choose import memory_of
from meshmend.job.device.sums import DeviceSums, Overtaken
from meshmend.job.reduction.base import WireFormat
from meshmend.job.shm.records import Way
from meshmend.job.shm.segment import WorkerSegment


def told(way: Way, why: str = "") -> str:
    """Where sums take place, and why not elsewhere."""
    words = {
        Way.DEVICE: "in device memory",
        Way.SHARED: "in shared memory",
        Way.MPI: "over MPI",
        Way.MESH: "over the links of the mesh",
    }
    return f"sums {words[way]}" + (f" ({why})" if why and way is not Way.DEVICE else "")


class Places:
    """The messages of one worker, wherever they are."""

    def __init__(self, segment: WorkerSegment, footer: int, end: Callable[[str], NoReturn]) -> None:
        self._segment, self._footer, self._end = segment, footer, end
        self.device: Callable[[], int | None] = lambda: None
        """The CUDA device that lanes are accumulated on; None for the host."""
        self._sums: DeviceSums | None = None
        self.wire: WireFormat | None = None
        """The format of the messages that there is room for; None before there is any."""
        self._why = ""
        """Why there is no device memory, where there should be."""

    def make(self, wire: WireFormat) -> None:
        """Have device memory for such messages besides the buffer, if there is any."""
        self._segment.worker.device = 0
        self.wire, size = wire, wire.size - self._footer
        try:
            if self._sums is None and size:
                memory = memory_of(self.device())
                if memory is not None:
                    staged = not memory.on_host and self.device() is None
                    self._sums = DeviceSums(self._segment, memory, staged=staged)
            if self._sums is not None and size and self._sums.memory.serves(wire):
                self._sums.make(wire, size)
                self._segment.worker.device = self._sums.memory.number
        except (DeviceError, MissingLibrary) as error:
            self._why = str(error)

    def note(self) -> str:
        """What to say about where sums take place; nothing where no device has to do with it."""
        way = self._segment.courier.way
        if (self._sums is None and not self._why) or way is Way.UNKNOWN:
            return ""
        if way is Way.DEVICE or self._why or self._sums is None:
            return told(way, self._why)
        return told(way, self._sums.why or "not all workers are on one host and have device memory of one kind")

    def close(self) -> None:
        """The job is over: give device memory back."""
        self._segment.worker.part_on_device = False
        self._segment.worker.device = 0
        if self._sums is not None:
            self._sums.close()
            self._sums = None

    def choose(self) -> None:
        """Decide where the part of a round goes, before the first of its lanes."""
        own = self._segment.worker
        own.part_on_device = bool(own.device) and self._segment.courier.way in (Way.UNKNOWN, Way.DEVICE)

    @property
    def _used(self) -> DeviceSums | None:
        return self._sums if self._segment.worker.part_on_device else None

    def part(self, size: int) -> Any:
        """Where the sum of this worker's lanes goes: so many numbers."""
        sums = self._used
        return self._segment.buffers.part[:size] if sums is None else sums.part

    def publish(self) -> None:
        """The part is whole."""
        if (sums := self._used) is not None:
            sums.publish()

    def bring_nothing(self) -> None:
        """A part without lanes."""
        self._segment.buffers.part[:] = 0
        if (sums := self._used) is not None:
            sums.zero()

    def total(self, round: int) -> Any:
        """The total of a round that is done; the footer is in the buffer."""
        if self._sums is None or self._segment.courier.on_device != round:
            if self._sums is not None:
                self._sums.release()
            return self._segment.buffers.total(round)
        try:
            return self._sums.take(round)
        except Overtaken:
            self._end("the others went on without this worker, and their device memory holds later sums already")

    def serve(self) -> None:
        """Do what the courier needs a device for; a worker whose device fails is of no use to the others."""
        try:
            if self._sums is not None:
                self._sums.serve()
        except (DeviceError, OSError) as error:
            self._end(str(error))
