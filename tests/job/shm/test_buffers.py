"""The buffers of one worker, which two of its threads and its courier see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.shm import create_as_agent, open_as_worker
from meshmend.job.shm.buffers import Buffers, make_buffers
from tests.job.shm.conftest import home as home

RUN = "buffers"


def test_a_thread_that_looks_while_another_one_maps_sees_one_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part went to the old file, which nobody adds up any more."""
    del home
    create_as_agent(RUN, 0)
    worker = open_as_worker(RUN, 0)
    seen: list[np.ndarray] = []
    for size in (100, 200):
        make_buffers(worker.files, worker.worker, WireFormat(Float32, size), 0, since=size)
        worker.buffers.total(size)[:] = size
    make_buffers(worker.files, worker.worker, WireFormat(Float32, 300), 0, since=300)
    opened = Buffers.open

    def interrupted(self: Buffers, flags: int) -> int:
        monkeypatch.undo()
        seen.extend([self.part, self.total(200)])  # the other thread
        return opened(self, flags)

    monkeypatch.setattr(Buffers, "open", interrupted)
    seen.extend([worker.buffers.part, worker.buffers.total(200), worker.buffers.total(300)])
    assert [len(one) for one in seen] == [300, 200, 300, 200, 300]
    assert seen[1].tolist() == seen[3].tolist() == [200] * 200
    seen[0][:] = 7
    assert (seen[2] == 7).all(), "both have the same memory"
