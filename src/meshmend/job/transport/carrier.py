"""Which of a chip's own links are up: the carrier of its network devices, as the kernel sees it.

`MESHMEND_LINKS` names the devices that lead north, east, south and west, such as `n,e,s,w`. Without it, links are
assumed to be up: then only a dead process is noticed, not a dead cable.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MESHMEND_LINKS"
DEVICES = Path("/sys/class/net")


class Links:
    """The devices of this chip, by the direction they lead in."""

    def __init__(self) -> None:
        self._names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]

    def down(self) -> int:
        """A bit for each direction whose device no longer exists or has no carrier."""
        return sum(1 << way for way, name in enumerate(self._names) if name and not _carries(name))


def _carries(name: str) -> bool:
    try:
        return (DEVICES / name / "carrier").read_text().strip() == "1"
    except OSError:  # the device is gone, or switched off
        return False
