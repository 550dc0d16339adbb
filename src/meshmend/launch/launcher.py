"""`meshmend run`: workers are its children, couriers are mpirun's; when something dies, the others are told.

* A worker dies: its courier is killed, so that MPI tells the other couriers, and they go on in the same step.
* A courier dies: its worker is ended with it. A spare takes its place, if there is one.
* mpirun dies: every worker lives, and a new world of couriers is started under them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from meshmend.errors import JobError
from meshmend.launch.hang import Pulse
from meshmend.launch.mpirun import memory_folder, mpirun_line
from meshmend.train.segment import Segment, clean_stale

POLL = 0.005
RESTARTS = 3
"""How often a worker is started again that dies before it takes part."""
REPAIR = 5.0
"""Seconds that a step of a repair may take; it is a matter of milliseconds, also on a busy machine."""
SETTLE = 0.1
"""Seconds after which it is clear whether one courier died or their whole world (mpirun ends them one by one)."""


@dataclass
class Seat:
    """A worker, and the memory it shares with its courier."""

    number: int
    segment: Segment
    worker: subprocess.Popen[str]
    status: int | None = None
    pulse: Pulse = field(default_factory=Pulse)
    restarts: int = 0
    joining: bool = False
    """Started while the others run: it comes in with the next world."""


@dataclass
class Launcher:
    """One run on this host."""

    run: str
    script: Sequence[str]
    workers: int
    spares: int = 0
    replace: bool = True
    """Whether a dead worker's place is taken by a new one."""
    seats: list[Seat] = field(default_factory=list)
    world: subprocess.Popen[str] | None = None
    worlds: int = 0
    losing: float = 0.0
    """Since when a courier is missing."""

    def start(self) -> None:
        """Start all workers, then the couriers' world."""
        clean_stale()
        for number in range(self.workers + self.spares):
            self.seats.append(Seat(number, *self.begin(number)))

    def begin(self, number: int) -> tuple[Segment, subprocess.Popen[str]]:
        """Start one worker on fresh memory."""
        segment = Segment(self.run, number, create=True)
        segment["owner"], segment["wanted"] = os.getpid(), self.workers
        segment["seats"] = self.workers + self.spares
        environment = {**os.environ, "MESHMEND_RUN": self.run, "MESHMEND_SEAT": str(number)}
        worker = subprocess.Popen(
            [sys.executable, *self.script], env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, preexec_fn=_die_with_parent,
        )  # fmt: skip
        segment["worker"] = worker.pid
        assert worker.stdout is not None
        _pump(worker.stdout, f"[{number}] ")
        return segment, worker

    def living(self) -> list[Seat]:
        """Seats whose worker has not ended."""
        return [seat for seat in self.seats if seat.status is None]

    def form(self) -> None:
        """Start a new world of couriers under the living workers."""
        for seat in self.living():
            seat.segment["courier"], seat.segment["repairing"] = 0, 0
        line = mpirun_line(self.run, [seat.number for seat in self.living() if not seat.joining])
        self.worlds += 1
        print(f"meshmend: world {self.worlds}: {' '.join(line)}", file=sys.stderr, flush=True)
        self.world = subprocess.Popen(
            line,
            env={**os.environ, "TMPDIR": str(memory_folder(self.run))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_die_with_parent,
        )
        assert self.world.stdout is not None
        _pump(self.world.stdout, "[couriers] ")

    def watch(self) -> int:
        """Until every worker has ended: 0 if those that count all ended well."""
        while self.living():
            if self.world is None and all(seat.segment["lanes"] for seat in self.living()):
                self.form()
            for seat in self.living():
                status = seat.worker.poll()
                if status is not None:
                    self.ended(seat, status)
            self.mind_couriers()
            self.mind_hangs()
            self.let_in()
            self.end_idle_spares()
            time.sleep(POLL)
        good = [seat for seat in self.seats if seat.status == 0]
        return 0 if good else 1

    def mind_couriers(self) -> None:
        """A lost courier takes its worker along; a lost world is formed anew."""
        seats = [seat for seat in self.living() if seat.segment["courier"] and not seat.segment["over"]]
        lost = [seat for seat in seats if not _lives(seat.segment["courier"])]
        stuck = [s for s in seats if s.segment["repairing"] and self.age(s.segment["repairing"]) > REPAIR]
        if stuck and self.world is not None:
            # The library can hang in a repair; nothing is lost by throwing its processes away.
            print("meshmend: a repair takes too long: forming a new world", file=sys.stderr, flush=True)
            self.world.kill()
            self.world.wait()
        if self.world is not None and self.world.poll() is not None and seats:
            self.end_couriers()
            self.form()
        elif lost and not self.losing:
            self.losing = time.monotonic()
        elif lost and len(lost) < len(seats) and time.monotonic() - self.losing > SETTLE:
            for seat in lost:
                print(
                    f"meshmend: the courier of worker {seat.number} died; its worker ends", file=sys.stderr, flush=True
                )
                seat.worker.kill()
        elif not lost:
            self.losing = 0.0

    @staticmethod
    def age(since: int) -> float:
        """Seconds since a time that a courier noted."""
        return (time.monotonic_ns() - since) / 1e9

    def ended(self, seat: Seat, status: int) -> None:
        """A worker has ended; unless the job is over, its courier goes with it, so that the others learn of it."""
        seat.status = status
        courier = seat.segment["courier"]
        if courier and (status != 0 or not seat.segment["over"]):
            _kill(courier)
        if status != 0:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            print(f"meshmend: worker {seat.number} {how}; the others go on", file=sys.stderr, flush=True)
            self.start_again(seat)

    def start_again(self, seat: Seat) -> None:
        """Put a new worker into the place of a dead one, unless that dies before it ever takes part."""
        useful = bool(seat.segment["active"])
        seat.restarts = 1 if useful else seat.restarts + 1
        if not self.replace or seat.restarts > RESTARTS or any(s.segment["over"] for s in self.seats):
            return
        if not any(s.segment["active"] for s in self.living()):
            return  # nobody is left to take the state from
        seat.segment, seat.worker = self.begin(seat.number)
        seat.status, seat.pulse, seat.joining = None, Pulse(), True

    def let_in(self) -> None:
        """When all that were started again are ready, form a world with them in it."""
        joining = [seat for seat in self.living() if seat.joining]
        if not joining or not all(seat.segment["lanes"] for seat in joining) or self.world is None:
            return
        for seat in joining:
            seat.joining = False
        if any(seat.segment["over"] for seat in self.living()):
            return
        print(f"meshmend: worker {', '.join(str(s.number) for s in joining)} joins", file=sys.stderr, flush=True)
        self.world.kill()
        self.world.wait()
        self.end_couriers()
        self.form()

    def mind_hangs(self) -> None:
        """End a worker that stands still; what follows is an ordinary death."""
        now = time.monotonic()
        for seat in self.living():
            owes = bool(seat.segment["active"]) and seat.segment["asked"] != seat.segment["answered"]
            if seat.pulse.hangs(seat.segment["progress"], owes, now):
                print(f"meshmend: worker {seat.number} hangs and is ended", file=sys.stderr, flush=True)
                seat.worker.kill()
                seat.pulse = Pulse()

    def end_idle_spares(self) -> None:
        """When all members have ended, the spares that were never needed may go."""
        if any(seat.status == 0 for seat in self.seats):
            for seat in self.living():
                if not seat.segment["active"]:
                    seat.segment["over"] = 1
                    seat.segment.ring("worker")

    def end_couriers(self) -> None:
        """Nobody of an old world may be left when a new one begins."""
        for seat in self.seats:
            if seat.segment["courier"]:
                _kill(seat.segment["courier"])

    def stop(self) -> None:
        """End everything that is left, and leave nothing behind."""
        for seat in self.living():
            seat.worker.kill()
            seat.worker.wait()
        if self.world is not None:
            self.end_couriers()
            self.world.kill()  # what it would clean up lies in our own folder
            self.world.wait()
        for seat in self.seats:
            seat.segment.remove()
        shutil.rmtree(memory_folder(self.run), ignore_errors=True)


def launch(
    script: Sequence[str], workers: int, spares: int = 0, run: str | None = None, *, replace: bool = True
) -> int:
    """Run a script on so many workers; the exit status is 0 if the job was done."""
    if not script:
        raise JobError("no script was given: meshmend run -n 4 train.py …")
    if not os.path.exists(script[0]):
        raise JobError(f"there is no script {script[0]!r}")
    if workers < 1 or spares < 0:
        raise JobError(f"{workers} workers and {spares} spares: at least 1 worker is needed")
    launcher = Launcher(run or f"{time.strftime('%H%M%S')}-{os.getpid()}", script, workers, spares, replace)
    try:
        launcher.start()
        return launcher.watch()
    finally:
        launcher.stop()


def _pump(stream: IO[str], prefix: str) -> None:
    def copy() -> None:
        for line in stream:
            sys.stdout.write(prefix + line)
            sys.stdout.flush()

    threading.Thread(target=copy, daemon=True).start()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _die_with_parent() -> None:
    """A launcher that is killed takes its children with it (Linux: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
