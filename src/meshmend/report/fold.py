"""Which events make one incident: a fold over events, grouped by epoch, that trusts no clock.

    epoch 0.1.0                    │ 0.1.1                                 │ 0.1.2
    ──●───────·──────────●─────────┼──────────●─────────────●──────────────┼──────────●─────────►
    Struck 2  ·        Died 2      │ Struck 0, before any   Repaired       │ Committed: the end
              ·                    │ commit: the same incident             │
              a step that was under way may still be committed: in epoch 0.1.0, so it is not the end

A failure belongs to the change of epoch that removed what failed. Two changes are one incident if no new step was
committed between them, or if the second failure happened in the very step that ended the first; and a failure is one
incident with the restart from a checkpoint that the policy `checkpoint` answers it with. A worker that dies before it
has joined a world removes nothing from it; its death is a separate incident.

Events may come in any order, so `fold` can follow a live run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain, pairwise

from meshmend.report.timeline import Timeline
from meshmend.report.victims import LAST, Victim, key_of
from meshmend.telemetry import (
    UNKNOWN,
    Began,
    Committed,
    Died,
    Ended,
    Epoch,
    Event,
    Formed,
    Repaired,
    Skipped,
    Steps,
    Struck,
)


class Level(Enum):
    """How far recovery had to go."""

    SHRINK = auto()
    """The surviving couriers shrank their group and continued in the same step."""
    NEW_WORLD = auto()
    """The launcher formed a new world of couriers; the workers lived on."""
    CHECKPOINT = auto()
    """The run was resumed from a checkpoint."""


@dataclass
class State:
    """What is known of a run's incidents. Each part is a set or a minimum, so the order of events does not matter."""

    timeline: Timeline = field(default_factory=Timeline)
    victims: dict[tuple[object, ...], Victim] = field(default_factory=dict)
    repairs: dict[Epoch, list[Repaired]] = field(default_factory=dict)
    formed: dict[Epoch, Formed] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)
    """When each attempt began."""
    restarted: set[int] = field(default_factory=set)
    """Attempts that the policy `checkpoint` began: what was committed since the failure before them is void."""
    done: set[int] = field(default_factory=set)
    """Attempts that ended with status 0: what follows them is not a recovery."""

    def epochs(self) -> list[Epoch]:
        """All epochs that there is any trace of, in order; world 0 stands for an attempt without a world yet."""
        traces: set[Epoch] = {*self.timeline.epochs, *self.repairs, *self.formed}
        traces |= {repair.was for repair in chain.from_iterable(self.repairs.values())}
        traces |= {event.epoch for victim in self.victims.values() if victim.member for event in victim.events}
        return sorted(traces | {Epoch(attempt) for attempt in self.began})


@dataclass
class IncidentEvents:
    """The failures and the changes of epoch of one incident."""

    was: Epoch
    """The epoch before the first change."""
    epochs: list[Epoch] = field(default_factory=list)
    """The epochs that recovery went through."""
    victims: list[Victim] = field(default_factory=list)
    level: Level = Level.SHRINK

    @property
    def apart(self) -> bool:
        """Whether nothing was removed by it: a worker died before it had joined."""
        return not any(victim.member for victim in self.victims) and not self.epochs


def fold(state: State, event: Event) -> State:
    """Take in one event; changes the state and returns it."""
    match event:
        case Committed() | Skipped() | Steps():
            state.timeline.add(event)
        case Struck() | Died():
            state.victims.setdefault(key_of(event), Victim()).events.append(event)
        case Repaired():
            state.repairs.setdefault(event.epoch, []).append(event)
        case Formed():
            state.formed[event.epoch] = event
        case Began(attached=False):
            attempt = event.epoch.attempt
            state.began[attempt] = min(event.time, state.began.get(attempt, event.time))
            state.restarted |= {attempt} if event.restarted else set()
        case Ended(status=0):
            state.done.add(event.epoch.attempt)
        case _:
            pass
    return state


def groups(state: State) -> Iterator[IncidentEvents]:
    """What belongs together, in order of epochs; the failures of workers that had not joined come last."""
    epochs = state.epochs()
    removed, left, apart = _assign(state, epochs)
    group: IncidentEvents | None = None
    for was, epoch in pairwise(epochs):
        if was.attempt != epoch.attempt and was.attempt in state.done:
            yield from _close(state, group, left.pop(was.attempt, []))
            group = None
            continue
        level, victims = _level(was, epoch), removed.get(epoch, [])
        if level is None and not victims:
            continue
        if level is Level.SHRINK and not victims and _joined(state, epoch):
            continue
        restarted = level is Level.CHECKPOINT and epoch.attempt in state.restarted
        if group is None or (
            not (restarted and group.level is not Level.CHECKPOINT) and _is_over(state, group, epoch, victims)
        ):
            yield from _close(state, group, [])
            group = IncidentEvents(was)
        group.epochs.append(epoch)
        group.victims += victims
        group.level = max(group.level, level or Level.SHRINK, key=lambda one: one.value)
    yield from _close(state, group, list(chain.from_iterable(left.values())))
    yield from apart


def _joined(state: State, epoch: Epoch) -> bool:
    """Whether an epoch began because members joined that had waited for the end of a step."""
    repairs = state.repairs.get(epoch, [])
    return bool(repairs) and all(repair.joined for repair in repairs)


def _level(was: Epoch, epoch: Epoch) -> Level | None:
    """What a change of epoch takes; None for the first world of an attempt."""
    if was.attempt != epoch.attempt:
        return Level.CHECKPOINT
    if was.world != epoch.world:
        return Level.NEW_WORLD if was.world else None
    return Level.SHRINK


Removed = dict[Epoch, list[Victim]]
Left = dict[int, list[Victim]]


def _assign(state: State, epochs: Sequence[Epoch]) -> tuple[Removed, Left, list[IncidentEvents]]:
    """Return the epoch without each victim; victims that nothing followed, by attempt; those that had not joined."""
    repairs = [*chain.from_iterable(state.repairs.values())]
    removed: Removed = {}
    left: Left = {}
    apart: dict[tuple[Epoch, int], IncidentEvents] = {}
    for victim in sorted(state.victims.values(), key=lambda victim: victim.begin):
        seen, step = victim.last_seen(repairs), max(victim.steps, default=UNKNOWN)
        if not victim.member and state.timeline.reached(victim.attempt, max(0, step)):
            group = apart.setdefault((Epoch(seen.attempt, seen.world), step), IncidentEvents(seen))
            group.victims.append(victim)
            continue
        if not victim.member:
            seen = Epoch(victim.attempt, LAST)  # no step was done without it
        at = bisect_right(epochs, seen)
        if at == len(epochs) or (epochs[at].attempt != victim.attempt and victim.attempt in state.done):
            left.setdefault(victim.attempt, []).append(victim)
        else:
            removed.setdefault(epochs[at], []).append(victim)
    return removed, left, [*apart.values()]


def _is_over(state: State, group: IncidentEvents, until: Epoch | None, victims: Sequence[Victim]) -> bool:
    """Whether recovery had ended when these failed: a new step had been committed, in which none of them failed."""
    found = state.timeline.first_new(group.epochs[-1], until)
    if found is None:
        return False
    return all(max(victim.steps, default=found[0] + 1) > found[0] for victim in victims)


def _close(state: State, group: IncidentEvents | None, victims: list[Victim]) -> Iterator[IncidentEvents]:
    """End a group at the end of an attempt that nothing followed, with what failed there."""
    if group is not None and victims and not _is_over(state, group, None, victims):
        group.victims += victims
        victims = []
    if group is not None:
        yield group
    if victims:
        seen = max(event.epoch for victim in victims for event in victim.events)
        yield IncidentEvents(seen, victims=victims)
