"""A courier ends with its worker."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os
import mpi4py
mpi4py.rc.initialize = False  # no world is needed for this
from meshmend.job.courier import courier


class Segment(dict):
    def listen(self, bell, seconds):
        pass


dying, killed = False, []
courier.ExitProbe.is_exiting = lambda self: dying
courier.os.kill = lambda process, how: killed.append((process, how))
segment = Segment(lanes=1, ranks=1, worker=7, born=1, asked=2, answered=1)
beside = courier.Beside(segment, None, None)
beside.ready(0.0)
print(len(killed))
dying = True
segment["answered"] = 2
beside.ready(0.0)  # what it has left behind may be summed
print(len(killed))
segment["answered"] = 1
beside.ready(0.0)
print(len(killed), killed[0] == (os.getpid(), courier.signal.SIGKILL))
"""


def test_a_courier_ends_with_its_worker() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "0", "1", "True"], done.stderr
