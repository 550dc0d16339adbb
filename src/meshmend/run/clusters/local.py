"""A run on this machine alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from meshmend.run.clusters.base import Cluster
from meshmend.run.clusters.hosts import HERE, Host


class Local(Cluster):
    """One host, the launcher's own."""

    name = "local"

    def is_present(self) -> bool:
        return True

    def hosts(self) -> list[Host]:
        return [Host(HERE, len(os.sched_getaffinity(0)))]

    def run_on(self, host: str, *commands: Sequence[str]) -> list[str]:
        del host
        return ["sh", "-c", " && ".join(shlex.join(command) for command in commands)]

    def mpirun_options(self, folder: Path) -> list[str]:
        del folder
        return []
