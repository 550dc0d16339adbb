"""A doorbell wakes whoever waits for it, also in a process with many open files."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path

from meshmend.job.shm.doorbell import Doorbell

MANY = 1100
"""More than `select` takes."""


def test_a_doorbell_with_a_number_beyond_what_select_takes(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * MANY), before[1]))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(MANY)]
    try:
        bell = Doorbell(tmp_path / "bell")
        bell.make()
        bell.ring()
        begin = time.monotonic()
        bell.wait(60.0)
        assert time.monotonic() - begin < 30.0
        threading.Timer(0.05, bell.ring).start()
        bell.wait(60.0)
        assert time.monotonic() - begin < 30.0
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
