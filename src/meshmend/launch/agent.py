"""Looks after the workers of one host: starts them, sees them die or stand still, passes on what they print.

The launcher has one for its own host, and one on every other host (`python -m meshmend.launch`, over ssh), which it
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshmend.launch.hang import Pulse
from meshmend.launch.knock import Door
from meshmend.launch.lines import read_lines, write_line
from meshmend.launch.mpirun import memory_folder
from meshmend.launch.tail import PIECE, Tail
from meshmend.train.processes import Deathbed, born, doing, ends, kill, kill_group, lives, name, running, signal_name
from meshmend.train.segment import Segment, clean_stale, remove_run, seats_of
from meshmend.train.settings import Settings

LOOK = 0.02
"""Seconds between two looks at everybody; a death is seen at once."""
REPAIR = 5.0
"""Seconds that a step of a repair may take; it is a matter of milliseconds, also on a busy machine."""
DYING = 5.0
"""Seconds in which couriers are gone that nobody carries any more."""
BEAT = 1.0
"""Seconds between two words from an agent on another host, at most, and between two from the launcher to it."""
DAEMON = "prted"
"""What mpirun starts on other hosts, and couriers are children of there."""
ALONE = 30
"""Seconds without a word from the launcher after which an agent on another host ends; its workers wait for the next."""


@dataclass(frozen=True)
class View:
    """What the launcher knows of a seat."""

    seat: int
    process: int = 0
    status: int | None = None
    """How the worker ended; None while it lives."""
    how: str = ""
    """The same in words."""
    error: dict[str, Any] | None = None
    """The exception that ended it."""
    ready: bool = False
    """It has opened its job."""
    active: bool = False
    over: bool = False
    courier: str = "none"
    """"none", "alive" or "lost"."""
    world: int = 0
    """The world whose couriers were let in last."""
    standby: int = 0
    """The world whose courier is ready, or works already."""
    agreed: int = 0
    """The last world whose members have agreed on who they are."""
    still: int = 0
    """Whether it stands still, and how long (`hang.py`)."""
    step: int = field(default=0, compare=False)
    """The step it is in; that this changes is no news."""
    saving: bool = False
    """It writes its last checkpoint."""
    fading: bool = False
    """It has begun to end; how, is known when its memory is given back."""
    stuck: bool = False
    """Its courier is in a repair that takes too long, or that it must not bring to an end by itself."""


@dataclass
class Seat:
    """A worker, and the memory it shares with its courier."""

    number: int
    segment: Segment
    child: subprocess.Popen[bytes] | None = None
    """None for a worker that another agent started."""
    status: int | None = None
    how: str = ""
    pulse: Pulse = field(default_factory=Pulse)
    still: int = 0
    mourned: int = 0
    """The courier that was ended because the worker had."""
    tail: Tail = field(default_factory=Tail)


class Agent:
    """The workers of this host."""

    def __init__(self, run: str, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.seats: dict[int, Seat] = {}
        self._deathbed = Deathbed()
        (folder / "output").mkdir(parents=True, exist_ok=True)
        clean_stale()

    def do(self, command: str, **values: Any) -> None:
        """Carry out one of: adopt, start, end, clear, enter, release, halt, remove, beat."""
        getattr(self, command)(**values)

    def adopt(self, seats: list[int]) -> None:
        """Take over the workers that another agent of this host has left."""
        for number in set(seats) & set(seats_of(self.run)):
            segment = Segment(self.run, number)
            if segment["owner"] in set(running("meshmend.launch", self.run)) - {os.getpid()}:
                kill(segment["owner"])  # an agent that has not noticed yet that the line to it was lost
            segment["owner"] = os.getpid()
            self.seats[number] = Seat(number, segment)

    def start(self, seat: int, wanted: int, seats: int, life: int, resume: str, every: str, script: list[str]) -> None:
        """Start a worker on fresh memory; one that was left waiting there, behind a broken network, is ended."""
        if seat not in self.seats:
            self.adopt([seat])
            self.clear([seat])
            if seat in self.seats:
                self._kill(self.seats[seat], "its seat was started anew")
        memory_folder(self.run)
        segment = Segment(self.run, seat, create=True)
        segment["owner"], segment["wanted"], segment["seats"] = os.getpid(), wanted, seats
        settings = Settings(run=self.run, seat=seat, folder=self.folder, life=life, resume=resume, every=every)
        environment = {**os.environ, **settings.environment(), "PYTHONUNBUFFERED": "1"}
        path = self._output(seat)
        segment["shown"] = path.stat().st_size if path.exists() else 0
        with path.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "meshmend.train.worker", *script],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        segment["worker"], segment["born"] = child.pid, born(child.pid)
        self.seats[seat] = Seat(seat, segment, child)

    def end(self, seat: int, how: str) -> None:
        """Kill a worker; what follows is an ordinary death."""
        self._kill(self.seats[seat], how)

    def clear(self, only: Sequence[int] | None = None) -> None:
        """End the couriers of the world that is."""
        for seat in self.seats.values():
            if only is not None and seat.number not in only:
                continue
            if name(seat.segment["daemon"]) == DAEMON:
                kill(seat.segment["daemon"])  # cut off from mpirun it would stay for long
            kill(seat.segment["courier"])
            seat.segment["courier"], seat.segment["daemon"], seat.segment["repairing"] = 0, 0, 0

    def enter(self, world: int, mpirun: int, formed: int, fresh: bool) -> None:
        """Let the couriers of a new world in, in the place of those of the old one."""
        self.clear()
        for seat in self.seats.values():
            seat.segment["formed"], seat.segment["fresh"], seat.segment["mpirun"] = formed, fresh, mpirun
            seat.segment["world"] = world

    def beat(self) -> None:
        """The launcher is there; that it has spoken is all."""

    def release(self, seat: int) -> None:
        """Let a spare go that was never needed."""
        self.seats[seat].segment["over"] = 1
        self.seats[seat].segment.ring("worker")

    def halt(self, writer: int) -> None:
        """Have all workers end, one of them after it has written a checkpoint."""
        for seat in self._living():
            seat.segment["halt"] = 2 if seat.number == writer else 1
            seat.segment.ring("worker")

    def remove(self) -> None:
        """End everything, and leave nothing behind."""
        self.clear()
        for seat in self._living():
            self._kill(seat, "the run ended")
        for seat in self.seats.values():
            if seat.child is not None:
                seat.child.wait()
            seat.segment.remove()
        self.seats.clear()
        deadline = time.monotonic() + DYING
        while not seats_of(self.run) and time.monotonic() < deadline:
            couriers = running("meshmend.train.courier", self.run)  # also those that were just starting
            for courier in couriers:
                kill(courier)
            if not remove_run(self.run) and not couriers:
                break
            time.sleep(LOOK)

    def wait(self, *others: int) -> None:
        """Until the next look: sooner if a worker or a courier dies, or something comes from one of the other files."""
        living = [seat.segment for seat in self._living()]
        self._deathbed.wait([s[who] for s in living for who in ("worker", "courier")], LOOK, *others)

    def look(self) -> list[View]:
        """See who has died or stands still; how everyone is."""
        now = time.monotonic()
        for seat in self._living():
            self._see_end(seat)
            self._see_still(seat, now)
        for seat in self.seats.values():
            self._end_courier(seat)
        return [self._view(seat) for seat in self.seats.values()]

    def output(self) -> list[tuple[int, str]]:
        """Lines that workers have printed since the last time."""
        lines: list[tuple[int, str]] = []
        for seat in self.seats.values():
            path = self._output(seat.number)
            if path.exists() and path.stat().st_size > seat.segment["shown"]:
                lines += [(seat.number, line) for line in self._read(path, seat)]
        return lines

    @staticmethod
    def _read(path: Path, seat: Seat) -> list[str]:
        """The next lines; of a worker that has ended, all."""
        lines, more = [], True
        with path.open("rb") as file:
            while more:
                file.seek(seat.segment["shown"])
                data = file.read(PIECE)
                more = seat.status is not None and len(data) == PIECE
                some, done = seat.tail.cut(data, time.monotonic(), ended=seat.status is not None and not more)
                seat.segment["shown"] += done
                lines += some
        return lines

    def _output(self, seat: int) -> Path:
        return self.folder / "output" / f"worker-{seat}.log"

    def _living(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.status is None]

    def _see_end(self, seat: Seat) -> None:
        segment = seat.segment
        if seat.child is not None:
            status = seat.child.poll()
        else:
            status = None if lives(segment["worker"], segment["born"]) else 0 if segment["left"] else -signal.SIGKILL
        if status is None:
            return
        seat.status = status
        seat.how = seat.how or (signal_name(-status) if status < 0 else f"status {status}")
        if status != 0 or not segment["over"]:
            kill_group(segment["worker"])  # what it has started

    @staticmethod
    def _end_courier(seat: Seat) -> None:
        """A courier without a worker is ended, so that MPI tells the others; also one that only comes now."""
        segment, courier = seat.segment, seat.segment["courier"]
        if seat.status is not None and courier != seat.mourned and (seat.status != 0 or not segment["over"]):
            seat.mourned = courier
            kill(courier)

    @staticmethod
    def _see_still(seat: Seat, now: float) -> None:
        segment = seat.segment
        part = bool(segment["active"]) and segment["asked"] != segment["answered"]
        owes = seat.status is None and (part or segment["state_asked"] != segment["exported"]) and not segment["paused"]
        worker = segment["worker"]
        seat.still = seat.pulse.still(segment["progress"], bool(segment["inside"]), owes, now, lambda: doing(worker))

    @staticmethod
    def _kill(seat: Seat, how: str) -> None:
        if not ends(seat.segment["worker"], seat.segment["born"]):
            seat.how = how
            kill(seat.segment["worker"])

    @staticmethod
    def _view(seat: Seat) -> View:
        segment = seat.segment
        since, courier = segment["repairing"], segment["courier"]
        carried = "none" if not courier else "alive" if lives(courier) else "lost"
        return View(
            seat=seat.number,
            process=segment["worker"],
            status=seat.status,
            how=seat.how if seat.status is not None else "",
            error=segment.read_error() if seat.status else None,
            ready=bool(segment["lanes"]),
            active=bool(segment["active"]),
            over=bool(segment["over"]),
            courier=carried,
            world=segment["world"],
            standby=segment["standby"],
            agreed=segment["agreed"],
            still=seat.still,
            step=segment["step"],
            saving=bool(segment["saving"]),
            fading=seat.status is None and carried != "alive" and ends(segment["worker"], segment["born"]),
            stuck=bool(since) and (time.monotonic_ns() - since) / 1e9 > REPAIR,
        )


def main(run: str, folder: str) -> None:
    """An agent on another host than the launcher's, until that closes the line or is silent; workers live on."""
    signal.alarm(ALONE)  # it also ends one that is stuck writing into a line that is cut
    agent, door = Agent(run, Path(folder)), Door()
    write_line(1, {"port": door.port})
    said: Sequence[View] | None = None
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
            write_line(1, {"views": [asdict(view) for view in views], "did": len(did)})
            said, last = views, time.monotonic()
