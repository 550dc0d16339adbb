"""Whether memory of a device can be shared here, tried for real: `python -P -m meshmend.job.device.trial MEMORY`.

A second process fills a block and gives it out; this one maps it, kills its owner, and adds it up. Prints the name of
the device, its free and its total megabytes, and what came of it ("" if all is well), separated by "|".
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from meshmend.errors import MeshmendError
from meshmend.job.device.base import Memory
from meshmend.job.device.passing import About, Offer, fetch
from meshmend.job.device.stand_in import StandIn
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32

VALUES = np.arange(1 << 20, dtype=np.float32)
WIRE = WireFormat(Float32, len(VALUES))


def memory_called(name: str) -> Memory:
    """The stand-in, or that of a device such as cuda:0."""
    if name == "stand-in":
        return StandIn()
    from meshmend.job.device.cuda import CudaMemory

    return CudaMemory(int(name.removeprefix("cuda:")))


def own(memory: Memory, folder: Path, rank: int = 0) -> None:
    """Give out a block, and wait to be killed."""
    block = memory.allocate(VALUES.nbytes)
    memory.upload(VALUES, (block, 0))
    memory.finish()
    about = About(os.getpid(), 1, memory.number, block.nbytes)
    Offer(folder, rank, lambda: (about, block.export()))
    print("ready", flush=True)
    signal.pause()


def try_out(name: str) -> str:
    """Map another process's block, kill it, and add its numbers up; what went wrong, or ""."""
    memory = memory_called(name)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "meshmend.job.device.trial", name, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            try:
                assert owner.stdout is not None
                if owner.stdout.readline() != "ready\n":
                    return "another process cannot have memory of it"
                found = fetch(Path(folder), 0, lambda: owner.poll() is not None)
            finally:
                owner.kill()
        if found is None:
            return "another process that had memory of it died"
        about, file = found
        block = memory.attach(file, about.nbytes)
        os.close(file)
    out = memory.allocate(VALUES.nbytes)
    memory.add(WIRE, [(block, 0), (block, 0)], (out, 0), 0, len(VALUES))
    sums = np.empty_like(VALUES)
    memory.finish()
    memory.download((out, 0), sums)
    memory.finish()
    block.close()
    out.close()
    return "" if (sums == 2 * VALUES).all() else "the memory of a dead process holds other numbers"


def main(name: str, folder: str = "") -> None:
    """Own a block in this folder, or try everything out."""
    if folder:
        own(memory_called(name), Path(folder))
    said, free, total = name, 0, 0
    try:
        if name.startswith("cuda:"):
            from meshmend.base.cuda import Device

            device = Device(int(name.removeprefix("cuda:")))
            said, (free, total) = device.name, device.memory()
        why = try_out(name)
    except MeshmendError as error:
        why = str(error)
    print(said, free >> 20, total >> 20, why, sep="|")


if __name__ == "__main__":
    main(*sys.argv[1:])
