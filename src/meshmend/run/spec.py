"""What was asked for: the options of a run, kept in its folder so that it can be attached to and resumed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from meshmend.errors import FormatError, JobError
from meshmend.mesh import Mesh
from meshmend.mesh.choose import plan
from meshmend.run.hosts.hosts import HERE, Host
from meshmend.telemetry import FORMAT, check_format, folder_of, unwritable

POLICIES = ("replace", "spare", "shrink", "restart", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A run's options."""

    run: str
    script: Sequence[str]
    workers: int
    """How many should be active."""
    least: int = 1
    """With fewer than these, the run is halted with a checkpoint."""
    spares: int = 0
    on_failure: str = "replace"
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
        self._check_script(self.script[0])
        if self.workers < 1 or self.spares < 0:
            raise JobError(f"{self.workers} workers and {self.spares} spares: at least 1 worker is needed")
        if not 1 <= self.least <= self.workers:
            raise JobError(f"at least {self.least} of {self.workers} workers were asked for: give 1 to {self.workers}")
        if self.on_failure not in POLICIES:
            raise JobError(f"--on-failure {self.on_failure}: choose from {', '.join(POLICIES)}")
        if self.mesh:
            self._check_mesh()
        if self.on_failure == "spare" and not self.spares:
            raise JobError("--on-failure spare needs --spares 1 or more")
        if not all(c.isalnum() or c in "._-" for c in self.run) or not self.run or self.run.startswith("-"):
            raise JobError(f"--name {self.run!r}: use letters, digits, dots, dashes and underscores")

    @staticmethod
    def _check_script(script: str) -> None:
        if re.fullmatch(r"python[\d.]*", os.path.basename(script)):
            raise JobError(f"{script!r} is no script: leave it out, meshmend run -n 4 train.py starts Python itself")
        if not os.path.exists(script):
            raise JobError(f"there is no script {script!r}")
        if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
            raise JobError(f"{script!r} is a folder without a __main__.py: give a script, such as train.py")

    def _check_mesh(self) -> None:
        mesh = Mesh.parse(self.mesh)
        mesh.require_connected()
        if len(mesh.live) != self.workers:
            raise JobError(
                f"--mesh {mesh} has {len(mesh.live)} live chips, for {self.workers} workers: give -n {len(mesh.live)}"
            )
        if self.spares:
            raise JobError(f"--mesh and --spares {self.spares}: a spare has no place on a mesh, leave one of them out")
        plan(mesh, algorithm=self.algorithm)

    @property
    def folder(self) -> Path:
        """Where the run keeps its files."""
        return folder_of(self.run).absolute()

    @property
    def ranks(self) -> int:
        """Workers and spares."""
        return self.workers + self.spares

    @property
    def places(self) -> Sequence[Host]:
        """The hosts, with room for the workers."""
        return self.hosts or (Host(HERE, self.workers),)

    def save(self) -> None:
        """Write `run.json`."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "run.json.new").write_text(text)
            os.replace(self.folder / "run.json.new", self.folder / "run.json")
        except OSError as error:
            raise unwritable(self.folder / "run.json", error) from None


def begun(run: str) -> bool:
    """Whether there is a run of that name, or in that folder."""
    return (folder_of(run) / "run.json").exists()


def script_of(run: str) -> list[str]:
    """The script that a run was begun with, and its arguments."""
    return list(_saved(run)["script"])


def load_spec(run: str, **changes: Any) -> RunSpec:
    """Read a run's options back, and take these in the place of some."""
    values = {**_saved(run), **changes}
    name, script = values["run"], values["script"]
    if "script" not in changes and not os.path.exists(script[0]):
        raise JobError(
            f"run {name!r} was begun with the script {script[0]!r}, which is not in {os.getcwd()}: "
            "go on with it from the folder in which it was begun"
        )
    order, folder = RunSpec(**values), folder_of(run)
    if order.folder.resolve() != folder.resolve():
        raise JobError(
            f"run {name!r} lies in {folder}, but from here it would be sought in {order.folder}: "
            "go on with it by its name, from the folder in which it was begun"
        )
    return order


def _saved(run: str) -> dict[str, Any]:
    """The values of an order as `save` has written them."""
    path = folder_of(run) / "run.json"
    if not path.exists():
        raise JobError(f"there is no run {run!r}: expected {path}, which meshmend run writes in the folder it runs in")
    check_format(path.parent)
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        if values.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        values["hosts"] = [Host(**host) for host in values["hosts"]]
        if {field.name for field in fields(RunSpec)} != values.keys():
            raise ValueError("options are missing, or there are others")
        return values
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"{path} is not what meshmend run writes ({error})") from None
