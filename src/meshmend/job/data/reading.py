"""Reads samples as a pipeline says: from the source or the cache, through maps, stacked into a lane.

**A bad sample is the same decision on every worker.** The contents of a sample are the same everywhere, so if they
cannot be read on one worker, they can be read nowhere: the sample is reported and the next readable one replaces it, or
the job ends, as requested. A failure of the host (the disk, the network, memory) may be specific to this worker, so it
is never skipped.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from meshmend.base.signatures import takes
from meshmend.errors import JobError
from meshmend.job.data.cache import Cache
from meshmend.job.data.cache_file import CacheHome
from meshmend.job.data.lanes import Ids
from meshmend.job.data.padding import Padding
from meshmend.job.data.source import Source, collated
from meshmend.job.state.tree import plain_leaves, plain_rebuilt

CONTENTS = (ValueError, EOFError, SyntaxError, OSError, struct.error, zlib.error)
"""What libraries raise that cannot read something; an error of the system (with a number) is none of these."""
MOST = 1000
"""Samples in a row that may be bad."""
NAMED = 20
"""Bad samples that a worker names."""


@dataclass(frozen=True)
class Map:
    """A function of a sample, or of a sample and a random generator."""

    function: Any

    @cached_property
    def draws(self) -> bool:
        """Whether it takes random numbers."""
        return takes(self.function, 2)

    @property
    def identity(self) -> str:
        """Its name and code, with what it holds: caches of different maps must not meet."""
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        cells = [cell.cell_contents for cell in getattr(self.function, "__closure__", None) or ()]
        held = [*cells, *(getattr(self.function, "__defaults__", None) or ())]
        simple = [repr(value) for value in held if isinstance(value, (int, float, str, tuple))]
        return f"{name} {simple} {_code(getattr(self.function, '__code__', None))}"


def _code(code: Any) -> str:
    """Code in words that are the same in every process."""
    if not isinstance(code, CodeType):
        return repr(sorted(map(repr, code)) if isinstance(code, frozenset) else code)
    return f"{code.co_code.hex()} {code.co_names} {[_code(one) for one in code.co_consts]}"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a pipeline does, in this order."""

    source: Source
    before: tuple[Map, ...] = ()
    """Maps whose results are cached."""
    room: int = 0
    """Bytes of the cache; 0: none."""
    folder: Path | None = None
    maps: tuple[Map, ...] = ()
    """Maps after the cache, on each sample."""
    padding: Padding | None = None
    lane_maps: tuple[Map, ...] = ()
    """Maps on whole lanes."""
    skip: bool = False
    """Whether bad samples are replaced."""
    threads: int = 2
    ahead: int = 4
    """Lanes that are read ahead."""

    @property
    def identity(self) -> str:
        """Return what distinguishes the cache of this pipeline from others."""
        told = f"{self.source.identity} {[one.identity for one in self.before]}"
        return str(xxh3_64_hexdigest(told.encode()))


class BadSample(JobError):
    """The contents of a sample cannot be read; `number` is its number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


@dataclass
class Reader:
    """A pipeline at work in this process."""

    recipe: Recipe
    home: CacheHome
    name: str
    """Of its cache."""
    _cache: Cache | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)
    _bad: dict[int, int] = field(default_factory=dict)
    """Bad samples, and which ones replace them."""

    def lane(self, ids: Ids | Sequence[int], random: np.random.Generator) -> Any:
        """These samples, with random numbers that depend on the lane alone."""
        recipe = self.recipe
        fixed = [not one.draws for one in recipe.maps]
        sure = fixed.index(False) if False in fixed else len(fixed)
        rows = []
        for number in np.asarray(ids).tolist():
            row = self._good(number, recipe.maps[:sure])
            for one in recipe.maps[sure:]:
                row = one.function(row, random) if one.draws else one.function(row)
            rows.append(row)
        lane = collated(rows) if recipe.padding is None else recipe.padding.padded(rows)
        for one in recipe.lane_maps:
            lane = one.function(lane, random) if one.draws else one.function(lane)
        return lane

    def _good(self, number: int, maps: tuple[Map, ...]) -> Any:
        """Read a sample, or the one that replaces it."""
        if number in self._bad:
            number = self._bad[number]
        if not self.recipe.skip:
            return self._mapped(number, maps)
        first = number
        for _ in range(MOST):
            try:
                row = self._mapped(number, maps)
            except BadSample as error:
                following = (number + 1) % len(self.recipe.source)
                self._say(error)
                number = following
            else:
                if number != first:
                    self._bad[first] = number
                return row
        raise JobError(f"{MOST:,} samples in a row cannot be read, starting with sample {first}; check the data")

    def _say(self, error: BadSample) -> None:
        if error.number not in self._bad and len(self._bad) < NAMED:
            last = "; more of them are not named" if len(self._bad) + 1 == NAMED else ""
            print(f"{error}; the next one takes its place{last}", flush=True)
        self._bad.setdefault(error.number, (error.number + 1) % len(self.recipe.source))

    def _mapped(self, number: int, maps: tuple[Map, ...]) -> Any:
        row = self._decoded(number) if not self.recipe.room else self._cached(number)
        return self._applied(number, row, maps) if maps else row

    def _decoded(self, number: int) -> Any:
        """A sample from the source, through the maps before the cache."""
        source = self.recipe.source
        try:
            row = source.read(number)
        except CONTENTS as error:
            raise self._judged(number, error) from None
        return self._applied(number, row, self.recipe.before)

    def _applied(self, number: int, row: Any, maps: tuple[Map, ...]) -> Any:
        for one in maps:
            try:
                row = one.function(row)
            except CONTENTS as error:
                raise self._judged(number, error) from error
        return row

    def _judged(self, number: int, error: Exception) -> Exception:
        if isinstance(error, JobError) or getattr(error, "errno", None) is not None:
            return error
        why = str(error).partition("\n")[0] or type(error).__name__
        return BadSample(number, f"{self.recipe.source.name(number)} cannot be read ({why})")

    def _cached(self, number: int) -> Any:
        row, cache = None, self._cache
        if cache is None:
            row = self._decoded(number)
            with self._opening:
                cache = self._cache = self._cache or self._opened(number, row)
        found = cache.get(number)
        if found is not None:
            return found  # arrays that cannot be written to, as in the end of this
        for other in self.recipe.source.together(number):
            if other != number and not cache.full and not cache.has(other):
                try:
                    cache.put(other, self._decoded(other))
                except BadSample:
                    continue  # the error is raised when the sample is needed
        row = self._decoded(number) if row is None else row
        cache.put(number, row)
        return plain_rebuilt(row, [_sealed(value) for _, value in plain_leaves(row)])

    def _opened(self, number: int, row: Any) -> Cache:
        """The cache; what others have put there must be what this worker would."""
        recipe = self.recipe
        cache = Cache(self.name, len(recipe.source), recipe.room, recipe.folder, self.home, row)
        known = number if cache.has(number) else cache.found
        if known is not None:
            mine, theirs = row if known == number else self._decoded(known), cache.get(known)
            for (name, a), (_, b) in zip(plain_leaves(mine), plain_leaves(theirs), strict=True):
                if np.asarray(a).tobytes() != np.asarray(b).tobytes():
                    raise JobError(
                        f"{recipe.source.name(known)} differs between the cache and what this worker decodes, in "
                        f"{name!r}; maps before a cache must depend on the sample alone, so put random ones after it"
                    )
        return cache

    def close(self) -> None:
        """Give the cache back."""
        if self._cache is not None:
            self._cache.close()


def _sealed(value: Any) -> Any:
    """A view that cannot be written to."""
    array = np.asarray(value)[...]
    array.flags.writeable = False
    return array
