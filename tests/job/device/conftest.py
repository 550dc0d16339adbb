"""A driver that has the host's memory, in place of NVIDIA's."""

from __future__ import annotations

import pytest

from meshmend.base import cuda
from tests.job.device.fake_driver import Driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cuda, "driver", lambda: made)
    return made
