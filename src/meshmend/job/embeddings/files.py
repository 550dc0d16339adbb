"""Rows as a checkpoint has them: they are read from its files until they are updated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from meshmend.errors import FormatError
from meshmend.job.embeddings.shape import Floats, Ids
from meshmend.job.state.safetensors import load, path_of

ROWS = "rows"


def name_of(number: int, rows: Floats) -> str:
    """The name of a slice's file."""
    return f"{number:04}-{xxh3_64_intdigest(rows.tobytes()):016x}"


class SliceFiles:
    """The files of all slices of one checkpoint: give rows of one slice. Few of them are kept in memory."""

    def __init__(self, folder: Path, names: Sequence[str], bounds: Ids) -> None:
        self._folder, self._names, self._bounds = folder.absolute(), names, bounds
        self._read = lru_cache(maxsize=16)(self._whole)

    def __call__(self, rows: Ids) -> Floats:
        number = int(np.searchsorted(self._bounds, rows[0], side="right")) - 1
        found: Floats = self._read(number)[rows - self._bounds[number]]
        return found

    def facts(self) -> dict[str, Any]:
        """What a newcomer needs, to read the same files."""
        return {"folder": str(self._folder), "names": [*self._names]}

    @classmethod
    def known(cls, facts: dict[str, Any], bounds: Ids) -> SliceFiles:
        """The files that another worker has told."""
        return cls(Path(facts["folder"]), facts["names"], bounds)

    def _whole(self, number: int) -> Floats:
        path = path_of(self._folder, 0, self._names[number])
        if not path.exists():
            raise FormatError(
                f"slice {number} is missing in {self._folder}, but its index is there: take another checkpoint"
            )
        found: Floats = dict(load(path, None)[0])[ROWS]
        if name_of(number, found) != self._names[number]:
            raise FormatError(
                f"slice {number} of {self._folder} is not the one that its index names: take another checkpoint"
            )
        return found
