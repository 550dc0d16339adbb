"""Meshes of real cabling: reads Tenstorrent's mesh graph descriptors (MGD 2.0, textproto) as mesh notation.

A descriptor has meshes, each a grid of devices in row-major order with `RING` or `LINE` per dimension and a number of
channels per link, and graphs that connect devices of several meshes. Meshes that are connected rim to rim become one
grid: cables that are missing between two rims are dead links, corners without a mesh are dead chips, and links with
fewer channels than others are slower. tt_metal/fabric/MGD_README.md describes the format.

A file's name (`machine.textproto`) stands for the mesh wherever notation is read, as a preset does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from meshmend.errors import MeshError

ENDING = ".textproto"
Message = dict[str, list[Any]]
"""Each field with all its values, in order."""
Place = tuple[int, ...]
_TOKEN = re.compile(r"#[^\n]*|\s+|(?P<token>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[\w.+-]+|[{}\[\]:,;<>])")


def read_descriptor(path: str) -> str:
    """The notation of the mesh in a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise MeshError(
            f"cannot read the mesh descriptor {path!r} ({why}): give the path of a textproto file"
        ) from None
    try:
        return notation_of(text)
    except MeshError as error:
        raise MeshError(f"cannot use {path!r} as a mesh graph descriptor: {error}") from None


def notation_of(text: str) -> str:
    """The notation of the mesh that a descriptor's text describes."""
    whole = _message(_tokens(text), "")
    meshes = {_one(mesh, "name"): mesh for mesh in whole.get("mesh_descriptors", [])}
    if not meshes or "top_level_instance" not in whole:
        raise MeshError("it has no mesh_descriptors or no top_level_instance, and needs both")
    top = _one(whole, "top_level_instance")
    if "mesh" in top:
        return _text([(_mesh_of(_one(top, "mesh"), meshes), (0, 0, 0))], {})
    name = _one(_one(top, "graph"), "graph_descriptor")
    graph = next((one for one in whole.get("graph_descriptors", []) if _one(one, "name") == name), None)
    if graph is None:
        raise MeshError(f"it has no graph descriptor {name!r}")
    if "graph_topology" in graph or any("graph" in one for one in graph.get("instances", [])):
        raise MeshError(
            f"graph {name!r} does not say which devices are joined: give connections between devices of its meshes, "
            "instead of graph_topology and graphs of graphs"
        )
    return _laid_out(graph, meshes)


class _Mesh:
    """A mesh descriptor: its sides, wraps and channels."""

    def __init__(self, message: Message) -> None:
        topology = _one(message, "device_topology")
        self.dims = tuple(_count(side, "dims") for side in topology.get("dims", []))
        if len(self.dims) not in (2, 3):
            raise MeshError(f"a mesh has {len(self.dims)} dims, and 2 or 3 can be planned for")
        kinds = topology.get("dim_types", []) or topology.get("types", [])
        if set(kinds) - {"RING", "LINE"}:
            raise MeshError(f"dimensions are RING or LINE, not {', '.join(sorted(set(kinds) - {'RING', 'LINE'}))}")
        # A ring of two would be the same link twice.
        self.wrap = tuple(
            kind == "RING" and side > 2 for side, kind in zip(self.dims, [*kinds, *["LINE"] * 3], strict=False)
        )
        self.channels = _count(_one(_one(message, "channels"), "count"), "channels")
        if message.get("express_connections"):
            raise MeshError("it has express_connections, which join devices that are not neighbours: leave them out")

    def place(self, device: int) -> Place:
        """Where a device is: the last dimension runs fastest."""
        at = []
        for side in reversed(self.dims):
            device, place = divmod(device, side)
            at.append(place)
        if device:
            raise MeshError(f"a connection names device {device}, which its mesh does not have")
        return (*reversed(at), 0)[:3]


def _mesh_of(reference: Message, meshes: dict[str, Message]) -> _Mesh:
    name = _one(reference, "mesh_descriptor")
    if name not in meshes:
        raise MeshError(f"it has no mesh descriptor {name!r}")
    return _Mesh(meshes[name])


def _laid_out(graph: Message, meshes: dict[str, Message]) -> str:
    """Meshes side by side, as their connections say."""
    parts: dict[tuple[str, str], _Mesh] = {}
    for instance in graph.get("instances", []):
        reference = _one(instance, "mesh")
        parts[_key(reference)] = _mesh_of(reference, meshes)
    joins: list[tuple[Any, Place, Any, Place, int]] = []
    for connection in graph.get("connections", []):
        ends = [_one(node, "mesh") for node in connection.get("nodes", [])]
        if len(ends) != 2 or any("device_id" not in end or _key(end) not in parts for end in ends):
            raise MeshError("a connection needs two nodes, each with the device_id of a mesh of the graph")
        (a, here), (b, there) = [
            (_key(end), parts[_key(end)].place(_count(_one(end, "device_id"), "device_id", 0))) for end in ends
        ]
        joins.append((a, here, b, there, _count(_one(_one(connection, "channels"), "count"), "channels")))
    at: dict[Any, Place] = {next(iter(parts)): (0, 0, 0)} if parts else {}
    while len(at) < len(parts):
        found = next((join for join in joins if (join[0] in at) != (join[2] in at)), None)
        if found is None:
            raise MeshError(f"{len(parts) - len(at)} of its {len(parts)} meshes are not connected to the others")
        new, old = (found[2], found[0]) if found[0] in at else (found[0], found[2])
        at[new] = _beside(old, new, parts, at, joins)
    cables: dict[tuple[Place, Place], int] = {}
    for a, here, b, there, channels in joins:
        ends = sorted((_moved(here, at[a]), _moved(there, at[b])))
        if _apart(*ends) != 1:
            raise MeshError("its connections do not join the rims of meshes that lie side by side: they fit on no grid")
        cables[ends[0], ends[1]] = cables.get((ends[0], ends[1]), 0) + channels
    return _text([(part, at[key]) for key, part in parts.items()], cables)


def _beside(old: Any, new: Any, parts: dict[Any, _Mesh], at: dict[Any, Place], joins: list[Any]) -> Place:
    """Where a mesh lies so that every connection between the two is one step long."""
    sides = [(*parts[key].dims, 1)[:3] for key in (old, new)]
    for axis, forward in product(range(3), (True, False)):
        step = sides[0][axis] if forward else -sides[1][axis]
        offset = _moved(at[old], tuple(step if a == axis else 0 for a in range(3)))
        spots = {**at, new: offset}
        pairs = [(join[1], join[0], join[3], join[2]) for join in joins if {join[0], join[2]} == {old, new}]
        if all(_apart(_moved(here, spots[a]), _moved(there, spots[b])) == 1 for here, a, there, b in pairs):
            return offset
    raise MeshError("its connections do not join the rims of meshes that lie side by side: they fit on no grid")


def _text(parts: list[tuple[_Mesh, Place]], cables: dict[tuple[Place, Place], int]) -> str:
    low = [min(at[axis] for _, at in parts) for axis in range(3)]
    moved = [(part, _moved(at, tuple(-place for place in low))) for part, at in parts]
    cables = {(_moved(a, tuple(-p for p in low)), _moved(b, tuple(-p for p in low))): n for (a, b), n in cables.items()}
    size = [max(at[axis] + (*part.dims, 1)[axis] for part, at in moved) for axis in range(3)]
    flat = max(len(part.dims) for part, _ in moved) == 2 and size[2] == 1
    if len(moved) > 1 and any(any(part.wrap) for part, _ in moved):
        raise MeshError("a mesh of several has a RING: rings inside a part of a larger grid cannot be planned for")
    owner: dict[Place, int] = {}
    for number, (part, at) in enumerate(moved):
        for chip in product(*(range(begin, begin + side) for begin, side in zip(at, (*part.dims, 1)[:3], strict=True))):
            if chip in owner:
                raise MeshError("its connections put two meshes in the same place: they fit on no grid")
            owner[chip] = number
    most = max([*(part.channels for part, _ in moved), *cables.values()])

    def name(chip: Place) -> str:
        return ",".join(map(str, chip[: 2 if flat else 3]))

    words = ["x".join(map(str, size[: 2 if flat else 3]))]
    if any(moved[0][0].wrap):
        words.append("wrap=" + "".join(axis for axis, ring in zip("xyz", moved[0][0].wrap, strict=False) if ring))
    words += [f"-chip@{name(chip)}" for chip in product(*map(range, size)) if chip not in owner]
    if len(moved) == 1:
        return " ".join(words)
    for a in sorted(owner):
        for b in (_moved(a, tuple(int(axis == step) for axis in range(3))) for step in range(3)):
            if b not in owner:
                continue
            channels = moved[owner[a]][0].channels if owner[a] == owner[b] else cables.get((a, b), 0)
            if not channels:
                words.append(f"-link@{name(a)}:{name(b)}")
            elif channels < most:
                words.append(f"~{Fraction(channels, most)}@{name(a)}:{name(b)}")
    return " ".join(words)


def _moved(place: Place, by: Place) -> Place:
    return tuple(a + b for a, b in zip(place, by, strict=True))


def _apart(a: Place, b: Place) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


def _key(reference: Message) -> tuple[str, str]:
    return _one(reference, "mesh_descriptor"), _one(reference, "mesh_id")


def _one(message: Any, field: str) -> Any:
    if not isinstance(message, dict) or len(message.get(field, [])) != 1:
        raise MeshError(f"the field {field} is missing where one is needed, or given twice")
    return message[field][0]


def _count(value: Any, field: str, least: int = 1) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
        raise MeshError(f"{field} has {value!r}, where a whole number from {least} on is needed")
    return int(value)


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            line = text.count("\n", 0, at) + 1
            raise MeshError(f"line {line} is not textproto, at {text[at : at + 20].splitlines()[0]!r}")
        if match["token"]:
            yield match["token"]
        at = match.end()


def _message(tokens: Iterator[str], end: str) -> Message:
    """Fields up to the closing bracket; names of fields are not checked, as newer descriptors may have more."""
    found: Message = {}
    for name in tokens:
        if name == end:
            return found
        if name in ",;":
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            _stop(name, "the name of a field")
        value = next(tokens, "")
        if value == ":":
            value = next(tokens, "")
        elif value not in ("{", "<"):
            _stop(value, f"a colon or a bracket after {name}")
        found.setdefault(name, []).extend(_values(value, tokens))
    if end:
        _stop("", end)
    return found


def _values(first: str, tokens: Iterator[str]) -> list[Any]:
    if first in ("{", "<"):
        return [_message(tokens, "}" if first == "{" else ">")]
    if first != "[":
        if not first or first in "}]>:,;":
            _stop(first, "a value")
        return [first[1:-1] if first[0] in "\"'" else first]
    values: list[Any] = []
    for token in tokens:
        if token == "]":
            return values
        if token != ",":
            values += _values(token, tokens)
    _stop("", "]")


def _stop(token: str, expected: str) -> NoReturn:
    raise MeshError(f"{token!r} was found where {expected} was expected" if token else f"it ends before {expected}")
