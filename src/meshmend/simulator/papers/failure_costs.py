"""What one failure costs with 4 to 64 workers: AlexNet and GoogLeNet, by policy.

The question of arXiv 1709.03316, which compares ULFM (shrink) with Reinit (restart) and checkpoints. Step times follow
from the shapes and a stated cluster; what repairing takes is what this package measured on real processes (`MEASURED`,
the table of docs/guide.md), with 4 workers on one host: starting bigger jobs takes longer, so that restart and
checkpoint come out too well here. Cost is time beyond that of a run without the failure:

* **shrink**: repair, the dead worker's samples read and computed again by the others, lane by lane, and a sum again;
* **spare**: the same, but the spare gets the state from a survivor and computes the dead worker's lanes alone;
* **restart**: everyone re-initialises and repeats the step from memory; half of one was done on average;
* **checkpoint**: everything is started again, reads the checkpoint and repeats half an interval of steps on average.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meshmend.base.terminal import SILENT, Tell, notes, table
from meshmend.base.units import milliseconds as ms
from meshmend.base.units import percent
from meshmend.errors import SimulateError
from meshmend.simulator.papers.charts import draw_faults
from meshmend.simulator.step.hardware import MACHINES, mesh_of
from meshmend.simulator.step.models import model
from meshmend.simulator.step.step import Setting, Step, step

WORKERS = (4, 8, 16, 32, 64)
EXAMPLES, LANES = 64, 8
"""A worker's examples in a step, and the lanes that these are divided into."""
EVERY = 100
"""Steps between checkpoints."""
OF_PEAK = 0.5
DISK = 1e9
"""Bytes/s to and from the disk that all workers share."""
STATE = 8
"""Bytes of state per parameter: weight and momentum in float32."""


@dataclass(frozen=True)
class Measured:
    """A line of the table "What a failure costs" in docs/guide.md: medians of real runs, in seconds."""

    step: float
    total: float
    """From the kill to the next committed step."""
    again: float
    """Lanes computed again; for restart and checkpoint half a step, which is lost on average."""

    @property
    def repair(self) -> float:
        """What is left beyond an ordinary step and what was computed again."""
        return max(0.0, self.total - self.step - self.again)


def _measured() -> dict[str, Measured]:
    data = json.loads(Path(__file__).with_name("measured.json").read_text())
    # A restart or a checkpoint loses half a step on average; the other policies have what they computed again measured.
    return {
        name: Measured(line["step"], line["total"], line.get("again", line["step"] / 2))
        for name, line in data["policies"].items()
    }


MEASURED = _measured()
"""By policy, in the order of the table; measured.json says which command printed each."""


@dataclass(frozen=True)
class Row:
    """One failure, under one policy; seconds."""

    model: str
    workers: int
    policy: str
    step: float
    sum: float
    """What of the step is communication."""
    repair: float
    """Shrinking and agreeing, re-initialising or starting, as measured."""
    state: float
    """Weights and momentum, from a survivor or from disk."""
    reload: float
    """Samples read again."""
    again: float
    """Computed again, or repeated steps."""
    sum_again: float
    each_step: float
    """What every later step pays: fewer workers until one is replaced, or writing checkpoints."""

    @property
    def total(self) -> float:
        """What the failure costs in all, without `each_step`."""
        return self.repair + self.state + self.reload + self.again + self.sum_again


@dataclass(frozen=True)
class Faults:
    """The table."""

    rows: tuple[Row, ...]
    every: int

    def render(self) -> str:
        """As text."""
        heads = (
            "model", "policy", "workers", "step", "of it\nsum", "repair", "state", "data\nreload", "computed\nagain",
            "sum\nagain", "cost of\na failure", "in steps", "each step\nafter",
        )  # fmt: skip
        cells = [
            (
                model(row.model).title, row.policy, f"{row.workers}", ms(row.step), ms(row.sum), ms(row.repair),
                ms(row.state), ms(row.reload), ms(row.again), ms(row.sum_again), ms(row.total),
                f"{row.total / row.step:.2f}", f"+{ms(row.each_step)}" if row.each_step else "",
            )
            for row in self.rows
        ]  # fmt: skip
        machine = MACHINES["cpu-cluster"]
        return "\n".join(
            [
                "What one failure costs (times in ms)",
                table(heads, cells, left=2),
                notes(
                    f"{machine.about}; computing at {percent(OF_PEAK)} of the peak, input {machine.host_input / 1e9:g} "
                    f"GB/s a worker, checkpoints {DISK / 1e9:g} GB/s for all: assumptions",
                    f"{EXAMPLES} examples a worker in {LANES} lanes, gradients in float32 round a ring, a checkpoint "
                    f"every {self.every} steps",
                    "repair (shrink and agree; re-initialise; start) is measured, not computed: docs/guide.md, 4 "
                    "workers on one host. Here it does not grow with the workers, but starting a big job takes longer",
                    "each step after: with shrink until the dead worker is replaced; with checkpoint, writing it",
                ),
            ]
        )

    def facts(self) -> dict[str, object]:
        """For programs."""
        measured = {name: {**asdict(line), "repair": line.repair} for name, line in MEASURED.items()}
        rows = [{**asdict(row), "total": row.total} for row in self.rows]
        return {"table": "mpi-faults", "every": self.every, "of_peak": OF_PEAK, "measured": measured, "rows": rows}

    def draw(self, path: str) -> None:
        """Cost over workers, a line per policy, a panel per model."""
        draw_faults(
            path,
            {
                model(name).title: {
                    policy: [
                        (row.workers, row.total / row.step)
                        for row in self.rows
                        if (row.model, row.policy) == (name, policy)
                    ]
                    for policy in MEASURED
                }
                for name in dict.fromkeys(row.model for row in self.rows)
            },
        )


def faults(
    models: Sequence[str] = ("alexnet", "googlenet"),
    workers: Sequence[int] = WORKERS,
    every: int = EVERY,
    tell: Tell = SILENT,
) -> Faults:
    """Compute the table."""
    if every < 1:
        raise SimulateError(f"a checkpoint every {every} steps: at least 1 is needed")
    if min(workers) < 2:
        raise SimulateError(f"{min(workers)} workers: a failure needs at least 2, so that one is left")
    rows = []
    for name in models:
        for policy in MEASURED:
            tell(f"{model(name).title}, {policy}")
            rows += [_row(name, policy, count, every) for count in workers]
    return Faults(tuple(rows), every)


def _row(name: str, policy: str, workers: int, every: int) -> Row:
    machine = MACHINES["cpu-cluster"]
    setting = Setting(
        model=model(name), mesh=mesh_of(workers), batch=EXAMPLES * workers, of_peak=OF_PEAK, machine=machine,
        algorithm="ring", wire="float32",
    )  # fmt: skip
    usual = step(setting)
    state = STATE * setting.model.params
    samples = EXAMPLES * setting.model.input_bytes / machine.host_input
    share = 0.0
    moved, again, reload, sum_again = _costs(policy, usual, workers)
    if policy == "shrink":
        share = usual.compute / (workers - 1)
    if policy == "checkpoint":
        again += every / 2 * usual.total
        share = state / DISK / every
    rate = {"spare": 2 * machine.link.bandwidth, "checkpoint": DISK}.get(policy, math.inf)
    return Row(
        name, workers, policy, usual.total, usual.sum, MEASURED[policy].repair, moved * state / rate,
        reload * samples, again, sum_again, share,
    )  # fmt: skip


def _costs(policy: str, usual: Step, workers: int) -> tuple[float, float, float, float]:
    """States moved, seconds computed again, a worker's samples read again (by each), seconds of sums again."""
    if policy == "shrink":
        lanes = math.ceil(LANES / (workers - 1))
        return 0.0, lanes * usual.compute / LANES, lanes / LANES, usual.sum
    if policy == "spare":
        return 1.0, usual.compute, 1.0, usual.sum
    return (1.0 if policy == "checkpoint" else 0.0), usual.total / 2, 1.0, 0.0
