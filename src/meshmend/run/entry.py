"""Three ways into a run: start it, resume it from a checkpoint, or take over from a launcher that was killed."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshmend.base.processes import Identity, is_here
from meshmend.errors import JobError
from meshmend.job.shm import clean_stale, manage, ranks_of
from meshmend.job.shm.inspect import waiting
from meshmend.run.checks import check
from meshmend.run.clusters.hosts import Host
from meshmend.run.console import Console, listed_processes, living_on
from meshmend.run.doctor.checks import require_tolerance
from meshmend.run.door import address, announce
from meshmend.run.heartbeat import beating
from meshmend.run.hosts.newcomers import refusal
from meshmend.run.journal import halted_before
from meshmend.run.launcher import Launcher
from meshmend.run.news import AttachingInstead, Done, HostAnnounced, HostRefused, NothingToResume, Resuming
from meshmend.run.spec import VERSION, RunSpec, begun, load_saved
from meshmend.telemetry import Began, Died, Ended, Event, Events, Formed, own, read, steps_done, unwritable

OTHER = "stop that launcher first, or give another --name"


def launch(spec: RunSpec) -> int:
    """Start a run; return the exit status, 0 if the job finished."""
    check(spec)
    clean_stale()
    with manage(spec.run, OTHER):
        # With the lock, not before: another launcher of this name may have begun a run meanwhile, and even ended it.
        if begun(spec.run):
            if not _failed_at_once(spec.folder):
                raise _taken(spec)
            own(spec.folder)
            return _resume(spec.without_additions())  # a mistake was corrected, and the name is used again
        _require_free_name(spec.run)
        require_tolerance()
        own(spec.folder)
        with beating(spec.run, spec.folder, advice=OTHER), _disk_errors(spec):
            launcher = Launcher(spec)
            launcher.pool.open()
            if not spec.claim():  # a launcher on another host, which does not see the lock, was faster
                launcher.pool.close()
                raise _taken(spec)
            return _summarized(launcher, launcher.run())


def _taken(spec: RunSpec) -> JobError:
    return JobError(f"{spec.folder} already holds a run: continue it with --resume {spec.run}, or give another --name")


def _failed_at_once(folder: Path) -> bool:
    """Whether a run ended before it did a step."""
    last = next((event for event in reversed(_recorded(folder)) if isinstance(event, Began | Ended)), None)
    return isinstance(last, Ended) and last.status != 0 and not steps_done(folder)


def _recorded(folder: Path) -> list[Event]:
    """What the launchers of a run have recorded: nothing if somebody removed its folder before it was halted."""
    return read(folder, "launcher") if (folder / "events").is_dir() else []


def _last_attempt(folder: Path, events: list[Event]) -> int:
    """The last attempt that began; -1 if none has."""
    began = [event.epoch.attempt for event in events if isinstance(event, Began)]
    if not began and (folder / "events").is_dir():  # removed during the run; workers that came later have recorded
        began = [event.epoch.attempt for event in Events(folder, damaged=lambda _: None)]
    return max(began, default=-1)


def resume(spec: RunSpec) -> int:
    """Resume a run from its last checkpoint, in new processes; a finished run only if its script has changed."""
    spec = spec.without_additions()
    check(spec)
    own(spec.folder)
    clean_stale()
    with manage(spec.run):
        return _resume(spec)


def _resume(spec: RunSpec) -> int:
    """Resume a run whose lock this process holds."""
    with beating(spec.run, spec.folder):
        _require_no_workers(spec)
        return _resumed(spec)


def _resumed(spec: RunSpec) -> int:
    events = _recorded(spec.folder)
    launcher = Launcher(spec, attempt=_last_attempt(spec.folder, events) + 1)
    tell = launcher.console.tell
    last = next((event for event in reversed(events) if isinstance(event, Began | Ended)), None)
    same_script = list(spec.script) == list(load_saved(spec.run).values["script"])
    if isinstance(last, Ended) and last.status == 0 and same_script:
        tell(NothingToResume(spec.run))
        return 0
    require_tolerance()
    checkpoint = launcher.last_checkpoint()
    launcher.state.resume = str(checkpoint or "")
    with _disk_errors(spec):
        launcher.pool.open()
        if isinstance(last, Began) and launcher.pool.living:  # that launcher was killed, and its workers wait
            return _attached_instead(launcher)
        tell(Resuming(checkpoint.name if checkpoint else ""))
        spec.save()
        return _summarized(launcher, launcher.run())


def _attached_instead(launcher: Launcher) -> int:
    """Attach to a run whose workers are alive on other hosts: their state is newer than any checkpoint."""
    spec, living = launcher.spec, launcher.pool.living
    launcher.pool.close()
    saved = load_saved(spec.run)
    before = RunSpec(**saved.values)
    if saved.version != VERSION or before.without_additions() != spec:
        raise JobError(
            f"run {spec.run!r} still has live workers, whose state is newer than any checkpoint ({living_on(living)}): "
            f"continue with --attach {spec.run}, or kill them first with kill -9"
        )
    launcher.console.tell(AttachingInstead(spec.run, living))
    return _attached(before)


def attach(spec: RunSpec, add: Sequence[Host] = ()) -> int:
    """Take over a run whose launcher was killed, with the workers that are alive.

    With hosts to add: if the launcher is alive, only ask it to add them.
    """
    if add and _announced(spec, add):
        return 0
    check(spec)
    own(spec.folder)
    version = load_saved(spec.run).version
    if version != VERSION:  # its workers and their shared memory have that version
        raise JobError(
            f"run {spec.run!r} was started by meshmend {version}, and this is meshmend {VERSION}: attach with meshmend "
            f"{version}, or kill its workers and use --resume {spec.run}"
        )
    advice = _unanswered(spec) if add else "stop that launcher first"
    with manage(spec.run, advice), beating(spec.run, spec.folder, advice=advice):
        left = waiting(spec.run)
        if left and not spec.hosts and not any(worker.visible for worker in left):
            raise JobError(f"the workers of run {spec.run!r} are in another container: use --attach {spec.run} there")
        if not left and not spec.hosts:
            raise JobError(f"run {spec.run!r} has no live workers on this host: continue it with --resume {spec.run}")
        return _attached(spec, add)


def _announced(spec: RunSpec, add: Sequence[Host]) -> bool:
    """Announce hosts to the launcher of a run; return whether it is there."""
    for host in add:
        reason = announce(spec.folder, host)
        if reason is None:
            return False
        if reason:
            raise JobError(f"run {spec.run!r} cannot add host {host.name}: {reason}")
        Console().tell(HostAnnounced(spec.run, host.name, host.slots))
    return True


def _unanswered(spec: RunSpec) -> str:
    """What to do about a launcher that is alive, and has not answered when hosts were announced to it."""
    if where := address(spec.folder):
        return f"its door at {where} cannot be reached from here, so give --add-host on the host of that launcher"
    return f"it does not accept new hosts, so stop it and use --resume {spec.run} --hosts with all of them"


def _attached(spec: RunSpec, add: Sequence[Host] = ()) -> int:
    events = read(spec.folder, "launcher")
    attempt = max((event.epoch.attempt for event in events if isinstance(event, Began)), default=0)
    stepped = steps_done(spec.folder) > 0
    launcher = Launcher(spec, attempt=attempt, attached=True, stepped=stepped, halted=halted_before(events))
    with _disk_errors(spec):
        launcher.pool.open(attached=True)
        if not waiting(spec.run) and not launcher.pool.living:
            # Workers that were started now would begin from scratch, although there may be a checkpoint.
            away = [host.name for host in spec.places if not launcher.pool.has(host.name)]
            launcher.pool.close()
            but = f", and {', '.join(away)} cannot be reached" if away else ""
            raise JobError(
                f"run {spec.run!r} has no live workers on any of its hosts that can be reached{but}: continue it "
                f"with --resume {spec.run}"
            )
        for host in add:
            if reason := refusal(spec, host, launcher.pool.invited):
                launcher.console.tell(HostRefused(host.name, reason))
            else:
                launcher.pool.invite(host)
        return _summarized(launcher, launcher.run())


def _summarized(launcher: Launcher, status: int) -> int:
    """Print a last sentence for a run that is done; return the same status."""
    run, folder = launcher.spec.run, launcher.spec.folder
    steps = steps_done(folder) if status == 0 else 0
    if steps:
        events = read(folder, "launcher")
        failures = sum(isinstance(event, Died) for event in events)
        jobs = max((event.job for event in events if isinstance(event, Formed)), default=1)
        launcher.console.tell(Done(run, steps, jobs, failures))
    return status


@contextlib.contextmanager
def _disk_errors(spec: RunSpec) -> Iterator[None]:
    """Report a full or read-only disk in one sentence, wherever it shows up."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise unwritable(Path(error.filename or spec.folder), error, spec.run) from None


def _require_free_name(run: str) -> None:
    """Refuse the name of a run that is alive on this host; dead runs have just been cleaned up."""
    if ranks_of(run):
        who = _named(waiting(run)) or "one of its processes"
        raise JobError(
            f"run {run!r} is already alive on this host ({who}, waiting for --attach {run}): give another --name, or "
            "stop that run first"
        )


def _require_no_workers(spec: RunSpec) -> None:
    """Refuse to resume a run whose workers wait for a launcher: their state is newer than any checkpoint.

    Agents report workers on other hosts once they are connected. After a run was halted, workers may be left on hosts
    that were cut off; the agents there kill them.
    """
    left = [one for one in waiting(spec.run) if (is_here(one.number) if one.visible else not spec.hosts)]
    if left:
        raise JobError(
            f"run {spec.run!r} still has live workers, whose state is newer than any checkpoint ({_named(left)}): "
            f"continue with --attach {spec.run}, or kill them first with kill -9"
        )


def _named(workers: list[Identity]) -> str:
    """Name processes, as in "processes 11 12"."""
    seen = [worker.number for worker in workers if worker.visible]
    if not seen:
        return "processes in another container" if workers else ""
    return listed_processes(seen)
