"""Where a worker's part goes and its total comes from: buffers in the host's memory, or device memory.

The members of a group decide that alike (`transport/`), and the courier tells its worker; before they have met, a
worker that has device memory brings its part there. The footer of a message is always in the buffer, where couriers
read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from meshmend.base.processes import cores_to_spare
from meshmend.errors import DeviceError, MissingLibrary
from meshmend.job.device.base import Memory
from meshmend.job.device.block_messages import LATE, PartInBlock, TotalInBlocks
from meshmend.job.device.choose import memory_of
from meshmend.job.device.registered_buffers import RegisteredBuffers
from meshmend.job.device.states import LentStates
from meshmend.job.device.sums import DeviceSums
from meshmend.job.reduction.base import WireFormat
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.marks import where_is
from meshmend.job.shm.records import Outcome, Task, Way, Where
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.shm.sliced import Overtaken, SlicedTotals
from meshmend.job.state.digest import Digester


def told(way: Way, why: str = "") -> str:
    """Where sums take place, and why not elsewhere."""
    words = {
        Way.DEVICE: "in device memory",
        Way.SHARED: "in shared memory",
        Way.MPI: "over MPI",
        Way.MESH: "over the links of the mesh",
    }
    return f"sums {words[way]}" + (f" ({why})" if why and way is not Way.DEVICE else "")


class Messages:
    """The messages of one worker, wherever they are."""

    def __init__(self, segment: WorkerSegment, footer: int, end: Callable[[str], NoReturn]) -> None:
        self._segment, self._footer, self._end = segment, footer, end
        self.device: Callable[[], int | None] = lambda: None
        """The CUDA device that lanes are accumulated on; None for the host."""
        self.on_device = False
        """Whether the state is on a device, and lanes are accumulated there."""
        self.buffers = RegisteredBuffers(segment, footer, self)
        """Those on the host, if the device accesses them directly."""
        self._sliced = SlicedTotals(segment, footer)
        """Totals on the host that are not in one piece."""
        self._unsure: int | None = None
        """The round of such a total, if the last one was."""
        self._memory: Memory | None = None
        self._side = WorkerSide(segment)
        self._sums: DeviceSums | None = None
        self.states: LentStates | None = None
        """The state that this worker lends, or was lent, in device memory."""
        self.wire: WireFormat | None = None
        """The format of the messages that there is room for; None before there is any."""
        self._why = ""
        """Why there is no device memory, if there should be."""
        self._spare = cores_to_spare(segment.agent.ranks)
        self.meanwhile: Callable[[], None] = lambda: None
        """What is left to do while the device writes sums and the host waits for it."""

    def begin(self) -> None:
        """Look for device memory, in which a state can be lent; before this worker says that it is ready."""
        self._segment.worker.state_device = 0
        if not self.on_device:
            return
        try:
            memory = self._found()
        except (DeviceError, MissingLibrary) as error:
            self._why = str(error)
            return
        if memory is not None and (memory.on_host or self.device() is not None):
            self.states = LentStates(self._segment, memory)
            self._segment.worker.state_device = memory.number

    def digests(self) -> Digester | None:
        """What takes digests of the state on its device; None if the framework has to."""
        try:
            memory = self._found() if self.on_device else None
        except (DeviceError, MissingLibrary) as error:
            self._why = str(error)
            return None
        return None if memory is None or not (memory.on_host or self.device() is not None) else memory.digests()

    def _found(self) -> Memory | None:
        if self._memory is None:
            self._memory = memory_of(self.device())
        return self._memory

    def make(self, wire: WireFormat) -> None:
        """Have device memory for such messages besides the buffer, if there is any."""
        self._segment.worker.device = 0
        self.wire, size = wire, wire.size - self._footer
        try:
            if self._sums is None and size:
                memory = self._found()
                if memory is not None:
                    staged = not memory.on_host and self.device() is None
                    self._sums = DeviceSums(self._segment, memory, staged=staged)
            if self._sums is not None and size and self._sums.memory.serves(wire):
                self._sums.make(wire, size)
                self._segment.worker.device = self._sums.memory.number
        except (DeviceError, MissingLibrary) as error:
            self._why = str(error)

    def use(self, wire: WireFormat) -> None:
        """The next part has another head."""
        self.wire = wire
        if self._sums is not None and self._segment.worker.device:
            self._sums.use(wire)

    @property
    def spins(self) -> bool:
        """Whether to look for a total again and again, and not to sleep: the device waits too."""
        return self._used is not None and self.on_device and self._spare

    def note(self) -> str:
        """Return what to print about where sums take place; empty if no device is involved."""
        way = self._segment.courier.way
        if (self._sums is None and not self._why and not self.on_device) or way is Way.UNKNOWN:
            return ""
        why = self._why
        if not why and self._sums is not None:
            why = self._sums.why or "not all workers are on one host and have device memory of one kind"
        return told(way, "; ".join(word for word in (why, self.buffers.note()) if word))

    def close(self) -> None:
        """The job is over: give device memory back."""
        self._segment.worker.part_on_device = False
        self._segment.worker.device = 0
        if self._sums is not None:
            self._sums.close()
            self._sums = None
        if self.states is not None:
            self._segment.worker.state_device = 0
            self.states.close()
            self.states = None
        self.buffers.close()
        self._sliced.close()

    def choose(self) -> None:
        """Decide where the part of a round goes, before the first of its lanes."""
        own = self._segment.worker
        own.part_on_device = bool(own.device) and self._segment.courier.way in (Way.UNKNOWN, Way.DEVICE)

    def asked(self, round: int, *, keep: bool) -> None:
        """The part of a round is wanted; `keep`: with the lanes that it has so far, whichever round they were for."""
        self.settle()  # of the sum before, in the same step
        if not keep:
            self.choose()
        if self._sums is not None:
            self._sums.own.asked(round, keep=keep and self._used is not None)

    @property
    def _used(self) -> DeviceSums | None:
        return self._sums if self._segment.worker.part_on_device else None

    def part(self, size: int, round: int) -> Any:
        """Return where the sum of this worker's lanes goes, this many numbers: an array, or a `DevicePart`."""
        sums = self._used
        if sums is not None:
            return PartInBlock(sums, round, size) if self.on_device else sums.own.part(round)[:size]
        part = self._segment.buffers.part[:size]
        return part if (held := self.buffers.held()) is None else held.part(part)

    def publish(self, round: int) -> None:
        """The part is whole."""
        if (sums := self._used) is not None:
            sums.own.publish(round)

    def bring_nothing(self, round: int) -> None:
        """A part without lanes."""
        self._segment.buffers.part[:] = 0
        if (sums := self._used) is not None:
            sums.own.zero(round)

    def total(self, round: int) -> Any:
        """The total of a round that is done, an array or a `DeviceTotal`; the footer is in the buffer."""
        self.settle()
        self._unsure = round if self._sliced.has(round) else None
        if self._unsure is None:
            self._sliced.release()
        if self.states is not None:
            self.states.release()  # its courier may have died before it could say so
        if self._sums is None or where_is(self._segment.courier, round) is not Where.DEVICE:
            if self._sums is not None:
                self._sums.release()
            if self._unsure is not None:
                return self._sliced.total(round)
            total = self._segment.buffers.total(round)
            found = self.buffers.total(total)
            return total if found is None else found
        there = TotalInBlocks(self._sums, round, self._end, lambda: self.meanwhile())
        return there if self.on_device else there.flat()

    def settle(self) -> None:
        """The last total in device memory has been read, and it was the total; or this worker ends."""
        try:
            if self._sums is not None:
                self._sums.settle()
        except Overtaken:
            self._end(LATE)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While this lasts, the last total is read; a worker that was too late must exit, whatever it has read."""
        try:
            yield
        finally:
            try:
                if self._unsure is not None:
                    self._sliced.check(self._unsure)
            except Overtaken:
                self._end(LATE)

    def _open(self, members: Sequence[int]) -> Outcome:
        """Map the buffers of the members, unless a device takes totals from this worker's own.

        Whether that is registered or not: the device may still be reading when the framework has returned, and nobody
        would look at the marks after that.
        """
        if self.device() is not None or self.buffers.held() is not None:
            return Outcome.CANNOT
        return self._sliced.open(tuple(zip(members[::2], members[1::2], strict=False)))

    def serve(self) -> None:
        """Carry out the courier's requests; a worker whose device fails must exit."""
        request = self._side.device_request()
        if request is None:
            return
        wanted = request.body
        try:
            if wanted.task is Task.OPEN:
                self._side.answer_device(request, self._open(wanted.members))
            elif wanted.task is Task.EXPORT and self._sliced.has(wanted.round):
                self._sliced.export(wanted.round)
                self._side.answer_device(request, Outcome.DONE)
            elif wanted.task in (Task.TAKE, Task.RELEASE):
                done = Outcome.CANNOT if self.states is None else self.states.serve(wanted.task)
                self._side.answer_device(request, done)
            elif self._sums is not None:
                self._sums.serve()
        except Overtaken:
            self._end(LATE)
        except (DeviceError, OSError) as error:
            self._end(str(error))
