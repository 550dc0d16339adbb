"""Every kind of failure and how it is caused: those of `job/faults`, which strike processes, and those of a place."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bed import RUN, Bed
from keeper import Keeper

from meshmend.base.processes import is_alive, kill
from meshmend.job.faults import KINDS, Target
from meshmend.job.shm.inspect import Member
from meshmend.telemetry import Component

SPARE = 64
"""Blocks of a file system that are taken one by one."""


@dataclass
class Scene:
    """What a strike may touch."""

    bed: Bed
    keeper: Keeper
    dice: random.Random
    victim: Member
    host: str
    """A host that can be lost."""

    @property
    def target(self) -> Target:
        """The processes of the victim."""
        one = self.victim
        return Target(RUN, one.rank, one.worker, one.courier, one.mpirun, self.keeper.launcher, one.agent)

    def wait(self, least: float, most: float) -> None:
        """The trouble lasts so long."""
        time.sleep(self.dice.uniform(least, most))


@dataclass(frozen=True)
class Strike:
    """A kind of failure."""

    name: str
    strike: Callable[[Scene], None]
    """Returns when the trouble is over, from where on the run has to recover."""
    part: Component = Component.WORKER
    weight: float = 1.0
    """How often, compared with others: those that take long are rare."""
    members: int = 2
    """Members that must be active: with fewer, the run could not survive it."""
    of_rank: bool = False
    hosts: int = 1
    """Hosts that the run must have at least."""
    can: Callable[[Scene], bool] = lambda _: True
    """Whether this victim is one for it."""
    ends: Callable[[Scene], bool] = lambda _: True
    """Whether it has taken effect: before, the run cannot have recovered from it."""


STRIKES: dict[str, Strike] = {}


def add(strike: Strike) -> None:
    """Put a kind on the list."""
    STRIKES[strike.name] = strike


def from_registry(name: str, weight: float, ends: Callable[[Scene], bool] = lambda _: True, **more: Any) -> None:
    """One of `job/faults`."""
    kind = KINDS[name]
    assert kind.outside is not None

    def strike(scene: Scene) -> None:
        assert kind.outside is not None
        with scene.bed.seeing(host_of(scene)):
            kind.outside(scene.target)

    add(Strike(name, strike, kind.part, weight, kind.members, not kind.of_run, ends=ends, **more))


def host_of(scene: Scene) -> str:
    """The host of the victim."""
    found = [host for host in scene.bed.hosts for one in scene.bed.members_on(host) if one.rank == scene.victim.rank]
    return found[0] if found else scene.bed.hosts[0]


def is_far(scene: Scene) -> bool:
    """Whether the victim's agent is not the launcher."""
    return scene.victim.agent != scene.keeper.launcher


def found_out(scene: Scene) -> bool:
    """Whether the victim is gone."""
    return not scene.victim.alive


def taken_over(scene: Scene) -> bool:
    """Whether the launcher of now has the workers."""
    return any(one.agent == scene.keeper.launcher for one in scene.bed.members())


def mpirun_gone(scene: Scene) -> bool:
    """Whether the world is another's."""
    return not is_alive(scene.victim.mpirun)


from_registry("kill", 4)
from_registry("hang", 3, ends=found_out)
from_registry("slow", 2)
from_registry("courier", 4)
from_registry("courier-stop", 3)
from_registry("agent", 2, lambda scene: not is_alive(scene.victim.agent), hosts=2, can=is_far)
from_registry("mpirun", 3, ends=mpirun_gone)
from_registry("mpirun-stop", 2, ends=mpirun_gone)
from_registry("flip", 2, ends=found_out)


def _launcher(scene: Scene) -> None:
    process = scene.keeper.process
    KINDS["launcher"].outside(scene.target)  # type: ignore[misc]
    _await_next(scene, process)


def _term(scene: Scene) -> None:
    process = scene.keeper.process
    KINDS["term"].outside(scene.target)  # type: ignore[misc]
    _await_next(scene, process)


def _term_all(scene: Scene) -> None:
    process = scene.keeper.process
    for one in scene.bed.processes():
        kill(one, signal.SIGTERM)
    _await_next(scene, process)


def _await_next(scene: Scene, before: object) -> None:
    """Until another launcher is there."""
    until = time.monotonic() + 150
    while scene.keeper.process is before and scene.keeper.is_alive() and time.monotonic() < until:
        time.sleep(0.02)


def _pipe(scene: Scene) -> None:
    scene.keeper.deaf.set()


def _fill(scene: Scene, folder: Path, then: Callable[[], None] = lambda: None) -> None:
    """Leave no room in a file system for a while."""
    path = folder / "somebody-elses"
    with path.open("wb") as file:
        try:
            place = os.statvfs(folder)
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, place.f_bavail - SPARE) * place.f_frsize)
                file.seek(0, os.SEEK_END)
                while True:  # others write meanwhile: block by block, until there is no room
                    os.write(file.fileno(), bytes(place.f_frsize))
            then()
            scene.wait(0.2, 3.0)
        finally:
            path.unlink()


def _disk(scene: Scene) -> None:
    _fill(scene, scene.bed.disk)


def _memory(scene: Scene) -> None:
    """A worker dies while there is no memory to start another one with."""
    host = host_of(scene)
    _fill(scene, scene.bed.memory(host), lambda: kill(scene.victim.worker))


def _reboot(scene: Scene) -> None:
    process = scene.keeper.process
    scene.bed.lose(scene.host)
    scene.bed.boot(scene.host)
    if scene.host not in scene.bed.far:
        _await_next(scene, process)


def _lose(scene: Scene) -> None:
    """Away for longer than one waits for it, or nearly so."""
    scene.bed.cut(scene.host)
    scene.bed.lose(scene.host)
    scene.wait(0.0, 40.0)
    scene.bed.mend(scene.host)
    scene.bed.boot(scene.host)


def _part(scene: Scene) -> None:
    """Cut off for moments, or for longer than anybody waits."""
    scene.bed.cut(scene.host)
    scene.wait(0.5, 3.0) if scene.dice.random() < 0.6 else scene.wait(5.0, 35.0)
    scene.bed.mend(scene.host)


add(Strike("launcher", _launcher, Component.LAUNCHER, 2, 1, ends=taken_over))
add(Strike("term", _term, Component.LAUNCHER, 1, 1, ends=taken_over))
add(Strike("term-all", _term_all, Component.LAUNCHER, 1, 1, ends=taken_over))
add(Strike("pipe", _pipe, Component.LAUNCHER, 1, 1))
add(Strike("disk-full", _disk, Component.HOST, 1, 1))
add(Strike("memory-full", _memory, Component.WORKER, 1, 2, of_rank=True))
add(Strike("host-reboot", _reboot, Component.HOST, 0.5, ends=taken_over))
add(Strike("host-lost", _lose, Component.HOST, 0.3, hosts=2))
add(Strike("partition", _part, Component.HOST, 0.5, hosts=2))
