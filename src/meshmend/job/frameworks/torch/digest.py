"""The digest of `state/digest.py`, taken by PyTorch where the tensors lie, and fetched when it is needed.

On CUDA it runs beside the next step's work, on a stream of its own that waits for what the current one has been given
so far. Whoever changes the tensors in place next must have fetched the sums first, or wait for `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from meshmend.job.frameworks.torch import triton_digest
from meshmend.job.frameworks.torch.digest_plain import sums_of_tensors
from meshmend.job.state.digest import sums_of_each

Sums = npt.NDArray[np.uint32]


class Digester:
    """Takes the sums of a state's tensors: most of them on one device, small ones perhaps on the host."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._table = triton_digest.Table()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self, tensors: Sequence[Any]) -> Callable[[], Sums]:
        """Begin to take the sums of tensors that keep their values until these are fetched."""
        there = [number for number, one in enumerate(tensors) if one.device == self._device]
        here = sorted({*range(len(tensors))} - {*there})
        out = np.zeros((len(tensors), 2), np.uint32)
        out[here] = sums_of_each([_bytes(tensors[number]) for number in here])
        fetch = self._begun([tensors[number] for number in there])

        def fetched() -> Sums:
            out[there] = fetch()
            return out

        return fetched

    def _begun(self, tensors: Sequence[Any]) -> Callable[[], Sums]:
        if self._stream is None:
            found = _words(sums_of_tensors(tensors).cpu())
            return lambda: found
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            sums = self._sums(tensors)
            host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            host.copy_(sums, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self._stream)

        def fetch() -> Sums:
            done.synchronize()
            return _words(host)

        return fetch

    def _sums(self, tensors: Sequence[Any]) -> Any:
        if not triton_digest.works(self._device):
            return sums_of_tensors(tensors)
        out = torch.zeros((len(tensors), 2), dtype=torch.int64, device=self._device)
        quick = [number for number, one in enumerate(tensors) if triton_digest.fits(one)]
        slow = sorted({*range(len(tensors))} - {*quick})
        if quick and not slow:
            return triton_digest.sums(tensors, self._table)
        if quick:
            out[quick] = triton_digest.sums([tensors[number] for number in quick], self._table).to(torch.int64)
        out[slow] = sums_of_tensors([tensors[number] for number in slow])
        return out


def _words(sums: Any) -> Sums:
    """Sums of int32 or int64, modulo 2**32."""
    whole: npt.NDArray[np.int64] = sums.numpy().astype(np.int64)
    return (whole & 0xFFFFFFFF).astype(np.uint32)


def _bytes(tensor: Any) -> npt.NDArray[np.uint8]:
    tensor = tensor.detach().cpu().contiguous().reshape(-1)
    found: npt.NDArray[np.uint8] = tensor.view(torch.uint8).numpy() if tensor.numel() else np.zeros(0, np.uint8)
    return found
