"""Signals that tell a process to stop: only the launcher decides what follows.

They often reach every process of a run at once: a scheduler signals the whole job, Ctrl-C a process group, a closing
terminal its session. A worker that the signal killed could not write the checkpoint that the launcher requests. So

| process | SIGTERM, SIGINT | SIGHUP |
|---|---|---|
| launcher | halts the run with a checkpoint; a second one ends it immediately | continues without its terminal |
| worker | waits `ALONE` seconds for the launcher's decision. If the run is halted, it stops as told. If the launcher is dead, it writes a checkpoint if it can, and exits. Otherwise the signal was meant for this worker alone, and kills it | ignored |
| courier, agent, mpirun | ignored: their owner kills them with SIGKILL | ignored |

A script's own handlers take precedence. Processes that a worker starts have the default handlers.
"""  # noqa: E501

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from types import FrameType

from meshmend.base.clocks import AGENT_POLL, ALONE, HALT_ALONE, ORPHAN, OWNER_POLL
from meshmend.job.shm.mailbox import WorkerSide, is_over
from meshmend.job.shm.segment import WorkerSegment

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHOW_STACK = signal.SIGQUIT
"""Has a worker print where it is, even if it hangs outside of Python, and continue: agents send it before they kill one
that hangs."""


def ignore_stops() -> None:
    """Ignore them in couriers, agents and their connections, which start nothing that should inherit that."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


class WorkerSignals:
    """A worker's handlers. Not SIG_IGN, which everything that the script starts would inherit."""

    def __init__(self, segment: WorkerSegment) -> None:
        self._segment = segment
        self._waiting: threading.Thread | None = None
        for number in STOPS:
            signal.signal(number, self._got)
            signal.siginterrupt(number, False)  # the script's own system calls need not know
        self._mask = threading.local()
        os.register_at_fork(before=self._hold, after_in_parent=self._go_on, after_in_child=self._let_go)

    def _got(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGHUP and self._waiting is None:
            self._waiting = threading.Thread(target=self._wait, args=[number], name="meshmend signal", daemon=True)
            self._waiting.start()

    def _wait(self, number: int) -> None:
        """Wait until the launcher says that the run is halted, or let the signal kill this process."""
        side, agent = WorkerSide(self._segment), self._segment.agent
        until = time.monotonic() + ALONE
        while time.monotonic() < until:
            if side.halt() is not None or is_over(self._segment):
                return  # the main thread obeys when it next looks
            if not agent.owner.alive:
                halt_alone(self._segment)
            time.sleep(AGENT_POLL)
        default = ctypes.CDLL(None).signal  # Python's own would be for the main thread, which may be busy for long
        default.argtypes = [ctypes.c_int, ctypes.c_void_p]
        default(number, None)
        os.kill(os.getpid(), number)

    def _hold(self) -> None:
        """Prepare a fork: Python loses signals that reach the child before it has its own handlers."""
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)

    def _go_on(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _let_go(self) -> None:
        """Restore the default handlers in a fork, which is not a worker, unless the script has set its own."""
        for number in STOPS:
            if signal.getsignal(number) == self._got:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        self._go_on()


def halt_alone(segment: WorkerSegment) -> None:
    """End a worker that no longer has a launcher; it first writes a checkpoint if it can."""
    segment.worker.orphaned = True
    segment.worker_bell.ring()
    time.sleep(HALT_ALONE)
    until = time.monotonic() + ORPHAN
    while segment.worker.saving and time.monotonic() < until:
        time.sleep(OWNER_POLL)
    os._exit(1)
