"""A process is seen to end before its parent hears of it."""

from __future__ import annotations

import os
import signal
import subprocess

from meshmend.train.processes import Deathwatch, born, ends, lives


def test_one_that_has_begun_to_end_is_told_from_one_that_lives() -> None:
    child = subprocess.Popen(["sleep", "60"])
    since = born(child.pid)
    watch, other = Deathwatch(child.pid, since), Deathwatch(child.pid, since + 1)
    assert not watch.ends()
    assert lives(child.pid, since) and not ends(child.pid, since)
    assert ends(child.pid, since + 1)  # that one is gone, and its number is another's
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its parent has not asked yet
    assert ends(child.pid, since) and watch.ends()
    child.wait()
    assert ends(child.pid, since) and watch.ends()
    assert not other.ends()  # it cannot be seen from here (another container's), so it is not known to end
