from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.jobs.jobs import DEADLINE, SCRIPT, Job

NUMBERS = count()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, f"test-{os.getpid()}-{next(NUMBERS)}")
    yield made
    made.clean_up()


@pytest.fixture(scope="session")
def undisturbed() -> Callable[..., str]:
    """The weights of a run alone, with these options."""
    known: dict[tuple[str, ...], str] = {}

    def weights(*options: str) -> str:
        if options not in known:
            command = [sys.executable, str(SCRIPT), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
            known[options] = done.stdout.split("weights ")[1].split()[0]
        return known[options]

    return weights
