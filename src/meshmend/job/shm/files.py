"""The files of a rank in its run's folder: how their memory is reserved, and the files that hold no words.

RANK.control   the records of agent, worker and courier
RANK.buffers   the part, and the totals of the last two rounds
RANK.worker    the worker's doorbell, a named pipe;  RANK.courier  the courier's
RANK.state     the worker's state, exported for another worker
RANK.given     another worker's state, for this one to begin with
RANK.slices    the weights of a worker of a sharded job (`slices.py`)
RANK.copy-17   its copy of a slice, exported for another worker;  RANK.fill-17  another worker's copy, for this one
RANK.error     the exception that ended the worker
RANK.device    the socket that gives out the worker's device memory (`device/passing.py`);  RANK.lent  its state there

world-NUMBER/  next to them: Open MPI's session files of a world, removed when the next one has been entered
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError, SegmentGone
from meshmend.job.shm.home import folder_of, too_small

LONGEST = 1 << 20
"""Bytes of an exception, at most."""
CREATE = os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class RankFiles:
    """The files of one rank."""

    def __init__(self, run: str, rank: int, folder: Path | None = None) -> None:
        self.run, self.rank = run, rank
        self.folder = folder_of(run) if folder is None else folder

    def path(self, suffix: str) -> Path:
        """Return the path of one of them."""
        return self.folder / f"{self.rank}.{suffix}"

    def reserve(self, suffix: str, size: int) -> int:
        """Make a file of this size, open to read and write.

        Memory is reserved now: otherwise a later write without room would kill the process with SIGBUS.
        """
        file = os.open(self.path(suffix), os.O_RDWR | CREATE, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            os.close(file)
            raise JobError(f"rank {self.rank} of run {self.run!r} {too_small(size, error)}") from None
        return file

    def open(self, suffix: str, flags: int) -> int:
        """Open one of them; `SegmentGone` if it has been removed."""
        try:
            return os.open(self.path(suffix), flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # or a pipe waits
        except FileNotFoundError:
            raise SegmentGone(
                f"the shared memory of run {self.run!r}, rank {self.rank} is gone: the launcher has ended"
            ) from None

    def write_state(self, pieces: Iterable[Any]) -> None:
        """Export a state (arrays of bytes, one after another), whole or not at all."""
        self.path("state").unlink(missing_ok=True)  # readers keep what they have open; two copies may not fit
        self._write("state", pieces)

    def read_state(self) -> npt.NDArray[np.uint8]:
        """Return the exported state: a view of the file, which stays valid even when a newer state takes its name."""
        return self._map("state")

    def put_given(self, pieces: Iterable[Any]) -> None:
        """Store the state that this rank's worker must begin with."""
        self.path("given.new").unlink(missing_ok=True)  # the same as for fills
        self._write("given", pieces)

    def link_given(self, rank: int) -> None:
        """Do the same with the state that another rank of this host has exported, without a copy."""
        fresh = self.path("given.new")
        fresh.unlink(missing_ok=True)
        os.link(RankFiles(self.run, rank, self.folder).path("state"), fresh)
        os.replace(fresh, self.path("given"))

    def read_given(self) -> npt.NDArray[np.uint8]:
        """The state to begin with."""
        return self._map("given")

    def take_given(self) -> npt.NDArray[np.uint8]:
        """Return the state to begin with; removes the file, whose memory is freed with the array."""
        found = self._map("given")
        self.path("given").unlink()
        return found

    def write_copy(self, number: int, pieces: Iterable[Any]) -> None:
        """Export a copy of a slice."""
        self._write(f"copy-{number}", pieces)

    def read_copy(self, number: int) -> npt.NDArray[np.uint8]:
        """That copy."""
        return self._map(f"copy-{number}")

    def put_fill(self, number: int, copy: npt.NDArray[np.uint8]) -> None:
        """Put down another worker's copy of a slice, for this rank's worker to hold."""
        self.path(f"fill-{number}.new").unlink(missing_ok=True)  # a killed courier's may be a link to what others read
        self._write(f"fill-{number}", [copy])

    def take_fill(self, number: int) -> npt.NDArray[np.uint8] | None:
        """That copy, and the file is removed; None where there is none."""
        try:
            found = self._map(f"fill-{number}")
        except FileNotFoundError:
            return None
        self.path(f"fill-{number}").unlink()
        return found

    def _map(self, suffix: str) -> npt.NDArray[np.uint8]:
        file = os.open(self.path(suffix), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not os.fstat(file).st_size:
                raise JobError(f"{self.path(suffix)} holds no state of a worker: it is empty")
            return np.frombuffer(mmap.mmap(file, 0, access=mmap.ACCESS_READ), np.uint8)
        finally:
            os.close(file)

    def _write(self, suffix: str, pieces: Iterable[Any]) -> None:
        fresh = self.path(f"{suffix}.new")
        file = os.open(fresh, os.O_WRONLY | CREATE, 0o600)
        try:
            with os.fdopen(file, "wb") as out:
                for piece in pieces:
                    out.write(
                        np.asarray(piece).data if hasattr(piece, "__array__") else piece
                    )  # fetched where it is on a device
        except OSError:
            fresh.unlink(missing_ok=True)  # half a file would take the room that others wait for
            raise
        os.replace(fresh, self.path(suffix))

    def write_error(self, step: int, error: str, trace: str, *, mistake: bool) -> None:
        """Store the exception that ends this worker."""
        most = LONGEST // 16  # characters; one may take six bytes
        said = {"step": step, "error": error[:most], "trace": trace[-most:], "mistake": mistake}
        self._write("error", [json.dumps(said).encode()])

    def read_error(self) -> dict[str, Any] | None:
        """The exception that ended the worker, if one did."""
        try:
            with os.fdopen(self.open("error", os.O_RDONLY), "rb") as file:
                return dict(json.loads(file.read(LONGEST)))
        except (OSError, ValueError, TypeError, RecursionError):
            return None  # none did, or it was killed while it wrote

    def remove(self) -> None:
        """Remove them all."""
        for name in _names(self.folder):
            if name.partition(".")[0] == str(self.rank):
                (self.folder / name).unlink(missing_ok=True)


def ranks_of(run: str) -> list[int]:
    """The ranks of a run that have memory on this host."""
    try:
        names = _names(folder_of(run))
    except SegmentGone:
        return []
    found = (name.removesuffix(".control") for name in names if name.endswith(".control"))
    return sorted(int(rank) for rank in found if rank.isdecimal())


def world_folder(run: str, world: int) -> Path:
    """The folder for what Open MPI keeps of a world; made if it is missing."""
    folder = folder_of(run) / f"world-{world}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def worlds_of(run: str) -> list[Path]:
    """The folders of a run's worlds on this host."""
    with contextlib.suppress(SegmentGone):
        folder = folder_of(run)
        return [folder / name for name in _names(folder) if _world(name) is not None]
    return []


def remove_worlds(run: str, before: int) -> None:
    """Remove Open MPI's session files of earlier worlds: killed couriers and daemons leave all of them."""
    for folder in worlds_of(run):
        number = _world(folder.name)
        if number is not None and number < before:
            shutil.rmtree(folder, ignore_errors=True)


def _world(name: str) -> int | None:
    kind, _, number = name.partition("-")
    return int(number) if kind == "world" and number.isdecimal() else None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # the run has just been removed
