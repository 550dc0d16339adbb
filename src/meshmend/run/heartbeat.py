"""The launcher's heartbeat, by which other hosts know that it is alive: a note in the run's folder.

Within one host a lock shows that (job/shm/presence.py), but no other host sees it. So a launcher writes a note that
identifies it, and a thread touches the note every `HEARTBEAT` seconds. That needs no room on a full disk, and readers
see it change without trusting any clock. A launcher that finds a note of another host watches it for a while before it
takes over.

Notes are numbered: `launcher.json`, `launcher.0001.json`, … The last one counts. Who takes over makes the next one,
and the file system lets one of several do that; the others are refused. The last note is never removed, only marked as
ended, so numbers never fall: one who has looked long ago finds his number taken, or a higher one. A note that is left
by a killed launcher is in nobody's way, as its heartbeat has stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from meshmend.base import whole_files
from meshmend.base.clocks import AGENT_POLL, HEARTBEAT, HEARTBEAT_STOPPED
from meshmend.base.processes import Identity
from meshmend.base.schema import checked, loads
from meshmend.errors import FormatError, JobError
from meshmend.telemetry import opened

LONGEST = 4096
"""Bytes that are read of a note."""


@dataclass(frozen=True, kw_only=True)
class RunningLauncher:
    """Which launcher a run has."""

    host: str = field(default_factory=socket.gethostname)
    process: Identity = field(default_factory=lambda: Identity.of(os.getpid()))
    ended: bool = False
    """Whether it has ended by itself, rather than being killed."""

    @property
    def dead(self) -> bool:
        """Whether it is known to be no launcher any more; asked by one who holds the lock of this host."""
        return self.ended or (self.process.visible and (not self.process.alive or self.process.number == os.getpid()))


@dataclass(frozen=True)
class SeenNote:
    """A note in the run's folder."""

    number: int
    launcher: RunningLauncher | None
    """None: it cannot be read."""
    time: int = 0
    """When it was touched, in nanoseconds of the clock of some host."""

    @property
    def dead(self) -> bool:
        """Whether there is nobody to wait for."""
        return self.launcher is None or self.launcher.dead


def note_of(folder: Path, number: int) -> Path:
    """The note of a run's first, second, … launcher."""
    return folder / (f"launcher.{number:04}.json" if number else "launcher.json")


@contextlib.contextmanager
def beating(
    run: str, folder: Path, mine: RunningLauncher | None = None, *, patience: float = HEARTBEAT_STOPPED,
    advice: str = "stop that launcher first",
) -> Iterator[None]:  # fmt: skip
    """Be the launcher of the run in this folder, for other hosts to see.

    `JobError` if a launcher on another host is alive, or takes over at the same moment, with what to do then.
    """
    mine = mine or RunningLauncher()
    number = _wait_for_end(run, folder, patience, advice)
    _claim(run, folder, number, mine, advice)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            with contextlib.suppress(OSError):  # the file system is unavailable for a moment
                _beat(folder, number, mine)

    thread = threading.Thread(target=beat, name="meshmend heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        found = _look(folder)
        if found is not None and found.number == number and found.launcher == mine:
            with contextlib.suppress(OSError):  # then others wait until they are sure
                whole_files.replace(note_of(folder, number), _text(replace(mine, ended=True)))


def _wait_for_end(run: str, folder: Path, patience: float, advice: str) -> int:
    """Return the number of the next launcher when the last one has ended; refuse to take over from one that lives."""
    found = first = _look(folder)
    until = time.monotonic() + patience
    while first is not None and found is not None and not found.dead and time.monotonic() < until:
        time.sleep(AGENT_POLL)
        found = _look(folder)
        if found is not None and not found.dead and (found.number, found.time) != (first.number, first.time):
            raise _managed(run, found, advice)
    return max((one.number + 1 for one in (first, found) if one is not None), default=0)


def _claim(run: str, folder: Path, number: int, mine: RunningLauncher, advice: str) -> None:
    """Write the note of this number, as the only one; remove those before it."""
    with contextlib.suppress(OSError):  # a full disk is reported elsewhere, and must not prevent training
        folder.mkdir(parents=True, exist_ok=True)
        claimed = whole_files.create(note_of(folder, number), _text(mine))
        found = _look(folder)  # only now: others may have taken over, ended and been followed since the last look
        if not claimed or (found is not None and found.number > number):
            if claimed:
                note_of(folder, number).unlink()
            raise _managed(run, found, advice)
        for before in _numbers(folder):
            if before < number:
                with contextlib.suppress(OSError):
                    note_of(folder, before).unlink()


def _beat(folder: Path, number: int, mine: RunningLauncher) -> None:
    """Show that this launcher is alive; write its note again where it is gone or damaged, but over nobody else's."""
    path, found = note_of(folder, number), _look(folder)
    if found is None or found.number < number:
        whole_files.create(path, _text(mine))
    elif found.number == number and found.launcher is None:
        whole_files.replace(path, _text(mine))
    elif found.number == number and found.launcher == mine:
        os.utime(path)


def _managed(run: str, found: SeenNote | None, advice: str) -> JobError:
    launcher = found and found.launcher
    who = f"process {launcher.process.number} on host {launcher.host}" if launcher else "a launcher on another host"
    return JobError(f"run {run!r} is already managed by {who}: {advice}")


def _text(note: RunningLauncher) -> str:
    return json.dumps(asdict(note))


def _numbers(folder: Path) -> list[int]:
    """The numbers of all notes; a directory that was just changed is fetched again by a network file system."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = (re.fullmatch(r"launcher(?:\.(\d{4,12}))?\.json", name, re.ASCII) for name in names)
    return [int(match[1] or 0) for match in found if match]


def _look(folder: Path) -> SeenNote | None:
    """Return the last note; opens it again each time, which makes a network file system fetch it again."""
    number = max(_numbers(folder), default=None)
    if number is None:
        return None
    try:
        with opened(note_of(folder, number)) as file:
            launcher = checked(RunningLauncher, loads(file.read(LONGEST)))
            return SeenNote(number, launcher, os.fstat(file.fileno()).st_mtime_ns)
    except (OSError, FormatError):
        return SeenNote(number, None)
