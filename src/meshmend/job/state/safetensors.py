"""Checkpoints: a job's state on disk, in the safetensors format, so that anybody can read it and nothing in it can run.

    folder/step-00000120.safetensors   the state before step 120: steps 0 to 119 are done
    folder/.step-00000130….tmp         one being written, or the leftover of a killed writer

A file appears whole or not at all: it is written under another name, flushed to disk, then renamed. Its metadata holds
a SHA-256 of the whole file (taken with zeros in the checksum's place), so any damage shows, in the header too.

The format is a length, a line of JSON and the bytes of the arrays: little enough to write here, in one pass with the
checksum, and with no package to install.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import FormatError, JobError
from meshmend.job.frameworks.base import Held, dtype_of
from meshmend.job.reduction.wire import leaves_of, rebuilt

FORMAT = "1"
PIECE = 4 << 20
"""Bytes hashed and written at once: small enough to stay in the cache, large enough to leave the GIL alone."""
OPENING = b'{"__metadata__":{"sha256":"'
"""The checksum comes first, so that it lies at the same place in every file."""
BLANK = b"0" * 64
KINDS = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
"""NumPy's names of the types, and those of safetensors."""
TYPES = {theirs: ours for ours, theirs in KINDS.items()}

Leaves = list[tuple[str, npt.NDArray[Any]]]
Said = Callable[[Path | Exception, float, int], None]


def _nobody(*_: Any) -> None:
    pass


def save(folder: Path, tree: Any, *, step: int, about: dict[str, Any]) -> Path:
    """Write the state before `step`, and what else is needed to go on from it; returns when it is safely on disk."""
    return _write(folder, [(name, np.asarray(value)) for name, value in leaves_of(tree)], step, json.dumps(about))


def load(path: Path, like: Any) -> tuple[Any, int, dict[str, Any]]:
    """The state in a tree like the given one, its step, and what `save` was told about it."""
    with _opened(path) as file:
        head = _checked(file, path)
        begin = file.tell()
        notes = head.pop("__metadata__")
        if isinstance(like, Held):
            like.adopt({name: _read(file, begin, spec, dtype_of(TYPES[spec["dtype"]])) for name, spec in head.items()})
            return like, int(notes["step"]), json.loads(notes["about"])
        found = leaves_of(like)
        for name in sorted(head.keys() ^ dict(found).keys()):
            where = "is not in this job's state but in" if name in head else "of this job's state is not in"
            raise JobError(f"leaf {name!r} {where} {path}: resume with the script that wrote it")
        values = []
        for name, value in found:
            mine, spec = np.asarray(value), head[name]
            if list(mine.shape) != spec["shape"] or _kind(mine) != spec["dtype"]:
                raise JobError(
                    f"leaf {name!r} of {path} is {spec['dtype']}{spec['shape']}, but here it is "
                    f"{_kind(mine) or mine.dtype}{list(mine.shape)}: resume with the script that wrote it"
                )
            values.append(_read(file, begin, spec, mine.dtype))
    return rebuilt(like, values), int(notes["step"]), json.loads(notes["about"])


def latest(folder: Path, passed: Callable[[FormatError], None] = _nobody) -> Path | None:
    """The newest checkpoint that is whole; `passed` is told of each damaged one that is passed over."""
    for _, path in sorted(_steps(folder), reverse=True):
        try:
            with _opened(path) as file:
                _checked(file, path)
            return path
        except FormatError as error:
            passed(error)
    return None


class Background:
    """Writes checkpoints beside the training, which goes on whatever becomes of them: `said` hears of files and errors.

    It hears of each in the writing thread: the path or the error, how long it took, and how large the file is.
    """

    def __init__(self, folder: Path, keep: int = 2, said: Said = _nobody) -> None:
        self._folder = folder
        self._keep = keep
        self._said = said
        self._thread: Thread | None = None

    @property
    def busy(self) -> bool:
        """One is being written."""
        return self._thread is not None and self._thread.is_alive()

    def offer(self, tree: Any, step: int, about: dict[str, Any]) -> bool:
        """Copy this state and write it while training goes on; False if the one before is still being written.

        Offers do not queue, since each one waiting would take the memory of a whole state.
        """
        if self.busy:
            return False
        leaves = [(name, _snapshot(value)) for name, value in leaves_of(tree)]
        # No daemon: a script that ends meanwhile still gets its last checkpoint.
        self._thread = Thread(target=self._work, args=(leaves, step, json.dumps(about)), name="meshmend-checkpoint")
        self._thread.start()
        return True

    def close(self) -> None:
        """Wait for the one being written."""
        if self._thread is not None:
            self._thread.join()

    def _work(self, leaves: Leaves, step: int, about: str) -> None:
        began = time.monotonic()
        try:
            path = _write(self._folder, leaves, step, about)
            size = path.stat().st_size
        except Exception as error:
            self._said(error, time.monotonic() - began, 0)
            return
        # Later steps are from before a resume, and were damaged or set aside: they are not ours to remove.
        older = sorted((found for found in _steps(self._folder) if found[0] < step), reverse=True)
        for _, old in older[max(self._keep - 1, 0) :]:
            with suppress(OSError):
                old.unlink()
        self._said(path, time.monotonic() - began, size)


def _snapshot(value: Any) -> npt.NDArray[Any]:
    # JAX arrays never change, and one with a view on it is not donated either; anything else may change meanwhile.
    immutable = "jax" in sys.modules and isinstance(value, sys.modules["jax"].Array)
    return np.asarray(value) if immutable else np.array(value, order="C")


def _read(file: BufferedReader, begin: int, spec: dict[str, Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """One array of a checked file."""
    file.seek(begin + spec["data_offsets"][0])
    data = np.empty(spec["data_offsets"][1] - spec["data_offsets"][0], np.uint8)
    file.readinto(data.data)
    return data.view(dtype).reshape(spec["shape"])


def _kind(array: npt.NDArray[Any]) -> str | None:
    return KINDS.get(array.dtype.name) if array.dtype.isnative else None


def _steps(folder: Path) -> list[tuple[int, Path]]:
    found = [(re.fullmatch(r"step-(\d{8,})\.safetensors", path.name), path) for path in folder.glob("step-*")]
    return [(int(match[1]), path) for match, path in found if match]


def _write(folder: Path, leaves: Leaves, step: int, about: str) -> Path:
    path = folder / f"step-{step:08}.safetensors"
    # The largest numbers first, so that all are aligned for those who map the file into memory.
    leaves = sorted(leaves, key=lambda leaf: -leaf[1].dtype.itemsize)
    start = _start(leaves, {"sha256": BLANK.decode(), "meshmend": FORMAT, "step": str(step), "about": about})
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    temporary = folder / f".{path.name}.{os.urandom(4).hex()}.tmp"
    try:
        with temporary.open("xb") as file:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            file.write(start)
            digest = hashlib.sha256(start)
            for _, array in leaves:
                data = np.asarray(array, order="C").reshape(-1).view(np.uint8)
                for begin in range(0, len(data), PIECE):
                    piece = data[begin : begin + PIECE].data
                    digest.update(piece)
                    file.write(piece)
            file.seek(8 + len(OPENING))
            file.write(digest.hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)  # before the lock goes
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    # The new name is on disk only when its folder is.
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
    return path


def _sweep(folder: Path) -> None:
    """Remove what killed writers left: a living one, here or in another process, holds a lock on its file."""
    for left in folder.glob(".step-*.tmp"):
        with suppress(OSError), left.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _start(leaves: Leaves, notes: dict[str, str]) -> bytes:
    head: dict[str, Any] = {"__metadata__": notes}
    end = 0
    for name, array in leaves:
        if name in head:
            raise JobError(f"two leaves of the state are called {name!r} in a checkpoint: rename one of them")
        if not _kind(array):
            raise JobError(f"leaf {name!r} is of type {array.dtype}, but checkpoints hold only {', '.join(KINDS)}")
        begin, end = end, end + array.nbytes
        head[name] = {"dtype": _kind(array), "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except PermissionError:
        # Not passed over as damaged ones are: the job would begin anew without a word.
        raise JobError(f"the checkpoint {path} may not be read by this user: change its permissions") from None
    except OSError as error:
        raise FormatError(f"the checkpoint {path} cannot be opened ({error.strerror}): choose another") from None


def _checked(file: BufferedReader, path: Path) -> dict[str, Any]:
    """The header of a file that is whole; the file is left at the first array."""
    try:
        start = file.read(8 + len(OPENING) + len(BLANK))
        if start[8 : 8 + len(OPENING)] != OPENING:
            raise FormatError(f"{path} was not written by meshmend, or is damaged: choose another checkpoint")
        digest = hashlib.sha256(start[: -len(BLANK)] + BLANK)
        while piece := file.read(PIECE):
            digest.update(piece)
        if digest.hexdigest().encode() != start[-len(BLANK) :]:
            raise FormatError(
                f"{path} is damaged or cut short (its checksum is wrong): choose the checkpoint before it"
            )
        file.seek(8)
        head: dict[str, Any] = json.loads(file.read(int.from_bytes(start[:8], "little")))
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror}): choose the checkpoint before it") from None
    if head["__metadata__"]["meshmend"] != FORMAT:
        theirs = head["__metadata__"]["meshmend"]
        raise FormatError(f"{path} has format {theirs}, but this meshmend reads {FORMAT}: install that which wrote it")
    return head
