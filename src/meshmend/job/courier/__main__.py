"""`python -P -m meshmend.job.courier RUN FOLDER RANKS WORLD repair|restart REACH [MESH ALGORITHM]`: one courier.

RANKS are those of each host, such as 0,1/2,3. REACH is the network to listen on, "lo" or "any". A courier never ends
with an error status, which would leave the others waiting for ever: on any error it prints it and kills itself, and MPI
tells the others.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

from meshmend.base.clocks import COURIER_START
from meshmend.base.sockets import keep_to
from meshmend.job.courier.parent import Parent
from meshmend.job.protocol import Failure, Lost
from meshmend.job.signals import ignore_stops

PLANNERS = 2
"""How many couriers of a mesh are ready to plan: the first one left does it for all."""


def main(
    run: str, folder: Path, hosts: list[list[int]], world: int, mesh: list[str], *, repair: bool, reach: str
) -> None:
    """One courier's process."""
    ignore_stops()
    parent = Parent()
    signal.alarm(COURIER_START)  # where mpirun dies while MPI comes up, that never ends
    try:
        from meshmend.job.courier.courier import Courier, carry  # begins MPI
        from meshmend.job.courier.mpi import position

        if reach != "any":
            keep_to(os.getpid(), reach)  # what MPI listens on is for the other couriers
        placing = None
        if mesh:
            from meshmend.job.transport.mesh_mpi import Placing  # planners would delay the start of every world

            placing = Placing(*mesh)
            if position() < PLANNERS:
                placing.warm()
        carry(Courier(run, folder, hosts, world, parent, placing), repair=repair)
        sys.stdout.flush()
        os._exit(0)
    except (Failure, Lost):
        pass  # without repair, a world ends with its first failure; the launcher sees it too when all are lost
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    name, where, numbers, which, way, network, *mesh = sys.argv[1:]
    places = [[int(rank) for rank in host.split(",")] for host in numbers.split("/")]
    main(name, Path(where), places, int(which), mesh, repair=way == "repair", reach=network)
