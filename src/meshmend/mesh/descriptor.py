"""Meshes of real cabling: reads Tenstorrent's mesh graph descriptors (MGD 2.0, textproto) as mesh notation.

A descriptor has meshes, each a grid of devices in row-major order with `RING` or `LINE` per dimension and a number of
channels per link, and graphs that connect devices of several meshes. Meshes that are connected rim to rim become one
grid: cables that are missing between two rims are dead links, corners without a mesh are dead chips, and links with
fewer channels than others are slower. tt_metal/fabric/MGD_README.md describes the format.

A file's name (`machine.textproto`) stands for the mesh wherever notation is read, as a preset does.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from meshmend.base.regular_files import opened, read_at_most
from meshmend.base.units import plural
from meshmend.errors import MeshError
from meshmend.mesh.cabling import MOST_CHIPS
from meshmend.mesh.textproto import Message, count, count_in, message_in, messages, read, word_in, words

ENDING = ".textproto"
MOST_BYTES = 64 << 20
"""Of a descriptor: cables of a million chips, one by one."""
Key = tuple[str, str]
"""A mesh of a graph: the name of its descriptor and its number."""
Place = tuple[int, ...]


def read_descriptor(path: str) -> str:
    """The notation of the mesh in a file."""
    try:
        with opened(path) as file:
            data = read_at_most(file, MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
        text = data.decode()
    except (OSError, ValueError) as error:
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
    whole = read(text)
    meshes = {word_in(mesh, "name"): mesh for mesh in messages(whole, "mesh_descriptors")}
    if not meshes or "top_level_instance" not in whole:
        raise MeshError("it has no mesh_descriptors or no top_level_instance, and needs both")
    top = message_in(whole, "top_level_instance")
    if "mesh" in top:
        return _text([(_mesh_of(message_in(top, "mesh"), meshes), (0, 0, 0))], {})
    name = word_in(message_in(top, "graph"), "graph_descriptor")
    graph = next((one for one in messages(whole, "graph_descriptors") if word_in(one, "name") == name), None)
    if graph is None:
        raise MeshError(f"it has no graph descriptor {name!r}")
    instances = messages(graph, "instances")
    if "graph_topology" in graph or any("graph" in one for one in instances):
        raise MeshError(
            f"graph {name!r} does not say which devices are joined: give connections between devices of its meshes, "
            "instead of graph_topology and graphs of graphs"
        )
    if not instances:
        raise MeshError(f"graph {name!r} has no instances: give the meshes that it joins")
    return _laid_out(graph, meshes)


class _Mesh:
    """A mesh descriptor: its sides, wraps and channels."""

    def __init__(self, message: Message) -> None:
        topology = message_in(message, "device_topology")
        self.dims = tuple(count(side, "dims") for side in words(topology, "dims"))
        if len(self.dims) not in (2, 3):
            raise MeshError(f"a mesh has {plural(len(self.dims), 'dimension')}; only 2 or 3 are supported")
        _check_size(self.dims)
        kinds = words(topology, "dim_types") or words(topology, "types")
        if set(kinds) - {"RING", "LINE"}:
            raise MeshError(f"dimensions are RING or LINE, not {', '.join(sorted(set(kinds) - {'RING', 'LINE'}))}")
        # A ring of two would be the same link twice.
        self.wrap = tuple(
            kind == "RING" and side > 2 for side, kind in zip(self.dims, [*kinds, *["LINE"] * 3], strict=False)
        )
        self.channels = count_in(message_in(message, "channels"), "count")
        if message.get("express_connections"):
            raise MeshError("it has express_connections, which join devices that are not neighbours: leave them out")

    def place(self, device: int) -> Place:
        """Where a device is: the last dimension runs fastest."""
        if device >= math.prod(self.dims):
            raise MeshError(
                f"a connection names device {device}, which its mesh of {math.prod(self.dims)} does not have"
            )
        at = []
        for side in reversed(self.dims):
            device, place = divmod(device, side)
            at.append(place)
        return (*reversed(at), 0)[:3]


def _mesh_of(reference: Message, meshes: dict[str, Message]) -> _Mesh:
    name = word_in(reference, "mesh_descriptor")
    if name not in meshes:
        raise MeshError(f"it has no mesh descriptor {name!r}")
    return _Mesh(meshes[name])


class _Join(NamedTuple):
    """A cable between devices of two meshes."""

    a: Key
    here: Place
    b: Key
    there: Place
    channels: int


def _join(connection: Message, parts: dict[Key, _Mesh]) -> _Join:
    ends = [message_in(node, "mesh") for node in messages(connection, "nodes")]
    if len(ends) != 2 or any("device_id" not in end or _key(end) not in parts for end in ends):
        raise MeshError("a connection needs two nodes, each with the device_id of a mesh of the graph")
    here, there = (parts[_key(end)].place(count_in(end, "device_id", 0)) for end in ends)
    return _Join(_key(ends[0]), here, _key(ends[1]), there, count_in(message_in(connection, "channels"), "count"))


def _laid_out(graph: Message, meshes: dict[str, Message]) -> str:
    """Meshes side by side, as their connections say."""
    parts: dict[Key, _Mesh] = {}
    for instance in messages(graph, "instances"):
        reference = message_in(instance, "mesh")
        parts[_key(reference)] = _mesh_of(reference, meshes)
    joins = [_join(connection, parts) for connection in messages(graph, "connections")]
    at: dict[Key, Place] = {next(iter(parts)): (0, 0, 0)}
    while len(at) < len(parts):
        found = next((join for join in joins if (join.a in at) != (join.b in at)), None)
        if found is None:
            raise MeshError(f"{len(parts) - len(at)} of its {len(parts)} meshes are not connected to the others")
        new, old = (found.b, found.a) if found.a in at else (found.a, found.b)
        at[new] = _beside(old, new, parts, at, joins)
    cables: dict[tuple[Place, Place], int] = {}
    for a, here, b, there, channels in joins:
        ends = sorted((_moved(here, at[a]), _moved(there, at[b])))
        if _apart(*ends) != 1:
            raise MeshError(
                "its connections do not join the rims of meshes that lie side by side: they do not fit on a grid"
            )
        cables[ends[0], ends[1]] = cables.get((ends[0], ends[1]), 0) + channels
    return _text([(part, at[key]) for key, part in parts.items()], cables)


def _beside(old: Key, new: Key, parts: dict[Key, _Mesh], at: dict[Key, Place], joins: list[_Join]) -> Place:
    """Where a mesh lies so that every connection between the two is one step long."""
    sides = [(*parts[key].dims, 1)[:3] for key in (old, new)]
    for axis, forward in product(range(3), (True, False)):
        step = sides[0][axis] if forward else -sides[1][axis]
        offset = _moved(at[old], tuple(step if a == axis else 0 for a in range(3)))
        spots = {**at, new: offset}
        between = [join for join in joins if {join.a, join.b} == {old, new}]
        if all(_apart(_moved(join.here, spots[join.a]), _moved(join.there, spots[join.b])) == 1 for join in between):
            return offset
    raise MeshError("its connections do not join the rims of meshes that lie side by side: they do not fit on a grid")


def _text(parts: list[tuple[_Mesh, Place]], cables: dict[tuple[Place, Place], int]) -> str:
    low = [min(at[axis] for _, at in parts) for axis in range(3)]
    moved = [(part, _moved(at, tuple(-place for place in low))) for part, at in parts]
    cables = {(_moved(a, tuple(-p for p in low)), _moved(b, tuple(-p for p in low))): n for (a, b), n in cables.items()}
    size = [max(at[axis] + (*part.dims, 1)[axis] for part, at in moved) for axis in range(3)]
    _check_size(size)
    flat = max(len(part.dims) for part, _ in moved) == 2 and size[2] == 1
    if len(moved) > 1 and any(any(part.wrap) for part, _ in moved):
        raise MeshError("one of several meshes has a RING dimension, which is not supported inside a larger grid")
    words = ["x".join(map(str, size[: 2 if flat else 3]))]
    if any(moved[0][0].wrap):
        words.append("wrap=" + "".join(axis for axis, ring in zip("xyz", moved[0][0].wrap, strict=False) if ring))
    if len(moved) == 1:
        return " ".join(words)
    owner: dict[Place, int] = {}
    for number, (part, at) in enumerate(moved):
        for chip in product(*(range(begin, begin + side) for begin, side in zip(at, (*part.dims, 1)[:3], strict=True))):
            if chip in owner:
                raise MeshError("its connections put two meshes in the same place: they do not fit on a grid")
            owner[chip] = number
    most = max([*(part.channels for part, _ in moved), *cables.values()])

    def name(chip: Place) -> str:
        return ",".join(map(str, chip[: 2 if flat else 3]))

    words += [f"-chip@{name(chip)}" for chip in product(*map(range, size)) if chip not in owner]
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
    return word_in(reference, "mesh_descriptor"), word_in(reference, "mesh_id")


def _check_size(dims: Sequence[int]) -> None:
    if math.prod(dims) > MOST_CHIPS:
        size = "x".join(map(str, dims))
        raise MeshError(f"a grid of {size} has {math.prod(dims):,} chips; at most {MOST_CHIPS:,} are supported")
