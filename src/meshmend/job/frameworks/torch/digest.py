"""The digest of `state/digest.py`, computed by PyTorch where the tensors are, and fetched when it is needed.

On CUDA it runs in parallel with the next step's work, on a separate stream that waits for the work queued so far on
the current one. Code that changes the tensors in place next must have fetched the sums first, or wait for `done`.
"""

from __future__ import annotations

from collections.abc import Callable
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
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._plan: Plan | None = None

    def begin(self, tensors: list[Any]) -> Callable[[], Sums]:
        """Begin to compute the sums of tensors that keep their values until these are fetched.

        Facts about the tensors are determined once per list, which must not change.
        """
        if self._plan is None or self._plan.tensors is not tensors:
            self._plan = Plan(tensors, self._device)
        plan = self._plan
        out = np.zeros((len(tensors), 2), np.uint32)
        out[plan.here] = sums_of_each(plan.views())
        fetch = self._begun(plan)

        def fetched() -> Sums:
            out[plan.there] = fetch()
            return out

        return fetched

    def _begun(self, plan: Plan) -> Callable[[], Sums]:
        if self._stream is None:
            found = _words(plan.sums().cpu())
            return lambda: found
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            sums = plan.sums()
            host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            host.copy_(sums, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self._stream)

        def fetch() -> Sums:
            done.synchronize()
            return _words(host)

        return fetch


class Plan:
    """How the sums of some tensors are taken."""

    def __init__(self, tensors: list[Any], device: Any) -> None:
        self.tensors = tensors
        self.there = [number for number, one in enumerate(tensors) if one.device == device]
        on_host = {*range(len(tensors))} - {*self.there}
        self.here = sorted(on_host)
        own = [one.device.type == "cpu" and one.is_contiguous() for one in tensors]
        self._views = {number: _bytes(tensors[number]) for number in self.here if own[number]}
        """The memory of those on the host: what it holds may change."""
        found = [tensors[number].detach() for number in self.there]
        self._slow, self._quick = found, []
        self._odd: list[Any] = []
        """Tensors whose numbers are not stored in order (channels last), and memory in which they are."""
        self._ordered: list[Any] = []
        if not triton_digest.works(device):
            return
        self._table = triton_digest.Table()
        self._odd = [one for one in found if not one.is_contiguous()]
        self._ordered = [torch.empty(one.shape, dtype=one.dtype, device=device) for one in self._odd]
        ordered = {id(one): copy for one, copy in zip(self._odd, self._ordered, strict=True)}
        found = [ordered.get(id(one), one) for one in found]
        fits = [triton_digest.fits(one) for one in found]
        self._quick = [one for one, fit in zip(found, fits, strict=True) if fit]
        self._slow = [one for one, fit in zip(found, fits, strict=True) if not fit]
        self._fits = torch.tensor(fits, device=device)

    def views(self) -> list[npt.NDArray[np.uint8]]:
        """The bytes of those that are elsewhere, as they are now."""
        return [self._views[number] if number in self._views else _bytes(self.tensors[number]) for number in self.here]

    def sums(self) -> Any:
        """Begin to take the sums of those on the device, in order: integers, to be taken modulo 2**32."""
        if self._odd:
            torch._foreach_copy_(self._ordered, self._odd)
        if not self._quick:
            return sums_of_tensors(self._slow)
        quick = triton_digest.sums(self._quick, self._table)
        if not self._slow:
            return quick
        out = torch.zeros((len(self._fits), 2), dtype=torch.int64, device=quick.device)
        out[self._fits] = quick.to(torch.int64)
        out[~self._fits] = sums_of_tensors(self._slow)
        return out


def _words(sums: Any) -> Sums:
    """Sums of int32 or int64, modulo 2**32."""
    whole: npt.NDArray[np.int64] = sums.numpy().astype(np.int64)
    return (whole & 0xFFFFFFFF).astype(np.uint32)


def _bytes(tensor: Any) -> npt.NDArray[np.uint8]:
    """A tensor's bytes; those of the processor's own memory as they are at any time, where they lie in order."""
    tensor = tensor.detach().cpu().contiguous().reshape(-1)
    found: npt.NDArray[np.uint8] = tensor.view(torch.uint8).numpy() if tensor.numel() else np.zeros(0, np.uint8)
    return found
