"""What a process may do, and how it ends.

Root without being root: in its own user namespace, a process may make networks that no other process sees. And an
exit that still cleans up: SIGTERM and SIGHUP unwind like Ctrl-C, and none of them cuts the clean-up short.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from meshmend.errors import TestbedError

UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c"]
ENTER = 'mount -t tmpfs tmpfs /run && exec "$@"'
"""`ip netns` keeps namespaces under /run, where only root may write; no other process sees this /run."""


def become_root() -> None:
    """Run this command again in a user namespace, unless it is already root; an error if there are none."""
    if os.geteuid() == 0:
        return
    probe = [*UNSHARE, ENTER, "sh", "ip", "netns", "add", "probe"]
    try:
        said = subprocess.run(probe, capture_output=True, text=True)
    except FileNotFoundError:
        raise TestbedError("a testbed needs root, or the program unshare of util-linux") from None
    if said.returncode:
        why = (said.stderr.strip().splitlines() or [f"status {said.returncode}"])[-1]
        raise TestbedError(f"a testbed needs root (sudo), because this host allows no user namespaces: {why}")
    os.execvp(UNSHARE[0], [*UNSHARE, ENTER, "sh", sys.executable, "-P", "-m", "meshmend", *sys.argv[1:]])


SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """While active, a signal that would end this process raises SystemExit; signals with a handler are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Meanwhile, signals wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)
