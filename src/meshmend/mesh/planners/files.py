"""Plans and meshes as JSON, and back. A tree is a string of ways, one letter per chip, or `.` for none.

{"meshmend": "plan", "format": 1, "mesh": "2x2", "algorithm": "trees", …,
"flows": [{"share": 0.5, "up": "S.NW", "down": "S.NW"}, …]}
"""

from __future__ import annotations

import json
from operator import index
from typing import Any

import numpy as np

from meshmend.errors import FormatError, MeshmendError
from meshmend.mesh import Fabric, read_mesh
from meshmend.mesh.planners.plan import Plan, Ways

FORMAT = 1


def to_json(thing: Plan | Fabric) -> dict[str, Any]:
    """What is written, as plain lists and dictionaries."""
    if isinstance(thing, Fabric):
        return {"meshmend": "mesh", "format": FORMAT, "mesh": thing.notation}
    ways_of = thing.mesh.ways
    return {
        "meshmend": "plan",
        "format": FORMAT,
        "mesh": thing.mesh.notation,
        "algorithm": thing.algorithm,
        "overlap": thing.overlap,
        "why": thing.why,
        "flows": [
            {
                "share": float(share),
                "root": list(thing.mesh.chip(root)),
                "up": letters(up, ways_of),
                "down": letters(down, ways_of),
            }
            for share, root, up, down in zip(thing.share, thing.root, thing.up, thing.down, strict=True)
        ],
    }


def from_json(data: Any) -> Plan | Fabric:
    """Read what `to_json` made; anything else is a `FormatError` that says what is wrong."""
    if not isinstance(data, dict) or data.get("meshmend") not in ("plan", "mesh"):
        raise FormatError("this JSON holds neither a plan nor a mesh: make one with meshmend plan MESH --json F")
    if data.get("format") != FORMAT:
        raise FormatError(
            f"this {data['meshmend']} has format {data.get('format')!r}, but this version reads format {FORMAT}: "
            "create the file again"
        )
    try:
        mesh = read_mesh(data["mesh"])
        if data["meshmend"] == "mesh":
            return mesh
        flows = _field(data, "flows", list)
        up = np.stack([ways(flow["up"], mesh) for flow in flows])
        down = np.stack([ways(flow["down"], mesh) for flow in flows])
        share = np.array([float(_field(flow, "share", float)) for flow in flows])
        root = np.array([mesh.index(tuple(index(place) for place in flow["root"])) for flow in flows], np.int32)
        algorithm, overlap = _field(data, "algorithm", str), _field(data, "overlap", bool)
        why = _field({"why": "", **data}, "why", str)
    except MeshmendError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(f"the plan is damaged ({type(error).__name__}: {error}): create the file again") from None
    return Plan(mesh, algorithm, share, root, up, down, overlap, why)


_KINDS = {str: "text", bool: "true or false", float: "a number", list: "a list"}


def _field(data: dict[str, Any], name: str, kind: type) -> Any:
    """A field of this type; `"no"` is not false, and `true` is not a number."""
    value = data[name]
    right = isinstance(value, (int, float) if kind is float else kind) and (kind is bool) == isinstance(value, bool)
    if not right:
        raise ValueError(f"{name} is {json.dumps(value)[:40]}, expected {_KINDS[kind]}")
    if kind is str:
        value.encode()  # half of a surrogate pair is a ValueError: no digest could be made of it
    return value


def letters(tree: Ways, known: str) -> str:
    """A tree as text, the letter of a way per chip."""
    return np.frombuffer((known + ".").encode(), np.uint8)[tree].tobytes().decode()


def ways(letters: str, mesh: Fabric) -> Ways:
    """A tree from its letters; a `ValueError` if they are none of this mesh."""
    values = np.frombuffer(letters.encode(), np.uint8)
    if len(values) != mesh.size:
        raise ValueError(f"a tree has {len(values)} letters for {mesh.size} chips")
    tree = np.full(mesh.size, -2, np.int8)
    for way, letter in enumerate(mesh.ways.encode()):
        tree[values == letter] = way
    tree[values == ord(".")] = -1
    if (tree == -2).any():
        raise ValueError(f"a tree holds {letters[int(np.argmax(tree == -2))]!r}, not one of {mesh.ways}.")
    return tree
