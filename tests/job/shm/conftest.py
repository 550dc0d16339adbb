"""Shared memory of tests lies in a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmend.job.shm import home as homes
from meshmend.job.shm import presence


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This user's folder in a place of its own, as in /dev/shm."""
    memory = tmp_path / "shm"
    memory.mkdir()
    memory.chmod(0o1777)
    monkeypatch.setattr(homes, "MEMORY", memory)
    yield memory / f"meshmend-{os.geteuid()}"
    for folder in [folder for folder in presence._present if folder.is_relative_to(memory)]:
        os.close(presence._present.pop(folder))
