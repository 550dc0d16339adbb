"""The costs that README lists, each as a range over frameworks and sizes, from one command.

    python benchmarks/costs.py [--quick] [--frameworks numpy,torch,jax] [--sizes 25,100]

Every line is measured as `steps.py`, `recovery.py` and `rejoin.py` do it, which say how: this one runs their cases for
each framework and prints, beside the range of the medians, the median of each case and the load of the machine
meanwhile. A case that fails ends it; nothing is left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import recovery
import rejoin
import steps

from meshmend import report
from meshmend.base.terminal import notes
from meshmend.report import Incident

WORKERS = (2, 4)


@dataclass
class Cost:
    """A line of the table."""

    what: str
    unit: str
    cases: dict[str, float] = field(default_factory=dict)
    """Medians, by framework and size."""

    def add(self, case: str, values: list[float]) -> None:
        """One more case, if anything was measured."""
        if values:
            self.cases[case] = statistics.median(values)
            print(f"  {self.what}, {case}: {self.cases[case]:.2f} {self.unit}", flush=True)

    def text(self) -> str:
        """The range, and what it consists of."""
        each = ", ".join(f"{case} {value:.2f}" for case, value in self.cases.items())
        least, most = min(self.cases.values()), max(self.cases.values())
        span = f"{least:.2f} to {most:.2f}" if len(self.cases) > 1 else f"{least:.2f}"
        return f"{self.what}: {span} {self.unit} ({each})"


@dataclass(frozen=True)
class Chosen:
    """What to measure."""

    frameworks: list[str]
    sizes: list[int]
    turns: int
    failures: int
    kills: int


def step_costs(chosen: Chosen) -> Iterator[Cost]:
    """A step beside the same loop with a bare MPI_Allreduce."""
    for kind in ("float", "exact"):
        cost = Cost(f"a step, {kind} sums", "times bare MPI")
        for framework in chosen.frameworks:
            for size in chosen.sizes:
                for workers in WORKERS:
                    (base, _), (runs, _) = steps.turns_of(["one", kind], framework, size, workers, chosen.turns)
                    ratios = [float(np.median(r[:, 0]) / np.median(b[:, 0])) for r, b in zip(runs, base, strict=True)]
                    cost.add(f"{framework} {size} MB {workers} workers", ratios)
        yield cost


def failure_costs(chosen: Chosen) -> Iterator[Cost]:
    """From a failure to the next committed step, and the step in which the replacement joins."""
    rows: dict[str, tuple[Cost, Callable[[Incident], float]]] = {
        "kill": (Cost("SIGKILL of a worker", "steps"), recovery.in_steps),
        "mpirun": (Cost("SIGKILL of mpirun", "s"), lambda one: one.total or 0.0),
        "hang": (Cost("SIGSTOP of a worker", "steps"), recovery.in_steps),
    }
    join = Cost("the step in which a replacement joins", "steps")
    for name, (cost, measure) in rows.items():
        for framework in chosen.frameworks:
            for size in chosen.sizes:
                case = replace(recovery.CASES[name], size=size)
                events = recovery.clean_run(case, chosen.failures, "float", framework)
                found = recovery.complete(report.incidents(events))
                cost.add(f"{framework} {size} MB", [measure(one) for one in found if not one.joins])
                if name == "kill":
                    join.add(f"{framework} {size} MB", [recovery.in_steps(one) for one in found if one.joins])
        yield cost
    yield join


def rejoin_costs(chosen: Chosen) -> Iterator[Cost]:
    """From a kill until the replacement has committed a step."""
    for warm, how in enumerate(("", " with --warm 1")):
        cost = Cost(f"a replacement counts{how}", "s after the kill")
        for framework in chosen.frameworks:
            with tempfile.TemporaryDirectory() as folder:
                cost.add(framework, rejoin.measure(framework, warm, chosen.kills, 2, Path(folder)))
        yield cost


def main() -> None:
    parser = argparse.ArgumentParser(description="The costs that README lists, as ranges over frameworks and sizes.")
    parser.add_argument("--quick", action="store_true", help="few turns and failures, to see that it runs")
    parser.add_argument("--frameworks", default="numpy,torch,jax")
    parser.add_argument("--sizes", default="25")
    given = parser.parse_args()
    few, sizes = given.quick, [int(size) for size in given.sizes.split(",")]
    chosen = Chosen(given.frameworks.split(","), sizes, 4 if few else 20, 2 if few else 6, 2 if few else 4)
    before = os.getloadavg()[0]
    costs = [*step_costs(chosen), *failure_costs(chosen), *rejoin_costs(chosen)]
    load = f"load of the machine: {before:.0f} before, {os.getloadavg()[0]:.0f} at the end; {os.cpu_count()} cores"
    print(notes(*(cost.text() for cost in costs), load))


if __name__ == "__main__":
    main()
