"""One array over stretches of several files, each mapped where the one before it ends: nothing is copied."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
_FIXED = 0x10
"""MAP_FIXED, which Python's own module lacks; the same on all processors."""
_DONTFORK = 10
"""MADV_DONTFORK."""
_FAILED = ctypes.c_void_p(-1).value

_library = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True)
class Stretch:
    """Some pages of a file; the mapping stays when the file is closed or removed."""

    file: int
    begin: int
    nbytes: int


class _Mapping:
    """Address space, given back when no array refers to it any more."""

    def __init__(self, nbytes: int) -> None:
        address = _map(None, nbytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        weakref.finalize(self, _unmap, address, nbytes, os.getpid()).atexit = False
        self.address = address
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, True)}


def map_stretches(stretches: Sequence[Stretch]) -> npt.NDArray[np.uint8]:
    """An array of all these bytes, in order; it is read-only, and shows what others write to the files.

    A child of this process has none of it: it might keep the memory of files that have long been removed.
    """
    whole = _Mapping(sum(one.nbytes for one in stretches))
    at = whole.address
    for one in stretches:
        _map(at, one.nbytes, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, one.file, one.begin)
        _library.madvise(at, one.nbytes, _DONTFORK)
        at += one.nbytes
    return np.asarray(whole)


def _unmap(address: int, nbytes: int, process: int) -> None:
    if os.getpid() == process:  # in a child, something else may be there
        _library.munmap(address, nbytes)


def _map(*arguments: Any) -> int:
    found: int | None = _library.mmap(*arguments)
    if found is None or found == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return found
