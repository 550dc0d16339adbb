"""JSON objects, one a line, over a pair of pipes."""

from __future__ import annotations

import json
import os
from typing import Any


def write_line(file: int, value: dict[str, Any]) -> None:
    """Send one."""
    data = memoryview((json.dumps(value) + "\n").encode())
    while data:
        data = data[os.write(file, data) :]


def read_lines(file: int, buffer: bytearray) -> list[dict[str, Any]] | None:
    """Those that have come, when something has; None at the end. What is not whole yet stays in the buffer.

    Lines that are no objects are left out: a login shell may greet first.
    """
    data = os.read(file, 1 << 16)
    if not data:
        return None
    buffer += data
    if b"\n" not in data:
        return []  # a long line comes in many pieces
    *whole, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    return [json.loads(line) for line in whole if line.startswith(b"{")]
