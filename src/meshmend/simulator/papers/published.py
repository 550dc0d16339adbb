"""What was published about steps on TPU-v3: Google's MLPerf logs, as `mlperf.json` has them, with their source.

Each run has its batch, its steps and the time of a step, all from its log. Two runs of each model calibrate it, and are
named in the file; the others are what predictions are compared with. A file without its source, or a model without two
sizes to calibrate on, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from meshmend.base.schema import checked, loads
from meshmend.errors import SimulateError
from meshmend.simulator.step.hardware import MACHINES, Machine, mesh_of
from meshmend.simulator.step.models import model
from meshmend.simulator.step.run import Evaluations
from meshmend.simulator.step.step import Setting

FILE = Path(__file__).with_name("mlperf.json")


@dataclass(frozen=True)
class Published:
    """One run, or the mean of several logs of it."""

    model: str
    chips: int
    software: str
    batch: int
    cores: int
    step_ms: float
    run_s: float
    every: int
    """Steps between two evaluations."""
    logs: int
    steps: int | None = None
    norm_span: int = 0

    @property
    def name(self) -> str:
        """Its size and software, which name it among the runs of its model."""
        return f"{self.chips} {self.software}"

    @property
    def step(self) -> float:
        """Seconds of a step, with its share of evaluation."""
        return self.step_ms / 1e3

    def setting(self, machine: Machine = MACHINES["tpu-v3"]) -> Setting:
        """How it was run: 2-D sums in bf16, the update sharded; rates are not known yet."""
        return Setting(
            model=model(self.model), mesh=mesh_of(self.chips), batch=self.batch, of_peak=1.0, machine=machine,
            algorithm="rowcol", shard_update=True, cores=self.cores, norm_span=self.norm_span,
        )  # fmt: skip


@dataclass(frozen=True)
class About:
    """What is known of all runs of a model."""

    evaluated: int
    """Examples of its evaluation set."""
    calibrated_on: list[str]


@dataclass(frozen=True)
class Logs:
    """The file."""

    source: str
    fields: dict[str, str]
    models: dict[str, About]
    runs: list[Published]

    def of(self, name: str) -> list[Published]:
        """The runs of a model."""
        return [run for run in self.runs if run.model == name]

    def run(self, name: str, which: str) -> Published:
        """One run of a model."""
        for run in self.of(name):
            if run.name == which:
                return run
        raise SimulateError(
            f"no run {which!r} of {name}: choose from {', '.join(run.name for run in self.of(name)) or 'none'}"
        )

    def calibrating(self, name: str) -> tuple[Published, Published]:
        """The two runs that calibrate a model."""
        one, other = (self.run(name, which) for which in self.models[name].calibrated_on)
        return one, other

    def evaluations(self, run: Published) -> Evaluations:
        """How a run evaluates."""
        return Evaluations(self.models[run.model].evaluated, run.every)


def read(text: str) -> Logs:
    """The file's text, checked."""
    data: Any = loads(text)
    logs = checked(Logs, data)
    for problem in _problems(logs):
        raise SimulateError(problem)
    return logs


def _problems(logs: Logs) -> Iterator[str]:
    if not logs.source.strip():
        yield "published times without their source: say where they come from"
    for name, about in logs.models.items():
        sizes = {logs.run(name, which).chips for which in about.calibrated_on}
        if len(about.calibrated_on) != 2 or len(sizes) != 2:
            found = ", ".join(about.calibrated_on) or "nothing"
            yield f"{name} is calibrated on {found}: give two runs of different sizes"
    for run in logs.runs:
        if run.model not in logs.models:
            yield f"a run of {run.model}, of which nothing else is said: give its evaluation set and what calibrates it"


@cache
def published() -> Logs:
    """The logs that come with meshmend."""
    return read(FILE.read_text())
