"""States that differ: which leaf is the first that does.

Every courier sees it in the same total, and writes down a digest of each leaf of its worker's state. One that has to
end its worker for it looks at what the others wrote, and so can say where to look.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from meshmend.base.clocks import DIGEST_WAIT, STATE_POLL
from meshmend.job.state.codec import decode
from meshmend.job.state.tree import digest_of
from meshmend.telemetry import Differed, Epoch, Log, read

SHOWN = 3
"""How many leaves are named."""


def write_down(log: Log, epoch: Epoch, rank: int, step: int, state: npt.NDArray[np.uint8]) -> Differed:
    """Record the digests of a state, as it is exported."""
    leaves = {name: f"{digest_of([(name, value)]):012x}" for name, value in decode(state, None)[0]}
    event = Differed(epoch=epoch, rank=rank, step=step, leaves=leaves)
    log.write(event)
    return event


def where(own: Differed | None, folder: Path) -> str:
    """The rest of a sentence about states that differ: the first leaves that do; "" where that is not known."""
    deadline = time.monotonic() + DIGEST_WAIT
    while own is not None and time.monotonic() < deadline:
        for event in read(folder, "courier-*"):
            if isinstance(event, Differed) and (event.epoch, event.step) == (own.epoch, own.step):
                names = differing(own, event)
                if names:
                    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                    return f"; first in {', '.join(map(repr, names[:SHOWN]))}{more}"
        time.sleep(STATE_POLL)
    return ""


def differing(own: Differed, other: Differed) -> list[str]:
    """The leaves that differ, in their order."""
    return [name for name, digest in own.leaves.items() if other.leaves.get(name) != digest]
