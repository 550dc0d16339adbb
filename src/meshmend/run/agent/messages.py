"""JSON objects, one a line, over a pair of pipes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from meshmend.run.supervisor.observations import Cause, CourierState, RankSeen, WorkerError


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


def view_to_json(seen: RankSeen) -> dict[str, Any]:
    """An observation as JSON."""
    return {**asdict(seen), "cause": seen.cause.name, "courier": seen.courier.name}


def view_from_json(values: dict[str, Any]) -> RankSeen:
    """The same back."""
    error = None if values["error"] is None else WorkerError(**values["error"])
    cause, courier = Cause[values["cause"]], CourierState[values["courier"]]
    return RankSeen(**{**values, "cause": cause, "courier": courier, "error": error})
