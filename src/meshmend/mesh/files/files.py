"""Writing and reading: a file that ends in `.mm` is binary, every other one JSON. Reading looks into the file."""

from __future__ import annotations

import json
from typing import BinaryIO

from meshmend.base.regular_files import opened, read_at_most
from meshmend.errors import FormatError, MeshmendError
from meshmend.mesh import Fabric
from meshmend.mesh.files import binary, text
from meshmend.mesh.files.forms import KINDS, Thing, from_form, to_form
from meshmend.mesh.planners import files as plan_files
from meshmend.mesh.planners.plan import Plan

ENDING = ".mm"
"""How the names of binary files end."""
MOST_JSON = 1 << 30
"""Bytes of a file in JSON, which takes many times as much memory to read."""


def save(thing: Thing, path: str) -> None:
    """Write a plan, a schedule or a mesh: binary where the name ends in `.mm`, else as JSON."""
    if not isinstance(thing, tuple(kind.made for kind in KINDS.values())):
        kind = type(thing).__name__
        raise TypeError(f"save takes plans of trees and of collectives, their schedules and meshes, not {kind}")
    if path.endswith(ENDING):
        data = binary.to_bytes(to_form(thing))
    else:
        made = plan_files.to_json(thing) if isinstance(thing, Plan | Fabric) else text.to_json(to_form(thing))
        data = json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise FormatError(f"cannot write {path!r} ({error.strerror}): give a path in a folder that exists") from None


def load(path: str) -> Thing:
    """Read a file that `save` wrote. What it holds is as trustworthy as the file: `verify` proves it."""
    try:
        with opened(path) as file:
            return from_form(binary.read(file)) if _is_binary(file) else _from_json(file)
    except OSError as error:
        raise FormatError(f"cannot read {path!r} ({error.strerror})") from None
    except MeshmendError as error:
        raise FormatError(f"cannot read {path!r}: {error}") from None


def _is_binary(file: BinaryIO) -> bool:
    begin = file.read(len(binary.MAGIC))
    file.seek(0)
    return begin == binary.MAGIC


def _from_json(file: BinaryIO) -> Thing:
    data = read_at_most(file, MOST_JSON + 1)
    if len(data) > MOST_JSON:
        raise FormatError(f"it has more than {MOST_JSON:,} bytes: save what is so large under a name that ends in .mm")
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"this is not JSON ({error}): make it with meshmend plan MESH --json F") from None
    kind = found.get("meshmend") if isinstance(found, dict) else None
    if isinstance(kind, str) and kind in KINDS and kind not in ("plan", "mesh"):
        return from_form(text.from_json(found))
    return plan_files.from_json(found)
