"""What a run must know about its cluster: the hosts, how to start a command on one, and what mpirun needs.

One file per kind of cluster; `clusters/__init__.py` lists them. A kind that has a scheduler can also print the job that
its users submit (`meshmend run --print NAME`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from meshmend.errors import JobError
from meshmend.run.clusters.hosts import Host

_OURS = {"--hosts", "--hosts-file", "--workers", "-n", "--resume", "--attach", "--print"}


class Cluster(ABC):
    """One kind of place to run in."""

    name: ClassVar[str]
    prints: ClassVar[bool] = False
    """True if `text` can write a job for it."""

    @abstractmethod
    def is_present(self) -> bool:
        """Return True if this process runs in such a place."""

    @abstractmethod
    def hosts(self) -> list[Host]:
        """Return the hosts that this process may use."""

    @abstractmethod
    def run_on(self, host: str, *commands: Sequence[str]) -> list[str]:
        """Return the command line that runs these commands on a host, each only if the one before succeeded."""

    @abstractmethod
    def mpirun_options(self, folder: Path) -> list[str]:
        """Return what mpirun needs to start its daemons there; they keep their files in the folder."""

    def text(self, request: JobRequest) -> str:
        """Return the job to submit to the scheduler, which runs this request."""
        del request
        raise JobError(f"cannot print a job for {self.name!r}, which has no scheduler: start meshmend run there")


@dataclass(frozen=True)
class JobRequest:
    """What to print a job for: `workers` in all, divided among `hosts`, and the words after `meshmend run`."""

    script: Sequence[str]
    workers: int
    hosts: int
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.script:
            raise JobError("no script was given: meshmend run --print slurm … train.py")
        if self.hosts < 1 or self.workers < self.hosts:
            raise JobError(
                f"--workers {self.workers} on {self.hosts} hosts: expected at least 1 host and 1 worker per host"
            )
        for option in self._options():
            if option in _OURS:
                raise JobError(f"{option} cannot be printed: the job finds its hosts and what to resume by itself")
        if self.name is not None and not re.fullmatch(r"[\w.-]+", self.name):
            raise JobError(
                f"{self.name!r} cannot be the name of a run: use letters, digits, dots, dashes and underscores"
            )

    def _options(self) -> list[str]:
        return [word.partition("=")[0] for word in self.options]

    @property
    def name(self) -> str | None:
        """The run's name, if one was given."""
        return self._split()[0]

    @property
    def words(self) -> tuple[str, ...]:
        """The other options and the script."""
        return (*self._split()[1], *self.script)

    def _split(self) -> tuple[str | None, list[str]]:
        name, left, words = None, [], iter(self.options)
        for word in words:
            option, _, value = word.partition("=")
            if option == "--name":
                name = value or next(words, None)
            else:
                left.append(word)
        return name, left

    @property
    def title(self) -> str:
        """A name for the job that every scheduler accepts: lower-case letters, digits and dashes, a letter first."""
        stem = self.script[1] if self.script[0] == "-m" and len(self.script) > 1 else Path(self.script[0]).stem
        plain = re.sub(r"[^a-z0-9]+", "-", (self.name or stem).lower()).strip("-")[:40].rstrip("-")
        return f"meshmend-{plain}".rstrip("-")

    @property
    def per_host(self) -> int:
        """The most workers that one host has."""
        return -(-self.workers // self.hosts)

    @property
    def awk(self) -> str:
        """A filter from lines that begin with a host to HOST:WORKERS; the first hosts get one more if it is uneven."""
        each, more = divmod(self.workers, self.hosts)
        count = f'(NR <= {more} ? ":{each + 1}" : ":{each}")' if more else f'":{each}"'
        return f"awk '{{ print $1 {count} }}'"
