"""Incidents: one failure each, from its cause to the next committed step, with the time that each phase took.

Which events belong to an incident follows from their epochs (`fold`); here it is measured, with the clocks of the
processes that wrote the events, and put into words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain

from meshmend.base.units import agree, workers
from meshmend.report.fold import IncidentEvents, Level, State, fold, groups
from meshmend.report.timeline import CommitTimes
from meshmend.telemetry import Died, Epoch, Event, Formed, Repaired, Struck, Why

PHASES = "detect", "revoke", "shrink", "re-form", "exchange", "roll forward", "state", "recompute", "first commit"
"""The phases of an incident, in order; only those that took place are present."""
WHY = {
    Why.BEGIN: "job began",
    Why.MPIRUN_LOST: "mpirun lost",
    Why.STUCK: "couriers stuck",
    Why.HOST_LOST: "host lost",
    Why.PARTITION: "network partition",
    Why.RESTART: "restart from the last commit",
    Why.ATTACHED: "launcher came back",
}
"""The name of an incident whose cause was not observed, only that a world was formed."""


@dataclass(frozen=True)
class Incident:
    """One failure, from its cause to the next committed step."""

    number: int
    begin: float
    """Seconds since 1970: when it was caused or, if that was not observed, when it was first noticed."""
    end: float | None
    """When the first new step was committed after recovery; None if there was none."""
    what: list[str]
    level: Level
    """How far recovery had to go; SHRINK also if nothing had to be recovered."""
    step: int
    """The step that was interrupted."""
    times: dict[str, float]
    """Seconds of each phase, see PHASES: of the slowest courier, over all its repairs."""
    ordinary: float | None
    """Seconds between commits in the 20 steps before: the median."""
    was: Epoch
    """The epoch that the failure ended."""
    epoch: Epoch
    """The epoch that recovery led to; `was` if there was no recovery."""
    joins: bool = False
    """Nothing failed: a world was formed only to let workers join."""

    @property
    def total(self) -> float | None:
        """Seconds from the cause to the next committed step."""
        return None if self.end is None else self.end - self.begin


def incidents(events: Iterable[Event]) -> list[Incident]:
    """All incidents of a run, in order."""
    return found(reduce(fold, events, State()))


def found(state: State) -> list[Incident]:
    """The incidents that a state of the fold holds, in order."""
    pace = state.timeline.pace()
    made = sorted((_measure(state, group, pace) for group in groups(state)), key=lambda one: (one.was, one.step))
    return [replace(incident, number=number) for number, incident in enumerate(made, 1)]


def _measure(state: State, group: IncidentEvents, pace: CommitTimes) -> Incident:
    timeline = state.timeline
    repairs = [repair for epoch in group.epochs for repair in state.repairs.get(epoch, [])]
    formed = [state.formed[epoch] for epoch in group.epochs if epoch in state.formed]
    attempts = [epoch.attempt for epoch in group.epochs if not epoch.world and epoch.attempt in state.began]
    begin = min(
        chain(
            (victim.begin for victim in group.victims),
            (repair.noticed for repair in repairs),
            (event.time for event in formed),
            (state.began[attempt] for attempt in attempts),
        ),
        default=0.0,
    )
    # Step 0 is also what a worker is in that has not been given the state yet.
    steps = [min(filter(None, victim.steps)) for victim in group.victims if any(victim.steps)]
    step = min(steps, default=timeline.top(group.was) + 1)
    if group.apart:
        end = timeline.first_since(group.was.attempt, step, begin)
    else:
        after = timeline.first_new(group.epochs[-1]) if group.epochs else None
        end = None if after is None else after[1]
    return Incident(
        number=0,
        begin=begin,
        end=end,
        what=_what(group, formed, attempts),
        level=group.level,
        step=step,
        times=_times(group, repairs),
        ordinary=pace.before(group.was.attempt, step),
        was=group.was,
        epoch=group.epochs[-1] if group.epochs else group.was,
        joins=not group.victims and not attempts and bool(formed) and all(event.why is Why.JOIN for event in formed),
    )


def _what(group: IncidentEvents, formed: Iterable[Formed], attempts: Iterable[int]) -> list[str]:
    ordered = sorted(group.victims, key=lambda victim: (max(event.epoch for event in victim.events), victim.begin))
    causes = [victim.words() for victim in ordered]
    resumed = [f"resumed as attempt {attempt}" for attempt in attempts]
    return causes or resumed or [_why(event) for event in formed] or ["cause not seen"]


def _why(event: Formed) -> str:
    if event.why is not Why.JOIN:
        return WHY[event.why]
    return f"{workers(event.joined)} {agree(len(event.joined), 'joins', 'join')}"


def _times(group: IncidentEvents, repairs: Iterable[Repaired]) -> dict[str, float]:
    """Seconds of each phase."""
    sums: dict[int, dict[str, float]] = {}
    for repair in repairs:
        own = sums.setdefault(repair.rank, {})
        for name, seconds in repair.times.items():
            own[name] = own.get(name, 0.0) + seconds
    names = [*PHASES, *sorted({name for own in sums.values() for name in own} - {*PHASES})]
    times = {name: max((own[name] for own in sums.values() if name in own), default=None) for name in names}
    noticed = min((repair.noticed for repair in repairs), default=None)
    events = [event for victim in group.victims for event in victim.events]
    struck = [e.time for e in events if isinstance(e, Struck)] or [e.time for e in events if isinstance(e, Died)]
    if noticed is not None and struck and noticed >= min(struck):
        times["detect"] = noticed - min(struck)
    return {name: seconds for name, seconds in times.items() if seconds is not None}
