"""Schedules and plans of other collectives as JSON: fields as they are, columns as lists, trees as letters.

{"meshmend": "schedule", "format": 1, "mesh": "2x2", "chunks": 4, "hop": 1, "pace": 0, "slot": [0, …], "link": […], …}

Plans of all-reduces have the form of `planners/files.py`, one entry per flow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshmend.errors import FormatError
from meshmend.mesh import Fabric, read_mesh
from meshmend.mesh.files.forms import FORMAT, KINDS, Array, Form, damaged
from meshmend.mesh.planners.files import letters, ways

_TYPES = {"f": (int, float), "i": (int,), "b": (bool,)}
_WORDS = {"f": "numbers", "i": "whole numbers", "b": "true and false"}


def to_json(form: Form) -> dict[str, Any]:
    """What is written, as plain lists and dictionaries."""
    trees = KINDS[form.kind].trees
    ways_of = read_mesh(form.fields["mesh"]).ways
    columns = {
        name: [letters(tree, ways_of) for tree in column] if name in trees else column.tolist()
        for name, column in form.columns.items()
    }
    return {"meshmend": form.kind, "format": FORMAT, **form.fields, **columns}


def from_json(data: dict[str, Any]) -> Form:
    """Read what `to_json` made; anything else is a `FormatError`."""
    name = data["meshmend"]
    if data.get("format") != FORMAT:
        raise FormatError(
            f"this {name} has format {data.get('format')!r}, but this version reads format {FORMAT}: "
            "create the file again"
        )
    kind = KINDS[name]
    columns = {column: _column(data, name, column) for column in kind.columns if column not in kind.trees}
    if kind.trees and isinstance(data.get("mesh"), str):
        mesh = read_mesh(data["mesh"])
        columns |= {column: _trees(data, name, column, mesh) for column in kind.trees}
    return Form(name, data, columns)


def _column(data: dict[str, Any], kind: str, name: str) -> Array:
    values, dtype = data.get(name), np.dtype(KINDS[kind].columns[name])
    if not isinstance(values, list) or not all(type(value) in _TYPES[dtype.kind] for value in values):
        raise damaged(kind, f"{name} is not a list of {_WORDS[dtype.kind]}")
    try:
        return np.array(values, dtype)
    except (OverflowError, ValueError) as error:
        raise damaged(kind, f"{name}: {error}") from None


def _trees(data: dict[str, Any], kind: str, name: str, mesh: Fabric) -> Array:
    values = data.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise damaged(kind, f"{name} is not a list of trees")
    try:
        return np.array([ways(value, mesh) for value in values], np.int8).reshape(-1, mesh.size)
    except ValueError as error:
        raise damaged(kind, f"{name}: {error}") from None
