"""What follows a failure: one class per policy of `--on-failure`. A new policy is one class and its name here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshmend.run.supervisor.deaths import replace
from meshmend.run.supervisor.messages import WorldReason
from meshmend.run.supervisor.ranks import Rank
from meshmend.run.supervisor.restart import restart_all
from meshmend.run.supervisor.state import Policy, Turn
from meshmend.run.supervisor.worlds import end_world, form


@dataclass(frozen=True)
class Shrink:
    """The survivors continue with fewer workers."""

    repairs: ClassVar[bool] = True
    takes_hosts_back: ClassVar[bool] = False
    needs_spares: ClassVar[bool] = False

    def after_death(self, turn: Turn, rank: Rank) -> None:
        """Start no worker: the couriers repair their group."""

    def after_mpirun(self, turn: Turn, reason: WorldReason) -> None:
        """Form a new world under the live workers."""
        form(turn, reason)

    def after_hosts(self, turn: Turn, reason: WorldReason) -> None:
        """Form a new world without the lost hosts."""
        if turn.run.world is not None:
            end_world(turn)
            turn.run.reason = reason

    def awaits(self, rank: Rank) -> bool:
        """Do not wait for a newcomer: it joins later."""
        return not rank.joining


@dataclass(frozen=True)
class Spare(Shrink):
    """A spare takes over from a dead worker; no worker is started."""

    needs_spares: ClassVar[bool] = True


@dataclass(frozen=True)
class Replace(Shrink):
    """The survivors continue, and a new worker is started and joins them."""

    takes_hosts_back: ClassVar[bool] = True

    def after_death(self, turn: Turn, rank: Rank) -> None:
        """Start a new worker, after the interrupted step."""
        replace(turn, rank)


@dataclass(frozen=True)
class Restart(Shrink):
    """Back to the last committed step in memory, in a new world with a new worker (Reinit, for comparison)."""

    repairs: ClassVar[bool] = False

    def after_death(self, turn: Turn, rank: Rank) -> None:
        """End the world with its first failure."""
        end_world(turn)
        replace(turn, rank, at_once=True)

    def awaits(self, rank: Rank) -> bool:
        """Wait for every worker: none trains before the new one is ready."""
        del rank
        return True


@dataclass(frozen=True)
class Checkpoint(Shrink):
    """Everything restarts from the last checkpoint, as without fault tolerance."""

    def after_death(self, turn: Turn, rank: Rank) -> None:
        """Kill all workers, and restart."""
        del rank
        restart_all(turn)

    def after_mpirun(self, turn: Turn, reason: WorldReason) -> None:
        """The same."""
        del reason
        restart_all(turn)

    def after_hosts(self, turn: Turn, reason: WorldReason) -> None:
        """The same, on the hosts that are left."""
        del reason
        restart_all(turn)


POLICIES: dict[str, Policy] = {
    "replace": Replace(),
    "spare": Spare(),
    "shrink": Shrink(),
    "restart": Restart(),
    "checkpoint": Checkpoint(),
}
