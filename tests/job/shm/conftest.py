"""Shared memory of tests lies in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmend.job.shm import files


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "HOME", tmp_path)
    return tmp_path
