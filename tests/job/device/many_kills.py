"""`python -m tests.job.device.many_kills MEMORY KILLS WAY`: one worker sums with others that are killed, one by one.

WAY is how they add up: "direct", all parts each, or "slices".

Prints after each kill how many files it has open and how many blocks it has mapped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from meshmend.job.device import block_layout
from meshmend.job.device.stand_in import NAME
from meshmend.job.shm import home
from meshmend.job.shm.records import Outcome, Task
from tests.job.device.members import Courier, Member, part_of

DEADLINE = 60.0


def answered(courier: Courier) -> Outcome:
    deadline = time.monotonic() + DEADLINE
    while (outcome := courier.side.device_outcome()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return outcome


def victim() -> int:
    """A fork that is a worker and serves its courier until it is killed."""
    ready, said = os.pipe()
    child = os.fork()
    if child:
        os.close(said)
        assert os.read(ready, 1) == b"!"
        os.close(ready)
        return child
    member = Member(1)
    member.bring(1)
    os.write(said, b"!")
    while True:
        member.segment.worker_bell.wait(0.01)
        member.sums.serve()


def main(memory: str, kills: str, way: str) -> None:
    home.MEMORY = Path(memory)
    if way == "slices":
        block_layout.DIRECT = 0
    survivor, round = Member(0), -1
    survivor.bring(1)
    for _ in range(int(kills)):
        child = victim()
        other, round = Courier(1), round + 1
        both = [survivor.courier, other]
        other.ask(Task.MAP, 0, *both)
        survivor.courier.ask(Task.MAP, 0, *both)
        survivor.sums.serve()
        assert answered(other) is answered(survivor.courier) is Outcome.DONE
        other.segment.courier.done = round - 1
        for one in both if way == "slices" else ():
            one.ask(Task.ADD, round)
            survivor.sums.serve()
            assert answered(one) is Outcome.DONE
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        survivor.courier.done(round)
        assert (survivor.sums.take(round) == part_of(0) + part_of(1)).all(), "what a dead member had is still there"
        round += 1
        assert survivor.does(Task.MAP, 0, survivor) is Outcome.DONE
        assert way == "direct" or survivor.does(Task.ADD, round) is Outcome.DONE
        survivor.courier.done(round)
        assert (survivor.sums.take(round) == part_of(0)).all()
        del other, both
        print(len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count(NAME), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
