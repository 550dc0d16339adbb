"""The courier, `mpirun … python -m meshmend.train.courier`: the MPI process beside a worker that carries its sums.

It holds nothing of its own: parts, totals and progress lie in the memory it shares with the worker, so it can be
replaced at any moment. It never ends with an error status, which would leave the other couriers waiting for ever:
on any error it says so and kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback

import numpy as np
import numpy.typing as npt

from meshmend.train.mpi import Mpi, rank
from meshmend.train.protocol import Enlist, Evicted, Gather, Operation, Revoke, Shrink, Total, life
from meshmend.train.segment import Segment, SharedMemory
from meshmend.train.wire import Trailer


class Beside:
    """A worker as its courier sees it, through shared memory."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.trailer = Trailer(segment["lanes"], segment["seats"])

    def begin(self, round: int, lanes: tuple[int, ...]) -> None:
        """Ask for a part."""
        self.segment.ask(round, lanes)

    def ready(self) -> bool:
        """Look, or sleep for a moment until the worker rings."""
        if self.segment["answered"] != self.segment["asked"]:
            self.segment.listen("courier", 0.002)
        return self.segment["answered"] == self.segment["asked"]

    def part(self) -> npt.NDArray[np.generic]:
        """What the worker has put down."""
        return self.segment.buffer(0)

    def total(self, round: int) -> npt.NDArray[np.generic]:
        """Where the total goes."""
        return self.segment.total(round)

    def read(self, total: npt.NDArray[np.generic]) -> Total:
        """The trailer of a total."""
        return self.trailer.read(total)

    def state(self, round: int) -> npt.NDArray[np.uint8]:
        """Have the worker put its state down; it may first have to finish its update."""
        self.segment["state_asked"] += 1
        self.segment.ring("worker")
        while self.segment["state_round"] < round or not self.segment.path("state").exists():
            self.segment.listen("courier", 0.01)
        return np.frombuffer(self.segment.read_state(), np.uint8)

    def adopt(self, round: int, state: npt.NDArray[np.uint8]) -> None:
        """Put another worker's state down for this one; the round it is of is the courier's `done`."""
        del round
        self.segment.write_state(state)
        self.segment["given"] = 1


def note(segment: Segment, operation: Operation) -> None:
    """Tell the launcher since when a repair is under way: one that takes too long is cut short by a new world."""
    repair = isinstance(operation, (Revoke, Shrink, Gather, Enlist))
    segment["repairing"] = time.monotonic_ns() if repair else 0


def main(run: str, seats: list[int]) -> None:
    """One courier, from the start of its world to the end of the job."""
    segment = Segment(run, seats[rank()])
    segment["courier"] = os.getpid()
    while not segment["lanes"]:
        time.sleep(0.005)
    memory = SharedMemory(segment)
    carrier = Mpi(Beside(segment), segment["lanes"], over=lambda: bool(segment["over"]))
    try:
        carrier.drive(life(memory, segment["lanes"], segment["wanted"]), lambda operation: note(segment, operation))
        segment["over"] = 1
        segment.ring("worker")
        sys.stdout.flush()
        os._exit(0)
    except Evicted as error:
        print(f"meshmend: {error}: it is ended", file=sys.stderr, flush=True)
        os.kill(segment["worker"], signal.SIGKILL)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], [int(seat) for seat in sys.argv[2].split(",")])
