"""Samples of a host, decoded once: a file that all its workers map, written by the first worker that decodes a sample.

    head     magic, what samples are like, how many there are, bytes, where free room begins, how far it is reserved
    index    for each sample where it is; 0: not decoded yet
    samples  the shape of each of its arrays, and the arrays

**Nothing is ever torn.** A writer takes room under a lock, writes the sample there, and then its place into the index,
eight bytes at once: readers see all of a sample or nothing. A writer that is killed leaves unused room. A writer that
is stopped while it holds the lock blocks no other: it is only a cache, so a sample that cannot be stored now is not.

**It is bounded.** Memory or disk is reserved before it is written to (a later write would end the process with SIGBUS).
When the room is used up, or the disk is full, samples that have no place are decoded each time.

Where the file is, and who makes and removes it: `cache_file.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from meshmend.base.clocks import CACHE_POLL
from meshmend.base.units import plural, size_text
from meshmend.errors import JobError
from meshmend.job.data.cache_file import HEAD, CacheFile, CacheHome
from meshmend.job.state.tree import plain_leaves, plain_rebuilt

ALIGN = 16
"""Arrays begin at multiples of this."""
RESERVE = 8 << 20
"""Bytes that are reserved at a time."""
TRIES = 4
"""How many times to try for the lock (held for microseconds)."""
USED, RESERVED, FULL = 4, 5, 6
"""Words of the head."""


class Cache:
    """The decoded samples of one source, for all workers of a host. The sample given first shows what all are like."""

    def __init__(self, name: str, count: int, room: int, folder: Path | None, home: CacheHome, sample: Any) -> None:
        self._template = sample
        self._flat = (
            type(sample) is tuple
            and len(plain_leaves(sample)) == len(sample)
            and not any(isinstance(part, (tuple, list, dict)) for part in sample)
        )
        for leaf, array in _named(sample):
            if array.dtype.hasobject:
                raise JobError(f"a cache cannot hold {leaf!r}, which is not a numeric array; convert it in a map")
        like = str([(leaf, array.dtype.str, array.ndim) for leaf, array in _named(sample)])
        parts = [array for _, array in _named(sample)]
        self._count, self._room = count, room
        self._kinds = [(array.dtype, array.ndim) for array in parts]
        self._shapes = sum(ndim for _, ndim in self._kinds)
        self._mutex = threading.Lock()
        self.full = False
        """Whether there is no room for more."""
        self._own = CacheFile(xxh3_64_intdigest(like.encode()) >> 1, count, room, _size(parts) + ALIGN)
        self._file = self._own.open(name, folder, home)
        try:
            self._map = mmap.mmap(self._file, room)
        except OSError as error:
            raise JobError(
                f"a cache of {size_text(room)} cannot be mapped here ({error.strerror}); give it less room: "
                f"{plural(count, 'sample')} like the first take {size_text(count * _size(parts))}"
            ) from None
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._words = self._bytes[: HEAD // 8 * 8].view(np.int64)
        self._index = self._bytes[HEAD : HEAD + 8 * count].view(np.int64)
        self._kept = self._bytes[:]
        self._kept.flags.writeable = False  # a map that changes what it was given would change it for all

    def get(self, number: int) -> Any | None:
        """A sample, as views of the cache that cannot be written to; None if it is not there."""
        place = int(self._index[number])
        if not place:
            return None
        at = place + 8 * self._shapes
        shapes = iter(self._kept[place:at].view(np.int64).tolist())
        arrays = []
        for dtype, ndim in self._kinds:
            shape = [next(shapes) for _ in range(ndim)]
            at = -(-at // ALIGN) * ALIGN
            end = at + prod(shape) * dtype.itemsize
            arrays.append(self._kept[at:end].view(dtype).reshape(shape))
            at = end
        return tuple(arrays) if self._flat else plain_rebuilt(self._template, arrays)

    def has(self, number: int) -> bool:
        """Whether a sample is in the cache."""
        return bool(self._index[number])

    @property
    def found(self) -> int | None:
        """Return the number of a cached sample; None if there is none."""
        found = np.flatnonzero(self._index)
        return int(found[0]) if len(found) else None

    @property
    def stored(self) -> int:
        """How many samples are in the cache."""
        return int(np.count_nonzero(self._index))

    def put(self, number: int, sample: Any) -> None:
        """Store a sample, unless another worker has, or there is no room."""
        if self.full or self._index[number]:
            return
        arrays = [np.asarray(array, order="C") for _, array in _named(sample)]
        if [(array.dtype, array.ndim) for array in arrays] != self._kinds:
            raise JobError(
                f"sample {number} holds {[(str(a.dtype), a.ndim) for a in arrays]} (type, dimensions), but other "
                f"samples hold {[(str(dtype), ndim) for dtype, ndim in self._kinds]}; all samples in a cache must have "
                "the same types, so convert them in a map before it"
            )
        place = self._allocate(number, _size(arrays))
        if not place:
            return
        at = place + 8 * self._shapes
        self._bytes[place:at].view(np.int64)[:] = [side for array in arrays for side in array.shape]
        for array in arrays:
            at = -(-at // ALIGN) * ALIGN
            self._write(at, array.reshape(-1).view(np.uint8))
            at += array.nbytes
        with self._mutex:  # so that no processor shows the place before the sample
            self._index[number] = place

    def _write(self, at: int, data: npt.NDArray[np.uint8]) -> None:
        self._bytes[at : at + len(data)] = data

    def _allocate(self, number: int, size: int) -> int:
        """Reserve room for a sample; 0 if there is none, another worker has stored it, or the lock is taken."""
        with self._mutex, self._lock() as mine:
            if not mine or self._index[number]:
                return 0
            words, place = self._words, -(-int(self._words[USED]) // ALIGN) * ALIGN
            end = place + size
            if end > self._room or (end > words[RESERVED] and not self._reserve(end)):
                self.full = True
                if not words[FULL]:
                    words[FULL] = 1
                    print(
                        f"the cache of {size_text(self._room)} has room for {self.stored:,} of "
                        f"{plural(self._count, 'sample')}; the others are decoded each time",
                        flush=True,
                    )
                return 0
            words[USED] = end
            return place

    def _reserve(self, end: int) -> bool:
        begin = int(self._words[RESERVED])
        until = min(max(end, begin + RESERVE), self._room)
        try:
            os.posix_fallocate(self._file, begin, until - begin)
        except OSError:
            return False
        self._words[RESERVED] = until
        return True

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """Whether this process has the cache's lock, which ends with its process."""
        for left in reversed(range(TRIES)):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 8, 0)
                break
            except OSError:
                if not left:
                    yield False
                    return
                time.sleep(CACHE_POLL)
        try:
            yield True
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 8, 0)

    def close(self) -> None:
        """Use it no longer; the last one removes its file."""
        self._own.close()


def _named(sample: Any) -> list[tuple[str, npt.NDArray[Any]]]:
    return [(leaf, np.asarray(value)) for leaf, value in plain_leaves(sample)]


def _size(arrays: list[npt.NDArray[Any]]) -> int:
    """Bytes that a sample takes, at most."""
    return sum(8 * array.ndim + array.nbytes + ALIGN for array in arrays)
