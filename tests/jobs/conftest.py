from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from meshmend.testbed import why_not
from tests.jobs.jobs import DEADLINE, SCRIPT, Job
from tests.jobs.namespaces import Hosts

NUMBERS = count()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, f"test-{os.getpid()}-{next(NUMBERS)}")
    yield made
    made.clean_up()


@cache
def no_hosts() -> str:
    """Why there can be no hosts in namespaces here; "" where they can be."""
    return why_not()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts."""
    if no_hosts():
        pytest.skip(no_hosts())
    with Hosts(tmp_path, ["a", "b"]) as made:
        yield made


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
