"""The digest's sums of many CUDA tensors in one Triton kernel, bound by memory alone.

One program adds up a range of one tensor. A table says which: where it begins in memory, the number of its first word
in the tensor, how many words there are, and the number of the tensor. Integer additions do not care about order, so the
programs add their results up with atomic operations, and the sums are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from meshmend.job.frameworks.torch.digest_plain import sums_of_tensors
from meshmend.job.state.digest import FIRST, GOLDEN, SECOND, SEED

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BLOCK = 2048
ROUNDS = 16
STRETCH = BLOCK * ROUNDS
"""Words of one program."""


class Table:
    """The ranges: made once for a list of tensors, which stay where they are."""

    def __init__(self) -> None:
        self._tensors: Sequence[Any] | None = None
        self._rows: Any = None

    def rows(self, tensors: Sequence[Any]) -> Any:
        """A row for each program."""
        if tensors is not self._tensors:
            places = [(tensor.data_ptr(), tensor.numel() * tensor.element_size() // 4) for tensor in tensors]
            self._rows, self._tensors = torch.from_numpy(stretches(places)).to(tensors[0].device), tensors
        return self._rows


def stretches(places: Sequence[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rows for tensors with these addresses and numbers of words."""
    found = []
    for number, (address, words) in enumerate(places):
        begin = np.arange(0, words, STRETCH, dtype=np.int64)
        count = np.minimum(words - begin, STRETCH)
        found.append(np.stack([address + 4 * begin, begin, count, np.full_like(begin, number)], axis=1))
    return np.concatenate(found) if found else np.zeros((0, 4), np.int64)


def fits(tensor: Any) -> bool:
    """Whether a tensor's memory can be read as words."""
    whole = tensor.numel() * tensor.element_size() % 4 == 0 and tensor.data_ptr() % 4 == 0
    return bool(tensor.is_cuda and whole and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def sums(tensors: Sequence[Any], table: Table) -> Any:
    """Return the two sums of each of these tensors, which all fit and are on one device: int32, modulo 2**32."""
    out = torch.zeros((len(tensors), 2), dtype=torch.int32, device=tensors[0].device)
    rows = table.rows(tensors)
    if len(rows):
        with torch.cuda.device(out.device):
            _kernel[(len(rows),)](rows, out, GOLDEN, SEED, FIRST, SECOND, BLOCK, ROUNDS, num_warps=8)
    return out


@cache
def works(device: Any) -> bool:
    """Whether the kernel computes the right sums on this device: tested once, before anything relies on it."""
    if triton is None or device.type != "cuda":
        return False
    try:
        numbers = torch.arange(3 * STRETCH + 5, dtype=torch.int32, device=device) * 0x01234567
        tensors = [numbers, numbers[:1], numbers[:0], numbers[4 : 2 * STRETCH].view(torch.float32)]
        mine, plain = sums(tensors, Table()).cpu(), sums_of_tensors(tensors).cpu()
        if torch.equal(mine.to(torch.int64) & 0xFFFFFFFF, plain & 0xFFFFFFFF):
            return True
        why = "its sums are wrong"
    except Exception as error:  # a compiler, a driver: whatever it is, there is another way
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
    print(f"Triton cannot take digests on {device} ({why}); plain PyTorch operations do, which is slower", flush=True)
    return False


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _kernel(  # type: ignore[no-untyped-def, unused-ignore]
        rows, out,
        golden: tl.constexpr, seed: tl.constexpr, first: tl.constexpr, second: tl.constexpr,
        block: tl.constexpr, rounds: tl.constexpr,
    ):  # fmt: skip
        row = rows + 4 * tl.program_id(0)
        data = tl.load(row).to(tl.pointer_type(tl.uint32))
        begin = tl.load(row + 1)
        count = tl.load(row + 2)
        leaf = tl.load(row + 3)
        one = tl.zeros([block], dtype=tl.uint32)
        two = tl.zeros([block], dtype=tl.uint32)
        for step in range(rounds):
            offset = step * block + tl.arange(0, block)
            inside = offset < count
            word = tl.load(data + offset, mask=inside, other=0)
            key = (begin + offset).to(tl.uint32) * golden + seed
            x = (word ^ key).to(tl.uint32)
            x = ((x ^ (x >> 16)) * first).to(tl.uint32)
            x = ((x ^ (x >> 15)) * second).to(tl.uint32)
            one += tl.where(inside, x ^ (x >> 16), 0).to(tl.uint32)
            two += tl.where(inside, x * (key | 1), 0).to(tl.uint32)
        tl.atomic_add(out + 2 * leaf, tl.sum(one, axis=0).to(tl.int32, bitcast=True))
        tl.atomic_add(out + 2 * leaf + 1, tl.sum(two, axis=0).to(tl.int32, bitcast=True))
