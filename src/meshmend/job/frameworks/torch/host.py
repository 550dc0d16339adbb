"""The way from PyTorch's devices to the host: in pieces, through pinned memory, in parallel with the current stream.

A copy waits for the commit whose state it copies (`Copies.mark`), on a separate stream, and the host waits for the
copy. Meanwhile nothing may change the tensors in place: the session's lock ensures that for a state that another worker
requested, and the main thread makes checkpoints itself. So no copy is ever torn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from meshmend.job.frameworks.torch.state_dict import array_of
from meshmend.job.state.tree import OnDevice

PIECE = 1 << 25
"""Bytes of one piece: there are two, one to be filled while the other is emptied."""


class HostCopier:
    """Copies tensors of one device to the host."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._marked = torch.cuda.Event() if self._stream is not None else None
        self._pinned: list[Any] = []
        self._lock = threading.Lock()

    def mark(self) -> None:
        """What the current stream was given so far belongs to the state."""
        if self._marked is not None:
            self._marked.record(torch.cuda.current_stream(self._device))

    def array(self, tensor: Any) -> npt.NDArray[Any]:
        """A tensor as it was, or will be, at the mark."""
        if self._stream is None or not tensor.is_cuda:
            return array_of(tensor)
        with self._lock, torch.cuda.stream(self._stream):
            self._stream.wait_event(self._marked)
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            out = np.empty(data.numel(), np.uint8)
            self._fill(out, data)
        return out.view(numpy_type(tensor.dtype)).reshape(tuple(tensor.shape))

    def lying(self, tensor: Any) -> tuple[int, Any]:
        """Return where the bytes of a tensor are, contiguous, at the mark; and the tensor that they belong to."""
        if self._stream is None or not tensor.is_cuda:
            found = tensor.detach().contiguous()
            return found.data_ptr(), found
        with self._lock, torch.cuda.stream(self._stream):
            self._stream.wait_event(self._marked)
            found = tensor.detach().contiguous()
            self._stream.synchronize()
        return found.data_ptr(), found

    def _fill(self, out: npt.NDArray[np.uint8], data: Any) -> None:
        if not self._pinned:
            self._pinned = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        waiting: list[tuple[int, int, Any]] = []

        def empty() -> None:
            begin, turn, done = waiting.pop(0)
            done.synchronize()
            size = min(PIECE, len(out) - begin)
            out[begin : begin + size] = self._pinned[turn][:size].numpy()

        for number, begin in enumerate(range(0, len(out), PIECE)):
            turn, part = number % 2, data[begin : begin + PIECE]
            if len(waiting) == 2:
                empty()
            self._pinned[turn][: part.numel()].copy_(part, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self._stream)
            waiting.append((begin, turn, done))
        while waiting:
            empty()


@cache
def numpy_type(dtype: Any) -> np.dtype[Any]:
    """The type that numpy has for a tensor's memory."""
    return array_of(torch.empty(0, dtype=dtype)).dtype


def borrowed(lent: OnDevice, dtype: Any, device: Any) -> Any:
    """A new tensor with the bytes of an array that another worker has lent in device memory."""
    made = torch.empty(lent.shape, dtype=dtype, device=device)
    if made.is_cuda:
        torch.cuda.current_stream(device).synchronize()  # this memory may have been another tensor's just now
    assert lent.into is not None
    lent.into(made.data_ptr())
    return made


def array_begun(tensor: Any) -> Callable[[], npt.NDArray[Any]]:
    """Begin to fetch a small tensor; what is returned waits for it."""
    if not tensor.is_cuda:
        found: npt.NDArray[Any] = tensor.detach().numpy().copy()
        return lambda: found
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor.detach(), non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(tensor.device))

    def fetch() -> npt.NDArray[Any]:
        done.synchronize()
        whole: npt.NDArray[Any] = pinned.numpy()
        return whole

    return fetch
