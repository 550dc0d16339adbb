"""Packing by the kernels of `kernels.cu`, on one NVIDIA device.

What the kernels must know of a layout is in tables on the device. Of those, only the addresses of leaves ever change,
and they hardly do: frameworks put their arrays in the same places step after step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.base.cuda import Device, Stream
from meshmend.job.device import kernels
from meshmend.job.device.base import Place
from meshmend.job.reduction import exact as rules
from meshmend.job.reduction.base import Reduction
from meshmend.job.reduction.exact import Exact, ExactResult
from meshmend.job.reduction.packing import Addresses, Packing, grid_of, runs_of, slices_of

Table = npt.NDArray[Any]


class Tables:
    """Arrays in a device's memory, each beginning at a multiple of 256 bytes."""

    def __init__(self, device: Device, stream: Stream, **arrays: Table) -> None:
        """`stream`: what reads them."""
        self._device, self._stream = device, stream
        self.at: dict[str, int] = {}
        self._sent: dict[str, Table] = {}
        """What was written last: a device that reads pageable memory by itself may still do so."""
        begins, size = {}, 0
        for name, array in arrays.items():
            begins[name], size = size, size + -(-array.nbytes // 256) * 256
        self._pointer = device.take(size)
        for name, array in arrays.items():
            self.at[name] = self._pointer + begins[name]
            self.write(name, array)

    def write(self, name: str, array: Table) -> None:
        """Replace an array; what was started before still sees the old one."""
        data = self._sent[name] = np.array(array, order="C")
        self._stream.copy(self.at[name], data.ctypes.data, data.nbytes)

    def close(self) -> None:
        """Give the memory back."""
        self._device.give_back(self._pointer)


class Pinned:
    """An array of the host that kernels and copies reach where it is."""

    def __init__(self, device: Device, size: int, dtype: type[np.generic]) -> None:
        self._device = device
        nbytes = size * np.dtype(dtype).itemsize
        self.pointer = device.pinned(nbytes)
        self.array: Table = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.pointer)).view(dtype)

    def close(self) -> None:
        """Give it back."""
        del self.array
        self._device.unpin(self.pointer)


class CudaPacking(Packing):
    """What all kinds of sums have in common: the tables of leaves."""

    def __init__(self, device: Device, module: Any, reduction: Reduction) -> None:
        super().__init__(reduction)
        self._device, self._module = device, module
        counts = -(-self.sizes // kernels.STRETCH)
        stretches = np.stack([np.repeat(np.arange(len(counts)), counts), numbered(counts)], axis=1)
        self._count = len(stretches)
        addresses = np.zeros(len(self.sizes), np.uint64)
        self._leaves = Tables(
            device, device.stream, sources=addresses, targets=addresses, offset=self.offsets.astype(np.uint64),
            size=self.sizes.astype(np.uint64), stretches=stretches.astype(np.uint32),
        )  # fmt: skip
        self._known: dict[str, list[int]] = {}
        self._begins = np.concatenate([[0], np.cumsum(counts)]).tolist()
        """The first stretch of each leaf."""
        self._runs: dict[tuple[int, ...], tuple[list[range], list[range]]] = {}

    def _table(self, name: str, leaves: Addresses) -> kernels.Leaves:
        """The tables, with these addresses."""
        found = list(leaves)
        if self._known.get(name) != found:
            self._leaves.write(name, np.array(found, np.uint64))
            self._known[name] = found
        at = self._leaves.at
        return kernels.Leaves(at[name], at["offset"], at["size"], at["stretches"])

    def _cut(self, soon: Sequence[int]) -> tuple[list[range], list[range]]:
        """Runs of leaves that are wanted soon, and of the others."""
        found = self._runs.get(tuple(soon))
        if found is None:
            found = self._runs[tuple(soon)] = runs_of(len(self.sizes), soon)
        return found

    def _launch(self, kernel: str, blocks: int, *arguments: Any) -> None:
        self._device.stream.launch(self._device.function(self._module, kernel), blocks, kernels.THREADS, arguments)

    def _of(self, parts: Sequence[Place], *, sliced: int) -> tuple[Any, ...]:
        """How kernels are told where sums are."""
        pointers = kernels.Parts.of([pointer(part) for part in parts])
        return pointers, ctypes.c_uint32(len(parts)), ctypes.c_uint64(sliced)

    def close(self) -> None:
        """Give the tables back."""
        self._device.stream.finish()
        self._leaves.close()


class FloatPacking(CudaPacking):
    """Float32 sums."""

    def __init__(self, device: Device, module: Any, reduction: Reduction) -> None:
        super().__init__(device, module, reduction)
        self._odd = Tables(device, device.stream, odd=np.zeros(len(self.sizes), np.uint32))
        self._found = Pinned(device, len(self.sizes), np.uint32)

    def pack(self, leaves: Addresses, part: Place, *, first: bool) -> None:
        """One pass."""
        kernel = "pack_f32" if first else "pack_more_f32"
        self._launch(kernel, self._count, self._table("sources", leaves), ctypes.c_uint64(pointer(part)))

    def unpack(
        self, parts: Sequence[Place], leaves: Addresses, *, sliced: int, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        """One pass."""
        odd, found = self._odd.at["odd"] if check else 0, self._found
        if check:
            self._device.stream.fill(odd, 0, len(self.sizes))
        tables, where = self._table("targets", leaves), (*self._of(parts, sliced=sliced), ctypes.c_uint64(odd))
        first, others = self._cut(soon)
        for run in first:
            self._write(run, tables, where)
        mark = self._device.stream.mark() if first and not check else None
        for run in others:
            self._write(run, tables, where)
        if check:
            self._device.stream.copy(found.pointer, odd, found.array.nbytes)
            self._device.stream.finish()
        if mark is not None:
            self._device.stream.wait(mark)
        bad = np.flatnonzero(found.array) if check else ()
        return ExactResult(None, bad=tuple(map(int, bad))) if len(bad) else None

    def _write(self, run: range, tables: kernels.Leaves, where: tuple[Any, ...]) -> None:
        """Have the leaves of a run written."""
        begin, end = self._begins[run.start], self._begins[run.stop]
        stretches = tables.stretches + 8 * begin  # a row of the table has two numbers of 32 bits
        here = kernels.Leaves(tables.address, tables.offset, tables.size, stretches)
        self._launch("unpack_f32", end - begin, here, *where)

    def close(self) -> None:
        """Give everything back."""
        super().close()
        self._odd.close()
        self._found.close()


class ExactPacking(CudaPacking):
    """Exact sums: the grid moves on the device, and the host hears of it (`Exact.move`)."""

    def __init__(self, device: Device, module: Any, reduction: Reduction, grid: Exact) -> None:
        super().__init__(device, module, reduction)
        self._exact = grid
        blocks = -(-self.sizes // rules.BLOCK)
        self._blocks = int(blocks.sum())
        zeros, ones = np.zeros(self._blocks, np.int32), np.zeros(len(blocks), np.int32)
        self._grid = Tables(
            device, device.stream,
            leaf_of=grid.leaf_of.astype(np.uint32), first=(np.cumsum(blocks) - blocks).astype(np.uint32),
            worth=grid.worth, need=zeros, top=ones, jumped=ones, flags=np.zeros(2, np.int32),
            words=np.zeros(1 + self._blocks, np.int16),
            level=zeros, on=zeros, off=zeros, next_level=zeros, next_on=zeros, next_off=zeros,
        )  # fmt: skip
        self._levels = "", "next_"
        """Which of the two grids on the device is the present one, and which is to be the next."""
        self._known_level: Any = None
        """The levels of the host that those on the device are."""
        self._words = Pinned(device, 1 + self._blocks, np.int16)
        self._firsts = np.concatenate([[0], np.cumsum(blocks)]).tolist()
        """The first block of each leaf."""
        self._shifted: dict[int, Tables] = {}
        """For each run of leaves that is written by itself: their first blocks, counted from that of the run."""

    def _present(self) -> kernels.Grid:
        """The grid that lanes are rounded to now."""
        at, (now, _), exact = self._grid.at, self._levels, self._exact
        if self._known_level is not exact.level:
            for name, array in zip(("level", "on", "off"), (exact.level, *exact.factors), strict=True):
                self._grid.write(now + name, array)
            self._known_level = exact.level
        digits, octaves = exact.digits
        return kernels.Grid(
            at["leaf_of"], at["first"], at[now + "level"], at[now + "on"], at[now + "off"], self._blocks, exact.size,
            digits, octaves,
        )  # fmt: skip

    def pack(self, leaves: Addresses, part: Place, *, first: bool) -> None:
        """One pass."""
        kernel, place = "pack_exact" if first else "pack_more_exact", ctypes.c_uint64(pointer(part))
        self._launch(kernel, self._blocks, self._table("sources", leaves), self._present(), place)

    def unpack(
        self, parts: Sequence[Place], leaves: Addresses, *, sliced: int, check: bool, soon: Sequence[int] = ()
    ) -> ExactResult | None:
        """One pass over the numbers, as if all is well, and before it two over the notes."""
        del check  # always
        grid, where, at = self._present(), self._of(parts, sliced=sliced), self._grid.at
        self._device.stream.fill(at["top"], rules.FRESH, len(self.sizes))
        self._device.stream.fill(at["jumped"], 0, len(self.sizes))
        self._device.stream.fill(at["flags"], 0, 2)
        judge = kernels.Judge(
            at["worth"], at["need"], at["top"], at["jumped"], at["flags"], at["flags"] + 4, rules.MOST, rules.ROOM_BITS
        )  # fmt: skip
        rows = -(-max(self._blocks, 1) // kernels.THREADS)
        now, then = self._levels
        moved = [ctypes.c_uint64(at[name]) for name in (then + "level", then + "on", then + "off", "words")]
        self._launch("judge", rows, grid, judge, *where)
        self._launch("move", rows, grid, judge, *moved)
        self._device.stream.copy(self._words.pointer, at["words"], self._words.array.nbytes)
        tables, (first, others) = self._table("targets", leaves), self._cut(soon)
        for run in first:
            self._write(run, tables, grid, where)
        mark = self._device.stream.mark()
        for run in others:
            self._write(run, tables, grid, where)
        self._device.stream.wait(mark)
        verdict = int(self._words.array[0])
        if verdict == rules.BAD:
            return self._exact.judge(self._notes(parts, sliced=sliced))
        self._exact.move(self._words.array[1:].astype(np.int32))
        self._known_level, self._levels = self._exact.level, (then, now)
        return None if verdict == rules.GOOD else ExactResult(None)

    def _write(self, run: range, tables: kernels.Leaves, grid: kernels.Grid, where: tuple[Any, ...]) -> None:
        """Have the leaves of a run written: a kernel counts blocks from 0, and so the tables begin at the run's first.

        Of the grid, it reads the leaf of each block, the first block of each leaf, and the factors.
        """
        begin, end = self._firsts[run.start], self._firsts[run.stop]
        if begin and run.start not in self._shifted:
            firsts = np.maximum(np.array(self._firsts[:-1]) - begin, 0).astype(np.uint32)
            self._shifted[run.start] = Tables(self._device, self._device.stream, first=firsts)
        first = self._shifted[run.start].at["first"] if begin else grid.first
        here = kernels.Grid(
            grid.leaf_of + 4 * begin, first, grid.level + 4 * begin, grid.on + 4 * begin, grid.off + 4 * begin,
            end - begin, grid.size, grid.digits, grid.octaves,
        )  # fmt: skip
        self._launch("unpack_exact", end - begin, tables, here, *where)

    def _notes(self, parts: Sequence[Place], *, sliced: int) -> Table:
        """The notes of the sum, on the host: it says which leaves stand against a round."""
        begin, digits = self._exact.size, self._exact.digits[0]
        total, one = np.zeros((2, self.size - begin), np.int32)
        for part, mine in slices_of(parts, sliced) if sliced else [(part, slice(0, self.size)) for part in parts]:
            here = slice(max(mine.start - begin, 0), max(mine.stop - begin, 0))
            self._device.stream.copy(one.ctypes.data, pointer(part) + 4 * begin, one.nbytes)
            self._device.stream.finish()
            total[here] += one[here]
        return total.reshape(self._blocks, digits + 1)

    def close(self) -> None:
        """Give everything back."""
        super().close()
        for one in self._shifted.values():
            one.close()
        self._grid.close()
        self._words.close()


def packing_of(device: Device, module: Any, reduction: Reduction) -> Packing | None:
    """The packing of a reduction; None for those that pack numbers in their own way."""
    if reduction.head:
        return None
    grid = grid_of(reduction)
    if grid is not None:
        return ExactPacking(device, module, reduction, grid)
    return FloatPacking(device, module, reduction)


def pointer(place: Place) -> int:
    """Where something is on the device."""
    block, begin = place
    return int(block.pointer) + begin  # type: ignore[attr-defined]


def numbered(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, … for each leaf."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
