"""Blocks that another process made, mapped by descriptor: read and added up while it lives and after its death."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshmend.errors import DeviceError
from meshmend.job.device import kernels
from meshmend.job.device.base import Block, Memory
from meshmend.job.device.passing import SUFFIX, fetch
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.bf16 import Bf16
from meshmend.job.reduction.exact import ExactSum
from meshmend.job.reduction.float32 import Float32
from tests.job.device.fake_kernels import KERNELS
from tests.job.device.owner import memory_called

NUMBERS = 100_003
ODD = np.array([0, -0.0, 1e-45, -3e-42, 1.1754944e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan], np.float32)


class Owner:
    """A process with device memory of its own."""

    def __init__(self, folder: Path, rank: int, memory: str) -> None:
        command = [sys.executable, "-m", "tests.job.device.owner", str(folder), str(rank), memory, str(NUMBERS)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


def mapped(memory: Memory, folder: Path, rank: int) -> Block:
    found = fetch(folder, rank, lambda: False)
    assert found is not None
    about, file = found
    assert (about.birth, about.generation, about.kind) == (7, 1, memory.number)
    block = memory.attach(file, about.nbytes)
    os.close(file)
    return block


def contents(memory: Memory, block: Block) -> np.ndarray:
    found = np.empty(NUMBERS, np.float32)
    memory.download((block, 0), found)
    memory.finish()
    return found


def check_memory_outlives_its_owner(folder: Path, name: str) -> None:
    """Shared by the stand-in's test and the driver's."""
    memory, wanted = memory_called(name), np.arange(NUMBERS, dtype=np.float32)
    owner = Owner(folder, 3, name)
    try:
        block = mapped(memory, folder, 3)
        assert (contents(memory, block) == wanted + 3).all()
    finally:
        owner.kill()
    assert (contents(memory, block) == wanted + 3).all()
    own = memory.allocate(wanted.nbytes)
    memory.upload(wanted, (own, 0))
    memory.add(WireFormat(Float32, NUMBERS), [(own, 0), (block, 0)], (own, 0), 0, NUMBERS)
    memory.finish()
    assert (contents(memory, own) == 2 * wanted + 3).all()
    block.close()
    own.close()
    assert fetch(folder, 3, lambda: True) is None


def check_sums_have_the_bits_of_numpy(memory: Memory) -> None:
    """Every kind of message, from any number on, whatever the values."""
    random = np.random.default_rng(0)
    for kind, head in ((Float32, 0), (ExactSum, 0), (Bf16, 1001)):
        wire = WireFormat(kind, 5000, head)
        parts = [random.integers(0, 1 << 32, 5000, np.uint32).view(kind.dtype) for _ in range(3)]
        if kind is not ExactSum:
            for part in parts:
                part[2000:2600] = random.choice(ODD, 600)
                part[3000:] = random.normal(size=2000).astype(np.float32)
        wanted = np.zeros(5000, kind.dtype)
        blocks = [memory.allocate(parts[0].nbytes) for _ in range(4)]
        for block, part in zip(blocks, parts, strict=False):
            memory.upload(part, (block, 0))
        for begin, end in ((0, 700), (700, 1900), (1900, 1900), (1900, 5000)):
            with np.errstate(all="ignore"):
                wire.combine([part[begin:end] for part in parts], wanted[begin:end], begin)
            at = begin * 4
            memory.add(wire, [(block, at) for block in blocks[:3]], (blocks[3], at), begin, end - begin)
        found = np.empty(5000, kind.dtype)
        memory.download((blocks[3], 0), found)
        memory.finish()
        if kind is ExactSum:
            assert found.tobytes() == wanted.tobytes()
        else:
            # Two NaN may add up to either of them: only where a number is one is the same everywhere.
            body, right = found[head:], wanted[head:]
            assert (np.isnan(body) == np.isnan(right)).all()
            assert body[~np.isnan(right)].tobytes() == right[~np.isnan(right)].tobytes()
            assert found[:head].tobytes() == wanted[:head].tobytes()
        for block in blocks:
            block.close()


def test_memory_outlives_its_owner(tmp_path: Path) -> None:
    check_memory_outlives_its_owner(tmp_path, "stand-in")


def test_sums_have_the_bits_of_numpy() -> None:
    check_sums_have_the_bits_of_numpy(memory_called("stand-in"))


def test_a_run_may_have_a_name_longer_than_a_socket_s(tmp_path: Path) -> None:
    folder = tmp_path / ("n" * 200)
    folder.mkdir()
    owner = Owner(folder, 0, "stand-in")
    try:
        mapped(memory_called("stand-in"), folder, 0).close()
    finally:
        owner.kill()


def test_a_living_worker_that_gives_out_nothing_is_no_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshmend.job.device.passing.DEVICE_WAIT", 0.2)
    with pytest.raises(DeviceError):
        fetch(tmp_path, 0, lambda: False)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / f"0.{SUFFIX}"))
        silent.listen()
        with pytest.raises(DeviceError):
            fetch(tmp_path, 0, lambda: False)


def test_every_kernel_is_there_for_as_many_parts_as_a_group_has_members() -> None:
    from meshmend.job.shm.records import MOST_MEMBERS

    assert kernels.MOST == MOST_MEMBERS
    text = kernels.module()
    assert text.isascii() and {*re.findall(r"\.entry (\w+)\(", text)} == {*KERNELS}
    assert f"#define MOST {MOST_MEMBERS} " in kernels.SOURCE.read_text()


def test_the_kernels_were_compiled_from_this_source() -> None:
    """If not: `python -m meshmend.job.device.kernels`. What is behind the first line, the next test compares."""
    assert kernels.module().startswith(kernels.header())


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here to compile kernels.cu with")
def test_the_kernels_are_those_of_the_source() -> None:
    """Whoever changes kernels.cu runs `python -m meshmend.job.device.kernels`."""
    made, kept = kernels.compiled(), kernels.module()
    release = re.search(r"release (\S+),", made)
    if release is not None and release[0] not in kept:
        pytest.skip(f"this nvcc is of another release: {release[0]}")
    assert made == kept
