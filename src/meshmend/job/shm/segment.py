"""The memory that a worker and its courier share, and the two bells they wake each other with.

    meshmend-RUN-SEAT.control   numbers by name, and two flags a lane
    meshmend-RUN-SEAT.bulk      the part, and the totals of the last two rounds: written once, summed from here
    meshmend-RUN-SEAT.state     the state on its way from or to another worker
    meshmend-RUN-SEAT.worker    a bell for the worker, a named pipe;  .courier  one for the courier
    meshmend-RUN-SEAT.error     the exception that ended the worker

What must survive the courier lies here. Each field has one writer. A field is an aligned 64-bit word, so it is
written whole; where several belong together, the one that says so is written last.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import select
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.base.processes import is_alive
from meshmend.errors import JobError
from meshmend.job.protocol import NEVER, MemberState

HOME = Path("/dev/shm")
MOST_LANES = 4096
BEGINS = 60.0
"""Seconds after which a folder for Open MPI without any rank is what a dead run has left."""
FIELDS = (
    # the agent's
    "owner", "wanted", "ranks", "worker", "born", "halt", "shown", "formed", "fresh", "world", "mpirun", "flip",
    # the worker's
    "lanes", "layout", "wire", "wide", "packed", "answered", "exported", "state_round", "progress", "inside", "step",
    "left", "saving", "paused",
    # the courier's
    "courier", "daemon", "standby", "asked", "asked_round", "done", "assigned_round", "active", "given", "state_asked",
    "over", "repairing", "afresh", "agreed", "copied_round", "copied_rank",
)  # fmt: skip
_PLACE = {name: place for place, name in enumerate(FIELDS)}
_ASKED, _ASSIGNED = 64, 64 + MOST_LANES


class Segment:
    """One rank's shared memory; `create` in the agent, `open` in the worker and in the courier."""

    def __init__(self, run: str, rank: int, *, create: bool = False) -> None:
        self.run, self.rank = run, rank
        if create:
            self.remove()
            for bell in ("worker", "courier"):
                os.mkfifo(self.path(bell), 0o600)
        size = 8 * (64 + 2 * MOST_LANES)
        self._words = self._map("control", size, create=create).view(np.int64)
        self._bulk: npt.NDArray[np.uint8] | None = None
        self._bells: dict[str, int] = {}
        if create:
            for name in ("done", "assigned_round", "asked_round", "state_round", "copied_round", "copied_rank"):
                self[name] = NEVER

    def path(self, suffix: str) -> Path:
        """Where a piece lies."""
        return HOME / f"meshmend-{self.run}-{self.rank}.{suffix}"

    def _map(self, suffix: str, size: int, *, create: bool = False) -> npt.NDArray[np.uint8]:
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        try:
            file = os.open(self.path(suffix), flags, 0o600)
        except FileNotFoundError:
            raise JobError(
                f"the shared memory of run {self.run!r}, rank {self.rank} is gone: the launcher has ended"
            ) from None
        try:
            if create:
                self._reserve(file, size)
            return np.frombuffer(mmap.mmap(file, size), np.uint8)
        finally:
            os.close(file)

    def _reserve(self, file: int, size: int) -> None:
        """Take the memory now: where it is not there, a later write would end the process without a word."""
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            raise JobError(f"rank {self.rank} of run {self.run!r} {too_small(size, error)}") from None

    def __getitem__(self, name: str) -> int:
        return int(self._words[_PLACE[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self._words[_PLACE[name]] = value

    def asked_lanes(self) -> tuple[int, ...]:
        """The lanes the courier asks for."""
        flags = self._words[_ASKED : _ASKED + MOST_LANES].copy()  # the courier may be writing the next question
        return tuple(np.flatnonzero(flags).tolist())

    def ask(self, round: int, lanes: Iterable[int]) -> None:
        """Ask the worker for its part of a round; `asked` counts the questions, and is written last."""
        self["asked_round"] = NEVER - 1
        self._flag(_ASKED, lanes)
        self["asked_round"] = round
        self["asked"] += 1
        self.ring("worker")

    def _flag(self, begin: int, lanes: Iterable[int]) -> None:
        flags = np.zeros(MOST_LANES, np.int64)
        flags[list(lanes)] = 1
        self._words[begin : begin + MOST_LANES] = flags

    def make_bulk(self, wire: int, wide: int, packed: int, layout: int) -> None:
        """The worker knows the size of its gradients now: `wire` numbers of `wide` bytes (negative: integers).

        In the place of the first `packed` of them lie bf16.
        """
        self._map("bulk", 3 * wire * abs(wide), create=True)
        self["layout"] = layout
        self["wide"] = wide
        self["packed"] = packed
        self["wire"] = wire

    def buffer(self, which: int) -> npt.NDArray[np.generic]:
        """Buffer 0 is the part, 1 and 2 the totals of even and odd rounds."""
        size, wide = self["wire"], self["wide"]
        if self._bulk is None:
            self._bulk = self._map("bulk", 3 * size * abs(wide))
        kind = {-4: np.int32, 4: np.float32}[wide]
        return np.asarray(self._bulk.view(kind).reshape(3, size)[which])

    def total(self, round: int) -> npt.NDArray[np.generic]:
        """The buffer for the total of a round."""
        return self.buffer(1 + round % 2)

    def ring(self, bell: str) -> None:
        """Wake whoever listens to this bell."""
        with contextlib.suppress(BlockingIOError):  # it has been rung often enough
            os.write(self._bell(bell), b"!")

    def listen(self, bell: str, seconds: float) -> None:
        """Sleep until the bell rings, or for so long."""
        file = self._bell(bell)
        if select.select([file], [], [], seconds)[0]:
            os.read(file, 4096)

    def _bell(self, bell: str) -> int:
        if bell not in self._bells:
            self._bells[bell] = os.open(self.path(bell), os.O_RDWR | os.O_NONBLOCK)
        return self._bells[bell]

    def write_state(self, pieces: Iterable[Any]) -> None:
        """Put a state (arrays of bytes, one after another) down for the other side, whole or not at all."""
        fresh = self.path("state.new")
        self.path("state").unlink(missing_ok=True)  # who has it keeps it, and twice the memory need not be there
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "wb") as out:
            for piece in pieces:
                out.write(piece)
        os.replace(fresh, self.path("state"))

    def read_state(self) -> npt.NDArray[np.uint8]:
        """The state that was put down: a view of the file, which stays as it is even when another takes its place."""
        return np.asarray(np.memmap(self.path("state"), np.uint8, "r"))

    def fetch_state(self, rank: int) -> None:
        """Take the state that another rank of this host has put down, without a copy."""
        fresh = self.path("state.new")
        fresh.unlink(missing_ok=True)
        os.link(Segment(self.run, rank).path("state"), fresh)
        os.replace(fresh, self.path("state"))

    def write_error(self, step: int, error: str, trace: str, *, mistake: bool) -> None:
        """Leave word of the exception that ends this worker."""
        file = os.open(self.path("error"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w") as out:
            json.dump({"step": step, "error": error, "trace": trace, "mistake": mistake}, out)

    def read_error(self) -> dict[str, Any] | None:
        """The exception that ended the worker, if it was one."""
        try:
            return dict(json.loads(self.path("error").read_text()))
        except (FileNotFoundError, ValueError):
            return None

    def remove(self) -> None:
        """Leave nothing behind."""
        for path in HOME.glob(f"meshmend-{self.run}-{self.rank}.*"):
            path.unlink(missing_ok=True)


def free() -> int:
    """Bytes of shared memory that nobody uses."""
    place = os.statvfs(HOME)
    return place.f_bavail * place.f_frsize


def too_small(size: int, error: OSError | None = None) -> str:
    """What to say where shared memory has no room for so many bytes."""
    place = os.statvfs(HOME)
    why = f" ({os.strerror(error.errno)})" if error is not None and error.errno else ""
    return (
        f"needs {size / 1e6:.1f} MB of shared memory, but {HOME} ({place.f_blocks * place.f_frsize / 1e6:.1f} MB) "
        f"has no room for that{why}: give it more (a container: --shm-size), or free some"
    )


class SharedMemory(MemberState):
    """The protocol's memory, kept in a segment so that it outlives the courier."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.rank = segment.rank

    @property
    def done(self) -> int:
        """The last round whose total is here."""
        return self._segment["done"]

    @done.setter
    def done(self, value: int) -> None:
        self._segment["done"] = value
        self._segment.ring("worker")

    @property
    def active(self) -> bool:
        """Whether this member takes part in rounds."""
        return bool(self._segment["active"])

    @active.setter
    def active(self, value: bool) -> None:
        self._segment["active"] = value
        self._segment.ring("worker")

    @property
    def copied(self) -> tuple[int, int]:
        """(round, rank); the round is taken away first and written last."""
        return self._segment["copied_round"], self._segment["copied_rank"]

    @copied.setter
    def copied(self, value: tuple[int, int]) -> None:
        self._segment["copied_round"] = NEVER - 1
        self._segment["copied_rank"] = value[1]
        self._segment["copied_round"] = value[0]

    @property
    def assigned(self) -> tuple[int, tuple[int, ...]]:
        """(round, lanes); the round is taken away first and written last, so a torn write is nobody's lanes."""
        flags = self._segment._words[_ASSIGNED : _ASSIGNED + MOST_LANES]
        return self._segment["assigned_round"], tuple(np.flatnonzero(flags).tolist())

    @assigned.setter
    def assigned(self, value: tuple[int, tuple[int, ...]]) -> None:
        self._segment["assigned_round"] = NEVER
        self._segment._flag(_ASSIGNED, value[1])
        self._segment["assigned_round"] = value[0]


def ranks_of(run: str) -> list[int]:
    """The ranks of a run that have memory on this host."""
    found = (path.stem.removeprefix(f"meshmend-{run}-") for path in HOME.glob(f"meshmend-{run}-*.control"))
    return sorted(int(rank) for rank in found if rank.isdigit())  # and not those of run "a-b" for run "a"


def stale_runs() -> list[str]:
    """Runs that left something behind though their launcher and all their workers are dead."""
    alive: dict[str, bool] = {}
    for path in HOME.glob("meshmend-*.control"):
        run, _, rank = path.stem.removeprefix("meshmend-").rpartition("-")
        try:
            segment = Segment(run, int(rank))
            here = is_alive(segment["owner"]) or is_alive(segment["worker"], segment["born"])
        except (JobError, ValueError, PermissionError):
            continue  # it is being removed, or is another user's
        alive[run] = alive.get(run, False) or here
    return sorted(run for run, here in {**_orphans(), **alive}.items() if not here)


def _orphans() -> dict[str, bool]:
    """Runs of which only a folder for Open MPI is left, for a while now: one that begins makes it first."""
    found = {}
    for path in HOME.glob("meshmend-*-mpi"):
        with contextlib.suppress(OSError):
            found[path.name.removeprefix("meshmend-").removesuffix("-mpi")] = (
                time.time() - path.stat().st_mtime < BEGINS
            )
    return found


def clean_stale() -> list[str]:
    """Remove what dead runs left behind; their names."""
    stale = stale_runs()
    for run in stale:
        remove_run(run)
    return stale


def remove_run(run: str) -> bool:
    """Remove all that a run has in shared memory on this host; whether there was anything."""
    ours = re.compile(rf"meshmend-{re.escape(run)}-(mpi|\d+\..*)")  # and not run "a-b" for run "a"
    found = [path for path in HOME.glob(f"meshmend-{run}-*") if ours.fullmatch(path.name)]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return bool(found)
