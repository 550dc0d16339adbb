"""What was asked for: the options of a run, saved in its folder (`run.json`) so that it can be attached to and resumed.

A spec is data. What can only be known by looking at files or by planning is checked in checks.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from meshmend.errors import FormatError, JobError
from meshmend.run.clusters.hosts import HERE, Host
from meshmend.run.supervisor.policies import POLICIES
from meshmend.telemetry import FORMAT, folder_of, unwritable

VERSION = metadata.version("meshmend")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The options of a run."""

    run: str
    script: Sequence[str]
    workers: int
    """How many should be active."""
    least: int = 1
    """With fewer than these, the run is halted with a checkpoint."""
    spares: int = 0
    on_failure: str = "replace"
    """The name of a policy."""
    hosts: Sequence[Host] = ()
    launch_agent: str = "ssh"
    every: str = ""
    """How often a checkpoint is written."""
    mesh: str = ""
    """Where workers are chips of a mesh: which."""
    algorithm: str = "trees"
    """How sums go over it."""

    def __post_init__(self) -> None:
        if not self.script:
            raise JobError("no script was given: meshmend run -n 4 train.py …")
        if self.workers < 1 or self.spares < 0:
            raise JobError(f"{self.workers} workers and {self.spares} spares: at least 1 worker is needed")
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
        if not all(c.isalnum() or c in "._-" for c in self.run) or not self.run or self.run.startswith("-"):
            raise JobError(f"--name {self.run!r}: use letters, digits, dots, dashes and underscores")

    @property
    def folder(self) -> Path:
        """Where the run keeps its files."""
        return folder_of(self.run).absolute()

    @property
    def ranks(self) -> int:
        """The number of workers and spares."""
        return self.workers + self.spares

    @property
    def places(self) -> Sequence[Host]:
        """The hosts, with room for the workers."""
        return self.hosts or (Host(HERE, self.workers),)

    def save(self) -> None:
        """Write `run.json`."""
        text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "run.json.new").write_text(text)
            os.replace(self.folder / "run.json.new", self.folder / "run.json")
        except OSError as error:
            raise unwritable(self.folder / "run.json", error) from None


@dataclass(frozen=True)
class Saved:
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
    values = {**load_saved(run).values, **changes}
    name, script = values["run"], values["script"]
    if "script" not in changes and not os.path.exists(script[0]):
        raise JobError(
            f"run {name!r} was started with the script {script[0]!r}, which is not in {os.getcwd()}: "
            "continue it from the folder in which it was started"
        )
    spec, folder = RunSpec(**values), folder_of(run)
    if spec.folder.resolve() != folder.resolve():
        raise JobError(
            f"run {name!r} is in {folder}, but from here it would be looked for in {spec.folder}: "
            "continue it by its name, from the folder in which it was started"
        )
    return spec


def load_saved(run: str) -> Saved:
    """Read `run.json`; one in another format is refused."""
    path = folder_of(run) / "run.json"
    if not path.exists():
        raise JobError(f"there is no run {run!r}: expected {path}, which meshmend run writes in the folder it runs in")
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        format_, version = values.pop("format"), str(values.pop("version", "unknown"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, error) from None
    if isinstance(format_, int) and format_ != FORMAT:
        other = "an older" if format_ < FORMAT else "a newer"
        raise FormatError(
            f"{path} is in format {format_}, of {other} version of meshmend ({version}), and this version ({VERSION}) "
            f"reads format {FORMAT}: continue the run with the version that started it, or start a new run"
        )
    try:
        if format_ != FORMAT:
            raise ValueError(f"its format is {format_!r}, not {FORMAT}")
        values["hosts"] = [Host(**host) for host in values["hosts"]]
        if {field.name for field in fields(RunSpec)} != values.keys():
            raise ValueError("options are missing, or there are others")
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from None
    return Saved(version, values)


def _damaged(path: Path, error: Exception) -> FormatError:
    return FormatError(f"{path} is not what meshmend run writes ({error}): restore it, or start a new run")
