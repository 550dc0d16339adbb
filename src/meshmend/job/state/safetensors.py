"""Checkpoints: a job's state on disk in the safetensors format, which anyone can read and which cannot hold code.

    folder/step-00000120.safetensors   the state before step 120: steps 0 to 119 are done
    folder/best.safetensors            one that the user saved by name
    folder/.step-00000130….tmp         one being written, or the leftover of a killed writer

A file appears whole or not at all: it is written under another name, flushed to disk, then renamed. Its metadata holds
a SHA-256 of the whole file (taken with zeros in place of the checksum), so any damage shows, even in the header.

The format is a length, a line of JSON and the bytes of the arrays: simple enough to write here in one pass together
with the checksum, without another package.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from meshmend.base.schema import Count, Rule, checked, loads, shown
from meshmend.errors import FormatError, JobError
from meshmend.job.state.codec import dtype_of
from meshmend.job.state.tree import Leaves

FORMAT = "1"
PIECE = 4 << 20
"""Bytes hashed and written per call: small enough to stay in the cache, large enough to leave the GIL alone."""
OPENING = b'{"__metadata__":{"sha256":"'
"""The checksum comes first, so that it is at the same offset in every file."""
BLANK = b"0" * 64
KINDS = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
"""NumPy's names for the types, and those of safetensors."""
TYPES = {theirs: ours for ours, theirs in KINDS.items()}
SIZES = {name: int((re.findall(r"\d+", name) or [8])[0]) // 8 for name in TYPES}
"""Bytes of a number of each type; NumPy does not know all of them by itself."""

Digits = Annotated[str, Rule("a number", lambda text: re.fullmatch(r"\d{1,15}", text, re.ASCII) is not None)]


@dataclass(frozen=True)
class Leaf:
    """What the header of a file says about one array."""

    dtype: Annotated[str, Rule(f"one of {', '.join(TYPES)}", TYPES.__contains__)]
    shape: Annotated[list[Count], Rule("at most 32 numbers", lambda shape: len(shape) <= 32)]
    data_offsets: Annotated[list[Count], Rule("two offsets", lambda pair: len(pair) == 2 and pair[0] <= pair[1])]

    @property
    def nbytes(self) -> int:
        """The size of such an array."""
        return math.prod(self.shape) * SIZES[self.dtype]


@dataclass(frozen=True)
class Notes:
    """What the header says about the whole file."""

    sha256: str
    meshmend: str
    step: Digits
    about: str


@dataclass(frozen=True)
class Header:
    """A header that fits its file."""

    leaves: dict[str, Leaf]
    step: int
    about: dict[str, Any]


Said = Callable[[Path | Exception, float, int], None]


def _nobody(*_: Any) -> None:
    pass


def save(folder: Path, leaves: Leaves, *, step: int, about: dict[str, Any], name: str = "", sweep: bool = True) -> Path:
    """Write the state before `step`, and what else is needed to resume from it; returns when it is safely on disk.

    `sweep` removes what killed writers have left in the folder: not where others may just begin to write there.
    """
    return _write(folder, leaves, step, json.dumps(about), name, sweep=sweep)


def path_of(folder: Path, step: int, name: str = "") -> Path:
    """The file of a checkpoint."""
    return folder / f"{name or f'step-{step:08}'}.safetensors"


def load(path: Path, template: Leaves | None) -> tuple[Leaves, int, dict[str, Any]]:
    """The arrays of a state by name, its step, and what `save` was told about it.

    With a template, other names, shapes or types than its own are refused by name.
    """
    with _opened(path) as file:
        head = _checked(file, path)
        begin = file.tell()
        if template is None:
            types = {name: dtype_of(TYPES[leaf.dtype]) for name, leaf in head.leaves.items()}
        else:
            types = _checked_types(head.leaves, template, path)
        found = [(name, _read(file, begin, head.leaves[name], dtype)) for name, dtype in types.items()]
    return found, head.step, head.about


def about_of(path: Path) -> dict[str, Any]:
    """What `save` was told about a state."""
    with _opened(path) as file:
        return _checked(file, path).about


def _checked_types(head: dict[str, Leaf], template: Leaves, path: Path) -> dict[str, np.dtype[Any]]:
    for name in sorted(head.keys() ^ dict(template).keys()):
        where = f"in {path} but not in this job's state" if name in head else f"in this job's state but not in {path}"
        raise JobError(f"leaf {name!r} is {where}; resume with the script that wrote it")
    for name, mine in template:
        leaf = head[name]
        if list(mine.shape) != leaf.shape or _kind(mine) != leaf.dtype:
            raise JobError(
                f"leaf {name!r} of {path} is {leaf.dtype}{leaf.shape}, but here it is "
                f"{_kind(mine) or mine.dtype}{list(mine.shape)}; resume with the script that wrote it"
            )
    return {name: mine.dtype for name, mine in template}


def latest(folder: Path, passed: Callable[[FormatError], None] = _nobody) -> Path | None:
    """Return the newest intact checkpoint; `passed` is called with the error of each damaged one that is skipped."""
    for _, path in sorted(_steps(folder), reverse=True):
        try:
            with _opened(path) as file:
                _checked(file, path)
            return path
        except FormatError as error:
            passed(error)
    return None


class Background:
    """Writes checkpoints in the background; whether they succeed or not, training continues.

    `said` is called for each one, in the writing thread: the path or the error, how long it took, and the file's size.
    """

    def __init__(self, folder: Path, keep: int = 2, said: Said = _nobody) -> None:
        self._folder = folder
        self._keep = keep
        self._said = said
        self._thread: Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def offer(self, snapshot: Callable[[], Leaves], step: int, about: dict[str, Any]) -> bool:
        """Copy a state and write it while training continues; False if the previous one is still being written.

        Offers do not queue: each one waiting would take the memory of a whole state.
        """
        if self.busy:
            return False
        # Not a daemon: a script that ends meanwhile still gets its last checkpoint.
        work = (snapshot(), step, json.dumps(about))
        self._thread = Thread(target=self._work, args=work, name="meshmend-checkpoint")
        self._thread.start()
        return True

    def close(self) -> None:
        """Wait until the current checkpoint has been written."""
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
        # Later steps were written before a resume and were skipped as damaged, or set aside: leave them alone.
        older = sorted((found for found in _steps(self._folder) if found[0] < step), reverse=True)
        for _, old in older[max(self._keep - 1, 0) :]:
            with suppress(OSError):
                old.unlink()
        self._said(path, time.monotonic() - began, size)


def _read(file: BufferedReader, begin: int, leaf: Leaf, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """One array of a file whose checksum and header have been verified."""
    low, high = leaf.data_offsets
    file.seek(begin + low)
    data = np.empty(high - low, np.uint8)
    file.readinto(data.data)
    return data.view(dtype).reshape(leaf.shape)


def _kind(array: npt.NDArray[Any]) -> str | None:
    return KINDS.get(array.dtype.name) if array.dtype.isnative else None


def _steps(folder: Path) -> list[tuple[int, Path]]:
    found = [(re.fullmatch(r"step-(\d{8,})\.safetensors", path.name), path) for path in folder.glob("step-*")]
    return [(int(match[1]), path) for match, path in found if match]


def _write(folder: Path, leaves: Leaves, step: int, about: str, name: str = "", *, sweep: bool = True) -> Path:
    path = path_of(folder, step, name)
    # The widest types first, so that every array is aligned for readers that map the file into memory.
    leaves = sorted(leaves, key=lambda leaf: -leaf[1].dtype.itemsize)
    start = _start(leaves, {"sha256": BLANK.decode(), "meshmend": FORMAT, "step": str(step), "about": about})
    folder.mkdir(parents=True, exist_ok=True)
    if sweep:
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
            os.replace(temporary, path)  # before the lock is released
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    # The new name is durable only once its folder is.
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
    return path


def _sweep(folder: Path) -> None:
    """Remove what killed writers left behind: a living one, here or in another process, holds a lock on its file."""
    for left in folder.glob(".*.safetensors.*.tmp"):
        with suppress(OSError), left.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _start(leaves: Leaves, notes: dict[str, str]) -> bytes:
    head: dict[str, Any] = {"__metadata__": notes}
    end = 0
    for name, array in leaves:
        if name in head:
            raise JobError(f"two leaves of the state have the name {name!r} in a checkpoint; rename one of them")
        if not _kind(array):
            raise JobError(f"leaf {name!r} has type {array.dtype}, but checkpoints can hold only {', '.join(KINDS)}")
        begin, end = end, end + array.nbytes
        head[name] = {"dtype": _kind(array), "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def malformed(path: str | Path, why: object) -> FormatError:
    """The error for a file whose checksum is right, so that another program has written it like this."""
    return FormatError(f"{path} is not a checkpoint of meshmend ({why}); choose another one")


def _opened(path: Path) -> BufferedReader:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # nobody waits for a pipe in its place
        if stat.S_ISREG(os.fstat(file).st_mode):
            return os.fdopen(file, "rb")
        os.close(file)
    except PermissionError:
        # Not skipped as damaged ones are: the job would silently start from the beginning.
        raise JobError(f"no permission to read the checkpoint {path}; change its permissions") from None
    except OSError as error:
        raise FormatError(f"cannot open the checkpoint {path} ({error.strerror}); choose another one") from None
    raise FormatError(f"cannot open the checkpoint {path} (it is not a file); choose another one")


def _checked(file: BufferedReader, path: Path) -> Header:
    """The header of a file, after its checksum was verified; the file is left at the first array."""
    try:
        start = file.read(8 + len(OPENING) + len(BLANK))
        if start[8 : 8 + len(OPENING)] != OPENING:
            raise FormatError(f"{path} was not written by meshmend, or is damaged; choose another checkpoint")
        digest = hashlib.sha256(start[: -len(BLANK)] + BLANK)
        while piece := file.read(PIECE):
            digest.update(piece)
        if digest.hexdigest().encode() != start[-len(BLANK) :]:
            raise FormatError(f"{path} is damaged or truncated (its checksum is wrong); choose the previous checkpoint")
        size, length = file.seek(0, os.SEEK_END), int.from_bytes(start[:8], "little")
        if length > size - 8:
            raise FormatError(f"{path} is damaged (a header of {length} bytes in a file of {size}); choose another one")
        file.seek(8)
        text = file.read(length)
    except OSError as error:
        raise FormatError(f"cannot read {path} ({error.strerror}); choose the previous checkpoint") from None
    try:
        return _header(text, size - 8 - length, path)
    except OtherFormat:
        raise
    except FormatError as error:
        raise malformed(path, error) from None


class OtherFormat(FormatError):
    """A checkpoint of another version."""


def _header(text: bytes, room: int, path: Path) -> Header:
    """Read a header; the arrays must fill the room after it, one after another, so that none needs more than that."""
    head = loads(text)
    if not isinstance(head, dict):
        raise FormatError("its header is not a JSON object")
    notes = head.pop("__metadata__", None)
    theirs = notes.get("meshmend") if isinstance(notes, dict) else None
    if isinstance(theirs, str) and theirs.isdigit() and theirs != FORMAT:
        raise OtherFormat(
            f"{path} has format {theirs}, but this meshmend reads {FORMAT}; install the version that wrote it"
        )
    found = checked(Notes, notes, others=True)
    if found.meshmend != FORMAT:
        raise FormatError(f"its format is {shown(found.meshmend)}")
    leaves, place = {name: checked(Leaf, leaf) for name, leaf in head.items()}, 0
    for name, leaf in sorted(leaves.items(), key=lambda leaf: leaf[1].data_offsets):
        if leaf.data_offsets != [place, place + leaf.nbytes]:
            raise FormatError(f"leaf {shown(name)} needs bytes {place} to {place + leaf.nbytes}, but has others")
        place += leaf.nbytes
    about = loads(found.about)
    if place != room or not isinstance(about, dict):
        raise FormatError(f"its arrays fill {place} of {room} bytes, or its description of the job is no object")
    return Header(leaves, int(found.step), about)
