"""Tables in files of Parquet or Arrow, read row group by row group.

A row group is read as a whole, so the last few are kept; with a cache, each is decoded once per host.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshmend.errors import JobError, MissingLibrary
from meshmend.job.data.source import Source

KEPT = 8
"""Row groups that are kept."""


class Tables(Source):
    """The rows of some files, as dicts of arrays: numbers, lists of numbers, and text or binary as bytes."""

    def __init__(self, files: Sequence[Path], columns: Sequence[str] | None) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise MissingLibrary(
                "tables need pyarrow, which is not installed; run pip install 'meshmend[data]'"
            ) from None
        if not files:
            raise JobError(
                "mm.data.parquet got no files; give a file, a list of them, or a pattern such as 'data/*.parquet'"
            )
        self._files, self._columns = list(files), None if columns is None else list(columns)
        self._groups: list[tuple[int, int]] = []
        """File and row group."""
        self._ends: list[int] = []
        for at, path in enumerate(files):
            try:
                rows = _groups(path)
            except (OSError, pyarrow.ArrowException) as error:
                raise JobError(f"{path} cannot be read as a table of Parquet or Arrow ({_line(error)})") from None
            for group, count in enumerate(rows):
                self._groups.append((at, group))
                self._ends.append((self._ends[-1] if self._ends else 0) + count)
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def identity(self) -> str:
        """Files, where their row groups end, and the columns."""
        return f"tables {[path.name for path in self._files]} {self._ends} {self._columns}"

    def name(self, number: int) -> str:
        """Its file and row group."""
        file, group = self._groups[bisect_right(self._ends, number)]
        return f"sample {number} ({self._files[file]}, row group {group})"

    def together(self, number: int) -> range:
        """Its row group."""
        group = bisect_right(self._ends, number)
        return range(self._ends[group - 1] if group else 0, self._ends[group])

    def read(self, number: int) -> Any:
        """A row."""
        place = bisect_right(self._ends, number)
        at = number - (self._ends[place - 1] if place else 0)
        return {name: column[at] for name, column in self._group(place)}

    def _group(self, place: int) -> list[Any]:
        with self._lock:  # so that two threads do not decode the same one
            found = self._kept.pop(place, None)
            if found is None:
                file, group = self._groups[place]
                path = self._files[file]
                found = [(name, _array(column, name, path)) for name, column in _read(path, group, self._columns)]
            self._kept[place] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return found


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _groups(path: Path) -> list[int]:
    """How many rows each row group (Parquet) or record batch (Arrow) has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if _is_parquet(path):
        about = pq.read_metadata(path)
        return [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    with pa.memory_map(str(path)) as file:
        found = pa.ipc.open_file(file)
        return [found.get_batch(group).num_rows for group in range(found.num_record_batches)]


def _read(path: Path, group: int, columns: list[str] | None) -> list[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if _is_parquet(path):
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            _check(columns, names, path)
            table = file.read_row_group(group, columns, use_threads=False)
    else:
        with pa.memory_map(str(path)) as file:
            table = pa.Table.from_batches([pa.ipc.open_file(file).get_batch(group)])
            _check(columns, table.column_names, path)
            table = table if columns is None else table.select(columns)
    return [(name, table.column(name).combine_chunks()) for name in table.column_names]


def _check(columns: list[str] | None, names: list[str], path: Path) -> None:
    missing = [name for name in columns or [] if name not in names]
    if missing:
        raise JobError(f"{path} has no column {missing[0]!r}; choose from {', '.join(names)}")


def _array(column: Any, name: str, path: Path) -> Any:
    """A column as something to take rows from; copies, because files of Arrow are mapped only while they are read."""
    import pyarrow as pa

    kind = column.type
    if column.null_count:
        raise JobError(
            f"column {name!r} of {path} has empty cells (null); fill them, or leave the column out with columns="
        )
    if pa.types.is_fixed_size_list(kind) and not column.flatten().null_count:
        return np.array(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [np.array(row.values.to_numpy(zero_copy_only=False)) for row in column]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [np.frombuffer(str(row).encode(), np.uint8) for row in column]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return [np.frombuffer(row.as_py(), np.uint8) for row in column]
    return np.array(column.to_numpy(zero_copy_only=False))


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
