"""Sums over the links of a mesh: workers are chips, and a plan that avoids the holes says what goes where.

Rank 0 is the first live chip of the requested mesh, and so on in rows. A rank without a worker is a hole, and so is
everything that the mesh lacked from the beginning; a worker that takes a rank again closes it. A link is dead
while the chip at either end says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from meshmend.base.marked_lines import print_marked
from meshmend.errors import Disconnected, PlanError
from meshmend.job.protocol import Failure
from meshmend.job.shm.records import Way
from meshmend.job.transport.base import PIECE, Group, Port, Transport, patient
from meshmend.job.transport.carrier import Links
from meshmend.mesh import Fabric, read_mesh
from meshmend.mesh.choose import plan
from meshmend.mesh.executors.mpi import MeshSum
from meshmend.mesh.planners import Plan
from meshmend.mesh.proof import Proof, verify
from meshmend.mesh.schedule import Schedule, schedule

CHUNK = 1 << 16
"""Bytes of a chunk, about: each message alone costs what adding 50 kB does."""
MOST = 1024
"""Chunks at most."""


class MeshMpi(Transport):
    """A group whose members are the chips of a mesh."""

    way = Way.MESH

    def __init__(self, links: MeshSum, port: Port) -> None:
        self._links, self._port = links, port

    @classmethod
    def make(cls, group: Group) -> Transport | None:
        """For workers that were placed on a mesh, unless it is disconnected."""
        return None if group.port.mesh is None else group.port.mesh.transport(group)

    def all_reduce(self, round: int) -> None:
        """Up the trees and down again."""
        self._links(self._port.part, self._port.total(round))

    def reduce_scatter(self, round: int) -> None:
        """The whole sum: on trees the sums of all slices are at the roots before any of them comes down."""
        self.all_reduce(round)

    def all_gather(self, round: int) -> None:
        """Nothing: `reduce_scatter` has filled the whole total."""


class Placing:
    """The mesh of a run, and the plans for the part of it that is left."""

    def __init__(self, mesh: str, algorithm: str) -> None:
        self._mesh, self._algorithm = read_mesh(mesh), algorithm
        self.halfway: Callable[[], None] = lambda: None
        """Called in the middle of every sum."""
        self.links_down = Links().down

    def warm(self) -> None:
        """Load what planning and proving need, so that it is loaded when a worker dies."""
        verify(schedule(self._plan(self._mesh), 8))

    def transport(self, group: Group) -> Transport | None:
        """Over the chips of these members and the links that are up; None where the mesh is disconnected."""
        left, chips = self._left(group)
        made = self._schedule(left, group.port.wire.nbytes) if group.position == 0 else None
        received = _sent(group.comm, left, made)
        if received is None:
            return None
        seen = group.members[group.position].links_down

        def idle() -> None:
            group.look()
            if self.links_down() & ~seen:
                raise Failure

        # A separate communicator, which is never revoked: in Open MPI 5.0 (ompi #13494) a send that is under way
        # when its communicator is revoked ends the process. `idle` notices when that of the group is.
        own = group.comm.Dup()
        own.Set_errhandler(MPI.ERRORS_RETURN)
        schedule, proof = received
        return MeshMpi(MeshSum(own, schedule, chips, idle, self.halfway, proof, group.port.wire.combine), group.port)

    def _left(self, group: Group) -> tuple[Fabric, list[int]]:
        """The mesh without its dead chips and links, and the chip of each member."""
        mesh = self._mesh
        chips = [int(mesh.live[member.rank]) for member in group.members]
        left = mesh.fail(
            chips=[mesh.chip(int(chip)) for chip in mesh.live if chip not in chips],
            links=[
                (mesh.chip(chip), mesh.chip(int(mesh.neighbour[chip, way])))
                for chip, member in zip(chips, group.members, strict=True)
                for way in range(4)
                if member.links_down >> way & 1 and mesh.neighbour[chip, way] >= 0
            ],
        )
        return left, chips

    def _schedule(self, left: Fabric, nbytes: int) -> Schedule | None:
        try:
            found = self._plan(left)
        except Disconnected:
            print_marked(f"{left} is disconnected; sums use plain MPI")
            return None
        speed = f"{found.algbw:.3f} B of at most {found.bound.value:.3f} B"
        print_marked(f"sums go over {left} by {found.algorithm}, {speed}")
        return schedule(found, max(len(found), min(MOST, nbytes // CHUNK)))

    def _plan(self, mesh: Fabric) -> Plan:
        """Plan with the requested algorithm, or with trees if a hole makes that impossible."""
        try:
            return plan(mesh, algorithm=self._algorithm)
        except PlanError:
            return plan(mesh, algorithm="trees")


def _sent(comm: MPI.Comm, mesh: Fabric, made: Schedule | None) -> tuple[Schedule, Proof] | None:
    """The first member's schedule and its proof, as all members have them: one plans and proves for all.

    Planners and provers are slow to load. The others compute the digest of the table they received, which is quick,
    and run it only if it is the digest that was proved.
    """
    head = np.zeros(6, np.int64)
    if made is not None:
        head[:4] = made.chunks, made.hop, len(made), made.pace
        head[4:] = np.frombuffer(verify(made).digest, np.int64)
    patient(comm.Ibcast(head, 0))
    chunks, hop, size, pace = head[:4].tolist()
    if not chunks:
        return None
    table = np.empty((4, size), np.int32)
    if made is not None:
        table[:] = made.slot, made.link, made.chunk, made.copy
    flat = table.ravel()
    for begin in range(0, flat.size, PIECE // 4):
        comm.Bcast(flat[begin : begin + PIECE // 4], 0)
    received = Schedule(mesh, chunks, hop, table[0], table[1], table[2], table[3].astype(bool), pace)
    return received, Proof.from_peer(head[4:].tobytes(), received)
