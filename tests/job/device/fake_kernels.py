"""The kernels of `kernels.cu` in numpy, given arguments as the driver gets them: what `packing_cuda.py` says to a card.

Tables, offsets and pointers are read as the kernels read them, stretch by stretch and block by block, so a wrong table
gives wrong numbers here too. That the kernels themselves are right is shown on a card (tests/gpu).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from meshmend.job.device import kernels
from meshmend.job.reduction import exact as rules
from meshmend.job.reduction.bf16 import Bf16
from meshmend.job.reduction.exact import BLOCK
from meshmend.job.state.digest import words_of

U32, U64 = np.uint32, np.uint64


def at(pointer: int, count: int, dtype: Any) -> Any:
    """Memory as an array."""
    size = int(count) * np.dtype(dtype).itemsize
    if not size:
        return np.zeros(0, dtype)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(pointer))).view(dtype)


class Arguments:
    """What `cuLaunchKernel` is given."""

    def __init__(self, address: int, kinds: list[Any] | None = None) -> None:
        """`kinds`: copy the arguments, which may be gone when the kernel runs."""
        self._pointers: Any = (ctypes.c_void_p * 8).from_address(address)
        self._next = 0
        if kinds is not None:
            self._kept = [kind.from_buffer_copy(kind.from_address(self._pointers[n])) for n, kind in enumerate(kinds)]
            self._pointers = [ctypes.addressof(one) for one in self._kept]

    def take(self, kind: Any) -> Any:
        """The next argument."""
        found = kind.from_address(self._pointers[self._next])
        self._next += 1
        return found.value if hasattr(found, "value") else found


class Parts:
    """Sums of some parts, or slices of totals."""

    def __init__(self, given: Arguments) -> None:
        pointers = given.take(kernels.Parts).at
        self.count, self.slices = given.take(ctypes.c_uint32), given.take(ctypes.c_uint64)
        self.pointers = list(pointers[: self.count])

    def sums(self, begin: int, count: int, dtype: Any) -> Any:
        """The numbers of a message from `begin` on."""
        if self.slices:
            where = np.arange(begin, begin + count)
            bounds = [self.slices * position // self.count for position in range(self.count + 1)]
            owner = np.searchsorted(bounds, where, side="right") - 1
            every = [at(pointer + 4 * begin, count, dtype) for pointer in self.pointers]
            return np.choose(owner, every)
        total = at(self.pointers[0] + 4 * begin, count, dtype).copy()
        for pointer in self.pointers[1:]:
            total += at(pointer + 4 * begin, count, dtype)
        return total


def add(dtype: Any) -> Callable[[Arguments, int], None]:
    def run(given: Arguments, blocks: int) -> None:
        del blocks
        pointers, count = given.take(kernels.Parts).at, given.take(ctypes.c_uint32)
        out, size = given.take(ctypes.c_uint64), given.take(ctypes.c_uint64)
        parts = [at(pointer, size, dtype) for pointer in pointers[:count]]
        if dtype is np.uint16:
            Bf16.combine_head(parts, at(out, size, dtype))
        else:
            at(out, size, dtype)[:] = sum(parts[1:], start=parts[0])

    return run


def stretches(leaves: Any, blocks: int) -> Any:
    """(leaf, its address, begin in it, begin in the message, count) of each block of threads."""
    for leaf, number in at(leaves.stretches, 2 * blocks, U32).reshape(-1, 2).tolist():
        begin, size = number * kernels.STRETCH, int(at(leaves.size + 8 * leaf, 1, U64)[0])
        count = min(size - begin, kernels.STRETCH)
        assert count > 0, "a stretch of nothing"
        address, offset = (int(at(table + 8 * leaf, 1, U64)[0]) for table in (leaves.address, leaves.offset))
        yield leaf, address, begin, offset + begin, count


def pack(*, more: bool) -> Callable[[Arguments, int], None]:
    def run(given: Arguments, blocks: int) -> None:
        leaves, part = given.take(kernels.Leaves), given.take(ctypes.c_uint64)
        for _, address, begin, place, count in stretches(leaves, blocks):
            source, into = at(address + 4 * begin, count, np.float32), at(part + 4 * place, count, np.float32)
            into[:] = into + source if more else source

    return run


def unpack(given: Arguments, blocks: int) -> None:
    leaves, parts, odd = given.take(kernels.Leaves), Parts(given), given.take(ctypes.c_uint64)
    for leaf, address, begin, place, count in stretches(leaves, blocks):
        sums = parts.sums(place, count, np.float32)
        at(address + 4 * begin, count, np.float32)[:] = sums
        if odd and not np.isfinite(sums).all():
            at(odd + 4 * leaf, 1, U32)[0] = 1


def blocks_of(leaves: Any, grid: Any, blocks: int) -> Any:
    """(block, address of its numbers, where they are in the message, how many there are)."""
    assert blocks == grid.blocks
    for block, leaf in enumerate(at(grid.leaf_of, blocks, U32).tolist()):
        begin = (block - int(at(grid.first + 4 * leaf, 1, U32)[0])) * BLOCK
        size, address, offset = (
            int(at(table + 8 * leaf, 1, U64)[0]) for table in (leaves.size, leaves.address, leaves.offset)
        )
        count = min(size - begin, BLOCK)
        assert count > 0, "a block of nothing"
        yield block, address + 4 * begin, offset + begin, count


def pack_exact(*, more: bool) -> Callable[[Arguments, int], None]:
    def run(given: Arguments, blocks: int) -> None:
        leaves, grid, part = given.take(kernels.Leaves), given.take(kernels.Grid), given.take(ctypes.c_uint64)
        width = grid.digits + 1
        for block, address, place, count in blocks_of(leaves, grid, blocks):
            values, into = at(address, count, np.float32), at(part + 4 * place, count, np.int32)
            notes = at(part + 4 * (grid.size + block * width), width, np.int32)
            if not more:
                into[:] = notes[:] = 0
            top = int((values.view(np.int32) & 0x7FFFFFFF).max(initial=0))
            if top >= 0x7F800000:
                notes[-1] += 1
            elif top >= 0x00800000:
                digit = ((top >> 23) - 127 - rules.FLOOR) // grid.octaves
                worth = np.ldexp(1.0, rules.FLOOR - rules.COARSE + grid.octaves * digit)
                largest = np.uint32(top).view(np.float32)
                notes[digit] += int(np.ceil(np.float64(largest) / worth))
                scale = at(grid.on + 4 * block, 1, np.float32)[0]
                if scale and np.float64(largest) * np.float64(scale) < 2.0**31:
                    into += np.rint(values * scale).astype(np.int32)

    return run


def unpack_exact(given: Arguments, blocks: int) -> None:
    leaves, grid, parts = given.take(kernels.Leaves), given.take(kernels.Grid), Parts(given)
    for block, address, place, count in blocks_of(leaves, grid, blocks):
        unit = at(grid.off + 4 * block, 1, np.float32)[0]
        at(address, count, np.float32)[:] = parts.sums(place, count, np.int32).astype(np.float32) * unit


def judge(given: Arguments, blocks: int) -> None:
    grid, told, parts = given.take(kernels.Grid), given.take(kernels.Judge), Parts(given)
    assert blocks * kernels.THREADS >= grid.blocks
    for block in range(grid.blocks):
        notes = parts.sums(grid.size + block * (grid.digits + 1), grid.digits + 1, np.int32)
        worth = at(told.worth, grid.digits, np.float64)
        spread = np.float64(0)
        for digit in range(grid.digits):
            spread += notes[digit] * worth[digit]
        if notes[-1] or spread >= told.most:
            at(told.bad, 1, U32)[0] = 1
        bits = int(spread.view(np.int64))
        need = rules.FRESH
        if spread > 0:
            need = min(max((bits >> 52) - (1022 + 31 - rules.HEADROOM), rules.LOW), rules.HIGH) * rules.FALL
        leaf = int(at(grid.leaf_of + 4 * block, 1, U32)[0])
        at(told.need + 4 * block, 1, np.int32)[0] = need
        top = at(told.top + 4 * leaf, 1, np.int32)
        top[0] = max(int(top[0]), need)
        limit = (int(at(grid.level + 4 * block, 1, np.int32)[0]) + rules.FALL - 1) >> rules.OCTAVE
        if bits >= limit * 2**52 + told.room:
            at(told.jumped + 4 * leaf, 1, np.int32)[0] = at(told.redo, 1, U32)[0] = 1


def move(given: Arguments, blocks: int) -> None:
    del blocks
    grid, told = given.take(kernels.Grid), given.take(kernels.Judge)
    level, on, off, words = (given.take(ctypes.c_uint64) for _ in range(4))
    bad, redo = (int(at(flag, 1, U32)[0]) for flag in (told.bad, told.redo))
    out = at(words, 1 + grid.blocks, np.int16)
    out[0] = rules.BAD if bad else rules.REDO if redo else rules.GOOD
    for block in range(grid.blocks):
        leaf = int(at(grid.leaf_of + 4 * block, 1, U32)[0])
        before, need = (int(at(table + 4 * block, 1, np.int32)[0]) for table in (grid.level, told.need))
        top, jumped = (int(at(table + 4 * leaf, 1, np.int32)[0]) for table in (told.top, told.jumped))
        if redo:
            now = max(before, top) if jumped else before
        else:
            fall = 0 if top == rules.FRESH else min(max(before - top, int(need != rules.FRESH)), rules.FALL)
            now = max(before - fall, need)
        out[1 + block] = now
        at(level + 4 * block, 1, np.int32)[0] = now
        exponent = ((now + rules.FALL - 1) >> rules.OCTAVE) << 23
        factors = (0, 0) if now == rules.FRESH else ((127 << 23) - exponent, (127 << 23) + exponent)
        for table, factor in zip((on, off), factors, strict=True):
            at(table + 4 * block, 1, np.int32)[0] = factor


def digest(given: Arguments, blocks: int) -> None:
    from meshmend.job.state.digest import _mixed

    leaves, out = given.take(kernels.Leaves), given.take(ctypes.c_uint64)
    for leaf, number in at(leaves.stretches, 2 * blocks, U32).reshape(-1, 2).tolist():
        size, address = (int(at(table + 8 * leaf, 1, U64)[0]) for table in (leaves.size, leaves.address))
        begin = number * kernels.STRETCH
        words = words_of(at(address, size, np.uint8))[begin : begin + kernels.STRETCH]
        assert len(words), "a stretch of nothing"
        ones, twos = _mixed(words, np.arange(begin, begin + len(words)))
        sums = at(out + 8 * leaf, 2, U32)
        sums += np.array([ones.sum(dtype=U32), twos.sum(dtype=U32)])


WORD, LONG = ctypes.c_uint32, ctypes.c_uint64
SUMS = [kernels.Parts, WORD, LONG]
ARGUMENTS: dict[str, list[Any]] = {
    kernels.F32: [*SUMS, LONG], kernels.I32: [*SUMS, LONG], kernels.BF16: [*SUMS, LONG],
    "pack_f32": [kernels.Leaves, LONG], "pack_more_f32": [kernels.Leaves, LONG],
    "unpack_f32": [kernels.Leaves, *SUMS, LONG], "pack_exact": [kernels.Leaves, kernels.Grid, LONG],
    "pack_more_exact": [kernels.Leaves, kernels.Grid, LONG], "unpack_exact": [kernels.Leaves, kernels.Grid, *SUMS],
    "judge": [kernels.Grid, kernels.Judge, *SUMS], "move": [kernels.Grid, kernels.Judge, *[LONG] * 4],
    "digest": [kernels.Leaves, LONG],
}  # fmt: skip
"""What each kernel is given."""
KERNELS: dict[str, Callable[[Arguments, int], None]] = {
    kernels.F32: add(np.float32), kernels.I32: add(np.int32), kernels.BF16: add(np.uint16),
    "pack_f32": pack(more=False), "pack_more_f32": pack(more=True), "unpack_f32": unpack,
    "pack_exact": pack_exact(more=False), "pack_more_exact": pack_exact(more=True), "unpack_exact": unpack_exact,
    "judge": judge, "move": move, "digest": digest,
}  # fmt: skip
