"""Which transport the sums of a group take."""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.errors import JobError
from meshmend.job.transport.base import Group, Hello, Transport
from meshmend.job.transport.device_memory import DeviceMemory
from meshmend.job.transport.library_mpi import LibraryMpi
from meshmend.job.transport.pipeline import Pipeline
from meshmend.job.transport.shared_memory import SharedMemory

TRANSPORTS: tuple[type[Transport], ...] = (DeviceMemory, Pipeline, SharedMemory, LibraryMpi)
"""In order of preference; a new one is added here. Where workers are chips of a mesh, its links come first."""


def choose(group: Group) -> Transport:
    """The first transport that can serve this group; all members choose the same one."""
    check_layouts(group.members)
    made = None if group.port.mesh is None else group.port.mesh.transport(group)
    if made is not None:
        return made
    for kind in TRANSPORTS:
        made = kind.make(group)
        if made is not None:
            return made
    raise AssertionError("MPI serves every group")


def check_layouts(members: Sequence[Hello]) -> None:
    """Refuse parts of different layouts: they cannot be added up."""
    layouts = [member.layout for member in members]
    if len(set(layouts)) > 1:
        most = max(layouts, key=layouts.count)
        odd = ", ".join(str(member.rank) for member in members if member.layout != most)
        if len({layout & ~1 for layout in layouts}) == 1:
            where = "in the memory of its host, and the others keep theirs on a device"
            where = where if most & 1 else "on a device, and the others keep theirs in the memory of their hosts"
            raise JobError(
                f"worker {odd} keeps its state {where}; give every worker the same kind of device (JAX silently falls "
                "back to the CPU where it finds no other device)"
            )
        raise JobError(
            f"worker {odd} returned gradients with a different structure, shape or dtype than the other workers; "
            "every worker must return the same tree"
        )
