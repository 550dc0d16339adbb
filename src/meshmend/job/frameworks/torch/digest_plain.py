"""The sums of `state/digest.py` by plain operations, which any device has: a dozen passes over memory, not one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from meshmend.job.state.digest import FIRST, GOLDEN, SECOND, SEED

PIECE = 1 << 22
"""Words mixed at a time: what lies between two operations takes four times as many bytes, a few times over."""


def sums_of_tensors(tensors: Sequence[Any]) -> Any:
    """The two sums of each of these tensors, all of one device: a tensor of int64, to be taken modulo 2**32."""
    if not tensors:
        return torch.zeros((0, 2), dtype=torch.int64)
    return torch.stack([_sums(tensor) for tensor in tensors])


def words_of(tensor: Any) -> Any:
    """The bits of a tensor as int32, with the last word filled up; a copy only where the memory is not in order."""
    tensor = tensor.detach()
    if tensor.numel() == 0:  # one that came from numpy may have strides that no view accepts
        return torch.zeros(0, dtype=torch.int32, device=tensor.device)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    data = tensor.resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if data.numel() % 4:
        data = torch.nn.functional.pad(data, (0, -data.numel() % 4))
    if data.storage_offset() % 4:
        data = data.clone()
    return data.view(torch.int32)


def _sums(tensor: Any) -> Any:
    words = words_of(tensor)
    out = torch.zeros(2, dtype=torch.int64, device=words.device)
    for begin in range(0, words.numel(), PIECE):
        part = words[begin : begin + PIECE]
        # Positions wrap after 2**32 words, as everywhere; int32 has no larger ones.
        low = begin & 0xFFFFFFFF
        key = torch.arange(part.numel(), dtype=torch.int32, device=part.device).mul_(_signed(GOLDEN))
        key.add_(_signed(low * GOLDEN + SEED))
        x = part ^ key
        x.bitwise_xor_(_shifted(x, 16)).mul_(_signed(FIRST))
        x.bitwise_xor_(_shifted(x, 15)).mul_(_signed(SECOND))
        out[0] += (x ^ _shifted(x, 16)).sum(dtype=torch.int64)
        out[1] += (x * (key | 1)).sum(dtype=torch.int64)
    return out


def _shifted(x: Any, bits: int) -> Any:
    """A right shift that fills up with zeros."""
    return (x >> bits).bitwise_and_((1 << 32 - bits) - 1)


def _signed(number: int) -> int:
    """A number modulo 2**32 as an int32."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
