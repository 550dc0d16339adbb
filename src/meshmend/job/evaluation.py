"""Sums over another data set, with the work divided among the workers: `job.evaluate`.

The data is cut into chunks of the size of a lane. Every worker computes its share, and all exchange what they have.
Chunks of workers that died meanwhile are divided again among the others, until none is missing. All add up the same
numbers in the same order, so all get the same bits, whichever workers died.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshmend.errors import JobError
from meshmend.job.data.source import samples
from meshmend.job.state.tree import plain_leaves, plain_rebuilt
from meshmend.job.state.values import from_bytes, to_bytes

Exchange = Callable[[bytes], dict[int, bytes]]


def evaluate(data: Any, size: int, chunk: int, rank: int, function: Callable[[Any], Any], exchange: Exchange) -> Any:
    """The sum of `function(chunk)` over all chunks of the data; the last one may be smaller."""
    starts = range(0, size, chunk)
    if not starts:
        raise JobError("job.evaluate got no samples")
    found: dict[int, Any] = {}
    members = sorted(exchange(b""))
    while len(found) < len(starts):
        left = [number for number in range(len(starts)) if number not in found]
        mine = [number for turn, number in enumerate(left) if members[turn % len(members)] == rank]
        done = {}
        for number in mine:
            begin = starts[number]
            done[number] = function(samples(data, np.arange(begin, min(begin + chunk, size))))
        brought = exchange(to_bytes(done))
        members = sorted(brought)
        for one in members:
            found.update(from_bytes(brought[one]))
    trees = [plain_leaves(found[number]) for number in range(len(starts))]
    return plain_rebuilt(found[0], [_added([tree[leaf][1] for tree in trees]) for leaf in range(len(trees[0]))])


def _added(values: list[Any]) -> Any:
    """Integers stay integers, and everything else is added in double precision."""
    arrays = [np.asarray(value) for value in values]
    whole = all(array.dtype.kind in "biu" for array in arrays)
    total = np.sum(np.stack(arrays).astype(np.int64 if whole else np.float64), axis=0)
    return total.item() if total.ndim == 0 else total
