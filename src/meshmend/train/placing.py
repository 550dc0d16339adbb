"""Workers as chips of a mesh: which chip each one is, and the plan for those that are left.

Seat 0 is the first live chip of the mesh as it was asked for, and so on in rows. A seat without a worker is a hole, and
so is all that the mesh lacked from the beginning; a worker that takes a seat again closes it.
"""

from __future__ import annotations

from collections.abc import Callable

from meshmend.errors import Disconnected, JobError, PlanError
from meshmend.mesh import Mesh
from meshmend.plan import Plan, Schedule, plan, schedule
from meshmend.train.mpi import Placed
from meshmend.train.segment import Segment

CHUNK = 1 << 16
"""Bytes of a chunk, about: each message costs by itself what 50 kB take to add."""
MOST = 1024


class Placing:
    """The mesh of a run."""

    def __init__(self, mesh: str, algorithm: str) -> None:
        self._mesh, self._algorithm = Mesh.parse(mesh), algorithm
        self.halfway: Callable[[], None] = lambda: None
        """Called in the middle of every sum."""

    def warm(self) -> None:
        """Load what planning needs, so that it is there when somebody dies."""
        schedule(self._plan(self._mesh), 8)

    def over(self, seats: list[int], segment: Segment) -> Placed:
        """The way over the chips of these seats; where they fall apart, MPI's own way must do."""
        if segment["packed"]:
            raise JobError('wire="bf16" does not go together with --mesh: leave one of them out')
        chips = [int(self._mesh.live[seat]) for seat in seats]
        left = self._mesh.fail(chips=[self._mesh.chip(int(chip)) for chip in self._mesh.live if chip not in chips])

        def make() -> Schedule | None:
            try:
                found = self._plan(left)
            except Disconnected:
                return None
            return schedule(found, max(len(found), min(MOST, segment["wire"] * 4 // CHUNK)))

        return Placed(left, make, chips, self.halfway)

    def _plan(self, mesh: Mesh) -> Plan:
        """By the algorithm asked for, or where a hole leaves it no way, by trees."""
        try:
            return plan(mesh, algorithm=self._algorithm)
        except PlanError:
            return plan(mesh, algorithm="trees")
