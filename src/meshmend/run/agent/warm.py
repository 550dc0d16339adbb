"""The processes of a host that wait, with a script's libraries loaded, to replace a dead worker (job/warm.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshmend.base.clocks import WARM_PAUSE
from meshmend.base.env import ONE_THREAD
from meshmend.job.warm import assignment


@dataclass
class WarmProcesses:
    """So many of them; none by default."""

    wanted: int = 0
    script: Sequence[str] = ()
    _waiting: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _again: float = 0.0
    """When the next one may be started."""

    def keep(self, wanted: int, script: Sequence[str]) -> None:
        """Keep so many for this script."""
        if list(script) != list(self.script):
            self.close()
        self.wanted, self.script = wanted, script

    def refill(self, now: float, *, calm: bool) -> None:
        """Start one, if there are too few: only while all workers train, and never many at once.

        Loading takes processor time from the workers. And where a process ends at once, because its script is broken,
        it would be started again and again.
        """
        if not self.wanted or not calm:
            self._again = max(self._again, now + WARM_PAUSE)
            return
        for one in [one for one in self._waiting if one.poll() is not None]:
            self._waiting.remove(one)
            _end(one)
        if len(self._waiting) >= self.wanted or now < self._again:
            return
        self._again = now + WARM_PAUSE
        command = [sys.executable, "-P", "-m", "meshmend.job.warm", *self.script]
        one = subprocess.Popen(
            command, env={**ONE_THREAD, **os.environ, "PYTHONUNBUFFERED": "1"}, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._waiting.append(one)

    def take(
        self, script: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> subprocess.Popen[bytes] | None:
        """Make a worker of the one that has waited longest, and return it; None if there is none."""
        while self._waiting and list(script) == list(self.script):
            one = self._waiting.pop(0)
            assert one.stdin is not None
            try:
                with one.stdin as orders:
                    orders.write(assignment(environment, output))
            except OSError:
                _end(one)  # it is dead already, or cannot be told
                continue
            return one
        return None

    def close(self) -> None:
        """End them all."""
        for one in self._waiting:
            _end(one)
        self._waiting.clear()


def _end(one: subprocess.Popen[bytes]) -> None:
    one.kill()
    one.wait()
    if one.stdin is not None:
        one.stdin.close()
