"""Streams that can be read again from any position: files of records, generators with a seed, logs.

Any worker may compute a lane, and again when one dies, so data that cannot be read a second time cannot be trained on
exactly once. `open(shard, position)` must return the same samples each time, and `lengths` is the size of each shard.
Then every sample has a number, like any other: shards one after another.

Reading on is cheap and reopening may not be, so lanes take samples in order (`Lanes`), and open iterators are kept at
their position for the next reader.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from meshmend.errors import JobError
from meshmend.job.data.source import Source

KEPT = 64
"""Iterators that are kept open: as many as a worker has lanes, and some for lanes that it reads for others."""


class Stream(Source):
    """The samples of several shards, each read from a position on."""

    streams = True

    def __init__(self, open_: Callable[[int, int], Any], lengths: Sequence[int]) -> None:
        if not callable(open_):
            raise JobError(
                f"mm.data.stream got a {type(open_).__name__}, which can be read only once; give a function "
                "open(shard, position) that returns an iterator over that shard from that position on"
            )
        if not len(lengths) or min(lengths) < 0:
            raise JobError(f"lengths={list(lengths)[:5]}: give the number of samples of each shard, 0 or more")
        self._open = open_
        self._ends = np.cumsum(np.asarray(lengths, np.int64)).tolist()
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Iterator[Any]] = OrderedDict()
        """Iterators by the number of the sample that they give next."""

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def identity(self) -> str:
        """Where the shards end."""
        return f"stream of {self._ends}"

    def name(self, number: int) -> str:
        """Its shard and position."""
        shard, position = self._place(number)
        return f"sample {number} (shard {shard}, position {position})"

    def read(self, number: int) -> Any:
        """Continue with the iterator at that position, or open one."""
        shard, position = self._place(number)
        with self._lock:
            found = self._kept.pop(number, None)
        rows = found if found is not None else iter(self._open(shard, position))
        try:
            sample = next(rows)
        except StopIteration:
            raise JobError(
                f"shard {shard} ended at position {position}, but lengths gives it "
                f"{self._ends[shard] - self._begin(shard)} samples; give its actual length"
            ) from None
        if number + 1 < self._ends[shard]:
            with self._lock:
                self._kept[number + 1] = rows
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return sample

    def _place(self, number: int) -> tuple[int, int]:
        shard = bisect_right(self._ends, number)
        return shard, number - self._begin(shard)

    def _begin(self, shard: int) -> int:
        return int(self._ends[shard - 1]) if shard else 0
