"""Another data set, with the work divided among the workers: `job.evaluate`.

The data is cut into chunks of the size of a lane. Each worker computes its share, and all exchange what they have.
When a worker dies, the survivors divide its chunks among themselves, until none is missing. All put together the same
numbers in the same order, so all get the same bits, whoever died.

A function that takes `weight` sees chunks of one shape only: the last chunk is padded with its last sample, and the
padding has weight 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from meshmend.errors import JobError
from meshmend.job.data.source import samples
from meshmend.job.state.tree import plain_leaves, plain_rebuilt
from meshmend.job.state.values import from_bytes, to_bytes

Exchange = Callable[[bytes], dict[int, bytes]]


@dataclass(frozen=True)
class Chunks:
    """A data set in chunks of one size; the last one may be smaller."""

    data: Any
    size: int
    chunk: int

    def __post_init__(self) -> None:
        if not self.size:
            raise JobError("job.evaluate got no samples")

    @property
    def count(self) -> int:
        """How many there are."""
        return -(-self.size // self.chunk)

    def rows(self, number: int) -> int:
        """How many samples a chunk has."""
        return min(self.chunk, self.size - number * self.chunk)

    def computed(self, number: int, function: Callable[..., Any], *, weighted: bool) -> Any:
        """What the function gives for a chunk."""
        ids = number * self.chunk + np.arange(self.chunk if weighted else self.rows(number))
        chunk = samples(self.data, np.minimum(ids, self.size - 1))
        return function(chunk, (ids < self.size).astype(np.float32)) if weighted else function(chunk)


@dataclass
class Evaluation:
    """What is known of all chunks."""

    chunks: Chunks
    found: dict[int, Any] = field(default_factory=dict)
    """What the function gave, by chunk."""
    by: dict[int, int] = field(default_factory=dict)
    """The rank that computed each chunk."""

    def run(self, rank: int, compute: Callable[[int], Any], exchange: Exchange) -> None:
        """Run until every chunk is computed."""
        members = sorted(exchange(b""))
        while len(self.found) < self.chunks.count:
            left = [number for number in range(self.chunks.count) if number not in self.found]
            mine = [number for turn, number in enumerate(left) if members[turn % len(members)] == rank]
            # Results of chunks are much alike, and every 256 bytes of an exchange take a round.
            brought = exchange(zlib.compress(to_bytes({number: compute(number) for number in mine})))
            members = sorted(brought)
            for one in members:
                results = from_bytes(zlib.decompress(brought[one]))
                self.found |= results
                self.by |= dict.fromkeys(results, one)

    @property
    def ranks(self) -> list[int]:
        """The rank that computed each chunk, in the order of the data."""
        return [self.by[number] for number in range(self.chunks.count)]

    def total(self) -> Any:
        """The sum over all chunks."""
        return self._joined(_added)

    def all_rows(self) -> Any:
        """The rows of all chunks, in the order of the data, without those that filled up the last one."""
        return self._joined(self._concatenated)

    def _joined(self, join: Callable[[list[npt.NDArray[Any]]], Any]) -> Any:
        """The results of all chunks as one tree, leaf by leaf."""
        trees = [plain_leaves(self.found[number]) for number in range(self.chunks.count)]
        names = [name for name, _ in trees[0]]
        if not names:
            raise JobError(
                "the function of job.evaluate returned nothing for the first chunk; return a number, an array or a "
                "dict of them"
            )
        for number, tree in enumerate(trees):
            if (others := [name for name, _ in tree]) != names:
                raise JobError(
                    f"the function of job.evaluate returned {others} for chunk {number} and {names} for the first one; "
                    "return the same names for every chunk"
                )
        leaves = ([np.asarray(tree[leaf][1]) for tree in trees] for leaf in range(len(names)))
        return plain_rebuilt(self.found[0], [join(arrays) for arrays in leaves])

    def _concatenated(self, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        chunks = self.chunks
        for number, array in enumerate(arrays):
            if array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:] or len(array) < chunks.rows(number):
                raise JobError(
                    f"the function of job.evaluate returned an array of shape {array.shape} for chunk {number}, which "
                    f"has {chunks.rows(number)} samples; with rows=True, return one row per sample, all of one shape"
                )
        return np.concatenate([array[: chunks.rows(number)] for number, array in enumerate(arrays)])


def digest_of(result: Any) -> int:
    """A digest of what an evaluation gives, in 48 bits."""
    return xxh3_64_intdigest(to_bytes(result)) >> 16


def _added(arrays: list[npt.NDArray[Any]]) -> Any:
    """Integers stay integers, and everything else is added in double precision."""
    for number, array in enumerate(arrays):
        if array.dtype.kind not in "biuf":
            raise JobError(
                f"the function of job.evaluate returned something of type {array.dtype} for chunk {number}, which "
                "cannot be summed; return numbers, or arrays of them"
            )
        if array.shape != arrays[0].shape:
            raise JobError(
                f"the function of job.evaluate returned an array of shape {array.shape} for chunk {number} and of "
                f"shape {arrays[0].shape} for the first one; sum over the samples of a chunk, or ask for rows=True"
            )
    whole = all(array.dtype.kind in "biu" for array in arrays)
    total = np.sum(np.stack(arrays).astype(np.int64 if whole else np.float64), axis=0)
    return total.item() if total.ndim == 0 else total
