"""Three ways to have a run: begin it, go on with it from a checkpoint, or take over from a launcher that was killed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshmend.base.processes import is_alive
from meshmend.errors import JobError
from meshmend.job.shm.segment import Segment, ranks_of
from meshmend.run.doctor.checks import require_tolerance
from meshmend.run.launcher import Launcher
from meshmend.run.spec import RunSpec, script_of
from meshmend.telemetry import Began, Died, Ended, read, steps_done, unwritable


def launch(order: RunSpec) -> int:
    """Begin a run; the exit status is 0 if the job was done."""
    if (order.folder / "run.json").exists():
        raise JobError(
            f"{order.folder} holds a run of that name: go on with --resume {order.run}, or give another --name"
        )
    _name_is_free(order.run)
    require_tolerance()
    launcher = Launcher(order)
    with _room(order):
        launcher.reach.open()
        order.save()
        return _told(launcher, launcher.run())


def resume(order: RunSpec) -> int:
    """Go on with a run from its last checkpoint, in new processes; with one that is done, if its script changed."""
    _nobody_has(order)
    events = read(order.folder, "launcher")
    launcher = Launcher(order, attempt=max((e.epoch.attempt for e in events if isinstance(e, Began)), default=-1) + 1)
    say = launcher.speaker.say
    last = next((event for event in reversed(events) if isinstance(event, Began | Ended)), None)
    if isinstance(last, Ended) and last.status == 0 and list(order.script) == script_of(order.run):
        say(f"run {order.run} is done, nothing is left to resume: meshmend audit {order.run} shows it")
        return 0
    require_tolerance()
    checkpoint = launcher.last_checkpoint()
    launcher.resume = str(checkpoint or "")
    say(f"resuming from {checkpoint.name if checkpoint else 'the beginning: there is no checkpoint'}")
    with _room(order):
        launcher.reach.open()
        order.save()
        return _told(launcher, launcher.run())


def attach(order: RunSpec) -> int:
    """Go on with a run whose launcher was killed, with the workers that live."""
    _nobody_has(order)
    living = [segment for segment in _segments(order.run) if is_alive(segment["worker"], segment["born"])]
    if not living and not order.hosts:
        raise JobError(f"run {order.run!r} has no living workers here: go on with --resume {order.run}")
    begun = [event for event in read(order.folder, "launcher") if isinstance(event, Began)]
    launcher = Launcher(order, attempt=max((event.epoch.attempt for event in begun), default=0))
    with _room(order):
        launcher.reach.open(attached=True)
        return _told(launcher, launcher.run(attached=True))


def _told(launcher: Launcher, status: int) -> int:
    """A last sentence for a run that is done."""
    run, folder = launcher.order.run, launcher.order.folder
    steps = steps_done(folder) if status == 0 else 0
    if steps:
        failures = sum(isinstance(event, Died) for event in read(folder, "launcher"))
        survived = f", {failures} failure{'s' * (failures > 1)} survived" if failures else ""
        launcher.speaker.say(f"done: {steps} step{'s' * (steps > 1)}{survived}; meshmend audit {run} proves them")
    return status


@contextmanager
def _room(order: RunSpec) -> Iterator[None]:
    """A disk that is full is a sentence, whoever meets it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise unwritable(Path(error.filename or order.folder), error) from None


def _name_is_free(run: str) -> None:
    """Shared memory is named by the run alone: a living run of that name, begun anywhere, must not lose its own."""
    segments = _segments(run)
    owners = [segment["owner"] for segment in segments if is_alive(segment["owner"])]
    workers = [segment["worker"] for segment in segments if is_alive(segment["worker"], segment["born"])]
    if owners or workers:
        who = f"its launcher is process {owners[0]}" if owners else f"worker {workers[0]} waits for run --attach {run}"
        raise JobError(f"a run {run!r} lives on this host already ({who}): give another --name, or end that one first")


def _nobody_has(order: RunSpec) -> None:
    for segment in _segments(order.run):
        if is_alive(segment["owner"]):
            raise JobError(f"run {order.run!r} is in the hands of process {segment['owner']}: end that first")


def _segments(run: str) -> list[Segment]:
    """What a run has in shared memory on this host."""
    found = []
    for rank in ranks_of(run):
        try:
            found.append(Segment(run, rank))
        except PermissionError:
            raise JobError(f"run {run!r} on this host is another user's: give another --name") from None
        except JobError:
            continue  # it is being removed
    return found
