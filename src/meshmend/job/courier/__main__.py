"""`python -P -m meshmend.job.courier`, with the words of `command.py`: one courier.

A courier never ends with an error status, which would leave the others waiting for ever: on any error it prints it and
kills itself, and MPI tells the others.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback

from meshmend.base.clocks import COURIER_START
from meshmend.base.env import NO_THREADS
from meshmend.base.sockets import keep_to
from meshmend.job.courier.command import CourierCommand
from meshmend.job.courier.parent import Parent
from meshmend.job.protocol import Failure, Lost

PLANNERS = 2
"""How many couriers of a mesh are ready to plan: the first one left does it for all."""


def main(told: CourierCommand) -> None:
    """One courier's process."""
    parent = Parent()
    os.environ.update(NO_THREADS)
    from meshmend.job.signals import ignore_stops  # loads numpy

    ignore_stops()
    signal.alarm(COURIER_START)  # where mpirun dies while MPI comes up, that never ends
    try:
        from meshmend.job.courier.courier import Courier, carry  # begins MPI
        from meshmend.job.courier.mpi import position

        if told.network:
            keep_to(os.getpid(), told.network)  # what MPI listens on is for the other couriers
        placing = None
        if told.mesh:
            from meshmend.job.transport.mesh_mpi import Placing  # planners would delay the start of every world

            placing = Placing(*told.mesh)
            if position() < PLANNERS:
                placing.warm()
        courier = Courier(told.run, told.folder, told.hosts, told.world, parent, placing)
        carry(courier, repair=told.repair)
        sys.stdout.flush()
        os._exit(0)
    except (Failure, Lost):
        pass  # without repair, a world ends with its first failure; the launcher sees it too when all are lost
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(CourierCommand.read(sys.argv[1:]))
