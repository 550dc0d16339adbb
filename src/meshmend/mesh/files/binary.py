"""The binary form: a line that says what it is, a head in JSON, and the columns, each compressed by itself.

    meshmend binary 1, newline | length and checksum of the head, 4 bytes each | head | column | column | …

The head holds the kind, the fields, and for each column its name, type, shape and length in bytes. Numbers are
little-endian. Columns that grow from row to row are written as differences, which compress to a few bits a row.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from typing import Any, BinaryIO

import numpy as np

from meshmend.base.regular_files import read_at_most
from meshmend.errors import FormatError
from meshmend.mesh.files.forms import FORMAT, KINDS, MOST, Array, Form, Room, damaged, field

MAGIC = b"meshmend binary "
LEVEL = 6
LINE, MOST_HEAD = 40, 64 << 20
"""Bytes that are read of the first line, and of the head: the notation of a million chips fits."""
RISING = ("slot", "link", "chunk")
"""Columns that are written as differences from row to row."""
TYPES = {"f8": "<f8", "i4": "<i4", "i1": "<i1", "?": "|b1"}
"""How each type of column lies in the file."""


def to_bytes(form: Form) -> bytes:
    """The whole file."""
    types, room = KINDS[form.kind].columns, Room(form.kind, form.fields)
    blocks, listed = [], []
    for name, column in form.columns.items():
        flat = np.ascontiguousarray(column, TYPES[types[name]])
        if len(flat) > room.most[name]:
            raise FormatError(
                f"the {form.kind} has {len(flat):,} rows in {name}, and a binary file for {room.mesh.size:,} chips "
                f"holds at most {room.most[name]:,}: save it as JSON, under a name that does not end in .mm"
            )
        rows = np.diff(flat, prepend=flat.dtype.type(0)) if name in RISING else flat
        blocks.append(zlib.compress(_planes(rows), LEVEL))
        listed.append({"name": name, "type": types[name], "shape": list(flat.shape), "bytes": len(blocks[-1])})
    head = json.dumps({"kind": form.kind, "fields": form.fields, "columns": listed}, ensure_ascii=False).encode()
    sizes = len(head).to_bytes(4, "little") + zlib.crc32(head).to_bytes(4, "little")
    return b"".join([MAGIC, str(FORMAT).encode(), b"\n", sizes, head, *blocks])


def from_bytes(data: bytes) -> Form:
    """Read what `to_bytes` made; anything else is a `FormatError`."""
    return read(io.BytesIO(data))


def read(file: BinaryIO) -> Form:
    """Read a file that holds what `to_bytes` made, with no more memory than such a thing on its mesh can need."""
    version = file.readline(LINE).removeprefix(MAGIC).removesuffix(b"\n").decode("ascii", "replace")[:20]
    if version != str(FORMAT):
        raise FormatError(f"this file has format {version!r}, but this version reads format {FORMAT}: create it again")
    size, checksum = (int.from_bytes(file.read(4), "little") for _ in range(2))
    head_bytes = read_at_most(file, min(size, MOST_HEAD))
    if len(head_bytes) < size or zlib.crc32(head_bytes) != checksum:
        raise damaged("file", "its head was cut off or changed")
    try:
        head = json.loads(head_bytes)
    except (ValueError, RecursionError):
        raise damaged("file", "its head is not JSON") from None
    if not isinstance(head, dict) or not isinstance(head.get("kind"), str) or head["kind"] not in KINDS:
        raise damaged("file", "it does not say what it holds")
    kind, fields, columns = head["kind"], field(head, "fields", dict), {}
    room = Room(kind, fields)
    for listed in field(head, "columns", list):
        if not isinstance(listed, dict):
            raise damaged(kind, "a column without name and type")
        name = field(listed, "name", str)
        if name in columns:
            raise damaged(kind, f"column {name[:40]!r} is there twice")
        columns[name] = _column(kind, listed, room, file)
    here = file.tell()
    if more := file.seek(0, io.SEEK_END) - here:
        raise damaged(kind, f"{more} bytes too many")
    return Form(kind, fields, columns)


def _planes(rows: Array) -> bytes:
    """The lowest bytes of all rows, then the next, and so on: the high ones are nearly all equal, and compress away."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(-1, rows.dtype.itemsize).T.tobytes()


def _column(kind: str, listed: dict[str, Any], room: Room, file: BinaryIO) -> Array:
    name, shape, found = listed["name"], field(listed, "shape", list), field(listed, "type", str)
    expected = KINDS[kind].columns.get(name)
    if expected is None:
        raise damaged(kind, f"there is no column {name[:40]!r} in it")
    if found != expected or len(shape) not in (1, 2) or not all(type(n) is int and 0 <= n <= MOST for n in shape):
        raise damaged(kind, f"column {name!r} has type {found[:20]!r} and shape {str(shape)[:60]}")
    room.check(name, shape)
    known = TYPES[expected]
    size = math.prod(shape) * np.dtype(known).itemsize
    length = field(listed, "bytes", int)
    if length > size + size // 64 + 64:  # zlib adds less, even to noise
        raise damaged(kind, f"column {name!r} has {length} bytes for {size}")
    block = file.read(length)
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
