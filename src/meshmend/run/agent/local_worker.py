"""One worker of this host, as its agent watches it: its process, its shared memory, its courier and its output."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshmend.base.clocks import AGENT_ALERT, AGENT_REST, REPAIR, STACK_WAIT
from meshmend.base.processes import doing, handles, is_here, is_stopped, name
from meshmend.base.schema import checked
from meshmend.base.status import DONE, HALTED, KILLED
from meshmend.errors import FormatError, JobError
from meshmend.job.shm import AgentSegment
from meshmend.job.shm.mailbox import halt_of, is_over, owes
from meshmend.job.shm.records import CourierPhase
from meshmend.job.signals import SHOW_STACK
from meshmend.run.agent.output import Output
from meshmend.run.agent.pulse import CourierPulse, LoadingPulse, Pulse
from meshmend.run.supervisor.observations import MOVES, Cause, CourierState, RankSeen, Stillness, WorkerError

DAEMON = "prted"
"""The daemon that mpirun starts on other hosts; couriers are its children there."""


@dataclass
class LocalWorker:
    """A worker, and the memory it shares with its courier."""

    rank: int
    segment: AgentSegment
    child: subprocess.Popen[bytes] | None = None
    """None for a worker that another agent started."""
    status: int | None = None
    cause: Cause = Cause.NONE
    pulse: Pulse = field(default_factory=Pulse)
    loads: LoadingPulse = field(default_factory=LoadingPulse)
    carries: CourierPulse = field(default_factory=CourierPulse)
    still: Stillness = MOVES
    seen: RankSeen | None = None
    """The last observation."""
    ended: float = 0.0
    """When its end was detected."""

    def __post_init__(self) -> None:
        self.output = Output(self.segment.agent)

    @property
    def processes(self) -> list[int]:
        """The processes whose exit the agent must notice."""
        courier = self.segment.courier.process.number if self.segment.has_courier() else 0
        return [self.segment.agent.worker.number, courier]

    @property
    def hidden(self) -> bool:
        """Whether it is in another container, so that this process cannot tell whether it is alive."""
        worker = self.segment.agent.worker
        return worker.number > 0 and not worker.visible

    @property
    def elsewhere(self) -> bool:
        """Whether it belongs to another host that shares this memory."""
        worker = self.segment.agent.worker
        return self.hidden or (worker.alive and not is_here(worker.number))

    @property
    def done(self) -> bool:
        """Whether it exited properly after the last step."""
        return self.status == 0 and is_over(self.segment)

    def look(self, now: float) -> RankSeen:
        """Check whether it has died or makes no progress; return the observation. Kill it if its memory is damaged."""
        try:
            if self.status is None:
                self.poll_exit()
                self.poll_pulse(now)
            self.end_courier()
            return self.observe()
        except JobError as error:
            return self._condemn(error)

    def _condemn(self, error: JobError) -> RankSeen:
        """Kill it and its courier: nothing they report can be trusted. Its successor gets new memory."""
        if self.status is None:
            self.end()
            self.status, self.ended = KILLED, time.monotonic()
        why = WorkerError(0, f"worker {self.rank} was killed because {error}", "", mistake=True)
        agent = self.segment.agent
        self.seen = RankSeen(
            self.rank, process=agent.worker.number, attempt=agent.attempt, status=self.status, error=why
        )
        return self.seen

    def poll_exit(self) -> None:
        """Check whether it has exited; then kill what it has started, unless it exited properly."""
        agent = self.segment.agent
        if self.child is not None:
            status = self.child.poll()
        elif agent.worker.alive:
            status = None
        else:
            worker = self.segment.worker
            status = DONE if worker.finished else HALTED if worker.halted else KILLED
        if status is None:
            return
        self.status, self.ended = status, time.monotonic()
        if not self.done:
            agent.worker.kill_group()

    def poll_pulse(self, now: float) -> None:
        """Check whether it makes progress."""
        worker, process = self.segment.worker, self.segment.agent.worker.number
        owing = self.status is None and owes(self.segment) and not worker.paused
        self.still = self.pulse.still(worker.progress, worker.inside, owing, now, lambda: doing(process))
        if self.status is None and worker.ready <= worker.left and not worker.paused:
            self.still = self.still or self.loads.still(now, lambda: is_stopped(process))

    def end_courier(self) -> None:
        """Kill the courier of a dead worker (even one that starts late), so that ULFM reports it to its peers."""
        if self.status is not None and not self.done:
            self.segment.courier.process.kill()

    def clear(self) -> None:
        """Kill the courier of the present world; from now on, this world is over for this rank."""
        worked = self.segment.has_courier()
        self.segment.agent.cleared = self.segment.agent.world  # first: a courier that enters just now sees it and exits
        daemon = self.segment.courier.daemon
        if worked and name(daemon.number) == DAEMON:
            daemon.kill()  # cut off from mpirun, it would linger
        self.segment.courier.process.kill()

    def show_stack(self, output: Path) -> None:
        """Have it write its stack to its output, and give it a moment for that."""
        if not handles(self.segment.agent.worker.number, SHOW_STACK):
            return  # it has only just been started
        before, until = _size(output), time.monotonic() + STACK_WAIT
        last = before
        self.segment.agent.worker.kill(SHOW_STACK)
        while time.monotonic() < until:
            time.sleep(STACK_WAIT / 20)
            size = _size(output)
            if before < size == last:
                break  # it is written, line by line
            last = size

    def kill(self, cause: Cause) -> None:
        """Kill it, unless it is already exiting: then its own exit status counts."""
        worker = self.segment.agent.worker
        if not worker.exiting:
            self.cause = cause
            worker.kill()

    def end(self) -> None:
        """Kill it, its courier and everything it has started, without recording a cause."""
        self.clear()
        self.segment.agent.worker.kill()
        self.segment.agent.worker.kill_group()

    def observe(self) -> RankSeen:
        """Return the observation; observe again if it opened its next job meanwhile."""
        job = self.segment.worker.ready
        seen = self._observe()
        return seen if self.segment.worker.ready == job else self._observe()

    def _observe(self) -> RankSeen:
        segment = self.segment
        agent, worker, courier = segment.agent, segment.worker, segment.courier
        state = CourierState.NONE
        if segment.has_courier():
            state = CourierState.LOST
            if courier.process.alive:
                both = courier.process.number, courier.daemon.number
                stopped = self.carries.stopped(time.monotonic(), lambda: any(map(is_stopped, both)))
                state = CourierState.STOPPED if stopped else CourierState.ALIVE
        _, summed_world, summed_shrink = worker.summed
        ended = self.status is not None
        error = segment.files.read_error() if self.status else None
        self.seen = RankSeen(
            rank=self.rank,
            process=agent.worker.number,
            attempt=agent.attempt,
            status=self.status,
            cause=self.cause if ended else Cause.NONE,
            error=_error(error),
            job=max(worker.ready, 1),
            ready=worker.ready > 0,
            active=segment.in_job and courier.active,
            over=is_over(segment),
            left=0 < worker.ready <= worker.left,
            courier=state,
            world=agent.world,
            opened=agent.opened,
            shrink=courier.shrink,
            standby=courier.standby,
            agreed=courier.agreed,
            still=self.still,
            outside=not worker.inside,
            step=worker.step,
            summed_world=summed_world,
            summed_shrink=summed_shrink,
            halts=halt_of(segment) is not None,
            saving=worker.saving,
            unwritten=worker.unwritten,
            exiting=not ended and state is not CourierState.ALIVE and agent.worker.exiting,
            stuck=segment.has_courier() and _is_stuck(segment),
        )
        return self.seen

    @property
    def calm(self) -> bool:
        """Whether nothing is under way that the agent must follow closely: only exits, and its pulse, can be news."""
        seen = self.seen
        if seen is None:
            return False
        if seen.status is not None:
            return time.monotonic() - self.ended >= AGENT_ALERT
        settled = seen.courier is CourierState.ALIVE and seen.world == seen.standby == seen.agreed and not seen.still
        if not settled or seen.over or seen.saving or seen.exiting or seen.stuck:
            return False
        return not seen.active or self.pulse.rest > 0

    @property
    def pace(self) -> float:
        """How many seconds its pulse may go unpolled."""
        return self.pulse.rest if self.seen is not None and self.seen.active else AGENT_REST

    def beats(self, now: float) -> bool:
        """Poll its pulse alone; return whether it makes progress at its usual pace."""
        try:
            self.poll_pulse(now)
        except JobError:
            return False  # its memory is damaged: the next look finds out
        return not self.still


def _is_stuck(segment: AgentSegment) -> bool:
    courier = segment.courier
    late = time.monotonic() - courier.phase_since > REPAIR
    return courier.phase is CourierPhase.NEEDS_WORLD or (courier.phase is CourierPhase.REPAIRING and late)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _error(values: dict[str, Any] | None) -> WorkerError | None:
    """Parse the error that a worker recorded when it failed; None if it was killed while writing it."""
    try:
        return None if values is None else checked(WorkerError, values)
    except FormatError:
        return None
