"""Ends a process that does not say in time that all is well, even one that is stopped.

`signal.alarm` ends a process that is stuck, but not one that is stopped (SIGSTOP, a frozen terminal): its signal waits
until the process continues. A timer of POSIX can send SIGKILL, which nothing withholds. Python has no function for it.
"""

from __future__ import annotations

import ctypes
import math
import signal
import time

SIGEV_SIGNAL = 0
"""The kernel's word for a timer that sends a signal to its process."""


class _Event(ctypes.Structure):
    """`struct sigevent`, which has 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_byte * 48),
    )  # fmt: skip


class _Setting(ctypes.Structure):
    """`struct itimerspec`: seconds and nanoseconds, first of the repetition and then of the first time."""

    _fields_ = (("again", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


class Watchdog:
    """Kills this process so many seconds after it was last fed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = _create()
        self.feed()

    def feed(self) -> None:
        """Say that all is well."""
        if self._timer is None or not _set(self._timer, self._seconds):
            signal.alarm(math.ceil(self._seconds))


def _create() -> ctypes.c_void_p | None:
    """A timer that sends SIGKILL; None on a system that has none."""
    timer, event = ctypes.c_void_p(), _Event(None, signal.SIGKILL, SIGEV_SIGNAL)
    try:
        failed = ctypes.CDLL(None).timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
    except AttributeError:  # a C library that keeps it elsewhere
        return None
    return None if failed else timer


def _set(timer: ctypes.c_void_p, seconds: float) -> bool:
    rest, whole = math.modf(seconds)
    setting = _Setting((0, 0), (int(whole), int(rest * 1e9)))
    return not ctypes.CDLL(None).timer_settime(timer, 0, ctypes.byref(setting), None)
