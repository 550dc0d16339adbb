"""Workers as chips of a mesh: which chip each one is, and the plan for those that are left.

Seat 0 is the first live chip of the mesh as it was asked for, and so on in rows. A rank without a worker is a hole, and
so is all that the mesh lacked from the beginning; a worker that takes a rank again closes it. A link is dead while the
chip at either end says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from meshmend.errors import Disconnected, JobError, PlanError
from meshmend.job.courier.mpi import Placed
from meshmend.job.protocol import Failure
from meshmend.job.shm.segment import Segment
from meshmend.job.transport.carrier import Links
from meshmend.mesh import Mesh
from meshmend.mesh.choose import plan
from meshmend.mesh.planners import Plan
from meshmend.mesh.schedule import Schedule, schedule

CHUNK = 1 << 16
"""Bytes of a chunk, about: each message costs by itself what 50 kB take to add."""
MOST = 1024


class Placing:
    """The mesh of a run."""

    def __init__(self, mesh: str, algorithm: str) -> None:
        self._mesh, self._algorithm = Mesh.parse(mesh), algorithm
        self.halfway: Callable[[], None] = lambda: None
        """Called in the middle of every sum."""
        self.links = Links()

    def warm(self) -> None:
        """Load what planning needs, so that it is there when somebody dies."""
        schedule(self._plan(self._mesh), 8)

    def over(self, down: dict[int, int], segment: Segment) -> Placed:
        """The way over the chips of these ranks, some links of which are down; MPI's own where they fall apart."""
        if segment["packed"]:
            raise JobError('wire="bf16" does not go together with --mesh: leave one of them out')
        mesh, seen = self._mesh, down[segment.rank]
        chips = [int(mesh.live[rank]) for rank in down]
        left = mesh.fail(
            chips=[mesh.chip(int(chip)) for chip in mesh.live if chip not in chips],
            links=[
                (mesh.chip(chip), mesh.chip(int(mesh.neighbour[chip, way])))
                for chip, ways in zip(chips, down.values(), strict=True)
                for way in range(4)
                if ways >> way & 1 and mesh.neighbour[chip, way] >= 0
            ],
        )

        def make() -> Schedule | None:
            try:
                found = self._plan(left)
            except Disconnected:
                print(f"meshmend: {left} falls apart: sums take the library's own way", file=sys.stderr, flush=True)
                return None
            speed = f"{found.algbw:.3f} B of at most {found.bound.value:.3f} B"
            print(f"meshmend: sums go over {left} by {found.algorithm}, {speed}", file=sys.stderr, flush=True)
            return schedule(found, max(len(found), min(MOST, segment["wire"] * 4 // CHUNK)))

        def check() -> None:
            if self.links.down() & ~seen:
                raise Failure

        return Placed(left, make, chips, check, self.halfway)

    def _plan(self, mesh: Mesh) -> Plan:
        """By the algorithm asked for, or where a hole leaves it no way, by trees."""
        try:
            return plan(mesh, algorithm=self._algorithm)
        except PlanError:
            return plan(mesh, algorithm="trees")
