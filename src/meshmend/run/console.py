"""What a run prints: the workers' lines with their ranks, each exception once, and the launcher's messages in words.

Every sentence of the launcher about a run in progress is here, made from a typed message of the supervisor
(`supervisor/messages.py`) or its own (`news.py`); nothing depends on the wording. Couriers print a few lines themselves
(`base/marked_lines.py`), which are shown as they are. A sentence says what happened, to which worker, and what
follows, so that it is clear at 3 a.m. and can be pasted into a search engine.
"""

from __future__ import annotations

import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshmend.base.units import FEW, agree, duration_text, plural, workers
from meshmend.run import news
from meshmend.run.outlet import Outlet
from meshmend.run.supervisor.messages import (
    AgentReplaced,
    AllStill,
    Attached,
    BadStart,
    Begin,
    CouriersStopped,
    FirstBusy,
    GivenUp,
    Halting,
    HaltReason,
    HostAdded,
    HostBack,
    HostGone,
    HostLost,
    Joined,
    JoinFailed,
    MemoryRemoved,
    Message,
    Minority,
    MpirunLost,
    NetworkSplit,
    NoCourierEver,
    NoProgress,
    RepairStuck,
    Replacing,
    Restarted,
    Restarting,
    RestartsExhausted,
    Signalled,
    Split,
    Standstill,
    StartFailed,
    StateLost,
    Stopped,
    TooFew,
    WorkerEnded,
    WorkerRaised,
    WorldReason,
    WrongSide,
)
from meshmend.run.supervisor.observations import Cause

MANY = 100
"""The most lines in one write."""
SLOW = "wrap slow code in `with job.pause():`, or divide it among all workers with `job.evaluate`"
SHOWN = 16
"""How many processes a message lists."""
CAUSES = {
    Cause.HANG: "it made no progress while the others waited for it",
    Cause.STOPPED: "it was stopped (SIGSTOP) while the others waited for it",
    Cause.LOST_COURIER: "its courier died",
    Cause.STATELESS: "no worker is left that could give it the state",
    Cause.NOT_OPENED: "it had not opened its job yet",
    Cause.HALTED: "it did not stop in time",
    Cause.RESTARTED: "everything restarts",
    Cause.CUT_OFF: "it was cut off from the majority",
    Cause.REPLACED: "its rank was started again",
    Cause.RUN_ENDED: "the run ended",
}
"""Why the supervisor killed a worker."""


class Console:
    """The output of one run; `log` keeps all of it, whatever happens to the terminal."""

    def __init__(self, log: Path | None = None) -> None:
        self.outlet = Outlet(log)
        self._told: dict[str, int] = {}
        """Exceptions that were shown, and the rank that first raised each."""

    def lines(self, printed: Sequence[tuple[int, str]]) -> None:
        """Print (rank, line) of the workers, many lines per write: each write is a system call."""
        for begin in range(0, len(printed), MANY):
            some = printed[begin : begin + MANY]
            self.outlet.write(sys.stdout, "".join(f"[{rank}] {text}\n" for rank, text in some))

    def say(self, text: str) -> None:
        """Print a sentence of the launcher."""
        self.outlet.write(sys.stderr, f"meshmend: {text}\n")

    def keep(self, text: str) -> None:
        """Write something only to the log."""
        self.outlet.write(None, text)

    def drain(self) -> None:
        """Wait until everything is written, as long as the reader reads."""
        self.outlet.drain()

    def tell(self, message: Message | news.News) -> None:
        """Print a message of the supervisor or the launcher."""
        if isinstance(message, WorkerRaised):
            self._raised(message)
        elif isinstance(message, news.News):
            self.say(announcement(message))
        else:
            self.say(sentence(message))

    def _raised(self, message: WorkerRaised) -> None:
        """Print an exception in full the first time, and one line when other workers raise the same one."""
        rank, error = message.rank, message.error
        first = self._told.get(error.error)
        self._told.setdefault(error.error, rank)
        if error.mistake:
            if first is None:
                self.say(error.error)
        elif first is None:
            self.say(f"worker {rank} raised an exception in step {error.step}:\n{error.trace.rstrip()}")
        else:
            self.say(f"worker {rank} raised the same exception as worker {first}, in step {error.step}")


def sentence(message: Message) -> str:
    """Put a message in words."""
    match message:
        case WorkerEnded(rank=rank, early=True):
            how = "wrap the loop in `with mm.Job(…)`, and leave it early with `break`"
            return f"worker {rank} exited before the job finished; {how}"
        case WorkerEnded(rank=rank, status=status, cause=Cause.NONE):
            how = "exited with" if status >= 0 else "was killed by"
            return f"worker {rank} {how} {ending(status)}{_which(message)}"
        case WorkerEnded(rank=rank, cause=Cause.HANG, outside=True):
            where = "in your own code between two steps"
            return f"killed worker {rank}: it made no progress {where}; {SLOW}{_which(message)}; {_stack(rank)}"
        case WorkerEnded(rank=rank, cause=Cause.HANG):
            return f"killed worker {rank}: {CAUSES[Cause.HANG]}{_which(message)}; {_stack(rank)}"
        case WorkerEnded(rank=rank, cause=cause):
            return f"killed worker {rank}: {CAUSES[cause]}{_which(message)}"
        case WorkerRaised(rank=rank, error=error):
            return f"worker {rank} raised an exception in step {error.step}: {error.error}"
        case StartFailed(rank=rank, why=why):
            return f"cannot start worker {rank}: {why}; trying again"
        case JoinFailed(ranks=ranks):
            who = f"{workers(ranks)} cannot join: the couriers of a new world do not come up"
            return f"{who} (output/couriers.log has what mpirun printed); trying again"
        case GivenUp(rank=rank, restarts=times):
            return f"worker {rank} was restarted {times} times without completing a step; continuing without it"
        case Replacing(rank=rank):
            return f"starting a new worker {rank} in its place"
        case AllStill():
            return "no worker is making progress; waiting (press Ctrl-C to stop)"
        case FirstBusy(rank=rank):
            return f"worker {rank} is busy in your own code between two steps, and the others wait for it; {SLOW}"
        case AgentReplaced(host=host):
            return f"lost the agent on host {host}; another one has taken over its workers"
        case HostLost(host=host, ranks=ranks):
            return f"lost host {host} with {workers(ranks)}"
        case HostBack(host=host):
            return f"host {host} is back"
        case HostAdded(host=host, ranks=ranks):
            return f"host {host} was added; starting {workers(ranks)} there"
        case Split(hosts=hosts, far=far, near=near):
            return f"{_unreachable(hosts)}; stopping {workers(far)}, continuing with {workers(near)}"
        case Halting(reason=reason, checkpoint=True):
            how = "writing a checkpoint and stopping (press Ctrl-C again to stop immediately)"
            return f"{halt_reason(reason)}; {how}"
        case Halting(reason=reason):
            return f"{halt_reason(reason)}; stopping without another checkpoint"
        case Restarting(checkpoint=checkpoint):
            return f"restarting everything from {checkpoint or 'the beginning'}"
        case RestartsExhausted(restarts=restarts, checkpoint=checkpoint):
            return f"giving up: {restarts} restarts got no further than {checkpoint or 'the beginning'}"


def announcement(message: news.News) -> str:
    """Put a message of the launcher in words."""
    match message:
        case news.WorldEntered(number=number, reason=reason, run=run):
            name = f"run {run}, launcher {message.launcher}, mpirun {message.mpirun}; " if run else ""
            return f"{name}world {number} ({world_reason(reason)}){processes(message.processes)}"
        case news.WorldCommand(number=number, line=line):
            return f"world {number} is {shlex.join(line)}"
        case news.CourierSaid(text=text):
            return text
        case news.ActionFailed(why=why):
            return why
        case news.LauncherFailed(run=run, error=error, log=log):
            kept = f"The workers still hold their state: continue with meshmend run --attach {run}"
            return f"the launcher failed ({error}; {log} has the trace). {kept}"
        case news.TerminalLost(log=log):
            return f"received SIGHUP; continuing without a terminal, see {log}"
        case news.DiskFull(folder=folder):
            return f"disk full at {folder}; waiting for free space"
        case news.DiskFreed():
            return "the disk has free space again; continuing"
        case news.Unwritten(ranks=(), folder=folder, why=why):
            return f"the launcher cannot write to {folder} ({why}); trying again"
        case news.Unwritten(ranks=ranks, folder=folder, why=why):
            return f"{workers(ranks)} cannot write to {folder} ({why}); the run waits until that is possible"
        case news.Written(ranks=ranks, folder=folder):
            return f"{workers(ranks) if ranks else 'the launcher'} can write to {folder} again"
        case news.CheckpointUnwritten(rank=rank, why=why):
            return f"worker {rank} could not write the checkpoint ({why})"
        case news.DamagedCheckpoint(why=why):
            return f"skipping a damaged checkpoint: {why}"
        case news.Resuming(checkpoint=checkpoint):
            return f"resuming from {checkpoint or 'the beginning: there is no checkpoint'}"
        case news.NothingToResume(run=run):
            return f"run {run} is done; there is nothing to resume (meshmend audit {run} shows it)"
        case news.AttachingInstead(run=run, living=living):
            return f"run {run} still has live workers ({living_on(living)}): attaching to them instead of resuming"
        case news.HostRefused(host=host, why=why):
            return f"cannot add host {host}: {why}"
        case news.NoAgentThere(host=host, why=why):
            return f"cannot add host {host}: no agent could be started there ({why})"
        case news.HostAnnounced(run=run, host=host, workers=count):
            return f"run {run} starts {plural(count, 'worker')} on {host}; its launcher reports when they join"
        case news.StrangerRefused(address=address):
            return f"refused a host that announced itself from {address}: it does not know the run's secret"
        case news.CanResume(run=run):
            return f"resume with: meshmend run --resume {run}"
        case news.CannotResume(folder=folder, why=why):
            return f"{folder} was removed, so the run cannot be resumed: {why}"
        case news.Done(run=run, steps=steps, jobs=jobs, failures=failures):
            before = f"{plural(jobs, 'job')}, the last with " if jobs > 1 else ""
            survived = f", {plural(failures, 'failure')} survived" if failures else ""
            return f"done: {before}{plural(steps, 'step')}{survived}; meshmend audit {run} proves them"


def living_on(living: Mapping[str, Sequence[int]]) -> str:
    """Name processes by host, as in "processes 11 12 on b"."""
    return ", ".join(f"{listed_processes(numbers)} on {host}" for host, numbers in living.items())


def listed_processes(numbers: Sequence[int]) -> str:
    """Name processes, as in "processes 11 12"."""
    return f"{agree(len(numbers), 'process', 'processes')} {' '.join(map(str, numbers))}"


def _which(ended: WorkerEnded) -> str:
    """Which process it was, and where."""
    known = [f"process {ended.process}"] * (ended.process > 0) + [f"in step {ended.step}"] * (ended.step >= 0)
    return f" ({', '.join(known)})" if known else ""


def _stack(rank: int) -> str:
    return f"its stack is in output/worker-{rank}.log"


def halt_reason(reason: HaltReason) -> str:
    """Put in words why a run is halted."""
    match reason:
        case Signalled(signal=name):
            return f"received {name}"
        case Stopped():
            return "the workers were stopping by themselves when this launcher attached"
        case TooFew(left=left, least=least):
            return f"{plural(left, 'worker')} left, fewer than --min-workers {least}"
        case MemoryRemoved(hosts=hosts):
            return (
                f"the run's shared memory on {_listed(hosts)} was removed by another program (systemd's RemoveIPC at "
                "logout, or a cleaner of temporary files)"
            )
        case StateLost():
            return "all workers that had the state are dead"
        case Standstill(seconds=seconds):
            return f"no worker has made progress for {duration_text(seconds)}"
        case Minority(left=(), members=members):
            return f"none of {workers(members)} can be reached; they may still be training"
        case Minority(left=left_, members=members):
            verb = "is" if len(left_) == 1 else "are"
            only = f"only {len(left_)} of {len(members)} workers ({workers(left_)}) {verb} reachable, not a majority"
            return f"{only}; the others may still be training, so this side stops"
        case WrongSide(hosts=hosts, near=near, far=far):
            few = f"{workers(near)} on this side {'is' if len(near) == 1 else 'are'} not a majority"
            return f"{_unreachable(hosts)}; {few}, and {workers(far)} cannot continue without mpirun"
        case BadStart(ranks=ranks, workers=count):
            return f"{workers(ranks)} of {count} failed before the first step, so the run never had all its workers"
        case NoCourierEver(worlds=worlds):
            return f"{worlds} worlds in a row ended before any courier came up"
        case NoProgress(worlds=worlds, step=step):
            return f"{worlds} worlds in a row ended without completing step {step}"


def world_reason(reason: WorldReason) -> str:
    """Put in words why a world is formed."""
    match reason:
        case Begin(job=job):
            return "the run begins" if job == 1 else f"job {job} begins"
        case Attached():
            return "another launcher took over"
        case Restarted():
            return "restart from the last commit"
        case Joined(ranks=ranks):
            return f"{workers(ranks)} {agree(len(ranks), 'joins', 'join')}"
        case MpirunLost():
            return "mpirun was lost"
        case CouriersStopped():
            return "mpirun or a courier was stopped"
        case RepairStuck():
            return "the couriers could not finish their repair"
        case HostGone(host=host):
            return f"host {host} was lost"
        case NetworkSplit(hosts=hosts):
            return f"the network was partitioned; without {_listed(hosts)}"


def ending(status: int) -> str:
    """Say how a process ended: "status 1", "SIGKILL", "signal 35"."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def processes(found: Mapping[int, int]) -> str:
    """End a sentence with the processes of these ranks, so that a user who wants to kill one need not search."""
    if not found:
        return ""
    some = [str(process) for process in list(found.values())[:SHOWN]] + ["…"] * (len(found) > SHOWN)
    return f": {workers([*found])} {'is process' if len(found) == 1 else 'are processes'} {' '.join(some)}"


def _listed(hosts: Sequence[str]) -> str:
    more = [f"{len(hosts) - FEW} more hosts"] if len(hosts) > FEW else []
    return ", ".join([*hosts[:FEW], *more])


def _unreachable(hosts: Sequence[str]) -> str:
    return f"mpirun on {socket.gethostname()} cannot reach {_listed(hosts)}"
