"""The command line of a courier, RUN FOLDER RANKS WORLD repair|restart REACH [MESH ALGORITHM]: written and read here.

The launcher writes it for mpirun, and the courier reads it. RANKS are those of each host, such as 0,1/2,3; REACH is the
network to listen on, or "any". Run and folder come first: by them, an agent finds the couriers of its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ANY = "any"
WAYS = {True: "repair", False: "restart"}


@dataclass(frozen=True, kw_only=True)
class CourierCommand:
    """What a courier is told when it is started."""

    run: str
    folder: Path
    hosts: list[list[int]]
    """The ranks of each host."""
    world: int
    repair: bool
    """Whether couriers repair their group after a death; otherwise, their world ends."""
    network: str = ""
    """The network to listen on; empty: any."""
    mesh: tuple[str, ...] = ()
    """A mesh and an algorithm, where sums go along the links of a mesh."""

    @property
    def words(self) -> list[str]:
        """As a command line."""
        ranks = "/".join(",".join(map(str, some)) for some in self.hosts)
        way, reach = WAYS[self.repair], self.network or ANY
        return [self.run, str(self.folder), ranks, str(self.world), way, reach, *self.mesh]

    @classmethod
    def read(cls, words: Sequence[str]) -> CourierCommand:
        """Return what such words say."""
        run, folder, ranks, world, way, reach, *mesh = words
        return cls(
            run=run,
            folder=Path(folder),
            hosts=[[int(rank) for rank in host.split(",")] for host in ranks.split("/")],
            world=int(world),
            repair={word: repair for repair, word in WAYS.items()}[way],
            network="" if reach == ANY else reach,
            mesh=tuple(mesh),
        )
