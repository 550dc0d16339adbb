"""Digests of states on a device by the kernel of `kernels.cu`: `state/digest.py` has the definition.

A framework's own program for this has hundreds of kernels, is launched in milliseconds, compiled in seconds while all
wait for a newcomer, and runs in the framework's own stream, behind the gradients. This is one kernel, in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_uint64
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.base.cuda import Device
from meshmend.job.device import kernels
from meshmend.job.device.packing_cuda import Pinned, Tables, numbered

Sums = npt.NDArray[np.uint32]


class CudaDigests:
    """Takes the sums of leaves on one device, on a stream of its own."""

    def __init__(self, device: Device, module: Any) -> None:
        self._device, self._stream = device, device.another_stream()
        self._function = device.function(module, "digest")
        self._known: list[tuple[int, int]] = []
        self._tables: Tables | None = None
        self._found: Pinned | None = None
        self._blocks = 0

    def begin(self, leaves: Sequence[tuple[int, int]]) -> Callable[[], Sums]:
        """Begin to take the sums of leaves, each given by its address and its size in bytes.

        They are complete, and stay as they are until the sums are fetched; the sums before these have been fetched.
        """
        found = list(leaves)
        if found != self._known:
            self._make(found)
        if self._tables is None or self._found is None:
            return lambda: np.zeros((0, 2), np.uint32)
        at, into = self._tables.at, self._found
        tables = kernels.Leaves(at["address"], 0, at["size"], at["stretches"])
        self._stream.fill(at["sums"], 0, 2 * len(found))
        self._stream.launch(self._function, self._blocks, kernels.THREADS, (tables, c_uint64(at["sums"])))
        self._stream.copy(into.pointer, at["sums"], into.array.nbytes)
        mark = self._stream.mark()

        def fetch() -> Sums:
            self._stream.wait(mark)
            sums: Sums = into.array.reshape(-1, 2).copy()
            return sums

        return fetch

    def _make(self, leaves: list[tuple[int, int]]) -> None:
        """Other tables, for leaves that are elsewhere."""
        self.close()
        self._known = leaves
        if not leaves:
            return
        address, size = np.array(leaves, np.uint64).T
        words = (size.astype(np.int64) + 3) // 4
        counts = -(-words // kernels.STRETCH)
        stretches = np.stack([np.repeat(np.arange(len(counts)), counts), numbered(counts)], axis=1)
        self._blocks = len(stretches)
        self._tables = Tables(
            self._device, self._stream, address=address, size=size, stretches=stretches.astype(np.uint32),
            sums=np.zeros(2 * len(leaves), np.uint32),
        )  # fmt: skip
        self._found = Pinned(self._device, 2 * len(leaves), np.uint32)

    def close(self) -> None:
        """Give everything back."""
        self._stream.finish()
        for one in (self._tables, self._found):
            if one is not None:
                one.close()
        self._tables = self._found = None
        self._known = []
