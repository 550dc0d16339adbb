"""The files of a rank in shared memory: where they lie, how room for them is taken, and the two that hold no words.

meshmend-RUN-RANK.control   the records of agent, worker and courier
meshmend-RUN-RANK.buffers   the part, and the totals of the last two rounds
meshmend-RUN-RANK.worker    the worker's doorbell, a named pipe;  .courier  the courier's
meshmend-RUN-RANK.state     the worker's state, exported for another worker
meshmend-RUN-RANK.given     another worker's state, for this one to begin with
meshmend-RUN-RANK.error     the exception that ended the worker
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError, SegmentGone

HOME = Path("/dev/shm")


class RankFiles:
    """The files of one rank."""

    def __init__(self, run: str, rank: int) -> None:
        self.run, self.rank = run, rank

    def path(self, suffix: str) -> Path:
        """Where one of them lies."""
        return HOME / f"meshmend-{self.run}-{self.rank}.{suffix}"

    def reserve(self, suffix: str, size: int) -> int:
        """Make a file of this size, open to read and write.

        Memory is taken now: where there is none, a later write would end the process with SIGBUS.
        """
        file = os.open(self.path(suffix), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            os.close(file)
            raise JobError(f"rank {self.rank} of run {self.run!r} {too_small(size, error)}") from None
        return file

    def open(self, suffix: str, flags: int) -> int:
        """Open one of them; `SegmentGone` where it has been removed."""
        try:
            return os.open(self.path(suffix), flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise SegmentGone(
                f"the shared memory of run {self.run!r}, rank {self.rank} is gone: the launcher has ended"
            ) from None

    def write_state(self, pieces: Iterable[Any]) -> None:
        """Export a state (arrays of bytes, one after another), whole or not at all."""
        self.path("state").unlink(missing_ok=True)  # readers keep what they have open; two copies may not fit
        self._write("state", pieces)

    def read_state(self) -> npt.NDArray[np.uint8]:
        """The exported state: a view of the file, which stays as it is even when a newer state takes its name."""
        return np.asarray(np.memmap(self.path("state"), np.uint8, "r"))

    def put_given(self, pieces: Iterable[Any]) -> None:
        """Put down the state that this rank's worker must begin with."""
        self._write("given", pieces)

    def link_given(self, rank: int) -> None:
        """Do the same with the state that another rank of this host has exported, without a copy."""
        fresh = self.path("given.new")
        fresh.unlink(missing_ok=True)
        os.link(RankFiles(self.run, rank).path("state"), fresh)
        os.replace(fresh, self.path("given"))

    def take_given(self) -> npt.NDArray[np.uint8]:
        """The state to begin with; the file is removed, and its memory is given back with the array."""
        path = self.path("given")
        found = np.asarray(np.memmap(path, np.uint8, "r"))
        path.unlink()
        return found

    def _write(self, suffix: str, pieces: Iterable[Any]) -> None:
        fresh = self.path(f"{suffix}.new")
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "wb") as out:
            for piece in pieces:
                out.write(piece)
        os.replace(fresh, self.path(suffix))

    def write_error(self, step: int, error: str, trace: str, *, mistake: bool) -> None:
        """Put down the exception that ends this worker."""
        file = os.open(self.path("error"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w") as out:
            json.dump({"step": step, "error": error, "trace": trace, "mistake": mistake}, out)

    def read_error(self) -> dict[str, Any] | None:
        """The exception that ended the worker, if one did."""
        try:
            return dict(json.loads(self.path("error").read_text()))
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            return None  # none did, or it was killed while it wrote

    def remove(self) -> None:
        """Remove them all."""
        for path in HOME.glob(f"meshmend-{self.run}-{self.rank}.*"):
            path.unlink(missing_ok=True)


def free() -> int:
    """Unused bytes of shared memory."""
    place = os.statvfs(HOME)
    return place.f_bavail * place.f_frsize


def too_small(size: int, error: OSError | None = None) -> str:
    """The rest of a sentence about something that needs this many bytes of shared memory."""
    place = os.statvfs(HOME)
    why = f" ({os.strerror(error.errno)})" if error is not None and error.errno else ""
    return (
        f"needs {size / 1e6:.1f} MB of shared memory, but {HOME} ({place.f_blocks * place.f_frsize / 1e6:.1f} MB) "
        f"has no room for that{why}: enlarge it (in a container: --shm-size) or free some"
    )
