"""Every kind of failure: processes die, stop, slow down, loop, wait, raise or exit, and a bit of memory changes."""

from __future__ import annotations

import os
import signal
import threading
import time

from meshmend.base.clocks import SLOW_STOP
from meshmend.base.processes import kill
from meshmend.job.faults.base import COURIER_POINTS, WORKER_POINTS, Fault, FaultKind, Point, Target, register
from meshmend.job.shm.inspect import request_flip
from meshmend.telemetry import Component

SLOW_MOMENTS = 20
"""How often a worker that is slow on purpose is stopped."""


def _kill(fault: Fault, worker: int) -> None:
    del fault
    os.kill(worker, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(fault: Fault, worker: int) -> None:
    del fault
    os.kill(worker, signal.SIGSTOP)


def _spin(fault: Fault, worker: int) -> None:
    del fault, worker
    while True:
        pass


def _sleep(fault: Fault, worker: int) -> None:
    del fault, worker
    threading.Event().wait()


def _raise(fault: Fault, worker: int) -> None:
    del worker
    raise RuntimeError(f"injected fault: {fault}")


def _exit(fault: Fault, worker: int) -> None:
    del fault, worker
    os._exit(3)


def _kill_courier(fault: Fault, worker: int) -> None:
    del worker
    if fault.point in COURIER_POINTS:
        os.kill(os.getpid(), signal.SIGKILL)  # a worker does it by itself: it knows its courier


def _slow_down(target: Target) -> None:
    """Stop it for moments, each too short for a hang: its steps take several times as long."""
    for _ in range(SLOW_MOMENTS):
        kill(target.worker, signal.SIGSTOP)
        time.sleep(SLOW_STOP)
        kill(target.worker, signal.SIGCONT)
        time.sleep(SLOW_STOP / 4)


KILL = register(
    FaultKind(
        "kill",
        "SIGKILL to the worker (and to its courier, where the point is the courier's)",
        tuple(Point),
        inside=_kill,
        outside=lambda target: kill(target.worker),
    )
)
HANG = register(
    FaultKind(
        "hang",
        "SIGSTOP to the worker",
        tuple(Point),
        inside=_stop,
        outside=lambda target: kill(target.worker, signal.SIGSTOP),
    )
)
SLOW = register(
    FaultKind("slow", "SIGSTOP to the worker, several times, for a second in all", outside=_slow_down, of_run=True)
)
SPIN = register(FaultKind("spin", "the worker loops forever", WORKER_POINTS, inside=_spin))
SLEEP = register(FaultKind("sleep", "the worker waits for something that never comes", WORKER_POINTS, inside=_sleep))
RAISE = register(FaultKind("raise", "the worker raises an exception", WORKER_POINTS, inside=_raise))
EXIT = register(FaultKind("exit", "the worker exits with status 3", WORKER_POINTS, inside=_exit))
COURIER = register(
    FaultKind(
        "courier",
        "SIGKILL to the courier alone",
        tuple(Point),
        part=Component.COURIER,
        inside=_kill_courier,
        outside=lambda target: kill(target.courier),
    )
)
MPIRUN = register(
    FaultKind(
        "mpirun", "SIGKILL to mpirun", part=Component.MPIRUN, outside=lambda target: kill(target.mpirun), of_run=True
    )
)
COURIER_STOP = register(
    FaultKind(
        "courier-stop",
        "SIGSTOP to a courier",
        part=Component.COURIER,
        outside=lambda target: kill(target.courier, signal.SIGSTOP),
        of_run=True,
    )
)
MPIRUN_STOP = register(
    FaultKind(
        "mpirun-stop",
        "SIGSTOP to mpirun",
        part=Component.MPIRUN,
        outside=lambda target: kill(target.mpirun, signal.SIGSTOP),
        of_run=True,
    )
)
AGENT = register(
    FaultKind(
        "agent",
        "SIGKILL to the agent of the worker's host; on the launcher's host that is the launcher: attach another one",
        part=Component.AGENT,
        outside=lambda target: kill(target.agent),
        of_run=True,
        asked_for=True,
        settles=True,
    )
)
LAUNCHER = register(
    FaultKind(
        "launcher",
        "SIGKILL to the launcher; attach another one",
        part=Component.LAUNCHER,
        outside=lambda target: kill(target.launcher),
        of_run=True,
        asked_for=True,
        settles=True,
    )
)
TERM = register(
    FaultKind(
        "term",
        "SIGTERM to the launcher, which writes a checkpoint and stops; resume the run",
        part=Component.LAUNCHER,
        outside=lambda target: kill(target.launcher, signal.SIGTERM),
        of_run=True,
        asked_for=True,
        settles=True,
    )
)


def _flip(target: Target) -> None:
    request_flip(target.run, target.rank)


FLIP = register(
    FaultKind(
        "flip",
        "flips a bit of the worker's state",
        (Point.COMMIT,),
        outside=_flip,
        members=3,  # of two states that differ, no one could tell which is right
        asked_for=True,
        settles=True,
    )
)
