"""A process that owns device memory: `python -m tests.job.device.owner FOLDER RANK MEMORY NUMBERS`.

It fills a block with the numbers from RANK on, gives it out, says so, and waits to be killed.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np

from meshmend.job.device.passing import About, Offer
from meshmend.job.device.trial import memory_called as memory_called


def main(folder: str, rank: str, name: str, numbers: str) -> None:
    memory, values = memory_called(name), np.arange(int(numbers), dtype=np.float32) + int(rank)
    block = memory.allocate(values.nbytes)
    memory.upload(values, (block, 0))
    memory.finish()
    about = About(birth=7, generation=1, kind=memory.number, nbytes=block.nbytes)
    Offer(Path(folder), int(rank), lambda: (about, block.export()))
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
