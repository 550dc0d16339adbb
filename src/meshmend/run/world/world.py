"""A world of couriers: one mpirun, and the ranks it carries sums for.

Couriers that come up wait at the door until they are let in (`Agent.enter`). So a world can be made ready while the one
before it still works, and changing over takes milliseconds instead of the second that starting takes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from meshmend.base.processes import die_with_parent
from meshmend.run.spec import RunSpec
from meshmend.run.world.mpirun import memory_folder, mpirun_line

START = 60.0
"""Seconds that the couriers of a world may take to come up: one whose daemons cannot reach each other never does."""


@dataclass(frozen=True)
class World:
    """One mpirun."""

    number: int
    members: Mapping[int, int]
    """The ranks, and which worker each has: one that dies and is started again is not a member any more."""
    why: str
    """For people."""
    line: Sequence[str]
    process: subprocess.Popen[str]
    began: float = field(default_factory=time.monotonic)

    def has(self, rank: int, worker: int) -> bool:
        """Whether a worker in a rank is a member; one that was started later is not."""
        return self.members.get(rank) == worker

    @property
    def ended(self) -> bool:
        """Whether mpirun is gone, and all its couriers with it."""
        return self.process.poll() is not None

    def late(self, standby: Sequence[int]) -> bool:
        """Whether some courier has not come up, and will not any more."""
        return min(standby, default=self.number) < self.number and time.monotonic() - self.began > START

    def kill(self) -> None:
        """End it at once: what mpirun would clean up lies in our own folder."""
        self.process.kill()
        self.process.wait()


def open_world(
    order: RunSpec, number: int, ranks: Mapping[str, Mapping[int, int]], why: str, say: Callable[[str], None]
) -> World:
    """Start a world for these ranks and their workers, by host."""
    repair = order.on_failure != "restart"
    numbers = {host: list(some) for host, some in ranks.items()}
    line = mpirun_line(order, number, numbers, repair=repair)
    process = subprocess.Popen(
        line, env={**os.environ, "TMPDIR": str(memory_folder(order.run))}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent,
    )  # fmt: skip
    assert process.stdout is not None
    _pump(process.stdout, output_of(order), say)
    every = {rank: worker for some in ranks.values() for rank, worker in some.items()}
    return World(number, every, why, line, process)


def output_of(order: RunSpec) -> Path:
    """Where all that couriers and mpirun print is kept."""
    return order.folder / "output" / "couriers.log"


def why_none(order: RunSpec) -> str:
    """What to say when mpirun ends again and again before any courier is there."""
    path = output_of(order)
    said = path.read_text(errors="replace").strip().splitlines()[-12:] if path.exists() else []
    cause = "mpirun ended before any courier was there; meshmend doctor looks for the cause. It said:"
    return "\n".join([cause, *said])


def _pump(stream: IO[str], path: Path, say: Callable[[str], None]) -> None:
    """Keep what is printed; only the couriers' own words are for the user, the library's are not."""

    def copy() -> None:
        with path.open("a") as file:
            for line in stream:
                with contextlib.suppress(OSError):  # a full disk: mpirun must not wait for us because of that
                    file.write(line)
                    file.flush()
                if line.startswith("meshmend: "):
                    say(line.removeprefix("meshmend: ").rstrip())

    threading.Thread(target=copy, daemon=True).start()
