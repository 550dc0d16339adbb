"""The options of a run, saved in its folder (`run.json`) so that it can be attached to and resumed.

A spec is data. Checks that need files or a plan are in checks.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from meshmend.base import whole_files
from meshmend.base.schema import field_values
from meshmend.errors import FormatError, JobError
from meshmend.job.checkpoints.interval import read_interval
from meshmend.job.progress import seconds_between
from meshmend.run.clusters.hosts import HERE, Host, parse_hosts, spread
from meshmend.run.supervisor.policies import POLICIES
from meshmend.telemetry import FORMAT, check_name, damaged, folder_of, read_description, unwritable

MOST_RANKS = 1 << 16
MOST_WARM = 64
LITTLE = 8
"""Ranks that can be added even to a small run; each takes half a kilobyte of every message."""
LATER = ("log_every", "verbose", "warm", "added")
"""Options that runs of earlier versions did not have."""
VERSION = metadata.version("meshmend")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The options of a run."""

    run: str
    script: Sequence[str]
    workers: int
    """How many workers take part in sums."""
    least: int = 1
    """With fewer workers than this, the run is halted with a checkpoint."""
    spares: int = 0
    warm: int = 0
    """How many processes on each host wait to replace a dead worker, with the script's libraries loaded."""
    on_failure: str = "replace"
    """The name of a policy."""
    hosts: Sequence[Host] = ()
    added: Sequence[Host] = field(default_factory=list)
    """Hosts that were added while the run went on; their ranks come after all others."""
    launch_agent: str = "ssh"
    every: str = ""
    """How often a checkpoint is written."""
    mesh: str = ""
    """The mesh whose chips are the workers, if any."""
    algorithm: str = "trees"
    """How sums go over it."""
    log_every: str = ""
    """How often a step is printed."""
    verbose: bool = False
    """Whether to print the commands that are run."""
    start: str = field(default_factory=lambda: working_folder(), compare=False, repr=False)
    """The folder that it was made in; that may be gone later. Not saved."""

    def __post_init__(self) -> None:
        if not self.script:
            raise JobError("no script was given: meshmend run -n 4 train.py …")
        if self.workers < 1 or self.spares < 0:
            raise JobError(f"{self.workers} workers and {self.spares} spares: at least 1 worker is needed")
        if not 0 <= self.warm <= MOST_WARM:
            raise JobError(f"--warm {self.warm}: expected 0 to {MOST_WARM} processes per host")
        if max(self.ranks, sum(host.slots for host in self.places)) > MOST_RANKS:
            raise JobError(f"{self.workers} workers and {self.spares} spares: a run can have at most {MOST_RANKS:,}")
        if not 1 <= self.least <= self.workers:
            raise JobError(
                f"--min-workers {self.least} with {self.workers} workers: expected a number from 1 to {self.workers}"
            )
        if self.on_failure not in POLICIES:
            raise JobError(f"--on-failure {self.on_failure}: choose from {', '.join(POLICIES)}")
        if self.mesh and self.spares:
            raise JobError(f"--mesh with --spares {self.spares}: a spare has no place on a mesh; leave one of them out")
        if POLICIES[self.on_failure].needs_spares and not self.spares:
            raise JobError(f"--on-failure {self.on_failure} needs --spares 1 or more")
        seconds_between(self.log_every)
        read_interval(self.every)
        check_name(self.run)

    @property
    def folder(self) -> Path:
        """Where the run keeps its files."""
        return Path(self.start) / folder_of(self.run)

    @property
    def members(self) -> int:
        """How many workers take part in sums, with those of hosts that were added."""
        return self.workers + sum(host.slots for host in self.added)

    @property
    def ranks(self) -> int:
        """The number of workers and spares."""
        return self.members + self.spares

    @property
    def room(self) -> int:
        """The ranks that messages have room for: hosts can be added only to a run whose hosts have names."""
        first = self.workers + self.spares
        return max(2 * first, first + LITTLE) if self.hosts else first

    @property
    def places(self) -> Sequence[Host]:
        """The hosts, with room for the workers."""
        return (*self.hosts, *self.added) or (Host(HERE, self.workers),)

    @property
    def host_of(self) -> Sequence[str]:
        """The host of each rank; adding a host changes none of them."""
        first = spread(self.hosts or self.places, self.workers + self.spares)
        return [host.name for host in (*first, *(host for host in self.added for _ in range(host.slots)))]

    def without_additions(self) -> RunSpec:
        """The same run as one that is started with all its hosts from the beginning."""
        return replace(self, hosts=[*self.hosts, *self.added], workers=self.members, added=[])

    def save(self) -> None:
        """Write `run.json`."""
        path = self.folder / "run.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            whole_files.replace(path, self._text())
        except OSError as error:
            raise unwritable(path, error, self.run) from None

    def claim(self) -> bool:
        """Write `run.json` unless there is one; of several processes, on whichever hosts, one succeeds."""
        path = self.folder / "run.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return whole_files.create(path, self._text())
        except OSError as error:
            raise unwritable(path, error, self.run) from None

    def _text(self) -> str:
        saved = {name: value for name, value in asdict(self).items() if name != "start"}
        return json.dumps({"format": FORMAT, "version": VERSION, **saved}, indent=1)


def working_folder() -> str:
    """Where this process works; a sentence if somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise JobError("the folder that you are in was removed: change to one that exists, then try again") from None


@dataclass(frozen=True)
class RunFile:
    """What `run.json` holds."""

    version: str
    """The version of meshmend that started or resumed the run last."""
    values: dict[str, Any]
    """The options of a `RunSpec`."""


def begun(run: str) -> bool:
    """Whether there is a run of that name, or in that folder."""
    return (folder_of(run) / "run.json").exists()


def load_spec(run: str, **changes: Any) -> RunSpec:
    """Read the options of a run, and replace some."""
    values = load_saved(run).values
    if changes.keys() & {"workers", "hosts"}:  # then the numbers are of all hosts
        values |= {"hosts": [*values["hosts"], *values.pop("added", [])]}
    values |= changes
    name, script = values["run"], values["script"]
    if "script" not in changes and not os.path.exists(script[0]):
        raise JobError(
            f"run {name!r} was started with the script {script[0]!r}, which is not in {working_folder()}: "
            "continue it from the folder in which it was started"
        )
    spec, folder = RunSpec(**values), folder_of(run)
    if spec.folder.resolve() != folder.resolve():
        raise JobError(
            f"run {name!r} is in {folder}, but from here it would be looked for in {spec.folder}: "
            "continue it by its name, from the folder in which it was started"
        )
    return spec


def load_saved(run: str) -> RunFile:
    """Read `run.json`; refuse it if it is damaged or in a format that this version does not read."""
    path = folder_of(run) / "run.json"
    if not path.exists():
        raise JobError(f"there is no run {run!r}: expected {path}, which meshmend run writes in the folder it runs in")
    values = read_description(path.parent)
    version = values.pop("version", "unknown")
    del values["format"]
    try:
        if "start" in values:
            raise FormatError('"start" is unknown')
        found = field_values(RunSpec, values)
        if missing := [one.name for one in fields(RunSpec) if one.name not in {*found, *LATER, "start"}]:
            raise FormatError(f"{missing[0]} is missing")
        if (hosts := [*found["hosts"], *found.get("added", [])]) and parse_hosts(
            ",".join(f"{one.name}:{one.slots}" for one in hosts)
        ) != hosts:
            raise FormatError("hosts have names that --hosts does not take")
        RunSpec(**found)
    except (FormatError, JobError) as error:
        raise damaged(path, error) from None
    return RunFile(version if isinstance(version, str) else "unknown", found)
