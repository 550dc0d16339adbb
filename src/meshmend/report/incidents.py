"""Incidents: one failure each, from its cause to the next committed step, with the time that every part took.

Several processes write down what they see of a failure, at their own pace, so an incident is put together by time:

    Struck 2    Died 2        Repaired by each courier            Committed
    ──●───·───────●────┬─────────────────────┬────────┬───────────────●─────────►
    begin ·         noticed         Struck 0, Repaired again         end
          a step that was under way may still be committed

A cause that comes before the end belongs to the same incident: something died while the first was being repaired. A
worker whose part was already brought when it died lets one more step through; that is not the end. The launcher may
report a death after the others have long gone on without the dead: that is no new incident either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshmend.report.incident_builder import Draft, Who, seen, who
from meshmend.report.timeline import ATTEMPT, BEFORE, Commits
from meshmend.telemetry.events import Began, Died, Ended, Event, Formed, Repaired, Started, Struck


@dataclass(frozen=True)
class Incident:
    """One failure, from its cause to the next committed step."""

    number: int
    begin: float
    """Seconds since 1970: when it was struck; where nobody struck, when it was first seen."""
    end: float | None
    """When the next step was committed after the last repair; None if there was no further step."""
    what: list[str]
    tier: int
    """1: repaired by the couriers; 2: a new world of couriers was formed; 3: resumed from a checkpoint."""
    step: int
    """The step that was going on."""
    times: dict[str, float]
    """Seconds of each part, see PARTS: of the slowest courier, all its repairs together."""
    ordinary: float | None
    """Seconds between commits in the 20 steps before: the median."""

    @property
    def total(self) -> float | None:
        """Seconds from the cause to the next committed step."""
        return None if self.end is None else self.end - self.begin


def incidents(events: Iterable[Event]) -> list[Incident]:
    """All incidents of a run, in order."""
    ordered = sorted(events, key=lambda event: event.time)
    commits = Commits.of(ordered)
    found: list[Draft] = []
    gone: dict[Who, Draft] = {}
    for event in sorted(_relevant(ordered), key=seen):
        if isinstance(event, Started):
            gone.pop(event.rank, None)
            for draft in found:
                draft.dead.discard(event.rank)
        elif isinstance(event, Died) and who(event) in gone:
            gone[who(event)].tell(event)
        else:
            if not found or not found[-1].takes(event):
                found.append(Draft(commits, seen(event)))
            found[-1].add(event)
            if isinstance(event, Repaired):
                gone |= dict.fromkeys(found[-1].members - {*event.active}, found[-1])
                gone = {rank: draft for rank, draft in gone.items() if rank not in event.active}
            elif isinstance(event, Died) and isinstance(who(event), int):
                gone[who(event)] = found[-1]
    return [_incident(number, draft) for number, draft in enumerate(found, 1)]


def _incident(number: int, draft: Draft) -> Incident:
    top = draft.commits.top(draft.begin)
    return Incident(
        number=number,
        begin=draft.begin,
        end=draft.end,
        what=draft.what(),
        tier=draft.tier,
        step=0 if top == BEFORE else top % ATTEMPT + 1,
        times=draft.times(),
        ordinary=draft.commits.ordinary(draft.begin),
    )


def _relevant(ordered: list[Event]) -> Iterator[Event]:
    """Causes, repairs and starts; a attempt's first world is no incident, nor is going on after a good end."""
    first, ended_well = True, False
    for event in ordered:
        if isinstance(event, Began) and not event.attached:
            if event.attempt > 0 and not ended_well:
                yield event
            first = True
        elif isinstance(event, Formed):
            if not first:
                yield event
            first = False
        elif isinstance(event, Ended):
            ended_well = event.status == 0
        elif isinstance(event, Struck | Died | Repaired | Started):
            yield event
