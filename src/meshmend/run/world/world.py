"""A world of couriers: one mpirun, and the ranks it carries sums for.

New couriers wait until their world is entered (`Agent.enter`). So the next world can be prepared while this one works,
and the switch takes milliseconds instead of the second that starting takes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from meshmend.base.clocks import SOCKETS_OPEN
from meshmend.base.marked_lines import marked
from meshmend.base.private_network import PrivateNetwork
from meshmend.base.processes import die_with_parent
from meshmend.base.sockets import LOCAL, keep_to
from meshmend.job.shm import world_folder
from meshmend.run.clusters.hosts import HERE
from meshmend.run.news import CourierSaid
from meshmend.run.spec import RunSpec
from meshmend.run.world.mpirun import mpirun_line, own_network


@dataclass(frozen=True)
class World:
    """One mpirun."""

    number: int
    line: Sequence[str]
    process: subprocess.Popen[str]
    memory: Path
    """Open MPI's session folder on this host; the agents remove the rest when the next world is entered."""

    @property
    def ended(self) -> bool:
        """Whether mpirun is gone, and all its couriers with it."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill mpirun immediately, and clean up in its place."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.memory, ignore_errors=True)


def open_world(
    spec: RunSpec, number: int, members: Mapping[str, Mapping[int, int]], tell: Callable[[CourierSaid], None],
    *, repair: bool, network: str = "",
) -> World:  # fmt: skip
    """Start a world for these ranks, by host; its couriers wait until the world is entered.

    On several hosts it keeps to a network, if one is given.
    """
    memory = world_folder(spec.run, number)
    ranks = {host: list(some) for host, some in members.items()}
    line = mpirun_line(spec, number, ranks, repair=repair, network=network)
    local = list(members) == [HERE]
    alone = own_network() if local and len(spec.places) == 1 else None
    environment = {**os.environ, "TMPDIR": str(memory)}
    process = subprocess.Popen(
        line, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=partial(_begin, alone),
        start_new_session=True,  # only the launcher handles Ctrl-C and a closed terminal
    )  # fmt: skip
    assert process.stdout is not None
    if alone is None and (reach := LOCAL if local else network):
        threading.Thread(target=keep_to, args=[process.pid, reach, SOCKETS_OPEN], name="sockets", daemon=True).start()
    _pump(process.stdout, output_of(spec), tell)
    return World(number, line, process, memory)


def _begin(alone: PrivateNetwork | None) -> None:
    """Called in the child that becomes mpirun."""
    if alone is not None:
        alone.enter()
    die_with_parent()


def output_of(spec: RunSpec) -> Path:
    """Return the file that keeps everything that couriers and mpirun print."""
    return spec.folder / "output" / "couriers.log"


def why_none(spec: RunSpec) -> str:
    """Explain that mpirun kept exiting before any courier came up."""
    path = output_of(spec)
    said = path.read_text(errors="replace").strip().splitlines()[-12:] if path.exists() else []
    cause = "mpirun ended before any courier came up; run meshmend doctor to find the cause. mpirun printed:"
    return "\n".join([cause, *said])


def _pump(stream: IO[str], path: Path, tell: Callable[[CourierSaid], None]) -> None:
    """Keep everything that is printed; show the user only the couriers' own messages, not Open MPI's."""

    def copy() -> None:
        with stream, contextlib.ExitStack() as stack:
            file: IO[str] | None = None
            for line in stream:
                with contextlib.suppress(OSError):  # on a full disk, mpirun must not wait for us
                    file = file or stack.enter_context(path.open("a"))
                    file.write(line)
                    file.flush()
                if (text := marked(line)) is not None:
                    tell(CourierSaid(text))

    threading.Thread(target=copy, daemon=True).start()
