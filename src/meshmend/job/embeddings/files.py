"""Rows as a checkpoint has them: they are read from its files until they are updated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from xxhash import xxh3_64_intdigest

from meshmend.base.schema import Count, Rule
from meshmend.errors import FormatError
from meshmend.job.embeddings.shape import Floats, Ids, Shape
from meshmend.job.slices.files import FOLDER
from meshmend.job.state.safetensors import load, malformed, path_of

ROWS = "rows"
NAME = re.compile(r"\d{4,10}-[0-9a-f]{16}", re.ASCII)


@dataclass(frozen=True)
class Index:
    """What an index says of its tables."""

    folder: Annotated[str, Rule("the name of a folder of slices", FOLDER.fullmatch)]
    names: list[Annotated[str, Rule("the name of a slice", NAME.fullmatch)]]
    rows: list[Count]
    width: Count
    memory: Count


def name_of(number: int, rows: Floats) -> str:
    """The name of a slice's file."""
    return f"{number:04}-{xxh3_64_intdigest(rows.tobytes()):016x}"


class SliceFiles:
    """The files of all slices of one checkpoint: give rows of one slice. Few of them are kept in memory."""

    def __init__(self, folder: Path, names: Sequence[str], shape: Shape) -> None:
        self._folder, self._names, self._bounds = folder.absolute(), names, shape.bounds
        self._width = shape.width + shape.memory
        self._read = lru_cache(maxsize=16)(self._whole)

    def __call__(self, rows: Ids) -> Floats:
        number = int(np.searchsorted(self._bounds, rows[0], side="right")) - 1
        found: Floats = self._read(number)[rows - self._bounds[number]]
        return found

    def facts(self) -> dict[str, Any]:
        """What a newcomer needs, to read the same files."""
        return {"folder": str(self._folder), "names": [*self._names]}

    @classmethod
    def known(cls, facts: dict[str, Any], shape: Shape) -> SliceFiles:
        """The files that another worker has told."""
        return cls(Path(facts["folder"]), facts["names"], shape)

    def _whole(self, number: int) -> Floats:
        path = path_of(self._folder, 0, self._names[number])
        if not path.exists():
            raise FormatError(
                f"slice {number} is missing from {self._folder}, although the index is there: use another checkpoint"
            )
        found: Floats | None = dict(load(path, None)[0]).get(ROWS)
        rows = self._bounds[number + 1] - self._bounds[number]
        if found is None or found.dtype != np.float32 or found.shape != (rows, self._width):
            raise malformed(path, f"it does not hold {rows} rows of {self._width} numbers")
        if name_of(number, found) != self._names[number]:
            raise FormatError(
                f"slice {number} of {self._folder} is not the one named in its index: use another checkpoint"
            )
        return found
