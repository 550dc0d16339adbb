"""What is done when something fails: one class per policy, told of each change of the mesh, in charge of an account.

    wait      stand still until all is repaired, then restart from the last checkpoint
    restart   restart from the last checkpoint on the largest rectangle of whole hosts; after a repair that allows a
              larger one, write a checkpoint and restart there if that pays before the next failure on average
    spare     restart from the last checkpoint with a spare host in the place of the dead one; wait if none is left
    route     continue around the hole with the state the live chips hold: notice, plan, redo the step; the same after a
              repair, when the newcomer gets its state from a neighbour
    reload    route around the hole too, but from the last checkpoint, as a job must whose state is sharded

Assumed, for all of them: a failure stops the job at once and is noticed after `detect`; a failure while restarting
begins that again; a repair is known beforehand and needs no noticing. In favour of the other policies: `restart`
divides its batch over any rectangle (in whole lanes) and never fails on what lies outside it; a spare fits any place,
at full speed (as with optical switches between hosts), never fails while it stands by, and a repaired host becomes a
spare without a pause. A dead link takes the host of its first end out of a rectangle, or one spare.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from meshmend.base.registry import Registry
from meshmend.errors import SimulateError
from meshmend.mesh import Mesh
from meshmend.mesh.hole import Hole, dead
from meshmend.simulator.fleet.chip_hours import Account, Cause
from meshmend.simulator.fleet.history import Change, History
from meshmend.simulator.fleet.rectangles import Rectangle, hosts_out, rectangle
from meshmend.simulator.fleet.speeds import Speeds


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What standing still and starting again take, in hours."""

    interval: float
    """Working time between two checkpoints; infinite for none."""
    checkpoint: float
    detect: float
    restart: float
    reroute: float


@dataclass(frozen=True)
class Site:
    """What all policies know: the mesh, the costs, the spare hosts, the speeds around holes."""

    mesh: Mesh
    costs: Costs
    spares: int
    speeds: Speeds
    calm: float = math.inf
    """Mean hours between failures of anything."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rectangles", {})

    def rectangle(self, hole: Hole) -> Rectangle:
        """The largest rectangle without the hole, found once."""
        known: dict[Hole, Rectangle] = self._rectangles  # type: ignore[attr-defined]
        if hole not in known:
            known[hole] = rectangle(self.mesh, hole)
        return known[hole]


class Policy(ABC):
    """One job under one policy."""

    routes: ClassVar[bool] = False
    """Whether it routes around holes, so that the speeds around them must be known."""
    uses_spares: ClassVar[bool] = False
    """Whether spare hosts stand by for it."""

    def __init__(self, site: Site, account: Account) -> None:
        self.site, self.account = site, account
        self.detect = (Cause.DETECT, site.costs.detect)
        self.restart = (Cause.RESTART, site.costs.restart)

    @abstractmethod
    def change(self, change: Change) -> None:
        """Something failed, or works again; the account stands at that time."""

    def _again(self, speed: float) -> None:
        """After a failure: from the last checkpoint, at this speed; 0 waits."""
        self.account.rollback()
        self.account.speed = speed
        self.account.pause(self.detect, *([self.restart] if speed else []))

    def _resume(self, speed: float) -> None:
        """After a repair: begin at this speed, with what is saved first if the job is at work."""
        noticing = self.account.left(Cause.DETECT)
        save = (Cause.CHECKPOINT, self.site.costs.checkpoint if self.account.unsaved else 0.0)
        if not save[1]:
            self.account.saved()
        self.account.speed = speed
        self.account.pause(noticing, save, self.restart)


class Wait(Policy):
    """Wait until everything is repaired."""

    def change(self, change: Change) -> None:
        if change.failed:
            self._again(0.0)
        elif not change.hole:
            self._resume(1.0)


class Restart(Policy):
    """Continue on a smaller mesh."""

    def __init__(self, site: Site, account: Account) -> None:
        super().__init__(site, account)
        self.where = site.rectangle(())

    def change(self, change: Change) -> None:
        best = self.site.rectangle(change.hole)
        if change.failed and self.where.holds(self.site.mesh, change.piece):
            self.where = best
            self._again(self._speed(best))
        elif not change.failed and self._pays(best):
            self.where = best
            self._resume(self._speed(best))

    def _pays(self, larger: Rectangle) -> bool:
        gain = self._speed(larger) - self._speed(self.where)
        pause = self.site.costs.restart + self.site.costs.checkpoint
        return gain > 0 and gain * self.site.calm > pause * self._speed(self.where)

    def _speed(self, where: Rectangle) -> float:
        return self.site.speeds.of_rectangle(where.high, where.wide)


class Spare(Policy):
    """A spare host takes the dead one's place."""

    uses_spares = True

    def __init__(self, site: Site, account: Account) -> None:
        super().__init__(site, account)
        self.out: set[tuple[int, ...]] = set()

    def change(self, change: Change) -> None:
        before, self.out = self.out, hosts_out(self.site.mesh, change.hole)
        enough = len(self.out) <= self.site.spares
        if change.failed and self.out != before:
            self._again(1.0 if enough else 0.0)
        elif not change.failed and enough and not self.account.speed:
            self._resume(1.0)


class Route(Policy):
    """Around the hole, with the state that survives."""

    routes = True

    def change(self, change: Change) -> None:
        noticing = self.detect if change.failed else self.account.left(Cause.DETECT)
        self.account.speed = self.site.speeds.of(change.hole)
        if len(dead(self.site.mesh, change.hole)[0]) == self.site.mesh.size:
            self.account.rollback()  # no chip is left that holds the state
        self.account.pause(noticing, (Cause.REROUTE, self.site.costs.reroute))


class Reload(Policy):
    """Around the hole, from the last checkpoint."""

    routes = True

    def change(self, change: Change) -> None:
        speed = self.site.speeds.of(change.hole)
        if change.failed:
            self._again(speed)
        else:
            self._resume(speed)


POLICIES: Registry[type[Policy]] = Registry(
    "policy",
    SimulateError,
    {"wait": Wait, "restart": Restart, "spare": Spare, "route": Route, "reload": Reload},
)


def follow(policy: str, site: Site, history: History, *, trace: bool = False) -> Account:
    """One job's account under a policy."""
    account = Account(site.mesh.size, site.costs.interval, site.costs.checkpoint, trace=trace)
    job = POLICIES[policy](site, account)
    for change in history.changes:
        account.run(change.time)
        job.change(change)
    account.run(history.hours)
    return account
