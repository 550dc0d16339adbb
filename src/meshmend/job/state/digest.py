"""The digest of a state on a device: integers only, one pass over memory, the same on every kind of device.

Today's host states are hashed by XXH3 (`tree.py`), which is serial. A device needs a hash that thousands of threads can
take in any order, so a leaf's is a pair of sums of 32-bit words, each word mixed with its position first:

    key  = j * GOLDEN + SEED                 j: the number of the word in its leaf
    x    = mix(w ^ key)                      mix: "lowbias32" (C. Wellons) without its last shift: two multiplications
    one += x ^ x >> 16                       all of it modulo 2**32, which JAX has without 64-bit numbers
    two += x * (key | 1)

* `mix` is one to one, so a single changed word always changes `one`.
* A word is mixed with its position before the multiplications, so words that change places, or a sign that moves from
  one to another, change both sums but for one case in about 2**32 each.
* What leaves the words mixed with their positions the same but permuted (nothing that happens by itself) leaves `one`
  as it is; `two` weighs each by its position.
* Names, types and shapes, and with them where one leaf ends and the next begins, and how many bytes of the last word
  count, are hashed with the sums on the host: by XXH3, over all leaves in their order, to 48 bits (`finished`).

Leaves of 1- and 2-byte numbers are read as words of 4 bytes, little-endian, the last one filled up with zeros.

This file is the definition, in numpy. `frameworks/jax/digest.py` and `frameworks/torch/digest.py` compute the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from meshmend.job.state.tree import folded

Words = npt.NDArray[np.uint32]
Value = TypeVar("Value")

GOLDEN = 0x9E3779B1
SEED = 0x85EBCA77
FIRST, SECOND = 0x7FEB352D, 0x846CA68B
"""The multipliers of `mix`."""
PIECE = 1 << 18
"""Words mixed at a time: they stay in the processor's cache."""


class Facts(NamedTuple):
    """What a leaf is, besides its bits."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Later(Generic[Value]):
    """A value that a device is computing; a caller that needs it waits for it."""

    def __init__(self, fetch: Callable[[], Value]) -> None:
        self._fetch: Callable[[], Value] | None = fetch
        self._value: Value | None = None
        self._begin: Callable[[], Callable[[], Value]] | None = None

    @classmethod
    def begun_by(cls, begin: Callable[[], Callable[[], Value]]) -> Later[Value]:
        """Return a value that the device computes when told to: launching costs host time, which may be scarce now.

        Its inputs must not change until then.
        """
        later = cls(lambda: begin()())
        later._begin = begin
        return later

    def begin(self) -> None:
        """Have the device begin, if it has not."""
        begin, self._begin = self._begin, None
        if begin is not None and self._fetch is not None:
            self._fetch = begin()

    @classmethod
    def of(cls, value: Value) -> Later[Value]:
        """Return a value that is already known."""
        return cls(lambda: value)

    def value(self) -> Value:
        """Wait for it. Two threads may ask at the same time: then both fetch the same."""
        fetch = self._fetch
        if fetch is not None:
            self._value = fetch()
            self._fetch = None  # the arrays that it comes from are free now
        assert self._value is not None
        return self._value


class Digester(Protocol):
    """Takes the sums of leaves where they are, without their framework."""

    def begin(self, leaves: Sequence[tuple[int, int]]) -> Callable[[], Words]:
        """Begin to take the sums of leaves, each given by its address and its size in bytes; a row for each.

        They are complete, and stay as they are until the sums are fetched; the sums before these have been fetched.
        """
        ...


def words_of(array: npt.NDArray[Any]) -> Words:
    """The bits of an array as words."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if len(data) % 4:
        data = np.concatenate([data, np.zeros(-len(data) % 4, np.uint8)])
    return data.view("<u4")


def sums_of(array: npt.NDArray[Any]) -> tuple[int, int]:
    """The two sums of a leaf."""
    words, one, two = words_of(array), 0, 0
    for begin in range(0, len(words), PIECE):
        part = words[begin : begin + PIECE]
        ones, twos = _mixed(part, np.arange(begin, begin + len(part)))
        one += int(ones.sum(dtype=np.uint64))
        two += int(twos.sum(dtype=np.uint64))
    return one & 0xFFFFFFFF, two & 0xFFFFFFFF


def sums_of_each(arrays: Sequence[npt.NDArray[Any]]) -> Words:
    """The sums of each leaf, a row for each; many small ones cost little more than one."""
    words = [words_of(array) for array in arrays]
    out = np.zeros((len(words), 2), np.uint32)
    small = [number for number, one in enumerate(words) if 0 < len(one) < PIECE // 64]
    if small:
        lengths = [len(words[number]) for number in small]
        begins = np.cumsum([0, *lengths[:-1]])
        places = np.arange(sum(lengths)) - np.repeat(begins, lengths)
        mixed = _mixed(np.concatenate([words[number] for number in small]), places)
        out[small] = np.stack([np.add.reduceat(one, begins, dtype=np.uint32) for one in mixed], axis=1)
    for number in {*range(len(words))} - {*small}:
        out[number] = sums_of(words[number])
    return out


def _mixed(words: Words, places: npt.NDArray[np.int64]) -> tuple[Words, Words]:
    """What words at these positions add to the two sums."""
    key = places.astype(np.uint32)
    key *= np.uint32(GOLDEN)
    key += np.uint32(SEED)
    x = words ^ key
    x ^= x >> np.uint32(16)
    x *= np.uint32(FIRST)
    x ^= x >> np.uint32(15)
    x *= np.uint32(SECOND)
    return x ^ x >> np.uint32(16), x * (key | np.uint32(1))


def opening(facts: Sequence[Facts]) -> int:
    """What the leaves are, as a number for `finished`: it changes only where they do."""
    return int(xxh3_64_intdigest(json.dumps(facts).encode()))


def finished(opening: int, sums: npt.NDArray[Any], more: Iterable[npt.NDArray[Any]] = ()) -> int:
    """Return the digest of leaves whose sums are the rows of this array, and of more arrays on the host."""
    out = xxh3_64_intdigest(np.ascontiguousarray(sums, "<u4").tobytes(), seed=opening)
    for array in more:
        out = xxh3_64_intdigest(np.ascontiguousarray(array).tobytes(), seed=out)
    return folded(out)


def device_digest_of(leaves: Iterable[tuple[str, Any]], *more: npt.NDArray[Any]) -> int:
    """The digest of arrays on the host, as a device takes it."""
    arrays = [(name, np.asarray(value)) for name, value in leaves]
    facts = [Facts(name, array.dtype.name, array.shape) for name, array in arrays]
    return finished(opening(facts), sums_of_each([array for _, array in arrays]), more)
