"""An incident that is being put together: what belongs to it, when it is over, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshmend.report.timeline import Commits
from meshmend.telemetry.events import Began, Died, Event, Formed, Repaired, Struck

PARTS = "detect", "revoke", "shrink", "re-form", "exchange", "roll forward", "state", "recompute", "first commit"
"""Of what an incident's time is made, in order; only what took place is there."""
Cause = Struck | Died | Formed | Began
Who = int | str
"""Whom a cause struck: a rank, or what has no rank, such as "mpirun"."""
THINGS = ("worker", "courier", "host", "mpirun", "launcher")
"""What can die; what else a fault is called is how it strikes a worker."""


@dataclass
class Draft:
    """One incident, as far as it is known."""

    commits: Commits
    begin: float
    causes: list[Cause] = field(default_factory=list)
    repairs: list[Repaired] = field(default_factory=list)
    words: list[tuple[Who, str, str]] = field(default_factory=list)
    """Who, what and how of each cause."""
    dead: set[Who] = field(default_factory=set)
    """Ranks that are spoken of already: a worker and its courier go together."""

    def __post_init__(self) -> None:
        self.members = self.commits.ranks(self.begin)

    def takes(self, event: Event) -> bool:
        """Whether what happened then is part of this incident."""
        if isinstance(event, Died) and who(event) in self.dead - {who(c) for c in self.causes if isinstance(c, Died)}:
            return True  # it was struck, and that is seen only now
        last = max((cause.time for cause in self.causes), default=self.begin)
        above = self.commits.top(self.begin) if self.answered() else self.commits.top(last) + 1
        end = self.commits.first(self.busy(), above)
        return end is None or seen(event) <= end

    def busy(self) -> float:
        """Until when causes or repairs went on; when the last courier begins to sum, every worker has brought its part.

        A courier writes its `Repaired` a little after its worker was given the sum, so that time would be too late.
        """
        summed = [repair.time - repair.times.get("first commit", 0.0) for repair in self.repairs]
        return max([self.begin, *(cause.time for cause in self.causes), *summed])

    def answered(self) -> bool:
        """Whether every cause has been repaired; until then a commit is only that of a step that was under way."""
        for cause in self.causes:
            after = [repair for repair in self.repairs if repair.time >= cause.time]
            if isinstance(cause, Struck | Died):
                worlds = [c.time for c in self.causes if isinstance(c, Formed) and c.time >= cause.time]
                after = [r for r in after if who(cause) not in r.active or any(r.time >= world for world in worlds)]
            if not after and not any(isinstance(c, Began) and c.time >= cause.time for c in self.causes):
                return False
        return True

    def add(self, event: Event) -> None:
        """Take an event in."""
        if isinstance(event, Repaired):
            self.repairs.append(event)
        elif isinstance(event, Cause):
            self.causes.append(event)
            self.tell(event)

    def tell(self, cause: Cause) -> None:
        """Put a cause in words, once for each rank."""
        if isinstance(cause, Formed | Began):
            return
        whom, how = who(cause), cause.how if isinstance(cause, Died) else ""
        what = cause.what
        if what not in THINGS:
            what, how = "worker", "" if what == "kill" else what
        known = [index for index, word in enumerate(self.words) if word[0] == whom]
        if whom not in self.dead or not known:
            self.words.append((whom, what, how))
        elif self.words[known[-1]] == (whom, what, ""):
            self.words[known[-1]] = (whom, what, how)
        self.dead.add(whom)

    def what(self) -> list[str]:
        """The causes in words."""
        if not self.words:
            attempts = [f"resumed as attempt {cause.attempt}" for cause in self.causes if isinstance(cause, Began)]
            return attempts or [cause.why for cause in self.causes if isinstance(cause, Formed)] or ["cause not seen"]
        return [_in_words(*word) for word in self.words]

    @property
    def tier(self) -> int:
        """How far the repair had to go."""
        kinds = {type(cause) for cause in self.causes}
        return 3 if Began in kinds else 2 if Formed in kinds else 1

    @property
    def end(self) -> float | None:
        """When a step was committed that had not been before."""
        return self.commits.first(self.busy(), self.commits.top(self.begin))

    def times(self) -> dict[str, float]:
        """Seconds of each part."""
        sums: dict[int, dict[str, float]] = {}
        for repair in self.repairs:
            own = sums.setdefault(repair.rank, {})
            for name, seconds in repair.times.items():
                own[name] = own.get(name, 0.0) + seconds
        names = [*PARTS, *sorted({name for own in sums.values() for name in own} - {*PARTS})]
        times = {name: [own[name] for own in sums.values() if name in own] for name in names}
        noticed = [repair.noticed for repair in self.repairs]
        for kind in (Struck, Died):
            struck = [cause.time for cause in self.causes if isinstance(cause, kind)]
            if struck:
                times["detect"] = [min(noticed) - struck[0]] if noticed and min(noticed) >= struck[0] else []
                break
        return {name: max(values) for name, values in times.items() if values}


def seen(event: Event) -> float:
    """When what an event tells of was first seen."""
    return event.noticed if isinstance(event, Repaired) else event.time


def who(cause: Struck | Died) -> Who:
    """Whom a cause struck."""
    return cause.what if cause.rank < 0 or cause.what in ("mpirun", "launcher") else cause.rank


def _in_words(whom: Who, what: str, how: str) -> str:
    name = what if isinstance(whom, str) else f"host of worker {whom}" if what == "host" else f"{what} {whom}"
    return f"{name} {how}".rstrip()
