"""Reads either notation: that of a mesh, or that of a graph."""

from __future__ import annotations

from meshmend.mesh.fabric import Fabric
from meshmend.mesh.graph import Graph
from meshmend.mesh.graph_notation import is_graph
from meshmend.mesh.mesh import Mesh


def read_mesh(text: str) -> Fabric:
    """`16x32 -4x2@6,12`, or a graph such as `0-1-2-3-0 0-2`."""
    return Graph.parse(text) if is_graph(text) else Mesh.parse(text)
