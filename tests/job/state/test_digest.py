"""The digest that devices take: the definition in numpy, and that JAX and PyTorch compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshmend.job.frameworks.jax.digest import programs_of, sums_begun
from meshmend.job.frameworks.torch.digest import Digester
from meshmend.job.frameworks.torch.digest_plain import sums_of_tensors
from meshmend.job.frameworks.torch.triton_digest import STRETCH, stretches
from meshmend.job.state import digest as module
from meshmend.job.state.digest import PIECE, Later, device_digest_of, sums_of, sums_of_each
from meshmend.job.state.tree import DIGEST_BITS

Array = npt.NDArray[Any]
KINDS = [
    np.dtype(kind)
    for kind in (
        np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.int8, np.complex64,
        ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    )
]  # fmt: skip


def as_torch(array: Array) -> Any:
    """The same bits as a tensor of the same type."""
    if not array.size:
        return torch.zeros(array.shape)
    if array.dtype.name.startswith(("bfloat", "float8")):
        return torch.from_numpy(array.view(f"u{array.itemsize}")).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def modulo(sums: Any) -> list[tuple[int, ...]]:
    return [tuple(int(one) & 0xFFFFFFFF for one in row) for row in np.asarray(sums)]


def test_jax_and_torch_take_the_same_sums_of_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, size * kind.itemsize, np.uint8).view(kind) for kind in KINDS for size in (1, 3, 50)]
    arrays += [np.zeros(0, np.float32), rng.integers(0, 2, 7).astype(bool), np.array(5, np.float32)]
    expected = [sums_of(array) for array in arrays]
    assert modulo(sums_of_each(arrays)) == expected
    assert modulo(sums_of_tensors([as_torch(array) for array in arrays])) == expected
    assert modulo(sums_begun(arrays, programs_of(arrays))()) == expected  # leaves on the host
    with jax.enable_x64(True):
        there = [jax.device_put(array) for array in arrays]
        assert modulo(sums_begun(there, programs_of(there))()) == expected


def test_order_of_memory_does_not_matter() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = [sums_of(np.ascontiguousarray(array.T)), sums_of(array[:, ::2])]
    assert modulo(sums_of_each([array.T, array[:, ::2]])) == expected
    tensor = torch.from_numpy(array)
    assert modulo(sums_of_tensors([tensor.T, tensor[:, ::2]])) == expected
    halves = torch.arange(9, dtype=torch.bfloat16)
    assert modulo(sums_of_tensors([halves[1:]])) == modulo(sums_of_tensors([halves[1:].clone()]))


def test_large_leaves_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(1).integers(0, 1 << 32, PIECE + 77, np.uint32)
    expected = [sums_of(array)]
    monkeypatch.setattr(module, "PIECE", 1000)
    monkeypatch.setattr("meshmend.job.frameworks.torch.digest_plain.PIECE", 999)
    assert [sums_of(array)] == expected
    assert modulo(sums_of_tensors([torch.from_numpy(array.view(np.int32))])) == expected


def test_a_digester_fetches_sums_of_leaves_on_the_device_and_of_others() -> None:
    tensors = [torch.ones(3), torch.zeros((), dtype=torch.int64), torch.full((2, 2), 7.0)]
    expected = [sums_of(tensor.numpy()) for tensor in tensors]
    assert modulo(Digester(torch.device("cpu")).begin(tensors)()) == expected
    assert modulo(Digester(torch.device("meta")).begin(tensors)()) == expected  # none of them is there


def test_the_stretches_of_the_kernel_cover_every_word_once() -> None:
    rows = stretches([(1000, 5), (5000, 0), (8000, 2 * STRETCH + 1)])
    assert rows.tolist() == [
        [1000, 0, 5, 0],
        [8000, 0, STRETCH, 2],
        [8000 + 4 * STRETCH, STRETCH, STRETCH, 2],
        [8000 + 8 * STRETCH, 2 * STRETCH, 1, 2],
    ]


@st.composite
def leaves(draw: st.DrawFn) -> list[tuple[str, Array]]:
    """One to four leaves of any bits, of any of these types; often many zeros."""
    found = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        kind = draw(st.sampled_from(KINDS))
        size = draw(st.integers(0, 20)) * kind.itemsize
        raw = draw(st.one_of(st.binary(min_size=size, max_size=size), st.just(bytes(size))))
        found.append((name, np.frombuffer(raw, kind).copy()))
    return found


def changes(state: list[tuple[str, Array]], data: st.DataObject) -> list[list[tuple[str, Array]]]:
    """Other states: a flipped bit, two, swapped values, values moved between leaves, zeros added, leaves swapped."""
    found = []

    def changed(change: Callable[[list[Array]], object]) -> None:
        arrays = [array.copy() for _, array in state]
        change(arrays)
        found.append([(name, array) for (name, _), array in zip(state, arrays, strict=True)])

    def place() -> tuple[int, int]:
        leaf = data.draw(st.sampled_from([n for n, (_, array) in enumerate(state) if array.size]))
        return leaf, data.draw(st.integers(0, state[leaf][1].size - 1))

    def flip(arrays: list[Array]) -> None:
        leaf, at = place()
        width = arrays[leaf].itemsize
        bit = data.draw(st.integers(0, 8 * width - 1))
        arrays[leaf].view(np.uint8)[at * width + bit // 8] ^= 1 << bit % 8

    def swap(arrays: list[Array]) -> None:
        (leaf, at), (other, there) = place(), place()
        one, two = arrays[leaf].view(np.uint8), arrays[other].view(np.uint8)
        width = min(arrays[leaf].itemsize, arrays[other].itemsize)
        mine, theirs = slice(at * width, (at + 1) * width), slice(there * width, (there + 1) * width)
        one[mine], two[theirs] = two[theirs].copy(), one[mine].copy()

    def longer(arrays: list[Array]) -> None:
        leaf = data.draw(st.integers(0, len(arrays) - 1))
        arrays[leaf] = np.concatenate([arrays[leaf], np.zeros(1, arrays[leaf].dtype)])

    def cut(arrays: list[Array]) -> None:
        arrays[0], arrays[1] = arrays[0][:-1], np.concatenate([arrays[0][-1:].view(np.uint8), arrays[1].view(np.uint8)])

    if any(array.size for _, array in state):
        changed(flip)
        changed(lambda arrays: (flip(arrays), flip(arrays)))
        changed(swap)
    changed(longer)
    if len(state) > 1:
        if state[0][1].size:
            changed(cut)
        found.append([(name, array) for (name, _), (_, array) in zip(state, state[::-1], strict=True)])
        found.append(state[::-1])
    return found


def facts(state: list[tuple[str, Array]]) -> list[Any]:
    return [(name, array.dtype.name, array.shape, array.tobytes()) for name, array in state]


def check_changes(state: list[tuple[str, Array]], data: st.DataObject) -> None:
    before = device_digest_of(state)
    assert 0 <= before < 2**DIGEST_BITS
    assert device_digest_of([(name, array.copy()) for name, array in state]) == before
    for other in changes(state, data):
        assert (device_digest_of(other) == before) == (facts(other) == facts(state))


@given(leaves(), st.data())
def test_every_change_changes_the_digest(state: list[tuple[str, Array]], data: st.DataObject) -> None:
    check_changes(state, data)


def check_flips() -> None:
    """Every bit of a few leaves; none is like another."""
    rng = np.random.default_rng(3)
    state = [("a", rng.normal(size=5).astype(np.float32)), ("b", rng.integers(0, 99, 3, np.int8))]
    found = {device_digest_of(state)}
    for _, array in state:
        data = array.view(np.uint8)
        for bit in range(8 * len(data)):
            data[bit // 8] ^= 1 << bit % 8
            found.add(device_digest_of(state))
            data[bit // 8] ^= 1 << bit % 8
    assert len(found) == 1 + 8 * (20 + 3)


def test_every_flipped_bit_changes_the_digest() -> None:
    check_flips()


def check_swaps() -> None:
    """Every two numbers of a leaf that change places, also where only their signs do."""
    rng = np.random.default_rng(4)
    array = rng.normal(size=9).astype(np.float32)
    found = {device_digest_of([("a", array)])}
    for one in range(9):
        for other in range(one):
            swapped, signs = array.copy(), array.copy()
            swapped[[one, other]] = array[[other, one]]
            signs[[one, other]] *= -1
            found |= {device_digest_of([("a", swapped)]), device_digest_of([("a", signs)])}
    assert len(found) == 1 + 2 * 36


def test_swapped_numbers_and_signs_change_the_digest() -> None:
    check_swaps()


def _no_position(words: Any, places: Any) -> Any:
    return MIXED(words, np.zeros_like(places))


def _linear(words: Any, places: Any) -> Any:
    return words + places.astype(np.uint32), words * np.uint32(3)


def _no_sign(words: Any, places: Any) -> Any:
    return MIXED(words & np.uint32(0x7FFFFFFF), places)


MIXED = module._mixed


@pytest.mark.parametrize("mixed", [_no_position, _linear, _no_sign])
def test_the_tests_reject_hashes_that_see_less(mixed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_mixed", mixed)

    with pytest.raises(AssertionError):
        check_flips()
        check_swaps()


@pytest.mark.parametrize("part", [0, 1, 2], ids=["name", "type", "shape"])
def test_the_tests_reject_a_hash_that_does_not_know_what_leaves_are(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state = [("a", np.zeros(2, np.float32)), ("b", np.zeros(3, np.float32))]
    other = [
        [("b", state[0][1]), ("a", state[1][1])],
        [("a", state[0][1].view(np.int32)), state[1]],
        [("a", np.zeros((1, 2), np.float32)), state[1]],
    ][part]
    assert device_digest_of(state) != device_digest_of(other)
    opening = module.opening
    monkeypatch.setattr(module, "opening", lambda facts: opening([(*one[:part], *one[part + 1 :]) for one in facts]))  # type: ignore[misc]
    assert device_digest_of(state) == device_digest_of(other)


def test_padding_zeros_and_signs_of_zero_count() -> None:
    zeros = np.zeros(3, np.float16)
    found = [zeros, np.zeros(4, np.float16), -zeros, np.array([0, 0, -0.0], np.float16)]
    assert len({device_digest_of([("a", one)]) for one in found}) == len(found)
    nans = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    assert len({device_digest_of([("a", nans[n : n + 1])]) for n in range(3)}) == 3


def test_no_collisions_among_states_that_are_nearly_the_same() -> None:
    """Each half of the pair alone has about as many collisions as 32 random bits would have, and together none."""
    base = np.random.default_rng(2).normal(size=48).astype(np.float32).view(np.uint32)
    found = []
    for bits in (0x80000000, 0x40000000, 0x00800000, 0x00010000, 0x00000001):
        for state in (base, np.zeros(48, np.uint32)):
            for i in range(48):
                for j in range(i):
                    other = state.copy()
                    other[[i, j]] ^= np.uint32(bits)
                    found.append(other)
    sums = sums_of_each(found)
    assert len({*map(tuple, sums.tolist())}) == len(found)
    for half in sums.T:
        assert len(found) - len(set(half.tolist())) <= 3  # 0.01 are expected
        assert abs(np.unpackbits(np.ascontiguousarray(half).view(np.uint8)).mean() - 0.5) < 0.01


def test_a_later_value_is_fetched_once() -> None:
    calls: list[int] = []
    later = Later(lambda: calls.append(1) or 7)
    assert (later.value(), later.value(), calls) == (7, 7, [1])
    assert Later.of(5).value() == 5


@pytest.mark.parametrize("told", [True, False])
def test_a_later_value_is_begun_once_and_at_the_latest_when_it_is_needed(told: bool) -> None:
    calls: list[str] = []

    def begin() -> Callable[[], int]:
        calls.append("begin")
        return lambda: calls.append("fetch") or 7

    later = Later.begun_by(begin)
    assert calls == []
    if told:
        later.begin()
        later.begin()
        assert calls == ["begin"]
    assert (later.value(), later.value(), calls) == (7, 7, ["begin", "fetch"])
    later.begin()
    assert calls == ["begin", "fetch"]
