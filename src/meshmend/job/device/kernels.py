"""The kernels that device memory needs, in the assembly language that every NVIDIA driver compiles when it loads it.

Whoever changes `kernels.cu` compiles it to `kernels.ptx`, with nvcc 12.0 or later:

    python -m meshmend.job.device.kernels

This runs `nvcc -ptx -arch=compute_75 -fmad=false -O3`, writes the oldest version of PTX that has all that is used in
place of nvcc's own, and records the SHA-256 of `kernels.cu` in the first line. A test compares that with the source;
where nvcc of the same release is installed, another one compiles the source again and compares all of it. Users need
neither a CUDA compiler nor a framework, and the bits of a sum depend on none.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from ctypes import Structure, c_double, c_int64, c_uint32, c_uint64
from functools import cache
from pathlib import Path

MOST = 128
"""Parts at most; `job/shm/records.py` has no room for more members either."""
THREADS = 256
"""Of a block."""
STRETCH = 8192
"""Numbers of a leaf, or words of it, that one block handles."""
BLOCKS_PER_PROCESSOR = 32
"""Of kernels whose blocks handle a range of a message each."""

F32, I32, BF16 = "add_f32", "add_i32", "add_bf16"
"""Add up slices; the last one adds pairs of bytes that are the upper half of a float32, and rounds once."""

SOURCE = Path(__file__).with_name("kernels.cu")
PTX = Path(__file__).with_name("kernels.ptx")
COMPILER = ["nvcc", "-ptx", "-arch=compute_75", "-fmad=false", "-O3"]
ISA = "8.0"
"""The version that the text claims: that of the oldest driver in `base/cuda.py`. nvcc writes its own, and ptxas
confirms that nothing newer is used."""


class Parts(Structure):
    """The parts of some members."""

    _fields_ = (("at", c_uint64 * MOST),)

    @classmethod
    def of(cls, pointers: list[int]) -> Parts:
        """Those at these pointers."""
        return cls((c_uint64 * MOST)(*pointers))


class Leaves(Structure):
    """Tables of the device about the leaves of a message."""

    _fields_ = (("address", c_uint64), ("offset", c_uint64), ("size", c_uint64), ("stretches", c_uint64))


class Grid(Structure):
    """The grid of an exact sum."""

    _fields_ = (
        ("leaf_of", c_uint64), ("first", c_uint64), ("level", c_uint64), ("on", c_uint64), ("off", c_uint64),
        ("blocks", c_uint64), ("size", c_uint64), ("digits", c_uint32), ("octaves", c_uint32),
    )  # fmt: skip


class Judge(Structure):
    """How the grid of an exact sum moves."""

    _fields_ = (
        ("worth", c_uint64), ("need", c_uint64), ("top", c_uint64), ("jumped", c_uint64), ("bad", c_uint64),
        ("redo", c_uint64), ("most", c_double), ("room", c_int64),
    )  # fmt: skip


@cache
def module() -> str:
    """All kernels."""
    return PTX.read_text()


def compiled() -> str:
    """What nvcc makes of the source, as every driver from CUDA 12 on takes it."""
    done = subprocess.run([*COMPILER, "-o", "-", SOURCE.name], cwd=SOURCE.parent, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return header() + re.sub(r"(?m)^\.version .*$", f".version {ISA}", done.stdout)


def header() -> str:
    """The first line of `kernels.ptx`: which source it was compiled from."""
    return f"// SHA-256 of {SOURCE.name}: {hashlib.sha256(SOURCE.read_bytes()).hexdigest()}\n"


if __name__ == "__main__":
    PTX.write_text(compiled())
