"""What became of a run, by its events: the words that it prints may change, these facts may not."""

from __future__ import annotations

from meshmend.telemetry import Component, Died, Formed, How, Why, read
from tests.jobs.jobs import Job


def deaths(job: Job) -> list[tuple[int, How, int]]:
    """The workers that the launcher saw die: the rank, how, and the exit status or the number of the signal."""
    events = read(job.path, "launcher")
    return [(e.rank, e.how, e.value) for e in events if isinstance(e, Died) and e.what is Component.WORKER]


def hosts_lost(job: Job) -> list[str]:
    events = read(job.path, "launcher")
    return [event.host for event in events if isinstance(event, Died) and event.what is Component.HOST]


def worlds(job: Job) -> list[tuple[int, Why]]:
    """The worlds that were formed: the number, and why."""
    return [(event.epoch.world, event.why) for event in read(job.path, "launcher") if isinstance(event, Formed)]


def one_line(job: Job, *values: str) -> bool:
    """Whether exactly one line of the output holds all these values."""
    return sum(all(value in line for value in values) for line in job.output.splitlines()) == 1
