"""The binary form: a line that says what it is, a head in JSON, and the columns, each compressed by itself.

    meshmend binary 1, newline | length and checksum of the head, 4 bytes each | head | column | column | …

The head holds the kind, the fields, and for each column its name, type, shape and length in bytes. Numbers are
little-endian. Columns that grow from row to row are written as differences, which compress to a few bits a row.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import Any

import numpy as np

from meshmend.errors import FormatError
from meshmend.mesh.files.forms import FORMAT, KINDS, MOST, Array, Form, damaged, field

MAGIC = b"meshmend binary "
LEVEL = 6
RISING = ("slot", "link", "chunk")
"""Columns that are written as differences from row to row."""
TYPES = {"f8": "<f8", "i4": "<i4", "i1": "<i1", "?": "|b1"}
"""How each type of column lies in the file."""


def to_bytes(form: Form) -> bytes:
    """The whole file."""
    types = KINDS[form.kind].columns
    blocks, listed = [], []
    for name, column in form.columns.items():
        flat = np.ascontiguousarray(column, TYPES[types[name]])
        rows = np.diff(flat, prepend=flat.dtype.type(0)) if name in RISING else flat
        blocks.append(zlib.compress(_planes(rows), LEVEL))
        listed.append({"name": name, "type": types[name], "shape": list(flat.shape), "bytes": len(blocks[-1])})
    head = json.dumps({"kind": form.kind, "fields": form.fields, "columns": listed}, ensure_ascii=False).encode()
    sizes = len(head).to_bytes(4, "little") + zlib.crc32(head).to_bytes(4, "little")
    return b"".join([MAGIC, str(FORMAT).encode(), b"\n", sizes, head, *blocks])


def from_bytes(data: bytes) -> Form:
    """Read what `to_bytes` made; anything else is a `FormatError`."""
    line, _, rest = data.partition(b"\n")
    version = line.removeprefix(MAGIC).decode("ascii", "replace")[:20]
    if version != str(FORMAT):
        raise FormatError(f"this file has format {version!r}, but this version reads format {FORMAT}: create it again")
    size, checksum = (int.from_bytes(rest[at : at + 4], "little") for at in (0, 4))
    head_bytes, rest = rest[8 : 8 + size], rest[8 + size :]
    if len(head_bytes) < size or zlib.crc32(head_bytes) != checksum:
        raise damaged("file", "its head was cut off or changed")
    try:
        head = json.loads(head_bytes)
    except (ValueError, RecursionError):
        raise damaged("file", "its head is not JSON") from None
    if not isinstance(head, dict) or not isinstance(head.get("kind"), str) or head["kind"] not in KINDS:
        raise damaged("file", "it does not say what it holds")
    columns = {}
    for listed in field(head, "columns", list):
        if not isinstance(listed, dict):
            raise damaged(head["kind"], "a column without name and type")
        block, rest = rest[: field(listed, "bytes", int)], rest[listed["bytes"] :]
        name = field(listed, "name", str)
        columns[name] = _column(head["kind"], listed, block)
    if rest:
        raise damaged(head["kind"], f"{len(rest)} bytes too many")
    return Form(head["kind"], field(head, "fields", dict), columns)


def _planes(rows: Array) -> bytes:
    """The lowest bytes of all rows, then the next, and so on: the high ones are nearly all equal, and compress away."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(-1, rows.dtype.itemsize).T.tobytes()


def _column(kind: str, listed: dict[str, Any], block: bytes) -> Array:
    name, shape = listed["name"], field(listed, "shape", list)
    known = TYPES.get(field(listed, "type", str))
    if known is None or len(shape) not in (1, 2) or not all(type(n) is int and 0 <= n <= MOST for n in shape):
        raise damaged(kind, f"column {name!r} has type {listed['type']!r} and shape {str(shape)[:60]}")
    if name in RISING and known != TYPES["i4"]:
        raise damaged(kind, f"column {name!r} has type {listed['type']!r}, expected 'i4'")
    size = math.prod(shape) * np.dtype(known).itemsize
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(block, size + 1)  # never more than the head says, whatever a block unpacks to
    except (zlib.error, OverflowError, MemoryError) as error:
        raise damaged(kind, f"column {name!r}: {error}") from None
    if len(data) != size or not reader.eof:
        raise damaged(kind, f"column {name!r} does not have {size} bytes")
    rows = np.frombuffer(data, np.uint8).reshape(np.dtype(known).itemsize, -1).T
    flat = np.ascontiguousarray(rows).reshape(-1).view(known)
    if known == TYPES["?"] and (rows > 1).any():
        raise damaged(kind, f"column {name!r} holds something else than true and false")
    if name in RISING:
        flat = np.cumsum(flat, dtype=np.int64).astype(np.int32)
    return flat.reshape(shape)
