"""What a run prints: workers' lines with their rank, each exception once, and what the supervisor has to say, in words.

Every sentence about a run in progress is here. Nothing depends on how they are worded.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence

from meshmend.run.supervisor.messages import (
    AgentReplaced,
    AllStill,
    Attached,
    Begin,
    GivenUp,
    Halting,
    HaltReason,
    HostBack,
    HostGone,
    HostLost,
    Joined,
    Message,
    Minority,
    MpirunLost,
    NetworkSplit,
    NoCourierEver,
    NoProgress,
    RepairStuck,
    Restarted,
    Restarting,
    RestartsExhausted,
    Signalled,
    Split,
    Standstill,
    StateLost,
    TooFew,
    WorkerEnded,
    WorkerRaised,
    WorldReason,
    WrongSide,
)
from meshmend.run.supervisor.observations import Cause

FEW = 4
"""How many hosts a message names one by one."""


class Console:
    """One run's output."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def line(self, rank: int, text: str) -> None:
        """A line that a worker has printed."""
        sys.stdout.write(f"[{rank}] {text}\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """A sentence of the launcher's own."""
        sys.stdout.flush()
        print(f"meshmend: {text}", file=sys.stderr, flush=True)

    def tell(self, message: Message) -> None:
        """Something that the supervisor has to say."""
        if isinstance(message, WorkerRaised):
            self._raised(message)
        else:
            self.say(sentence(message))

    def _raised(self, message: WorkerRaised) -> None:
        """A worker's exception: in full for the first that meets it, one line for the others."""
        rank, error = message.rank, message.error
        if error.mistake:
            if error.error not in self._told:
                self.say(error.error)
        elif error.error in self._told:
            self.say(
                f"worker {rank} raised the same exception in step {error.step} as worker {self._told[error.error]}"
            )
        else:
            self.say(f"worker {rank} raised an exception in step {error.step}:\n{error.trace.rstrip()}")
        self._told.setdefault(error.error, rank)


def sentence(message: Message) -> str:
    """A message in words."""
    match message:
        case WorkerEnded(rank=rank, status=status, cause=cause, early=early):
            hint = "; use `with mm.Job(…)`, and `break` to stop early" if early else ""
            return f"worker {rank} {'exited before its job was over' if early else ended(status, cause)}{hint}"
        case WorkerRaised(rank=rank, error=error):
            return f"worker {rank} raised an exception in step {error.step}: {error.error}"
        case GivenUp(rank=rank, attempts=attempts):
            return f"worker {rank} failed {attempts} times without completing a step; continuing without it"
        case AllStill():
            return "no worker is making progress; waiting (Ctrl-C to stop)"
        case AgentReplaced(host=host):
            return f"lost the agent on {host}; another one has taken over its workers"
        case HostLost(host=host, ranks=ranks):
            return f"lost host {host} with {workers(ranks)}"
        case HostBack(host=host):
            return f"host {host} is back"
        case Split(hosts=hosts, far=far, near=near):
            return f"{_unreachable(hosts)}; stopping {workers(far)}, {workers(near)} continue{'s' * (len(near) == 1)}"
        case Halting(reason=reason, checkpoint=checkpoint):
            how = "writing a checkpoint and stopping (press Ctrl-C again to stop immediately)"
            return f"{halt_reason(reason)}; {how if checkpoint else 'stopping'}"
        case Restarting(checkpoint=checkpoint):
            return f"restarting everything from {checkpoint or 'the beginning'}"
        case RestartsExhausted(restarts=restarts, checkpoint=checkpoint):
            return f"giving up: {restarts} restarts got no further than {checkpoint or 'the beginning'}"


def halt_reason(reason: HaltReason) -> str:
    """Why a run is halted, in words."""
    match reason:
        case Signalled(signal=name):
            return f"received {name}"
        case TooFew(left=left, least=least):
            return f"{left} worker{'s' * (left != 1)} left, fewer than --min-workers {least}"
        case StateLost():
            return "all workers that had the state are dead"
        case Standstill(seconds=seconds):
            return f"no worker has made progress for {seconds / 60:.0f} minutes"
        case Minority(left=left_, members=members):
            who = f"only {workers(left_)} of {[*members]} can be reached" if left_ else f"none of {[*members]} answers"
            return f"{who}, which is not a majority; the others may still be training"
        case WrongSide(hosts=hosts, near=near, far=far):
            return f"{_unreachable(hosts)}; {workers(near)} cannot continue alone, nor {workers(far)} without mpirun"
        case NoCourierEver(worlds=worlds):
            return f"{worlds} worlds in a row ended before any courier came up"
        case NoProgress(worlds=worlds, step=step):
            return f"{worlds} worlds in a row got no further than step {step}"


def world_reason(reason: WorldReason) -> str:
    """Why a world is formed, in words."""
    match reason:
        case Begin():
            return "the run begins"
        case Attached():
            return "another launcher took over"
        case Restarted():
            return "restart from the last commit"
        case Joined(ranks=ranks):
            return f"{workers(ranks)} join{'s' * (len(ranks) == 1)}"
        case MpirunLost():
            return "mpirun was lost"
        case RepairStuck():
            return "the couriers could not finish their repair"
        case HostGone(host=host):
            return f"host {host} was lost"
        case NetworkSplit():
            return "the network fell in two"


def ended(status: int, cause: Cause) -> str:
    """How a worker ended, in words."""
    if cause is not Cause.NONE:
        return f"was killed: it {cause.value}" if cause is not Cause.RUN_ENDED else "was killed: the run ended"
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def workers(ranks: Sequence[int]) -> str:
    """Such as "worker 3", "workers 1 and 2", "no workers"."""
    if len(ranks) < 2:
        return f"worker {ranks[0]}" if ranks else "no workers"
    return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _unreachable(hosts: Sequence[str]) -> str:
    more = [f"{len(hosts) - FEW} more hosts"] if len(hosts) > FEW else []
    return f"mpirun on {socket.gethostname()} cannot reach {', '.join([*hosts[:FEW], *more])}"
