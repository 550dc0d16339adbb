"""The numbers that shapes do not tell, from as few published runs as can be; all other runs test them.

* Each model has two, its fixed time per step and its part of the peak, from its two calibrating runs.
* One number serves all: how long a collective inside a step takes to begin, from one run (`BEGIN`). It stands with the
  machine (`hardware.py`), and `begin` finds it again.
* Start-up is one law for all, from the two calibrating runs of ResNet-50.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from meshmend.base.terminal import Tell
from meshmend.errors import SimulateError
from meshmend.simulator.papers.published import Published, published
from meshmend.simulator.step.hardware import MACHINES, Machine
from meshmend.simulator.step.models import model
from meshmend.simulator.step.run import Line, Rates, calibrate, calibrate_rate, line

BEGIN = ("ssd", "2048 0.7 JAX")
"""The run that says how long a collective inside a step takes to begin: it has the most of them."""
STARTS = "resnet50"
"""The model whose two calibrating runs say how long a start takes."""


@dataclass(frozen=True)
class Start:
    """Seconds of a run before its first usual step."""

    once: float
    shared: float
    """Chip-seconds that are divided among the chips."""

    def on(self, chips: int) -> float:
        """So long it takes on so many chips."""
        return self.once + self.shared / chips


@cache
def line_of(run: Published, machine: Machine = MACHINES["tpu-v3"]) -> Line:
    """How the step of a published run depends on the rates of its model."""
    return line(run.setting(machine), published().evaluations(run))


def rates_on(runs: tuple[Published, Published], machine: Machine = MACHINES["tpu-v3"]) -> Rates:
    """A model's rates from two runs."""
    one, other = ((line_of(run, machine), run.step) for run in runs)
    return calibrate((one, other))


@cache
def calibrated(name: str) -> Rates:
    """A model's rates from the two runs that the file names."""
    return rates_on(published().calibrating(name))


def rates_of(models: Sequence[str], given: Mapping[str, Rates] | None, tell: Tell) -> dict[str, Rates]:
    """The rates of each model: as given, or else calibrated."""
    rates = {}
    for name in models:
        tell(f"calibrating {model(name).title}")
        rates[name] = given[name] if given else calibrated(name)
    return rates


def begin() -> float:
    """Seconds that a collective takes to begin: those at which the run `BEGIN` takes as long as published."""
    logs = published()
    run = logs.run(*BEGIN)

    def over(seconds: float) -> float:
        machine = replace(MACHINES["tpu-v3"], begin=seconds)
        rates = rates_on(logs.calibrating(run.model), machine)
        return line_of(run, machine).at(rates) - run.step

    none, some = over(0.0), over(1e-5)
    return -1e-5 * none / (some - none)


@cache
def start() -> Start:
    """The start-up of a run: what two runs took beyond their steps."""
    one, other = ((run.chips, run.run_s - (run.steps or 0) * run.step) for run in published().calibrating(STARTS))
    shared = (one[1] - other[1]) / (1 / one[0] - 1 / other[0])
    return Start(one[1] - shared / one[0], shared)


def worst_errors(name: str) -> list[float]:
    """The worst error of the other sizes, for each two with one core per replica that can calibrate: least first."""
    runs = {run.name: (run, line_of(run)) for run in published().of(name)}
    plain = {run.chips: run for run, _ in runs.values() if run.cores == 1}
    found = []
    for pair in combinations(plain.values(), 2):
        if len({run.setting().examples for run in pair}) == 1:
            continue
        try:
            rates = rates_on(pair)
        except SimulateError:
            continue
        sizes = {run.chips for run in pair}
        errors = [abs(at.at(rates) / run.step - 1) for run, at in runs.values() if run.chips not in sizes]
        found += [max(errors)] if errors else []
    return sorted(found)


def by_rate_alone(name: str) -> Iterator[tuple[Published, Published, float]]:
    """For a model of two sizes: one calibrates the rate alone, and the error on the other."""
    one, other = published().calibrating(name)
    for known, asked in ((one, other), (other, one)):
        rates = calibrate_rate((line_of(known), known.step))
        yield known, asked, line_of(asked).at(rates) / asked.step - 1
