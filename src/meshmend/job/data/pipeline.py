"""`mm.data`: where samples come from, and what is done to them on their way into a lane.

    data = (
        mm.data.images("train", size=256)     decoded by Pillow, from files by number
        .cache("20GB")                        once per host: all of its workers share what one has decoded
        .map(crop)                            crop(sample, rng): with random numbers of the lane
    )
    with mm.Job(data, batch=512, lanes=32) as job: …

A pipeline is a value: each method returns another one. What it gives for a lane depends on seed, step and lane, never
on the worker that reads it or on what was read before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from glob import glob
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.base.units import read_bytes
from meshmend.errors import JobError, MeshmendError
from meshmend.job.data.cache_file import CacheHome
from meshmend.job.data.image_folder import Images, decoder
from meshmend.job.data.lanes import Ids
from meshmend.job.data.padding import Padding
from meshmend.job.data.reading import Map, Reader, Recipe
from meshmend.job.data.source import Arrays, Rows, Source
from meshmend.job.data.streams import Stream
from meshmend.job.data.tables import Tables

DRAWN = 1
"""Suffix of the key of random numbers drawn while a lane is read; those of its computation have no suffix."""
_opened: Counter[str] = Counter()
"""Caches that this process has opened, by what they hold."""


class Data:
    """Samples with random access, and what is done to them; for `mm.Job` and `job.evaluate`."""

    def __init__(self, recipe: Recipe, lengths: npt.NDArray[np.int64] | None = None) -> None:
        self.recipe, self.lengths = recipe, lengths
        self._reader: Reader | None = None

    def map(self, function: Callable[..., Any]) -> Data:
        """Apply `function(sample)` or, with random numbers of the lane, `function(sample, rng)` to each sample.

        `rng` is a generator of numpy, and the samples of a lane draw from it one after another. What stands before
        `cache` is applied once per host; random numbers belong after it.
        """
        return self._with(maps=(*self.recipe.maps, Map(function)))

    def map_lane(self, function: Callable[..., Any]) -> Data:
        """Apply `function(lane)` or `function(lane, rng)` to the stacked samples of a lane."""
        return self._with(lane_maps=(*self.recipe.lane_maps, Map(function)))

    def cache(self, room: str | int, folder: str | PathLike[str] | None = None) -> Data:
        """Keep samples as they are here, uncompressed, for all workers of a host: each is decoded once per host.

        `room` is the limit per host ("20GB"): of shared memory or, with `folder`, of a disk. Samples that do not fit
        are decoded each time, and a message says so once; more room than the disk or memory has is an error when the
        first sample is read. The cache is removed when the run ends.
        """
        try:
            size = int(read_bytes(room) if isinstance(room, str) else room)
        except MeshmendError as error:
            raise JobError(f"cache got {room!r} ({error})") from None
        if size < 1 or self.recipe.room:
            raise JobError(f"cache got {room!r}; give a size such as '20GB', and only one cache per pipeline")
        if any(one.draws for one in self.recipe.maps):
            raise JobError(
                "a map before the cache draws random numbers, which would be the same in every epoch; put that map "
                "after the cache"
            )
        if folder is not None and not Path(folder).is_dir():
            raise JobError(f"cache got folder={str(folder)!r}, which is not a folder; create it on every host first")
        return self._with(before=self.recipe.maps, maps=(), room=size, folder=None if folder is None else Path(folder))

    def pad(
        self, to: Sequence[int], *names: str, value: float = 0, lengths: npt.NDArray[np.int64] | None = None
    ) -> Data:
        """Pad samples of different lengths (of their first dimension) to the least of `to` that fits a whole lane.

        `names` are the arrays that vary ("tokens", or "0" for the first of a tuple); all that have a dimension by
        default. The lane gets one more part, the true lengths: at the end of a tuple, as "length" in a dict. With the
        `lengths` of all samples, those of a step are assigned to its lanes by length, so that less is padded.
        """
        if lengths is not None and len(lengths) != len(self):
            raise JobError(
                f"lengths has {len(lengths)} entries, but the data has {len(self)} samples; give one length per sample"
            )
        made = self._with(padding=Padding(tuple(to), names, value))
        made.lengths = None if lengths is None else np.asarray(lengths, np.int64)
        return made

    def read_ahead(self, lanes: int, threads: int = 2) -> Data:
        """Prefetch this many lanes, in this many threads; 0 lanes: read each on demand."""
        if lanes < 0 or threads < 1:
            raise JobError(f"read_ahead got lanes={lanes}, threads={threads}; give at least 0 lanes and 1 thread")
        return self._with(ahead=lanes, threads=threads)

    def __len__(self) -> int:
        return len(self.recipe.source)

    def __getitem__(self, ids: Ids) -> Any:
        """Samples outside of a job's lanes, as in an evaluation: random numbers depend on the first of these."""
        numbers = np.atleast_1d(np.asarray(ids))
        return self.lane(numbers, (int(numbers[0]) if len(numbers) else 0, DRAWN))

    def lane(self, ids: Ids, key: tuple[int, ...]) -> Any:
        """These samples, put together; `key` is what random numbers depend on."""
        reader = self._reader or self.open(CacheHome())
        return reader.lane(ids, np.random.default_rng(key))

    def open(self, place: CacheHome) -> Reader:
        """Let this process read, with caches in this place."""
        if self._reader is None:
            identity = self.recipe.identity if self.recipe.room else ""
            self._reader = Reader(self.recipe, place, f"{identity}-{_opened[identity]}")
            _opened[identity] += 1
        return self._reader

    def close(self) -> None:
        """Release the cache; reading continues without it."""
        if self._reader is not None:
            self._reader.close()

    def _with(self, **changes: Any) -> Data:
        return Data(replace(self.recipe, **changes), self.lengths)


def arrays(*columns: Any) -> Data:
    """Arrays in memory: one, several of the same length (a sample is a tuple), or a dict of them."""
    return Data(Recipe(source=Arrays(columns[0] if len(columns) == 1 else columns)))


def rows(source: Any, *, on_error: str = "raise") -> Data:
    """Anything with `len(source)` and `source[number]`: a list, a grain source, a dataset of PyTorch.

    `on_error="skip"` replaces a sample whose contents cannot be read (a `ValueError` and the like) by the next one, on
    every worker alike, and names it.
    """
    return _data(Rows(source), on_error)


def images(
    folder: str | PathLike[str],
    size: int | tuple[int, int] | None = None,
    *,
    mode: str = "RGB",
    decode: bool = True,
    on_error: str = "raise",
) -> Data:
    """Images in `folder/CLASS/NAME.jpg` as (uint8 [height, width, 3], label); needs `pip install 'meshmend[data]'`.

    `size` scales the shorter side and cuts out the middle, so that all have one shape. `decode=False` gives the bytes
    of the files, for a cache of what is compressed; `.map(mm.data.decode_image(size))` decodes them later. `on_error`
    as in `rows`.
    """
    return _data(Images(Path(folder), decoder(size, mode) if decode else None), on_error)


def decode_image(size: int | tuple[int, int] | None = None, mode: str = "RGB") -> Callable[[Any], Any]:
    """A map that decodes the first part of a sample: see `images`."""
    decode = decoder(size, mode)

    def decoded(sample: Any) -> Any:
        return (decode(sample[0]), *sample[1:])

    decoded.__qualname__ = decode.__qualname__
    return decoded


def parquet(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    columns: Sequence[str] | None = None,
    *,
    on_error: str = "raise",
) -> Data:
    """The rows of files of Parquet or Arrow, as dicts of arrays; a pattern (`data/*.parquet`) stands for several.

    Text and binary columns come as arrays of bytes. Row groups are read as a whole: with `cache`, once per host. Needs
    `pip install 'meshmend[data]'`. `on_error` as in `rows`.
    """
    given = [files] if isinstance(files, (str, PathLike)) else list(files)
    found = [Path(path) for one in given for path in (sorted(glob(str(one))) if "*" in str(one) else [str(one)])]
    return _data(Tables(found, columns), on_error)


def stream(open: Callable[[int, int], Any], lengths: Sequence[int]) -> Data:
    """Shards that are read from a position on: `open(shard, position)` returns an iterator, `lengths` their samples.

    The same samples must come each time: a lane may be read by any worker, and again. They are taken in their order,
    not shuffled.
    """
    return Data(Recipe(source=Stream(open, lengths)))


def _data(source: Source, on_error: str) -> Data:
    if on_error not in ("raise", "skip"):
        raise JobError(f"unknown on_error={on_error!r}; choose 'raise' or 'skip'")
    return Data(Recipe(source=source, skip=on_error == "skip"))
