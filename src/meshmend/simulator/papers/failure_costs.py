"""What one failure costs with 4 to 32 workers: AlexNet and GoogLeNet, by policy.

The question of arXiv 1709.03316, which compares ULFM (shrink) with Reinit (restart) and checkpoints. Step times follow
from the shapes and a stated cluster; what repairing takes was measured on real processes (`recoveries.py` says what
follows under each policy). Cost is time beyond that of a run without the failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from meshmend.base.terminal import SILENT, Tell, notes, table
from meshmend.base.units import milliseconds as ms
from meshmend.base.units import percent
from meshmend.errors import SimulateError
from meshmend.simulator.papers.charts import draw_faults
from meshmend.simulator.papers.recoveries import (
    DISK,
    EXAMPLES,
    LANES,
    MEASURED,
    PARTS,
    RECOVERIES,
    REPAIRS,
    STARTS,
    Cost,
    Failure,
)
from meshmend.simulator.step.hardware import MACHINES, mesh_of
from meshmend.simulator.step.models import model
from meshmend.simulator.step.step import Setting, step

EVERY = 100
"""Steps between checkpoints."""
OF_PEAK = 0.5
STATE = 8
"""Bytes of state per parameter: weight and momentum in float32."""


@dataclass(frozen=True)
class Row:
    """One failure, under one policy; seconds."""

    model: str
    workers: int
    policy: str
    step: float
    sum: float
    """What of the step is communication."""
    cost: Cost


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
                model(row.model).title, row.policy, f"{row.workers}", ms(row.step), ms(row.sum), ms(row.cost.repair),
                ms(row.cost.state), ms(row.cost.reload), ms(row.cost.again), ms(row.cost.sum_again),
                ms(row.cost.total), f"{row.cost.total / row.step:.2f}",
                f"+{ms(row.cost.each_step)}" if row.cost.each_step else "",
            )
            for row in self.rows
        ]  # fmt: skip
        machine = MACHINES["cpu-cluster"]
        return "\n".join(
            [
                "What one failure costs (times in ms)",
                table(heads, cells, left=2),
                "",
                "Repairs with shrink and spare, as measured (ms)",
                table(("workers", *PARTS.values(), "in all"), map(_parts, REPAIRS)),
                notes(
                    f"{machine.about}; computing at {percent(OF_PEAK)} of the peak, input {machine.host_input / 1e9:g} "
                    f"GB/s per worker, checkpoints {DISK / 1e9:g} GB/s for all: assumptions",
                    f"{EXAMPLES} examples per worker in {LANES} lanes, gradients in float32 around a ring, a "
                    f"checkpoint every {self.every} steps",
                    f"repair is measured, not computed. Shrink and spare: {MEASURED['about_repairs']}",
                    f"restart and checkpoint: {MEASURED['about_starts']}",
                    "each step after: with shrink until the dead worker is replaced; with checkpoint, writing it",
                ),
            ]
        )

    def facts(self) -> dict[str, object]:
        """For programs."""
        starts = {name: {**asdict(line), "repair": line.repair} for name, line in STARTS.items()}
        repairs = {str(count): asdict(line) for count, line in REPAIRS.items()}
        rows = [{**_flat(row), "total": row.cost.total} for row in self.rows]
        measured = {"starts": starts, "repairs": repairs}
        return {"table": "mpi-faults", "every": self.every, "of_peak": OF_PEAK, "measured": measured, "rows": rows}

    def draw(self, path: str) -> None:
        """Cost over workers, a line per policy, a panel per model."""
        draw_faults(
            path,
            {
                model(name).title: {
                    policy: [
                        (row.workers, row.cost.total / row.step)
                        for row in self.rows
                        if (row.model, row.policy) == (name, policy)
                    ]
                    for policy in RECOVERIES
                }
                for name in dict.fromkeys(row.model for row in self.rows)
            },
        )


def _flat(row: Row) -> dict[str, object]:
    """A row whose cost is not a dictionary of its own."""
    values: dict[str, object] = asdict(row)
    del values["cost"]
    return values | asdict(row.cost)


def _parts(workers: int) -> tuple[str, ...]:
    repair = REPAIRS[workers]
    return (f"{workers}", *(ms(getattr(repair, part)) for part in PARTS), ms(repair.total))


def faults(
    models: Sequence[str] = ("alexnet", "googlenet"),
    workers: Sequence[int] = tuple(REPAIRS),
    every: int = EVERY,
    tell: Tell = SILENT,
) -> Faults:
    """Compute the table."""
    if every < 1:
        raise SimulateError(f"a checkpoint every {every} steps: expected at least 1")
    if min(workers) < 2:
        raise SimulateError(f"{min(workers)} workers: a failure needs at least 2, so that one survives")
    if unknown := sorted({*workers} - REPAIRS.keys()):
        known = ", ".join(map(str, REPAIRS))
        raise SimulateError(f"{unknown[0]} workers: repairs were measured with {known} workers; choose one of these")
    rows = []
    for name in models:
        for policy in RECOVERIES:
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
    failure = Failure(
        workers=workers, usual=usual, state=STATE * setting.model.params, every=every, link=machine.link.bandwidth,
        samples=EXAMPLES * setting.model.input_bytes / machine.host_input,
    )  # fmt: skip
    return Row(name, workers, policy, usual.total, usual.sum, RECOVERIES[policy].cost(failure))
