"""Looks after the workers of one host: starts them, sees them die or stand still, passes on what they print.

The launcher has one for its own host, and one on every other host (`python -m meshmend.run.agent`, over ssh), which it
talks to through the command's input and output, a JSON object a line. An agent keeps nothing of its own: all it knows
is in shared memory. So a new one can take over from a dead one, and workers live on meanwhile.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshmend.base.clocks import AGENT_POLL, REPAIR
from meshmend.base.env import Settings
from meshmend.base.processes import (
    ExitWaiter,
    born,
    doing,
    is_alive,
    is_exiting,
    kill,
    kill_group,
    name,
    running,
)
from meshmend.job.shm.segment import Segment, clean_stale, ranks_of, remove_run
from meshmend.run.agent.messages import read_lines, view_to_json, write_line
from meshmend.run.agent.output import PIECE, Tail
from meshmend.run.agent.pulse import Pulse
from meshmend.run.hosts.probe import ProbeListener
from meshmend.run.supervisor.observations import Cause, CourierState, RankSeen, WorkerError
from meshmend.run.world.mpirun import memory_folder

LOOK = AGENT_POLL
DYING = 5.0
"""Seconds in which couriers are gone that nobody carries any more."""
BEAT = 1.0
"""Seconds between two words from an agent on another host, at most, and between two from the launcher to it."""
DAEMON = "prted"
"""What mpirun starts on other hosts, and couriers are children of there."""
ALONE = 30
"""Seconds without a word from the launcher after which an agent on another host ends; its workers wait for the next."""


@dataclass
class Seat:
    """A worker, and the memory it shares with its courier."""

    number: int
    segment: Segment
    child: subprocess.Popen[bytes] | None = None
    """None for a worker that another agent started."""
    status: int | None = None
    cause: Cause = Cause.NONE
    """Why it was killed, where this agent did it."""
    pulse: Pulse = field(default_factory=Pulse)
    still: int = 0
    mourned: int = 0
    """The courier that was ended because the worker had."""
    tail: Tail = field(default_factory=Tail)


class Agent:
    """The workers of this host."""

    def __init__(self, run: str, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.ranks: dict[int, Seat] = {}
        self._deathbed = ExitWaiter()
        (folder / "output").mkdir(parents=True, exist_ok=True)
        clean_stale()

    def do(self, command: str, **values: Any) -> None:
        """Carry out one of: adopt, start, end, clear, enter, release, halt, remove, beat."""
        getattr(self, command)(**values)

    def adopt(self, ranks: list[int]) -> None:
        """Take over the workers that another agent of this host has left."""
        for number in set(ranks) & set(ranks_of(self.run)):
            segment = Segment(self.run, number)
            if segment["owner"] in set(running("meshmend.run.agent", self.run)) - {os.getpid()}:
                kill(segment["owner"])  # an agent that has not noticed yet that the line to it was lost
            segment["owner"] = os.getpid()
            self.ranks[number] = Seat(number, segment)

    def start(
        self, rank: int, wanted: int, ranks: int, attempt: int, resume: str, every: str, script: list[str]
    ) -> None:
        """Start a worker on fresh memory; one that was left waiting there, behind a broken network, is ended."""
        if rank not in self.ranks:
            self.adopt([rank])
            self.clear([rank])
            if rank in self.ranks:
                self._kill(self.ranks[rank], Cause.REPLACED)
        memory_folder(self.run)
        segment = Segment(self.run, rank, create=True)
        segment["owner"], segment["wanted"], segment["ranks"] = os.getpid(), wanted, ranks
        settings = Settings(run=self.run, rank=rank, folder=self.folder, attempt=attempt, resume=resume, every=every)
        environment = {**os.environ, **settings.environment(), "PYTHONUNBUFFERED": "1"}
        path = self._output(rank)
        segment["shown"] = path.stat().st_size if path.exists() else 0
        with path.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "meshmend.job.worker", *script],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        segment["worker"], segment["born"] = child.pid, born(child.pid)
        self.ranks[rank] = Seat(rank, segment, child)

    def end(self, rank: int, cause: str) -> None:
        """Kill a worker; what follows is an ordinary death. One that is not there needs no killing."""
        if rank in self.ranks:
            self._kill(self.ranks[rank], Cause[cause])

    def clear(self, only: Sequence[int] | None = None) -> None:
        """End the couriers of the world that is."""
        for rank in self.ranks.values():
            if only is not None and rank.number not in only:
                continue
            if name(rank.segment["daemon"]) == DAEMON:
                kill(rank.segment["daemon"])  # cut off from mpirun it would stay for long
            kill(rank.segment["courier"])
            rank.segment["courier"], rank.segment["daemon"], rank.segment["repairing"] = 0, 0, 0

    def enter(self, world: int, mpirun: int, formed: int, fresh: bool) -> None:
        """Let the couriers of a new world in, in the place of those of the old one."""
        self.clear()
        for rank in self.ranks.values():
            rank.segment["formed"], rank.segment["fresh"], rank.segment["mpirun"] = formed, fresh, mpirun
            rank.segment["world"] = world

    def beat(self) -> None:
        """The launcher is there; that it has spoken is all."""

    def release(self, rank: int) -> None:
        """Let a spare go that was never needed."""
        if rank in self.ranks:
            self.ranks[rank].segment["over"] = 1
            self.ranks[rank].segment.ring("worker")

    def halt(self, writer: int) -> None:
        """Have all workers end, one of them after it has written a checkpoint."""
        for rank in self._living():
            rank.segment["halt"] = 2 if rank.number == writer else 1
            rank.segment.ring("worker")

    def remove(self) -> None:
        """End everything, and leave nothing behind."""
        self.clear()
        for rank in self._living():
            self._kill(rank, Cause.RUN_ENDED)
        for rank in self.ranks.values():
            if rank.child is not None:
                rank.child.wait()
            rank.segment.remove()
        self.ranks.clear()
        deadline = time.monotonic() + DYING
        while not ranks_of(self.run) and time.monotonic() < deadline:
            couriers = running("meshmend.job.courier.courier", self.run)  # also those that were just starting
            for courier in couriers:
                kill(courier)
            if not remove_run(self.run) and not couriers:
                break
            time.sleep(LOOK)

    def wait(self, *others: int) -> None:
        """Until the next look: sooner if a worker or a courier dies, or something comes from one of the other files."""
        living = [rank.segment for rank in self._living()]
        self._deathbed.wait([s[who] for s in living for who in ("worker", "courier")], LOOK, *others)

    def look(self) -> list[RankSeen]:
        """See who has died or stands still; how everyone is."""
        now = time.monotonic()
        for rank in self._living():
            self._see_end(rank)
            self._see_still(rank, now)
        for rank in self.ranks.values():
            self._end_courier(rank)
        return [self._view(rank) for rank in self.ranks.values()]

    def output(self) -> list[tuple[int, str]]:
        """Lines that workers have printed since the last time."""
        lines: list[tuple[int, str]] = []
        for rank in self.ranks.values():
            path = self._output(rank.number)
            if path.exists() and path.stat().st_size > rank.segment["shown"]:
                lines += [(rank.number, line) for line in self._read(path, rank)]
        return lines

    @staticmethod
    def _read(path: Path, rank: Seat) -> list[str]:
        """The next lines; of a worker that has ended, all."""
        lines, more = [], True
        with path.open("rb") as file:
            while more:
                file.seek(rank.segment["shown"])
                data = file.read(PIECE)
                more = rank.status is not None and len(data) == PIECE
                some, done = rank.tail.cut(data, time.monotonic(), ended=rank.status is not None and not more)
                rank.segment["shown"] += done
                lines += some
        return lines

    def _output(self, rank: int) -> Path:
        return self.folder / "output" / f"worker-{rank}.log"

    def _living(self) -> list[Seat]:
        return [rank for rank in self.ranks.values() if rank.status is None]

    def _see_end(self, rank: Seat) -> None:
        segment = rank.segment
        if rank.child is not None:
            status = rank.child.poll()
        else:
            status = None if is_alive(segment["worker"], segment["born"]) else 0 if segment["left"] else -signal.SIGKILL
        if status is None:
            return
        rank.status = status
        if status != 0 or not segment["over"]:
            kill_group(segment["worker"])  # what it has started

    @staticmethod
    def _end_courier(rank: Seat) -> None:
        """A courier without a worker is ended, so that MPI tells the others; also one that only comes now."""
        segment, courier = rank.segment, rank.segment["courier"]
        if rank.status is not None and courier != rank.mourned and (rank.status != 0 or not segment["over"]):
            rank.mourned = courier
            kill(courier)

    @staticmethod
    def _see_still(rank: Seat, now: float) -> None:
        segment = rank.segment
        part = bool(segment["active"]) and segment["asked"] != segment["answered"]
        owes = rank.status is None and (part or segment["state_asked"] != segment["exported"]) and not segment["paused"]
        worker = segment["worker"]
        rank.still = rank.pulse.still(segment["progress"], bool(segment["inside"]), owes, now, lambda: doing(worker))

    @staticmethod
    def _kill(rank: Seat, cause: Cause) -> None:
        if not is_exiting(rank.segment["worker"], rank.segment["born"]):
            rank.cause = cause
            kill(rank.segment["worker"])

    @staticmethod
    def _view(rank: Seat) -> RankSeen:
        segment = rank.segment
        since, courier = segment["repairing"], segment["courier"]
        carried = CourierState.NONE if not courier else CourierState.ALIVE if is_alive(courier) else CourierState.LOST
        error = segment.read_error() if rank.status else None
        return RankSeen(
            rank=rank.number,
            process=segment["worker"],
            status=rank.status,
            cause=rank.cause if rank.status is not None else Cause.NONE,
            error=None if error is None else WorkerError(**error),
            ready=bool(segment["lanes"]),
            active=bool(segment["active"]),
            over=bool(segment["over"]),
            courier=carried,
            world=segment["world"],
            standby=segment["standby"],
            agreed=segment["agreed"],
            still=rank.still,
            step=segment["step"],
            saving=bool(segment["saving"]),
            exiting=rank.status is None
            and carried is not CourierState.ALIVE
            and is_exiting(segment["worker"], segment["born"]),
            stuck=bool(since) and (time.monotonic_ns() - since) / 1e9 > REPAIR,
        )


def main(run: str, folder: str) -> None:
    """An agent on another host than the launcher's, until that closes the line or is silent; workers live on."""
    signal.alarm(ALONE)  # it also ends one that is stuck writing into a line that is cut
    agent, door = Agent(run, Path(folder)), ProbeListener()
    write_line(1, {"port": door.port})
    said: Sequence[RankSeen] | None = None
    last, buffer = 0.0, bytearray()
    while True:
        did: list[str] = []
        agent.wait(0)
        door.answer()
        if select.select([0], [], [], 0)[0]:
            commands = read_lines(0, buffer)
            if commands is None:
                return
            signal.alarm(ALONE)
            for values in commands:
                agent.do(**values)
                did += [values["command"]] if values["command"] != "beat" else []
        views, lines = agent.look(), agent.output()
        if lines:
            write_line(1, {"output": lines})
        if views != said or did or time.monotonic() - last > BEAT:
            write_line(1, {"views": [view_to_json(view) for view in views], "did": len(did)})
            said, last = views, time.monotonic()
