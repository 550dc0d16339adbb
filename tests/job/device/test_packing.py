"""Messages made of leaves where they are, and sums brought back to leaves: the bits of the reduction on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshmend.job.device.base import Memory
from meshmend.job.device.cuda import CudaMemory
from meshmend.job.device.kernels import STRETCH
from meshmend.job.device.stand_in import StandIn
from meshmend.job.reduction.base import Reduction, slices
from meshmend.job.reduction.bf16 import Bf16
from meshmend.job.reduction.exact import ExactSum
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.layout import Layout
from meshmend.job.state.digest import sums_of_each
from tests.job.device.fake_driver import Driver

SHAPES = [(), (3, 1000), (0, 4), (1,), (70, 40), (1024,), (8193,)]
MEMBERS, LANES = 3, 2
MEMORIES: dict[str, Callable[[], Memory]] = {
    "stand-in": StandIn, "driver": lambda: CudaMemory(0), "slow driver": lambda: CudaMemory(0),
}  # fmt: skip
SOON = [(), (3,), (0, 3, 5), tuple(range(len(SHAPES)))]
"""Leaves that the host reads as soon as a sum is there."""


@pytest.fixture(params=MEMORIES)
def memory(request: pytest.FixtureRequest, driver: Driver) -> Memory:
    """The stand-in, and the driver's calls with its kernels in numpy, at once or when they are waited for."""
    driver.lazy = request.param == "slow driver"
    return MEMORIES[request.param]()


def lanes_of(seed: int, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.normal(size=shape) * scale, np.float32) for shape in SHAPES]


def made(kind: type[Reduction]) -> Reduction:
    named = [(f"leaf{number}", array) for number, array in enumerate(lanes_of(0))]
    return kind(Layout(named), MEMBERS * LANES)


def addresses(arrays: list[np.ndarray]) -> list[int]:
    return [array.ctypes.data for array in arrays]


def reached(memory: Memory, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Copies of arrays where a device reaches them."""
    found = []
    for array in arrays:
        found.append(memory.pinned(max(array.size, 1))[: array.size].reshape(array.shape))
        found[-1][...] = array
    return found


def same(mine: np.ndarray, wanted: np.ndarray) -> bool:
    """Bit for bit, but for NaN: which of them a sum becomes is not defined."""
    if wanted.dtype == np.float32 and np.isnan(wanted).any():
        return bool((np.isnan(mine) == np.isnan(wanted)).all()) and same(np.nan_to_num(mine), np.nan_to_num(wanted))
    return mine.tobytes() == wanted.tobytes()


class Round:
    """Members that pack their lanes, and sums of their parts, beside what the host makes of the same."""

    def __init__(self, memory: Memory, kind: type[Reduction]) -> None:
        self.memory, self.host, self.device = memory, made(kind), made(kind)
        packing = memory.packing(self.device)
        assert packing is not None
        self.packing, self.wire = packing, self.device.wire_format(0)
        self.blocks = [memory.allocate(4 * self.wire.nbytes) for _ in range(MEMBERS)]

    def parts(self, lanes: list[list[list[np.ndarray]]]) -> list[np.ndarray]:
        """Pack the lanes of all members; what the host makes of them, which must be the same."""
        found = []
        for block, mine in zip(self.blocks, lanes, strict=True):
            part, there = np.zeros(self.host.size, self.host.dtype), np.empty(self.host.size, self.host.dtype)
            for number, lane in enumerate(mine):
                there_too = reached(self.memory, lane)
                self.packing.pack(addresses(there_too), (block, 0), first=not number)
                with np.errstate(all="ignore"):
                    self.host.add(part, [leaf.reshape(-1) for leaf in lane], first=not number)
            self.memory.download((block, 0), there)
            self.memory.finish()
            assert same(there, part)
            found.append(part)
        return found

    def check(
        self, lanes: list[list[list[np.ndarray]]], *, check: bool = True, sliced: int = 0, soon: tuple[int, ...] = ()
    ) -> Any:
        """One round; what stands against it, on the device and on the host."""
        parts, places = self.parts(lanes), [(block, 0) for block in self.blocks]
        total = np.zeros(self.host.size, self.host.dtype)
        with np.errstate(all="ignore"):
            self.wire.combine(parts, total)
        if sliced:
            places = [(block, self.wire.nbytes) for block in self.blocks]
            for (block, begin), one in zip(places, slices(0, sliced, MEMBERS), strict=True):
                self.memory.upload(np.ascontiguousarray(total[one]), (block, begin + one.start * 4))
        out = reached(self.memory, [np.full(shape, 77, np.float32) for shape in SHAPES])
        against = self.packing.unpack(places, addresses(out), sliced=sliced, check=check, soon=soon)
        at_once = [out[leaf].copy() for leaf in soon]
        self.memory.lead(None)
        if self.host.grid is not None:
            wanted = self.host.grid.finish(total)
            assert (self.host.grid.level == self.device.grid.level).all()
            assert self.device.grid.factors[0].tobytes() == self.host.grid.factors[0].tobytes()
            if wanted.sums is None:
                assert against is not None and (against.bad, bool(against.redo)) <= (wanted.bad, True)
                return against
            total = wanted.sums
        if against is None:
            for leaf, part in zip(out, self.host.layout.parts(total), strict=True):
                assert same(leaf.reshape(-1), part)
            assert all(same(early, out[leaf]) for early, leaf in zip(at_once, soon, strict=True))
        return against


def of_all(seed: int, scale: float = 1.0) -> list[list[list[np.ndarray]]]:
    return [[lanes_of(seed + 10 * member + lane, scale) for lane in range(LANES)] for member in range(MEMBERS)]


@pytest.mark.parametrize("sliced", ["parts", "slices", "slices of a larger sum"])
@pytest.mark.parametrize("kind", [Float32, ExactSum])
def test_sums_have_the_bits_of_the_host_whether_parts_or_slices(
    memory: Memory, kind: type[Reduction], sliced: str
) -> None:
    rounds = Round(memory, kind)
    numbers = {"parts": 0, "slices": rounds.host.size, "slices of a larger sum": rounds.host.size * 3 // 2}[sliced]
    for number in range(4):
        against = rounds.check(of_all(number), sliced=numbers)
        assert (against is None) == (kind is Float32 or number > 0), "a grid is unknown at first"


def test_a_grid_moves_on_the_device_as_on_the_host(memory: Memory) -> None:
    """Falling gradients, then one that jumps, one that is too large for any grid, and NaN."""
    rounds = Round(memory, ExactSum)
    for number, scale in enumerate([1, 1, 0.1, 0.01, 0.01, 1e6, 1e6, 1e-38, 0, 1]):
        rounds.check(of_all(number, scale))
    lanes = of_all(50)
    lanes[1][1][4][3, 3] = np.nan
    lanes[2][0][6][8000] = np.inf
    assert rounds.check(lanes).bad == (4, 6)
    huge = of_all(51)
    huge[0][0][1][:] = 3e38
    assert rounds.check(huge).bad == (1,)
    assert rounds.check(of_all(52)) is None, "bad rounds leave the grid alone"


def test_a_grid_of_another_worker_is_taken_over(memory: Memory) -> None:
    rounds = Round(memory, ExactSum)
    for number in range(3):
        rounds.check(of_all(number))
    other = Round(memory, ExactSum)
    for mine in (other.host, other.device):
        mine.restore(rounds.host.state())
    assert other.check(of_all(7)) is None


def test_leaves_with_nan_or_inf_are_named_only_if_that_is_wanted(memory: Memory) -> None:
    lanes = of_all(3)
    lanes[0][0][3][0], lanes[2][1][6][8192] = np.inf, np.nan
    rounds = Round(memory, Float32)
    assert rounds.check(lanes).bad == (3, 6)
    assert rounds.check(lanes, check=False) is None
    assert rounds.check(of_all(3)) is None


@pytest.mark.parametrize("soon", SOON)
@pytest.mark.parametrize("kind", [Float32, ExactSum])
def test_leaves_that_the_host_reads_are_there_before_the_others(
    memory: Memory, kind: type[Reduction], soon: tuple[int, ...]
) -> None:
    rounds = Round(memory, kind)
    for number in range(3):
        rounds.check(of_all(number), check=False, soon=soon)


def test_the_host_does_not_wait_for_the_others(driver: Driver) -> None:
    driver.lazy = True
    for kind in (Float32, ExactSum):
        rounds = Round(CudaMemory(0), kind)
        for number in range(2):
            rounds.check(of_all(number))
        places, out = [(block, 0) for block in rounds.blocks], reached(rounds.memory, lanes_of(0))
        for _ in range(2):  # the first one makes tables
            rounds.memory.finish()
            rounds.packing.unpack(places, addresses(out), sliced=0, check=False, soon=(3,))
        assert len(driver.waiting) == 2, "the leaves before that one, and those behind it"
        rounds.memory.finish()


def test_leaves_may_be_elsewhere_in_the_next_round(memory: Memory) -> None:
    """Tables of addresses are kept while they hold."""
    rounds, one, two = Round(memory, Float32), of_all(1), of_all(2)
    for lanes in (one, one, two, one):
        assert rounds.check(lanes) is None


def test_what_packs_in_its_own_way_is_left_to_the_framework(memory: Memory) -> None:
    assert memory.packing(made(Bf16)) is None


def test_everything_is_given_back(driver: Driver) -> None:
    memory = CudaMemory(0)
    for kind in (Float32, ExactSum):
        packing = memory.packing(made(kind))
        assert packing is not None and driver.taken
        packing.close()
        assert not driver.taken and not driver.contexts


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", "float64", "complex64"])
def test_digests_are_those_of_the_definition(memory: Memory, dtype: str) -> None:
    rng = np.random.default_rng(0)
    sizes = [0, 1, 3, 5, 4 * STRETCH, STRETCH + 1, 7]
    arrays = [memory.pinned(4 * size + 4).view(np.uint8).view(dtype)[:size] for size in sizes]
    for array in arrays:
        array[:] = rng.integers(0, 100, array.shape).astype(dtype)
    digests = memory.digests()
    for turn in range(2):
        arrays[1][0] = turn
        fetch = digests.begin([(array.ctypes.data, array.nbytes) for array in arrays])
        assert fetch().tolist() == sums_of_each(arrays).tolist()
    assert digests.begin([])().shape == (0, 2)
