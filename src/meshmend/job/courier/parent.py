"""Whether mpirun, or its daemon on this host, which started this courier, is still there.

A courier without it must neither begin nor repair: nobody would tell it who has died, and another launcher may have
opened another world by now. The number of its parent says that only to a courier that was quick enough to look before
mpirun died. So it also looks at its own output: mpirun holds the other end of that from the beginning.
"""

from __future__ import annotations

import os
import select


class Parent:
    """The process that started this one."""

    def __init__(self) -> None:
        self.number = os.getppid()
        self._output = select.poll()
        self._output.register(1, 0)  # only errors, which are always reported: nobody reads this any more

    @property
    def gone(self) -> bool:
        """Whether it is dead."""
        return os.getppid() != self.number or bool(self._output.poll(0))
