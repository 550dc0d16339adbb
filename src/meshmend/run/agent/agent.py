"""Watches the workers of one host: starts them, detects when they die or hang, forwards what they print.

The launcher has one for its own host, and one on every other host (`python -m meshmend.run.agent`, over ssh), which it
talks to through that command's input and output (`messages.py`). An agent keeps no state of its own: everything it
knows is in shared memory. So a new agent can take over from a dead one, and the workers stay alive meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshmend.base.clocks import AGENT_POLL, AGENT_REST, COURIER_EXIT, MEMORY_LOOK
from meshmend.base.env import ONE_THREAD, Settings
from meshmend.base.processes import Identity, name, running
from meshmend.base.waiting import ExitWaiter
from meshmend.errors import JobError
from meshmend.job.shm import (
    clean_stale,
    create_as_agent,
    open_as_agent,
    ranks_of,
    remove_worlds,
    was_removed,
    worlds_of,
)
from meshmend.job.shm.mailbox import tell
from meshmend.job.shm.records import Order
from meshmend.run.agent import messages
from meshmend.run.agent.local_worker import DAEMON, LocalWorker
from meshmend.run.agent.messages import Command
from meshmend.run.agent.warm import WarmProcesses
from meshmend.run.supervisor.observations import Cause, RankSeen
from meshmend.telemetry import Epoch, own


class Agent:
    """The workers of this host."""

    def __init__(self, run: str, folder: Path, *, alone: bool = True, one_host: bool = False) -> None:
        self.run, self.folder = run, folder
        self.alone = alone
        """Whether there is nothing but these workers to poll."""
        self.one_host = one_host
        """Whether the run is on this host alone: then its couriers have a network of their own."""
        self.workers: dict[int, LocalWorker] = {}
        self._unstarted: dict[int, str] = {}
        """Why the last start of a rank failed, if it did."""
        self._warm = WarmProcesses()
        self._exits = ExitWaiter()
        self.epoch = Epoch(0)
        """The latest that a command or a worker has shown."""
        self._cleaned = -1
        """The attempt before which nothing is left on this host."""
        self._memory_looked, self._memory_gone = 0.0, False
        own(folder)
        (folder / "output").mkdir(parents=True, exist_ok=True)

    def act(self, command: Command) -> None:
        """Carry out a command, unless a later attempt has begun since it was given."""
        always = isinstance(command, (messages.Adopt, messages.Remove))  # a launcher learns of attempts by adopting
        if command.epoch.attempt < self.epoch.attempt and not always:
            return
        self.epoch = max(self.epoch, command.epoch)
        match command:
            case messages.Adopt(ranks=ranks):
                self._adopt(ranks)
            case messages.Start(rank=rank):
                self._unstarted.pop(rank, None)
                try:
                    self._start(command)
                except (OSError, ValueError) as error:  # no room in /dev/shm or on the disk, too many processes
                    self._unstarted[rank] = str(error)
            case messages.KeepWarm(count=count, script=script):
                self._warm.keep(count, script)
            case messages.Kill(rank=rank, cause=cause):
                if rank in self.workers:  # a worker that does not exist needs no killing
                    if cause is Cause.HANG:
                        self.workers[rank].show_stack(self._output(rank))
                    self.workers[rank].kill(cause)
            case messages.Clear(only=only):
                self._clear(only)
            case messages.Open(world=world):
                for worker in self.workers.values():
                    worker.segment.agent.opened = world
            case messages.Enter():
                self._enter(command)
            case messages.Release(rank=rank, job=job):
                if rank in self.workers:
                    with contextlib.suppress(JobError):  # its memory is damaged: the next poll kills it
                        tell(self.workers[rank].segment, Order.RELEASE, job)
            case messages.Halt(writer=writer):
                for worker in self._living():
                    with contextlib.suppress(JobError):
                        tell(worker.segment, Order.HALT_AND_SAVE if worker.rank == writer else Order.HALT)
            case messages.Remove():
                self._remove()

    def _adopt(self, ranks: Sequence[int]) -> None:
        """Take over the workers that another agent of this host has left behind."""
        for rank in set(ranks) & set(ranks_of(self.run)):
            try:
                segment = open_as_agent(self.run, rank)
            except JobError:
                continue  # it has just been removed, or cannot be read: that must not affect the other ranks
            worker, owner = LocalWorker(rank, segment), segment.agent.owner
            if worker.hidden:
                continue
            if owner.number in set(running("meshmend.run.agent", self.run, str(self.folder))) - {os.getpid()}:
                owner.kill()  # an agent that has not noticed yet that its connection is dead
            segment.agent.owner = Identity.of(os.getpid())
            self.workers[rank] = worker

    def _end_earlier(self, attempt: int) -> None:
        """Kill what an earlier attempt has left on this host, even in ranks that this attempt does not have.

        Only now is memory of dead runs removed: an agent that takes over first looks at what the dead had done, since
        others must not do it again.
        """
        if attempt == self._cleaned:
            return
        self._cleaned = attempt
        clean_stale()
        for rank in set(ranks_of(self.run)) - self.workers.keys():
            with contextlib.suppress(JobError):
                worker = LocalWorker(rank, open_as_agent(self.run, rank))
                if worker.segment.agent.attempt < attempt and not worker.elsewhere:
                    worker.end()
                    worker.segment.files.remove()

    def _start(self, start: messages.Start) -> None:
        """Start a worker on new memory; kill an old one that was left waiting there when the host was cut off."""
        rank = start.rank
        self._end_earlier(start.epoch.attempt)
        if rank not in self.workers:
            self._adopt([rank])
            self._clear([rank])
            if rank in self.workers:
                self.workers[rank].kill(Cause.REPLACED)
        segment = create_as_agent(self.run, rank)
        agent = segment.agent
        agent.owner = Identity.of(os.getpid())
        agent.founders, agent.wanted, agent.ranks = start.founders, start.wanted, start.ranks
        agent.attempt = start.epoch.attempt
        settings = Settings(
            run=self.run, rank=rank, folder=self.folder, attempt=start.epoch.attempt, resume=start.resume,
            every=start.every, log_every=start.log_every, passed=start.passed,
        )  # fmt: skip
        path = self._output(rank)
        path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed the folder of the run
        agent.shown = path.stat().st_size if path.exists() else 0
        child = self._warm.take(start.script, settings.environment(), path) or _start_cold(start, settings, path)
        agent.worker = Identity.of(child.pid)
        self.workers[rank] = LocalWorker(rank, segment, child)

    def _clear(self, only: Sequence[int] | None = None) -> None:
        """Kill the couriers of the present world."""
        for worker in self.workers.values():
            if only is None or worker.rank in only:
                worker.clear()

    def _enter(self, enter: messages.Enter) -> None:
        """Let the couriers of a new world work, in place of those of the old one."""
        self._clear()
        for worker in self.workers.values():
            agent = worker.segment.agent
            agent.formed, agent.fresh, agent.mpirun = enter.formed / 1e9, enter.fresh, enter.mpirun
            agent.job, agent.wanted = enter.job, enter.wanted
            agent.world = enter.world
        remove_worlds(self.run, before=enter.world)

    def _remove(self) -> None:
        """Kill everything, and leave nothing behind."""
        self._warm.close()
        self._clear()
        for worker in self._living():
            worker.kill(Cause.RUN_ENDED)
        for worker in self.workers.values():
            if worker.child is not None:
                worker.child.wait()
            worker.segment.files.remove()
        self.workers.clear()
        self._unstarted.clear()
        deadline, mine = time.monotonic() + COURIER_EXIT, (self.run, str(self.folder))
        while not ranks_of(self.run) and time.monotonic() < deadline:
            # including couriers that were just starting, and first of all the daemons that start them
            couriers = running("meshmend.job.courier", *mine, any_network=self.one_host)
            left = [Identity.of(one) for one in [*self._daemons(), *couriers]]
            for one in left:
                one.kill()
            if not left:
                break
            time.sleep(AGENT_POLL)

    def _daemons(self) -> list[int]:
        """Return mpirun's daemons on this host; they notice only after a while that mpirun is gone."""
        found = [one for folder in worlds_of(self.run) for one in running("prte_remote_tmpdir_base", str(folder))]
        return [one for one in found if name(one) == DAEMON]

    def wait(self, *others: int, mpiruns: Sequence[int] = ()) -> None:
        """Wait until the next look; less if a process dies, or one of the other files becomes readable.

        While all is calm, only the workers' pulses are polled meanwhile, at their own pace, as often as a hang must be
        noticed: a look at everything takes ten times as long, and takes it from workers that compute.
        """
        calm = self.alone and bool(self.workers) and all(worker.calm for worker in self.workers.values())
        processes = [*mpiruns, *(process for worker in self._living() for process in worker.processes)]
        until = time.monotonic() + AGENT_REST
        while True:
            paces = [worker.pace for worker in self._living()] if calm else []
            seconds = max(AGENT_POLL, min([AGENT_REST, *paces])) if calm else AGENT_POLL
            if self._exits.wait(processes, seconds, *others) or not calm:
                return
            now = time.monotonic()
            if now + AGENT_POLL > until or not all(worker.beats(now) for worker in self._living()):
                return

    def look(self) -> list[RankSeen]:
        """Check which workers have died or make no progress; return the observations of all."""
        now = time.monotonic()
        seen = {worker.rank: worker.look(now) for worker in self.workers.values()}
        self.epoch = max([self.epoch, *(one.epoch for one in seen.values())])
        living = [one for one in seen.values() if one.status is None]
        self._warm.refill(now, calm=bool(living) and all(one.active and not one.over for one in living))
        if self._memory_removed(now):
            seen = {rank: replace(one, memory_removed=True) for rank, one in seen.items()}
        for rank, why in self._unstarted.items():
            seen[rank] = replace(seen.get(rank, RankSeen(rank)), unstarted=why)
        return list(seen.values())

    def _memory_removed(self, now: float) -> bool:
        if now - self._memory_looked > MEMORY_LOOK:
            self._memory_looked, self._memory_gone = now, was_removed(self.run)
        return self._memory_gone

    def output(self) -> list[tuple[int, str]]:
        """Return (rank, line) for everything that workers have printed since the last call."""
        found = [
            (worker.rank, worker.output.read(self._output(worker.rank), ended=worker.status is not None))
            for worker in self.workers.values()
        ]
        return [(rank, line) for rank, lines in found for line in lines]

    def _output(self, rank: int) -> Path:
        return self.folder / "output" / f"worker-{rank}.log"

    def _living(self) -> list[LocalWorker]:
        return [worker for worker in self.workers.values() if worker.status is None]


def _start_cold(start: messages.Start, settings: Settings, path: Path) -> subprocess.Popen[bytes]:
    """Start a worker that has everything to load yet."""
    environment = {**ONE_THREAD, **os.environ, **settings.environment(), "PYTHONUNBUFFERED": "1"}
    with path.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "meshmend.job.worker", *start.script],
            env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
