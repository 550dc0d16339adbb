"""Everything that the events of a run tell, as one fold: what pages, reports and metrics are made from.

Events may be added as they come. Each belongs to one job of the script (`jobs`), which has its own ledger and its own
incidents; what is about the run as a whole is kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshmend.errors import FormatError, JobError
from meshmend.report.audit import Account, Audit
from meshmend.report.costs import Cost, cost
from meshmend.report.fold import State, fold
from meshmend.report.goodput import Goodput, goodput
from meshmend.report.incidents import Incident, found
from meshmend.report.jobs import JobEvents, Worlds
from meshmend.report.roster import Roster
from meshmend.telemetry import (
    Began,
    Committed,
    Ended,
    Event,
    Events,
    Follower,
    Halting,
    Raised,
    Saved,
    Steps,
    folder_of,
    follow,
    read_description,
)

USUAL = "loss"
"""The metric that is drawn, if there is one of that name."""


@dataclass
class JobHistory:
    """One job."""

    number: int
    audit: Audit = field(default_factory=Audit)
    state: State = field(default_factory=State)
    checkpoints: list[Saved] = field(default_factory=list)
    latest: dict[str, float] = field(default_factory=dict)
    """The metrics of the newest step."""
    newest: tuple[int, int] = (0, -1)
    """The attempt and the number of that step."""
    wanted: str = ""
    """The metric that the user asked for."""
    _found: list[Incident] | None = None
    """The incidents, until another event comes."""

    def add(self, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, Committed | Steps):
            self._measure(event)
        elif isinstance(event, Saved):
            self.checkpoints.append(event)
        self.audit.add(event)
        fold(self.state, event)
        self._found = None

    def _measure(self, event: Committed | Steps) -> None:
        ledger, names = self.audit.ledger, [*event.metrics]
        if not ledger.metric and not ledger.attempts:
            ledger.metric = self.wanted or (USUAL if USUAL in names or not names else names[0])
        last = event.end - 1 if isinstance(event, Steps) else event.step
        if (event.epoch.attempt, last) >= self.newest:
            self.newest = event.epoch.attempt, last
            if isinstance(event, Steps):
                self.latest = {name: float(values[-1]) for name, values in event.values_of.items()}
            else:
                self.latest = dict(event.metrics)

    @property
    def metric(self) -> str:
        """The metric that is drawn."""
        return self.audit.ledger.metric or self.wanted or USUAL

    def costs(self, incidents: Iterable[Incident]) -> list[Cost]:
        """What each incident cost."""
        ledger = self.audit.ledger
        try:
            ledger.settle()
        except JobError:
            return [Cost() for _ in incidents]
        return [cost(one, self.state, ledger) for one in incidents]

    def incidents(self) -> list[Incident]:
        """In order."""
        if self._found is None:
            self._found = found(self.state)
        return self._found


@dataclass
class History:
    """A run."""

    folder: Path
    metric: str = ""
    jobs: dict[int, JobHistory] = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    attempts: list[tuple[Began, Ended | None]] = field(default_factory=list)
    """How each attempt began and, if it has, ended."""
    raised: list[Raised] = field(default_factory=list)
    halting: Halting | None = None
    last: float = 0.0
    """The time of the last event."""
    damaged: list[str] = field(default_factory=list)
    """Lines and files that could not be read, a sentence each."""
    worlds: Worlds = field(default_factory=Worlds)
    count: int = 0
    """Events so far."""

    def add(self, events: Sequence[Event]) -> None:
        """Take in what is new, in order."""
        self.worlds = self.worlds.with_(events)
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Take in one event, of a world that is known."""
        self.count += event.count if isinstance(event, Steps) else 1
        self.last = max(self.last, float(event.times[-1]) if isinstance(event, Steps) else event.time)
        self.roster.add(event)
        self._run(event)
        jobs = self.worlds.jobs if isinstance(event, Ended) else [self.worlds.job_of(event.epoch)]
        for job in jobs:
            self.job(job).add(event)

    def job(self, number: int) -> JobHistory:
        """A job, which may be new."""
        return self.jobs.setdefault(number, JobHistory(number, wanted=self.metric))

    def _run(self, event: Event) -> None:
        match event:
            case Began(attached=False):
                self.attempts.append((event, None))
                self.halting = None
            case Ended() if self.attempts:
                self.attempts[-1] = self.attempts[-1][0], event
            case Raised():
                self.raised.append(event)
            case Halting():
                self.halting = event
            case _:
                pass

    @property
    def ended(self) -> Ended | None:
        """How the run ended, if it has."""
        return self.attempts[-1][1] if self.attempts else None

    @property
    def description(self) -> dict[str, Any]:
        """What `run.json` holds, which a resumed run writes anew; empty if it cannot be read, which is noted."""
        try:
            return read_description(self.folder)
        except FormatError as error:
            self.note(str(error))
            return {}

    def note(self, text: str) -> None:
        """Remember that something could not be read."""
        if text not in self.damaged:
            self.damaged.append(text)

    @property
    def name(self) -> str:
        """The run's name."""
        found = self.description.get("run")
        return found if isinstance(found, str) and found else self.folder.resolve().name

    def events(self, job: int) -> Iterable[Event]:
        """The events of a job, read again, with what is damaged left out."""
        again = Events(self.folder, damaged=lambda _: None)
        return again if len(self.worlds.jobs) == 1 else JobEvents(again, self.worlds, job)

    def account(self, job: int) -> Account | str:
        """What the ledger of a job adds up to so far; a sentence where there is nothing to add up."""
        try:
            return self.job(job).audit.account(self.events(job))
        except (JobError, FormatError) as error:
            return str(error)

    def goodput(self, job: int) -> Goodput:
        """Where the time of a job went."""
        one = self.job(job)
        ledger = one.audit.ledger
        void = ledger.void() if ledger.is_open else []
        own = {epoch.attempt for epoch in one.state.timeline.epochs}
        attempts = [pair for pair in self.attempts if len(self.jobs) == 1 or pair[0].epoch.attempt in own]
        return goodput(attempts, one.state.timeline, void, one.incidents(), self.last)


class Reading:
    """A run's folder, read as far as it has been written; nothing in it is touched."""

    def __init__(self, run: str, metric: str = "") -> None:
        folder = folder_of(run)
        self.history = History(folder, metric)
        try:
            self._follower = follow(folder, damaged=self.history.note, torn=self.history.note)
            self._launcher = Follower(folder, "launcher", damaged=lambda _: None)  # which job each world is for
        except OSError as error:
            raise JobError(
                f"cannot read the run in {str(folder)!r} ({error.strerror}): its owner must let you read that folder"
            ) from None

    def poll(self) -> bool:
        """Take in what is new; whether there was anything."""
        history, before = self.history, self.history.count
        history.worlds = history.worlds.with_(self._launcher.stream())
        for event in self._follower.stream():
            history.take(event)
        return history.count > before


def read_history(run: str, metric: str = "") -> History:
    """All that there is of a run."""
    reading = Reading(run, metric)
    reading.poll()
    return reading.history
