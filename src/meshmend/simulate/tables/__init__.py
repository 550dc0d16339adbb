"""Tables of training steps: what the three papers ask, computed anew each time; only what is marked so is published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from meshmend.simulate.tables.faults import faults
from meshmend.simulate.tables.holes import holes
from meshmend.simulate.tables.multipod import multipod


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


TABLES: dict[str, Callable[[], Table]] = {"mesh-holes": holes, "multipod": multipod, "mpi-faults": faults}
"""By name: arXiv 2011.03605, 2011.03641 and 1709.03316."""
