"""The control file of a rank: a header that says what it is, and the records behind it.

    │ magic │ format │ size │ run │ rank │ birth │ …     one word each
    │ agent's record │ worker's │ courier's │ chaos's    each begins on its own cache line

A file is mapped only after its size and its header have been read and found right, so a truncated or foreign file, or
one of another version of meshmend, is refused with a sentence and never causes SIGBUS. `birth` tells a rank's memory
from the memory that the next worker of the same rank gets; it means the same in every PID namespace.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import time
from hashlib import blake2b

from meshmend.errors import JobError
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.records import AgentRecord, ChaosRecord, CourierRecord, WorkerRecord
from meshmend.job.shm.words import Record

MAGIC = int.from_bytes(b"meshmend", "little")
FORMAT = 13
WORD = 8
LINE = 8
"""Words in a cache line."""
HEADER = 8
ORDER: tuple[type[Record], ...] = (AgentRecord, WorkerRecord, CourierRecord, ChaosRecord)


def _places() -> tuple[dict[type[Record], slice], int]:
    places, begin = {}, HEADER
    for kind in ORDER:
        end = begin + -(-kind.size // LINE) * LINE
        places[kind] = slice(begin, end)
        begin = end
    return places, begin


PLACES, SIZE = _places()
"""The words of each record, and of the whole file."""


class Control:
    """A mapped control file."""

    def __init__(self, words: memoryview[int], birth: int) -> None:
        self._words, self.birth = words, birth

    def words_of(self, kind: type[Record], *, writable: bool = False) -> memoryview[int]:
        """The words of one record; without `writable`, writing to them raises `TypeError`."""
        found = self._words[PLACES[kind]]
        return found if writable else found.toreadonly()


def create(files: RankFiles) -> Control:
    """Make a control file; it gets its name when it is whole."""
    birth = time.time_ns()
    words = [MAGIC, FORMAT, SIZE * WORD, _number_of(files.run), files.rank, birth]
    words += [0] * (SIZE - len(words))
    for kind in ORDER:
        initial = kind.initial()
        words[PLACES[kind].start : PLACES[kind].start + len(initial)] = initial
    file = files.reserve("control.new", SIZE * WORD)
    try:
        os.pwrite(file, struct.pack(f"={SIZE}q", *words), 0)
        mapped = memoryview(mmap.mmap(file, SIZE * WORD)).cast("q")
    finally:
        os.close(file)
    os.replace(files.path("control.new"), files.path("control"))
    return Control(mapped, birth)


def attach(files: RankFiles, *, writable: bool) -> Control:
    """Map the control file of a rank; `SegmentGone` if it does not exist, `JobError` if it is something else."""
    file = files.open("control", os.O_RDWR if writable else os.O_RDONLY)
    try:
        birth = _check(file, files)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return Control(memoryview(mmap.mmap(file, SIZE * WORD, access=access)).cast("q"), birth)
    finally:
        os.close(file)


def _check(file: int, files: RankFiles) -> int:
    """Refuse a file that is not this rank's memory in this format; its birth."""
    path, about = files.path("control"), os.fstat(file)
    head = os.pread(file, HEADER * WORD, 0) if stat.S_ISREG(about.st_mode) else b""
    if len(head) < HEADER * WORD:
        raise JobError(f"{path} is not a meshmend control file ({about.st_size} bytes); remove it and restart the run")
    magic, version, size, run, rank, birth, *_ = struct.unpack(f"={HEADER}q", head)
    if magic != MAGIC:
        raise JobError(f"{path} was not written by meshmend: remove it and start the run again")
    if version != FORMAT:
        raise JobError(
            f"{path} has format {version}, and this version of meshmend needs format {FORMAT}: use the version that "
            "started the run, or stop the run and remove the file"
        )
    if size != SIZE * WORD or about.st_size != size:
        raise JobError(
            f"{path} has {about.st_size} bytes instead of {SIZE * WORD}: it is damaged, so remove it and start the run "
            "again"
        )
    if (run, rank) != (_number_of(files.run), files.rank):
        raise JobError(f"{path} belongs to another run or rank ({rank}): remove it and start the run again")
    return int(birth)


def _number_of(run: str) -> int:
    """A number for a run's name."""
    return int.from_bytes(blake2b(run.encode(), digest_size=7).digest(), "little")
