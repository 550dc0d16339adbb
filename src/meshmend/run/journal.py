"""What the launcher records: the supervisor's decisions as events of the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import get_args

from meshmend.base.schema import checked
from meshmend.errors import FormatError
from meshmend.run.console import halt_reason
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor import actions
from meshmend.run.supervisor.messages import (
    Attached,
    Begin,
    CouriersStopped,
    HaltReason,
    HostGone,
    Joined,
    Minority,
    MpirunLost,
    NetworkSplit,
    RepairStuck,
    Restarted,
    WorldReason,
    WrongSide,
)
from meshmend.run.supervisor.observations import Cause, RankSeen
from meshmend.telemetry import Began, Component, Died, Ended, Epoch, Event, Formed, Halting, How, Log, Started, Why

HOW = {
    Cause.HANG: How.HANG,
    Cause.STOPPED: How.HANG,
    Cause.LOST_COURIER: How.COURIER_LOST,
    Cause.CUT_OFF: How.CUT_OFF,
    Cause.HALTED: How.HALTED,
    Cause.RESTARTED: How.RESTARTED,
    Cause.REPLACED: How.RESTARTED,
}
LOSSES = {
    actions.Loss.GONE: How.LOST,
    actions.Loss.STOPPED: How.STOPPED,
    actions.Loss.LATE: How.LATE,
}
WHY: dict[type[WorldReason], Why] = {
    Begin: Why.BEGIN,
    Joined: Why.JOIN,
    MpirunLost: Why.MPIRUN_LOST,
    CouriersStopped: Why.STOPPED,
    RepairStuck: Why.STUCK,
    HostGone: Why.HOST_LOST,
    NetworkSplit: Why.PARTITION,
    Restarted: Why.RESTART,
    Attached: Why.ATTACHED,
}


class Journal:
    """The launcher's events, each with the epoch as far as the launcher knows it: it does not see couriers shrink."""

    def __init__(self, spec: RunSpec, attempt: int) -> None:
        self.spec, self._log = spec, Log(spec.folder, "launcher")
        self.epoch = Epoch(attempt)

    def note(self, action: actions.Action) -> None:
        """Record an action, if it is one that is to be recorded."""
        match action:
            case actions.NoteAttempt():
                self._begin(action)
            case actions.NoteDeath(seen=seen, member=member, step=step):
                epoch = Epoch(self.epoch.attempt, seen.world, seen.shrink) if member else self.epoch
                how, value = _how(seen)
                self._write(
                    Died(epoch=epoch, what=Component.WORKER, how=how, value=value, rank=seen.rank, process=seen.process,
                         step=step, member=member)
                )  # fmt: skip
            case actions.NoteHalt(reason=reason, writer=writer):
                why = type(reason).__name__
                self._write(Halting(epoch=self.epoch, reason=why, details=asdict(reason), writer=writer))
            case actions.NoteHostLost(host=host, seen=ranks):
                world, shrink = max(((one.world, one.shrink) for one in ranks), default=(0, 0))
                epoch = Epoch(self.epoch.attempt, world, shrink)
                gone = [one.rank for one in ranks]
                self._write(Died(epoch=epoch, what=Component.HOST, how=How.LOST, host=host, ranks=gone))
            case actions.NoteMpirunLost(how=how):
                self._write(Died(epoch=self.epoch, what=Component.MPIRUN, how=LOSSES[how]))

    def started(self, rank: int, process: int, host: str) -> None:
        """Record that a worker was started."""
        self._write(Started(epoch=self.epoch, rank=rank, process=process, host=host))

    def entered(self, enter: actions.EnterWorld) -> None:
        """Record that a world was entered."""
        self.epoch = Epoch(self.epoch.attempt, enter.number)
        joined = [*enter.reason.ranks] if isinstance(enter.reason, Joined) else []
        self._write(Formed(epoch=self.epoch, ranks=[*enter.ranks], why=WHY[type(enter.reason)], joined=joined,
                           job=enter.job))  # fmt: skip

    def ended(self, finish: actions.Finish) -> None:
        """Record that the run is over."""
        why = halt_reason(finish.reason) if finish.reason is not None else ""
        self._write(Ended(epoch=self.epoch, status=finish.status, why=why))

    def flush(self) -> OSError | None:
        """Write what was held back; return why that is not possible, if it is not."""
        return None if self._log.flush() else self._log.error

    def _begin(self, begin: actions.NoteAttempt) -> None:
        spec, self.epoch = self.spec, Epoch(begin.attempt)
        self._write(
            Began(epoch=self.epoch, workers=spec.members, spares=spec.spares, on_failure=spec.on_failure,
                  attached=begin.attached, restarted=begin.restarted)
        )  # fmt: skip

    def _write(self, event: Event) -> None:
        self._log.write(event)


def halted_before(events: Iterable[Event]) -> tuple[HaltReason, int] | None:
    """Return why the previous launcher was halting the run, and which rank writes the checkpoint; None if it was not.

    A halt because most workers could not be reached does not count: this launcher may be there to continue with those.
    """
    found: Halting | None = None
    for event in events:
        if isinstance(event, Halting):
            found = event
        elif isinstance(event, Ended) or (isinstance(event, Began) and not event.attached):
            found = None
    kinds: dict[str, type[HaltReason]] = {kind.__name__: kind for kind in get_args(HaltReason)}
    if found is None or found.reason not in kinds or kinds[found.reason] in (Minority, WrongSide):
        return None
    try:
        return checked(kinds[found.reason], found.details), found.writer
    except FormatError:
        return None


def _how(seen: RankSeen) -> tuple[How, int]:
    """Return how a worker ended, and its status or signal if we did not kill it."""
    if seen.cause in HOW:
        return HOW[seen.cause], 0
    status = seen.status or 0
    return (How.SIGNAL, -status) if status < 0 else (How.EXIT, status)
