"""Tables of training steps: what the three papers ask, computed each time; quoted figures are marked as published."""

from __future__ import annotations

from typing import Protocol

from meshmend.base.registry import Registry
from meshmend.base.terminal import Tell
from meshmend.errors import SimulateError
from meshmend.simulator.papers.dead_host import holes
from meshmend.simulator.papers.failure_costs import faults
from meshmend.simulator.papers.multipod import multipod


class Table(Protocol):
    """Rows with a text, a JSON and a picture."""

    def render(self) -> str:
        """The table as text."""
        ...

    def facts(self) -> dict[str, object]:
        """The same for programs; times are in seconds."""
        ...

    def draw(self, path: str) -> None:
        """The same as a chart."""
        ...


class Maker(Protocol):
    """Computes a table."""

    def __call__(self, *, tell: Tell) -> Table:
        """`tell` hears how far it is."""
        ...


TABLES: Registry[Maker] = Registry(
    "table", SimulateError, {"mesh-holes": holes, "multipod": multipod, "mpi-faults": faults}
)
"""By name: arXiv 2011.03605, 2011.03641 and 1709.03316."""
