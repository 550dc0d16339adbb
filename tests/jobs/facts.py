"""What became of a run, by its events: the words that it prints may change, these facts may not."""

from __future__ import annotations

from meshmend.telemetry.events import Died, Formed, read
from tests.jobs.jobs import Job


def deaths(job: Job) -> list[tuple[int, str]]:
    """The workers that the launcher saw die: the rank, and "hang", "SIGKILL", "signal 35", "status 1" …"""
    events = read(job.path, "launcher")
    return [(event.rank, event.how) for event in events if isinstance(event, Died) and event.what == "worker"]


def hosts_lost(job: Job) -> list[str]:
    events = read(job.path, "launcher")
    return [event.how for event in events if isinstance(event, Died) and event.what == "host"]


def worlds(job: Job) -> list[tuple[int, str]]:
    """The worlds that were formed: the number, and why (`world_reason`)."""
    return [(event.world, event.why) for event in read(job.path, "launcher") if isinstance(event, Formed)]


def one_line(job: Job, *values: str) -> bool:
    """Whether exactly one line of the output holds all these values."""
    return sum(all(value in line for value in values) for line in job.output.splitlines()) == 1
