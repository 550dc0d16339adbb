"""The courier (`python -m meshmend.job.courier.courier`): the MPI process beside a worker that carries its sums.

It holds nothing of its own: parts, totals and progress lie in the memory it shares with the worker, so it can be
replaced at any moment. It never ends with an error status, which would leave the other couriers waiting for ever:
on any error it says so and kills itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from meshmend.base.processes import ExitProbe, kill
from meshmend.errors import JobError
from meshmend.job.courier.mpi import Mpi, Placed, position
from meshmend.job.courier.timings import Phase, Stopwatch, phase_of
from meshmend.job.faults.faults import Faults
from meshmend.job.protocol import (
    Cut,
    Divergence,
    Enlist,
    Evicted,
    Failure,
    Gather,
    Lost,
    Operation,
    Reduce,
    Revoke,
    Shrink,
    Total,
    Wait,
    Work,
    run_member,
)
from meshmend.job.reduction import bf16
from meshmend.job.reduction.wire import Footer
from meshmend.job.shm.segment import Segment, SharedMemory, ranks_of
from meshmend.job.transport.mesh_mpi import Placing
from meshmend.job.transport.shared_memory import Neighbours, host
from meshmend.telemetry.events import Died, Log, Repaired

PLANNERS = 2
"""How many couriers of a mesh are ready to plan: the first one left does it for all."""
DOOR = 0.002
"""Seconds between looks at whether this world may begin."""


class Beside:
    """A worker as its courier sees it, through shared memory."""

    def __init__(self, segment: Segment, before: Callable[[str], None], placing: Placing | None) -> None:
        self.segment = segment
        self.placing = placing
        self.before = before
        self.footer = Footer(segment["lanes"], segment["ranks"])
        self.watch = ExitProbe(segment["worker"], segment["born"])
        self.account = Total((), {}, 0)
        """What the last total said."""

    def begin(self, round: int, lanes: tuple[int, ...]) -> None:
        """Ask for a part."""
        self.segment.ask(round, lanes)

    def ready(self, seconds: float) -> bool:
        """Look, or sleep until the worker rings; end with it, so that MPI tells the others."""
        if self.segment["answered"] != self.segment["asked"]:
            self.segment.listen("courier", seconds)
        ready = self.segment["answered"] == self.segment["asked"]
        if not ready and self.watch.is_exiting():
            os.kill(os.getpid(), signal.SIGKILL)
        return ready

    def part(self) -> npt.NDArray[np.generic]:
        """What the worker has put down."""
        return self.segment.buffer(0)

    def packed(self) -> int:
        """How much of it is bf16."""
        return self.segment["packed"]

    def total(self, round: int) -> npt.NDArray[np.generic]:
        """Where the total goes."""
        return self.segment.total(round)

    def read(self, total: npt.NDArray[np.generic]) -> Total:
        """The footer of a total."""
        self.account = self.footer.read(total)
        return self.account

    def state(self, round: int) -> npt.NDArray[np.uint8]:
        """Have the worker put its state down; it may first have to finish its update."""
        self.segment["state_asked"] += 1
        self.segment.ring("worker")
        while self.segment["state_round"] < round or not self.segment.path("state").exists():
            self.segment.listen("courier", 0.01)
        return self.segment.read_state()

    def adopt(self, round: int, state: npt.NDArray[np.uint8]) -> None:
        """Put another worker's state down for this one; the round it is of is the courier's `done`."""
        del round
        self.segment.write_state([state])
        self.segment["given"] = 1

    def fetch(self, rank: int) -> None:
        """The same from a worker of this host, without sending anything."""
        try:
            self.segment.fetch_state(rank)
        except OSError:
            raise Failure from None  # it has died, and its memory is gone
        self.segment["given"] = 1

    def card(self) -> list[int]:
        """Seat, host, the layout of the part, which worker of this rank it is, and which links of its chip are down."""
        down = self.placing.links.down() if self.placing is not None else 0
        return [self.segment.rank, host(), self.segment["layout"], self.segment["born"], down]

    def met(self, cards: npt.NDArray[np.int64]) -> Neighbours | Placed | None:
        """Parts of another layout than the others' cannot be added; all of one host see each other's memory."""
        ranks, hosts, layouts, births, down = cards.T.tolist()
        if len(set(layouts)) > 1:
            most = max(layouts, key=layouts.count)
            odd = ", ".join(str(rank) for rank, layout in zip(ranks, layouts, strict=True) if layout != most)
            raise JobError(
                f"the gradients of worker {odd} have other leaves, shapes or types than the others': all workers must "
                "return the same tree"
            )
        if self.placing is not None:
            return self.placing.over(dict(zip(ranks, down, strict=True)), self.segment)
        if len(set(hosts)) > 1:
            return None
        try:
            return Neighbours(self.segment, dict(zip(ranks, births, strict=True)), self.before)
        except (JobError, OSError):
            raise Failure from None  # one has died, and its memory is gone


class Courier:
    """One courier, from the start of its world to the end of the job."""

    def __init__(
        self, run: str, folder: Path, hosts: list[list[int]], world: int, placing: Placing | None = None
    ) -> None:
        self.hosts, self.parent = hosts, os.getppid()
        rank = [rank for host in hosts for rank in host][position()]
        self.segment = Segment(run, rank)
        with contextlib.suppress(JobError):  # a rank has just been given up
            if any(Segment(run, other)["packed"] for other in ranks_of(run)):
                bf16.load()
        self.enter(world)
        while not self.segment["lanes"]:
            time.sleep(0.005)
        self.memory = SharedMemory(self.segment)
        self.log = Log(folder, f"courier-{rank}")
        self.faults = Faults(rank, folder, self.log, self.segment["worker"])
        self.beside = Beside(self.segment, self.strike, placing)
        if placing is not None:
            placing.halfway = lambda: self.strike("relay")
        self.watch = Stopwatch(self.repaired)

    def enter(self, world: int) -> None:
        """Wait until the couriers of the world before this one are gone."""
        self.segment["standby"] = world
        while self.segment["world"] < world:
            time.sleep(DOOR)
        if self.segment["world"] > world:
            os.kill(os.getpid(), signal.SIGKILL)  # there is a newer one already
        self.segment["courier"], self.segment["daemon"] = os.getpid(), self.parent

    def run(self, *, repair: bool) -> None:
        """Carry sums until the job is over."""
        segment = self.segment
        carrier = Mpi(self.beside, segment["lanes"], lambda: bool(segment["over"]))
        if segment["formed"]:
            self.watch.failed(segment["formed"] / 1e9)
            self.watch.times[Phase.REFORM.value] = time.time() - segment["formed"] / 1e9
            segment["afresh"] = not repair
        carrier.drive(
            run_member(
                self.memory,
                segment["lanes"],
                segment["wanted"],
                world=segment["world"],
                fresh=bool(segment["fresh"]),
                repair=repair,
                hosts=self.hosts,
            ),
            self.before,
            self.watch.failed,
        )
        segment["over"] = 1
        segment.ring("worker")

    def before(self, operation: Operation) -> None:
        """Note since when a repair is under way: one that takes too long is cut short by a new world."""
        repair = isinstance(operation, (Revoke, Shrink, Gather, Enlist))
        self.segment["repairing"] = time.monotonic_ns() if repair else 0
        if repair and os.getppid() != self.parent:
            # mpirun or the daemon is dead and all couriers end; one that goes on meanwhile leaves the others behind.
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(operation, (Work, Wait)):
            self.segment["agreed"] = self.segment["world"]
        self.watch.began(operation)
        point = "allreduce" if isinstance(operation, Reduce) else phase_of(operation)
        if point:
            self.strike(point)

    def strike(self, point: str) -> None:
        """Bring about the failure that a test asked for here."""
        self.faults.strike(point, self.segment["step"])

    def wait_for_orders(self) -> None:
        """Be taken for stuck, so that the launcher forms a new world if it is still there for us."""
        self.segment["repairing"] = 1
        while os.getppid() == self.parent:
            time.sleep(DOOR)

    def repaired(self, noticed: float, times: dict[str, float]) -> None:
        """A repair is through."""
        self.log.write(
            Repaired(rank=self.segment.rank, round=self.memory.done, noticed=noticed, times=times,
                     active=sorted(self.beside.account.digests))
        )  # fmt: skip


def main(run: str, folder: Path, hosts: list[list[int]], world: int, mesh: list[str], *, repair: bool) -> None:
    """One courier's process."""
    try:
        placing = Placing(*mesh) if mesh else None
        if placing is not None and position() < PLANNERS:
            placing.warm()
        carry(Courier(run, folder, hosts, world, placing), repair=repair)
        sys.stdout.flush()
        os._exit(0)
    except (Failure, Lost):
        pass  # without repair, a world ends with its first failure; what is lost, the launcher sees too
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def carry(courier: Courier, *, repair: bool) -> None:
    """Carry sums to the end of the job; where the worker has no part in it any more, end that too."""
    segment = courier.segment
    try:
        courier.run(repair=repair)
        return
    except Evicted as error:
        print(f"meshmend: {error}: it is ended", file=sys.stderr, flush=True)
        courier.log.write(Died(rank=segment.rank, what="worker", how="evicted"))
    except JobError as error:
        segment.write_error(segment["step"], str(error), "", mistake=True)
    except Divergence as error:
        segment.write_error(segment["step"], str(error), str(error), mistake=False)
    except Cut as error:
        print(f"meshmend: {error}: they wait", file=sys.stderr, flush=True)
        courier.wait_for_orders()
        raise Failure from None
    kill(segment["worker"])
    raise Failure


if __name__ == "__main__":
    name, where, numbers, which, way, *mesh = sys.argv[1:]
    places = [[int(rank) for rank in host.split(",")] for host in numbers.split("/")]
    main(name, Path(where), places, int(which), mesh, repair=way == "repair")
