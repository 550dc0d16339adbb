"""A process is seen to end before its parent hears of it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

from meshmend.base.processes import ExitProbe, Identity, born, is_alive, is_exiting


def test_one_that_has_begun_to_end_is_told_from_one_that_lives() -> None:
    child = subprocess.Popen(["sleep", "60"])
    since = born(child.pid)
    who = Identity.of(child.pid)
    watch, other = ExitProbe(who), ExitProbe(replace(who, born=since + 1))
    assert not watch.is_exiting()
    assert is_alive(child.pid, since) and not is_exiting(child.pid, since)
    assert is_exiting(child.pid, since + 1)  # that one is gone, and its number is another's
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its parent has not asked yet
    assert is_exiting(child.pid, since) and watch.is_exiting()
    child.wait()
    assert is_exiting(child.pid, since) and watch.is_exiting()
    assert not other.is_exiting()  # it cannot be seen from here (another container's), so it is not known to end
