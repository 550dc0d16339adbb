"""The launcher's heartbeat, by which other hosts know that it is alive: a note in the run's folder.

Within one host a lock shows that (job/shm/presence.py), but no other host sees it. So a launcher writes a note that
identifies it, and a thread touches the note every `HEARTBEAT` seconds. That needs no room on a full disk, and readers
see it change without trusting any clock. A launcher that finds a note of another host watches it for a while before it
takes over.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from meshmend.base.clocks import AGENT_POLL, HEARTBEAT, HEARTBEAT_STOPPED
from meshmend.base.processes import Identity
from meshmend.base.schema import checked, loads
from meshmend.errors import FormatError, JobError
from meshmend.telemetry import opened

NOTE = "launcher.json"
LONGEST = 4096
"""Bytes that are read of it."""


@dataclass(frozen=True, kw_only=True)
class RunningLauncher:
    """Which launcher a run has."""

    host: str = field(default_factory=socket.gethostname)
    process: Identity = field(default_factory=lambda: Identity.of(os.getpid()))


@contextlib.contextmanager
def beating(folder: Path, note: RunningLauncher | None = None) -> Iterator[None]:
    """Be the launcher of the run in this folder, for other hosts to see."""
    path, ended, mine = folder / NOTE, threading.Event(), note or RunningLauncher()

    def write() -> None:
        path.write_text(json.dumps(asdict(mine)))

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            with contextlib.suppress(OSError):  # the file system is unavailable for a moment
                try:
                    os.utime(path)
                except FileNotFoundError:
                    write()  # a launcher that began at the same moment had its own note there, and was refused

    with contextlib.suppress(OSError):  # a full disk is reported elsewhere, and must not prevent training
        folder.mkdir(parents=True, exist_ok=True)
        write()
    thread = threading.Thread(target=beat, name="meshmend heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        found = _look(folder)
        if found is None or found[0] == mine:
            with contextlib.suppress(OSError):
                path.unlink()


def require_alone(
    run: str, folder: Path, patience: float = HEARTBEAT_STOPPED, advice: str = "stop that launcher first"
) -> None:
    """Refuse to take over a run whose launcher is alive on another host, with what to do then."""
    found = _look(folder)
    if found is None or found[0].process.visible:
        return  # if it were alive, it would hold the lock on this host
    note, before = found
    until = time.monotonic() + patience
    while time.monotonic() < until:
        time.sleep(AGENT_POLL)
        found = _look(folder)
        if found is None:
            return
        if found[1] != before:
            raise JobError(
                f"run {run!r} is already managed by process {note.process.number} on host {note.host}: {advice}"
            )


def _look(folder: Path) -> tuple[RunningLauncher, int] | None:
    """Return the note and its time; opens it again each time, which makes a network file system fetch it again."""
    try:
        with opened(folder / NOTE) as file:
            return checked(RunningLauncher, loads(file.read(LONGEST))), os.fstat(file.fileno()).st_mtime_ns
    except (OSError, FormatError):
        return None
