"""What a report tells: the verdict, where the time went, and every incident from its cause to its cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from meshmend.base.units import duration_text, percent, plural, size_text, workers
from meshmend.report.audit import Account
from meshmend.report.costs import Cost
from meshmend.report.document.blocks import Bars, Block, Bullets, Heading, Paragraph, Picture, Table
from meshmend.report.fold import Level
from meshmend.report.history import History, JobHistory
from meshmend.report.incidents import PHASES, Incident
from meshmend.report.sentences import sentence
from meshmend.report.text import LEVELS, summary
from meshmend.telemetry import Event, Repaired

MOST = 100
"""Incidents that are told one by one: the newest."""
SPARKS = "▁▂▃▄▅▆▇█"
WINDOWS = 60
REASONS = {
    "down": "nothing was running, between two attempts",
    "repeated": "steps that were done again after a checkpoint",
    "start": "starting, until the first commit of an attempt",
    "recovery": "recovering from failures",
}


def story(history: History, picture: Picture | None = None, job: int | None = None) -> list[Block]:
    """The report of a run's last job, or of this one."""
    blocks: list[Block] = [Heading(1, f"Run {history.name}"), Paragraph(_outcome(history))]
    numbers = [number for number, one in sorted(history.jobs.items()) if one.audit.ledger.is_open]
    chosen = job if job is not None else max(numbers, default=None)
    if chosen is None:
        return [*blocks, Paragraph("No worker has opened a job yet, so there is nothing to report.")]
    if len(numbers) > 1:
        blocks.append(Paragraph(f"This is job {chosen} of {len(numbers)}."))
    one = history.job(chosen)
    blocks += _proof(history.account(chosen))
    blocks += _time(history, one)
    if picture is not None:
        blocks += [Heading(2, one.metric.capitalize()), picture]
    blocks += _incidents(one)
    blocks += _checkpoints(one)
    if history.raised:
        errors = [f"worker {each.rank}, step {each.step}: {each.error}" for each in history.raised[:20]]
        blocks += [Heading(2, "Exceptions"), Bullets(errors)]
    if history.damaged:
        blocks += [Heading(2, "Left out"), Bullets(history.damaged)]
    return blocks


def _outcome(history: History) -> str:
    if not history.attempts:
        return "Its launcher has written nothing that could be read."
    began, ended = history.attempts[0][0], history.ended
    since = f"It began {_date(began.time)} with {plural(began.workers, 'worker')} and policy {began.on_failure}"
    more = f", was resumed {plural(len(history.attempts) - 1, 'time')}" if len(history.attempts) > 1 else ""
    if ended is None:
        return f"{since}{more}, and has not ended; the last event is of {_date(history.last)}."
    why = f": {ended.why}" if ended.why else ""
    return f"{since}{more}, and ended with status {ended.status} after {duration_text(ended.time - began.time)}{why}."


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _proof(account: Account | str) -> Iterator[Block]:
    yield Heading(2, "Proof")
    if isinstance(account, str):
        yield Paragraph(account)
        return
    verdict, more = summary(account)
    verdict = verdict.removeprefix("audit: ")
    yield Paragraph(verdict[0].upper() + verdict[1:], tone="good" if account.clean else "bad")
    yield Paragraph(more)
    if account.findings:
        yield Bullets(account.findings[:MOST])


def _time(history: History, job: JobHistory) -> Iterator[Block]:
    found = history.goodput(job.number)
    if found.wall <= 0:
        return
    yield Heading(2, "Where the time went")
    yield Paragraph(f"Goodput: {percent(found.share, 1)} of {duration_text(found.wall)} was progress that counts.")
    rows = [("progress", duration_text(found.share * found.wall), percent(found.share, 1))]
    for reason, seconds in found.seconds.items():
        if seconds > 0:
            rows.append((REASONS[reason], duration_text(seconds), percent(seconds / found.wall, 1)))
    yield Table(("what", "time", "share"), rows)
    sparks = "".join(SPARKS[min(7, int(8 * share))] for share in found.windows(WINDOWS))
    yield Paragraph(f"Goodput over the run, from its beginning to its end: {sparks}")


def _incidents(job: JobHistory) -> Iterator[Block]:
    incidents = job.incidents()
    yield Heading(2, "Incidents")
    if not incidents:
        yield Paragraph("Nothing failed.")
        return
    costs = job.costs(incidents)
    yield Table(
        ("#", "what", "level", "step", "total", "usual step", "lanes for others", "samples", "steps again"),
        [
            (
                str(one.number), ", ".join(one.what), "join" if one.joins else LEVELS[one.level][0], f"{one.step:,}",
                "open" if one.total is None else duration_text(one.total),
                "–" if one.ordinary is None else duration_text(one.ordinary), f"{0 if cost.steps else cost.lanes:,}",
                f"{cost.samples:,}", f"{cost.steps:,}",
            )
            for one, cost in zip(incidents, costs, strict=True)
        ],
        left=3,
    )  # fmt: skip
    if len(incidents) > MOST:
        yield Paragraph(f"The last {MOST} of {plural(len(incidents), 'incident')} are told one by one.")
    for one, cost in list(zip(incidents, costs, strict=True))[-MOST:]:
        yield from _incident(job, one, cost)


def _incident(job: JobHistory, one: Incident, cost: Cost) -> Iterator[Block]:
    yield Heading(3, f"Incident {one.number}, step {one.step:,}: {', '.join(one.what)}")
    yield Paragraph(f"{_course(one)} {_costs(one, cost)}".strip())
    if one.times:
        times = [(name, one.times[name]) for name in PHASES if name in one.times]
        yield Bars([(name, seconds, duration_text(seconds)) for name, seconds in times], one.total or 0.0)
    yield Bullets(_timeline(job, one))


def _course(one: Incident) -> str:
    took = "No step has been committed since." if one.total is None else f"It took {duration_text(one.total)}"
    if one.total is not None:
        took += f", where a step usually takes {duration_text(one.ordinary)}." if one.ordinary else "."
    level = "workers joined, and nothing had failed" if one.joins else LEVELS[one.level][1]
    return f"{_date(one.begin)}: {level}. {took}"


def _costs(one: Incident, cost: Cost) -> str:
    if cost.steps:
        begin, end = cost.repeated
        return (
            f"Steps {begin:,} to {end - 1:,} were done again from a checkpoint: {plural(cost.steps, 'step')}, "
            f"{plural(cost.samples, 'sample')}."
        )
    if not cost.lost:
        return "" if one.joins else "No step was done again, and no lane had to be computed by another worker."
    lost = " and ".join(f"{plural(count, 'lane')} of worker {rank}" for rank, count in cost.lost.items())
    taken = ", ".join(f"worker {rank} ({count})" for rank, count in cost.taken.items())
    return f"No step was done again. In step {cost.step:,}, {lost} ({plural(cost.samples, 'sample')}) went to {taken}."


def _timeline(job: JobHistory, one: Incident) -> list[str]:
    """What was written of it, in order, with the time since its cause."""
    state = job.state
    last = one.end if one.end is not None else float("inf")
    events: list[Event] = [
        event
        for victim in state.victims.values()
        for event in victim.events
        if one.was.attempt <= event.epoch.attempt <= one.epoch.attempt and one.begin <= event.time <= last
    ]
    events += [each for epoch, each in state.formed.items() if one.was < epoch <= one.epoch]
    repairs = [each for own in state.repairs.values() for each in own if one.was < each.epoch <= one.epoch]
    told = [(event.time, sentence(event)) for event in events] + _repairs(repairs)
    if one.level is Level.CHECKPOINT and one.epoch.attempt in state.began:
        told.append((state.began[one.epoch.attempt], f"the run was resumed as attempt {one.epoch.attempt}"))
    if one.end is not None:
        told.append((one.end, "the next step was committed"))
    return [f"+{duration_text(max(0.0, when - one.begin)) if when > one.begin else '0 s'}: {text}"
            for when, text in sorted(told, key=lambda pair: pair[0])]  # fmt: skip


def _repairs(repairs: Sequence[Repaired]) -> list[tuple[float, str]]:
    """One line for all couriers that ended in the same membership."""
    groups: dict[object, list[Repaired]] = {}
    for repair in repairs:
        groups.setdefault(repair.epoch, []).append(repair)
    return [
        (
            max(one.time for one in own),
            f"the couriers of {workers(sorted(one.rank for one in own))} had a group again, with "
            f"{workers(sorted(own[0].active))}",
        )
        for own in groups.values()
    ]


def _checkpoints(job: JobHistory) -> Iterator[Block]:
    if not job.checkpoints:
        return
    last = job.checkpoints[-1]
    seconds = sum(one.seconds for one in job.checkpoints)
    yield Heading(2, "Checkpoints")
    yield Paragraph(
        f"{plural(len(job.checkpoints), 'checkpoint')}, written in the background in {duration_text(seconds)}; the "
        f"last one before step {last.step:,}, {size_text(last.nbytes)}: {last.path}."
    )
