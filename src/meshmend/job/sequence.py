"""The jobs of a script under `meshmend run`: one after another in each worker's process, numbered from 1.

All workers run the same script, so the second job of one is the second job of all. A worker has one courier, which
carries the sums of one job at a time: a job within another is refused.
"""

from __future__ import annotations

import os
from enum import Enum, auto

from meshmend.errors import JobError


class End(Enum):
    """How a job ended on this worker."""

    OPEN = auto()
    """It has not."""
    LEFT = auto()
    """All workers left it together, or a sum that was not finite ended it for all."""
    RAISED = auto()
    """With another exception, which the script has caught if it opens another job."""


class Sequence:
    """Which job this process is in."""

    def __init__(self) -> None:
        self._process, self._count, self._end = 0, 0, End.LEFT

    def begin(self) -> int:
        """The number of the job that begins now."""
        if self._process != os.getpid():
            self._process, self._count, self._end = os.getpid(), 0, End.LEFT
        if self._end is End.OPEN:
            raise JobError(
                "this worker opened an mm.Job inside another one, but `meshmend run` runs one job at a time; open the "
                "first as `with mm.Job(…) as job:`, and the second after that block"
            )
        if self._end is End.RAISED:
            raise JobError(
                "this worker opened another mm.Job after an exception had ended the previous one, in which the other "
                "workers may still be; catch the exception within the `with mm.Job(…)` block, or let it end the "
                "worker (only mm.NotFinite, which all workers raise together, may be caught after it)"
            )
        self._count, self._end = self._count + 1, End.OPEN
        return self._count

    def end(self, how: End) -> None:
        """The job that has begun last has ended."""
        self._end = how


SCRIPT = Sequence()
"""The jobs of this process."""
